//! New weights, loaded beside the old ones while those go on working.

use std::{
    thread::{self, JoinHandle},
    time::Instant,
};

use shared::{ModelConfig, PolicyVersion};

use super::{
    EngineError, WeightSource,
    session::{GraphSession, SessionOptions, read_manifest},
};

/// A session in the making on a side thread.
pub(super) struct PendingSwap {
    pub version: PolicyVersion,
    pub begun: Instant,
    thread: JoinHandle<Result<GraphSession, EngineError>>,
}

impl PendingSwap {
    /// Starts loading. The folder is checked at once; the rest is reported by [`PendingSwap::join`].
    pub fn begin(source: WeightSource, config: &ModelConfig, options: SessionOptions) -> Result<Self, EngineError> {
        let version = source.version;
        let manifest = read_manifest(&source, config)?;
        if manifest.version != version {
            let message = format!("{} holds v{}", source.dir.display(), manifest.version);
            return Err(EngineError::Swap { version, message });
        }
        let config = config.clone();
        let load = move || {
            let mut session = GraphSession::open(&source, &config, options)?;
            session.probe(&config)?;
            Ok(session)
        };
        let thread = thread::Builder::new()
            .name("weight-swap".into())
            .spawn(load)
            .map_err(|e| EngineError::Swap { version, message: format!("no thread to load it on: {e}") })?;
        Ok(Self { version, begun: Instant::now(), thread })
    }

    /// Whether [`PendingSwap::join`] returns without waiting.
    pub fn is_ready(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the session.
    pub fn join(self) -> Result<GraphSession, EngineError> {
        let version = self.version;
        let result = self.thread.join().map_err(|_| "the loading thread panicked".to_owned());
        result
            .and_then(|loaded| loaded.map_err(|e| e.to_string()))
            .map_err(|message| EngineError::Swap { version, message })
    }
}

/// Gives a session back to the system without holding up the caller: unmapping and freeing take milliseconds.
pub(super) fn retire(session: GraphSession) {
    let dropped = thread::Builder::new().name("weight-retire".into()).spawn(move || drop(session));
    if let Err(error) = dropped {
        tracing::warn!(%error, "no thread to free the old weights on; freed in place");
    }
}
