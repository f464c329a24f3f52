//! New weights, loaded beside the old ones while those go on working.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use rollout_kernels::{element::KvFormat, packed::Format, pages::PAGE};
use shared::{ModelConfig, PolicyVersion, WeightManifest};

use super::{
    EngineError, WeightSource,
    packed::{PackedOptions, PackedSession, PackedWeights, PanelMemory, page_shape},
    session::{GraphSession, SessionOptions, read_manifest},
};
use crate::trace::{self, Event};

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
                let weights = PackedWeights::load(source, config, manifest, format, spare, options.threads)?;
                let weights = Arc::new(weights);
                let options =
                    PackedOptions { session: options, pages: page_shape(config, 1, PAGE, KvFormat::Fp32), format };
                // The session of the probe goes before the weights are handed on.
                PackedSession::new(Arc::clone(&weights), config, options)?.probe(config)?;
                Ok(Loaded::Packed(Arc::into_inner(weights).expect("the probe has ended")))
            }
        }
    }
}

/// A version in the making on a side thread. Dropping it waits for the thread: at the end of the program, ONNX Runtime
/// must not be taken down under it.
pub(super) struct PendingSwap {
    pub version: PolicyVersion,
    pub begun: Instant,
    /// There until it is joined.
    thread: Option<JoinHandle<Result<Loaded, EngineError>>>,
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
            .spawn(move || {
                let begin = Instant::now();
                let loaded = loader.load(&source, &config, &manifest);
                trace::span(begin, Instant::now(), Event::LoadWeights { version: version.0 });
                loaded
            })
            .map_err(|e| EngineError::Swap { version, message: format!("no thread to load it on: {e}") })?;
        Ok(Self { version, begun: Instant::now(), thread: Some(thread) })
    }

    /// Whether [`PendingSwap::join`] returns without waiting.
    pub fn is_ready(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the version.
    pub fn join(mut self) -> Result<Loaded, EngineError> {
        let version = self.version;
        let thread = self.thread.take().expect("it is joined once");
        let result = thread.join().map_err(|_| "the loading thread panicked".to_owned());
        result
            .and_then(|loaded| loaded.map_err(|e| e.to_string()))
            .map_err(|message| EngineError::Swap { version, message })
    }
}

impl Drop for PendingSwap {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Nobody wants the version any more, nor what was wrong with it.
            let _ = thread.join();
        }
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

/// Gives sessions back to the system without holding up the caller: unmapping and freeing take milliseconds. Dropping it
/// waits for the last one, as with [`PendingSwap`].
#[derive(Default)]
pub(super) struct Retired(Option<JoinHandle<()>>);

impl Retired {
    /// Drops a session on a side thread.
    pub fn push(&mut self, session: GraphSession) {
        // The one before has had the time of a whole version.
        self.join();
        match thread::Builder::new().name("weight-retire".into()).spawn(move || drop(session)) {
            Ok(thread) => self.0 = Some(thread),
            Err(error) => tracing::warn!(%error, "no thread to free the old weights on; freed in place"),
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic while memory is freed has been reported by its thread and changes nothing here.
            let _ = thread.join();
        }
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        self.join();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use super::*;

    #[test]
    fn a_version_that_nobody_wants_any_more_is_waited_for() {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let version = PolicyVersion(1);
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            seen.store(true, Ordering::Relaxed);
            Err(EngineError::Swap { version, message: "of the test's own making".into() })
        });
        drop(PendingSwap { version, begun: Instant::now(), thread: Some(thread) });
        assert!(ended.load(Ordering::Relaxed));
    }
}
