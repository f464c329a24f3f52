//! New weights, loaded beside the old ones while those go on working.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use shared::{ModelConfig, PolicyVersion, WeightManifest};

use super::{EngineError, WeightSource, session::read_manifest};
use crate::trace::{self, Event};

/// Loads and checks a version and leaves it where the backend finds it, on its [`Shelf`]; returns the time that the
/// gate took.
pub(super) type LoadJob = Box<dyn FnOnce() -> Result<Duration, EngineError> + Send>;

/// Where the thread that loads a version leaves it for the backend.
pub(super) struct Shelf<T>(Arc<Mutex<Option<T>>>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Send + 'static> Shelf<T> {
    /// The job that puts here what `load` makes, which also says how long the gate took.
    pub fn to_fill(&self, load: impl FnOnce() -> Result<(T, Duration), EngineError> + Send + 'static) -> LoadJob {
        let shelf = Self(Arc::clone(&self.0));
        Box::new(move || {
            let (loaded, gate) = load()?;
            *shelf.lock() = Some(loaded);
            Ok(gate)
        })
    }

    /// Whether a job will still fill it, or has.
    pub fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1 || self.lock().is_some()
    }

    /// What the job has left.
    pub fn take(&mut self) -> T {
        self.lock().take().expect("a version is installed once it was loaded")
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that is waited for even when nobody wants what it does any more: at the end of the program, ONNX Runtime
/// must not be taken down under it.
struct Joined<T>(Option<JoinHandle<T>>);

impl<T> Drop for Joined<T> {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // Nobody asks any more how it ended; a panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// A version in the making on a side thread.
pub(super) struct PendingSwap {
    pub version: PolicyVersion,
    pub begun: Instant,
    thread: Joined<Result<Duration, EngineError>>,
}

impl PendingSwap {
    /// Starts to load; what goes wrong is reported by [`PendingSwap::join`].
    pub fn begin(version: PolicyVersion, load: LoadJob) -> Result<Self, EngineError> {
        let thread = thread::Builder::new()
            .name("weight-swap".into())
            .spawn(move || {
                let begin = Instant::now();
                let loaded = load();
                trace::span(begin, Instant::now(), Event::LoadWeights { version: version.0 });
                loaded
            })
            .map_err(|e| EngineError::Swap { version, message: format!("no thread to load it on: {e}") })?;
        Ok(Self { version, begun: Instant::now(), thread: Joined(Some(thread)) })
    }

    /// Whether [`PendingSwap::join`] returns without waiting.
    pub fn is_ready(&self) -> bool {
        self.thread.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the version is on its [`Shelf`]; returns the time that the gate took.
    pub fn join(mut self) -> Result<Duration, EngineError> {
        let version = self.version;
        let failed = |message: String| EngineError::Swap { version, message };
        let thread = self.thread.0.take().expect("it is joined once");
        let result = thread.join().unwrap_or_else(|_| Err(failed("the loading thread panicked".into())));
        result.map_err(|error| if error.refusal().is_some() { error } else { failed(error.to_string()) })
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

/// Gives sessions back to the system without holding up the caller: unmapping and freeing take milliseconds.
#[derive(Default)]
pub(super) struct Retired(Option<Joined<()>>);

impl Retired {
    /// Drops a session on a side thread.
    pub fn push(&mut self, session: impl Send + 'static) {
        // Waits for the one before, which has had the time of a whole version.
        self.0 = None;
        match thread::Builder::new().name("weight-retire".into()).spawn(move || drop(session)) {
            Ok(thread) => self.0 = Some(Joined(Some(thread))),
            Err(error) => tracing::warn!(%error, "no thread to free the old weights on; freed in place"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

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
        drop(PendingSwap { version, begun: Instant::now(), thread: Joined(Some(thread)) });
        assert!(ended.load(Ordering::Relaxed));
    }

    #[test]
    fn a_shelf_is_awaited_until_its_version_is_taken_or_could_not_be_loaded() {
        let mut shelf = Shelf::default();
        assert!(!shelf.is_awaited());
        let job = shelf.to_fill(|| Ok((5, Duration::ZERO)));
        assert!(shelf.is_awaited(), "being loaded");
        job().unwrap();
        assert!(shelf.is_awaited(), "loaded and not yet taken");
        assert_eq!((shelf.take(), shelf.is_awaited()), (5, false));
        let message = || "of the test's own making".to_owned();
        let job = shelf.to_fill(move || Err(EngineError::Options(message())));
        assert!(job().is_err() && !shelf.is_awaited());
    }
}
