//! New weights, loaded beside the old ones while those go on working.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use shared::{ModelConfig, PolicyVersion, WeightManifest};

use super::{
    EngineError, WeightSource,
    packed::{PackedOptions, PackedSession, PackedWeights, PanelMemory, page_shape},
    session::{GraphSession, SessionOptions, read_manifest},
};
use crate::kernels::{element::KvFormat, packed::Format, pages::PAGE, parallel::Scoped};

/// How a version is loaded.
pub(super) enum Loader {
    /// As a session of its own.
    Stock(SessionOptions),
    /// As packed weights, in memory that is there already.
    Packed(SessionOptions, Format, Option<PanelMemory>),
}

/// A version that has passed its probe.
pub(super) enum Loaded {
    Stock(Box<GraphSession>),
    Packed(PackedWeights),
}

impl Loader {
    fn load(
        self,
        source: &WeightSource,
        config: &ModelConfig,
        manifest: &WeightManifest,
    ) -> Result<Loaded, EngineError> {
        match self {
            Self::Stock(options) => {
                let mut session = GraphSession::open(source, config, options)?;
                session.probe(config)?;
                Ok(Loaded::Stock(Box::new(session)))
            }
            Self::Packed(options, format, spare) => {
                let threads = Scoped(options.threads);
                let weights = Arc::new(PackedWeights::load(source, config, manifest, format, spare, &threads)?);
                let options =
                    PackedOptions { session: options, pages: page_shape(config, 1, PAGE, KvFormat::Float), format };
                // The session of the probe goes before the weights are handed on.
                PackedSession::new(Arc::clone(&weights), config, options)?.probe(config)?;
                Ok(Loaded::Packed(Arc::into_inner(weights).expect("the probe has ended")))
            }
        }
    }
}

/// A version in the making on a side thread.
pub(super) struct PendingSwap {
    pub version: PolicyVersion,
    pub begun: Instant,
    thread: JoinHandle<Result<Loaded, EngineError>>,
}

impl PendingSwap {
    /// Starts loading `source`, whose manifest was read; what goes wrong is reported by [`PendingSwap::join`].
    pub fn begin(
        source: WeightSource,
        manifest: WeightManifest,
        config: &ModelConfig,
        loader: Loader,
    ) -> Result<Self, EngineError> {
        let version = source.version;
        let config = config.clone();
        let thread = thread::Builder::new()
            .name("weight-swap".into())
            .spawn(move || loader.load(&source, &config, &manifest))
            .map_err(|e| EngineError::Swap { version, message: format!("no thread to load it on: {e}") })?;
        Ok(Self { version, begun: Instant::now(), thread })
    }

    /// Whether [`PendingSwap::join`] returns without waiting.
    pub fn is_ready(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the version.
    pub fn join(self) -> Result<Loaded, EngineError> {
        let version = self.version;
        let result = self.thread.join().map_err(|_| "the loading thread panicked".to_owned());
        result
            .and_then(|loaded| loaded.map_err(|e| e.to_string()))
            .map_err(|message| EngineError::Swap { version, message })
    }
}

/// Reads the manifest of a folder and checks that it holds the wanted version.
pub(super) fn manifest_of(source: &WeightSource, config: &ModelConfig) -> Result<WeightManifest, EngineError> {
    let manifest = read_manifest(source, config)?;
    if manifest.version != source.version {
        let message = format!("{} holds v{}", source.dir.display(), manifest.version);
        return Err(EngineError::Swap { version: source.version, message });
    }
    Ok(manifest)
}

/// Gives a session back to the system without holding up the caller: unmapping and freeing take milliseconds.
pub(super) fn retire(session: GraphSession) {
    let dropped = thread::Builder::new().name("weight-retire".into()).spawn(move || drop(session));
    if let Err(error) = dropped {
        tracing::warn!(%error, "no thread to free the old weights on; freed in place");
    }
}
