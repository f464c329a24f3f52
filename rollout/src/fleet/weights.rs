//! Versions on their way into the store, and out of it.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, TryRecvError, bounded};
use shared::{
    ModelConfig, PolicyVersion, RunDir, WeightManifest,
    atomic::{self, named},
    channel::fleet::Edition,
};
use shared_store::{Fetched, Store, StoreError, Watch};

use crate::engine::{self, EngineError, WeightSource};

/// What the store calls the export that adapters are added to.
const BASE: &str = "base";
/// What the store calls configuration and tokenizer of the model.
pub(super) const MODEL: &str = "model";
/// How often a transfer that failed is tried again, and the pause before that, which doubles.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_secs(1);

/// What the store calls a version.
pub(crate) fn prefix(version: PolicyVersion) -> String {
    format!("v{:06}", version.0)
}

/// Ends a transfer when it is set.
#[derive(Debug, Clone, Default)]
pub(super) struct GiveUp(pub Arc<AtomicBool>);

impl Watch for GiveUp {
    fn give_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Carries versions of a run into the store.
pub struct Publisher {
    store: Arc<Store>,
    model: ModelConfig,
    conformity_gate: bool,
    publications: u64,
    /// Editions that the store has, oldest first.
    kept: VecDeque<Edition>,
    most_kept: usize,
    bytes: Arc<AtomicU64>,
    over: GiveUp,
}

/// A version on its way.
pub struct OnItsWay {
    /// Where it comes from.
    pub source: WeightSource,
    /// When it was begun.
    pub begun: Instant,
    result: Receiver<Result<Edition, EngineError>>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    /// A publisher that leaves `most_kept` versions in the store besides the newest one.
    #[must_use]
    pub fn new(store: Arc<Store>, model: ModelConfig, conformity_gate: bool, most_kept: usize) -> Self {
        Self {
            store,
            model,
            conformity_gate,
            publications: 0,
            kept: VecDeque::new(),
            most_kept,
            bytes: Arc::default(),
            over: GiveUp::default(),
        }
    }

    /// Begins to check and to publish a version, on a side thread.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn begin(&mut self, source: WeightSource) -> io::Result<OnItsWay> {
        self.publications += 1;
        let (publication, begun) = (self.publications, Instant::now());
        let (done, result) = bounded(1);
        let (store, model, gate) = (Arc::clone(&self.store), self.model.clone(), self.conformity_gate);
        let (from, over, bytes) = (source.clone(), self.over.clone(), Arc::clone(&self.bytes));
        let job = move || {
            let carried = carry(&store, &model, gate, &from, publication, &over);
            let _ = done.send(carried.map(|(edition, sent)| {
                bytes.fetch_add(sent, Ordering::Relaxed);
                edition
            }));
        };
        let thread = thread::Builder::new().name("publish".into()).spawn(job)?;
        Ok(OnItsWay { source, begun, result, thread: Some(thread) })
    }

    /// An edition was announced: the oldest go, as far as no worker of `in_use` samples from them.
    pub fn keep(&mut self, edition: Edition, in_use: &[Edition]) {
        self.kept.retain(|known| known.blake3 != edition.blake3);
        self.kept.push_back(edition);
        while self.kept.len() > self.most_kept + 1 {
            let is_free = |known: &Edition| !in_use.iter().any(|used| used.blake3 == known.blake3);
            // Those in use go last, but they go: a worker that has mapped one has no need of the store.
            let at = self.kept.iter().take(self.kept.len() - 1).position(is_free).unwrap_or(0);
            let Some(gone) = self.kept.remove(at) else { return };
            if let Err(error) = self.store.remove(&prefix(gone.version), &gone.blake3, &()) {
                tracing::warn!("v{} stays in the store: {error}", gone.version);
            }
        }
    }

    /// Versions that the store has.
    #[must_use]
    pub fn versions(&self) -> usize {
        self.kept.len()
    }

    /// Bytes sent so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.over.0.store(true, Ordering::Relaxed);
    }
}

impl OnItsWay {
    /// The edition, once it is in the store.
    ///
    /// # Errors
    /// Weights that are not the learner's, or a store that does not take them.
    pub fn try_join(&mut self) -> Option<Result<Edition, EngineError>> {
        let result = match self.result.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                let message = "the thread that publishes it has ended".into();
                Err(EngineError::Swap { version: self.source.version, message })
            }
        };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        Some(result)
    }
}

/// Checks a version and carries it into the store; with the bytes that were sent.
fn carry(
    store: &Store,
    model: &ModelConfig,
    conformity_gate: bool,
    source: &WeightSource,
    publication: u64,
    over: &GiveUp,
) -> Result<(Edition, u64), EngineError> {
    let manifest = engine::examine(source, model, conformity_gate)?;
    let version = source.version;
    let failed = |error: StoreError| EngineError::Swap { version, message: error.to_string() };
    let mut sent = 0;
    let base = manifest.adapter.as_ref().map(|adapter| {
        let published = again(over, || store.publish(BASE, &adapter.base, over))?;
        sent += published.bytes;
        Ok(published.blake3)
    });
    let base = base.transpose().map_err(failed)?;
    let published = again(over, || store.publish(&prefix(version), &source.dir, over)).map_err(failed)?;
    tracing::info!("weights v{version} are in the store: {} bytes in {:.2} s", published.bytes, published.seconds);
    Ok((Edition { version, publication, blake3: published.blake3, base }, sent + published.bytes))
}

/// Tries until it works, a bounded number of times: a store may be full or away for a moment.
fn again<T>(over: &GiveUp, mut what: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        let error = match what() {
            Err(error) if !over.give_up() => error,
            done => return done,
        };
        tracing::warn!("the store is tried again in {} s: {error}", pause.as_secs());
        let until = Instant::now() + pause;
        while Instant::now() < until && !over.give_up() {
            thread::sleep(Duration::from_millis(50));
        }
        pause *= 2;
    }
    what()
}

/// What came from the store.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Came {
    /// Bytes.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

impl From<Fetched> for Came {
    fn from(fetched: Fetched) -> Self {
        Self { bytes: fetched.bytes, seconds: fetched.seconds }
    }
}

/// Fetches an edition to where a run directory has that version, with the export that it is added to, if it is an adapter.
/// Whole or not at all. What is there of another edition of the version is replaced.
///
/// # Errors
/// Those of the store, or of the file system as a store's.
pub(super) fn fetch(store: &Store, edition: &Edition, run_dir: &RunDir, watch: &dyn Watch) -> Result<Came, FetchError> {
    let target = run_dir.version(edition.version);
    let Some(base) = &edition.base else {
        return Ok(Came::from(store.fetch(&prefix(edition.version), &edition.blake3, &target, watch)?));
    };
    let export = run_dir.root().join(format!("{BASE}-{}", blake3::Hash::from_bytes(*base).to_hex()));
    let mut came = if export.is_dir() { Came::default() } else { Came::from(store.fetch(BASE, base, &export, watch)?) };
    let aside = run_dir.root().join(format!("adapter-{}", edition.version.0));
    let adapter = store.fetch(&prefix(edition.version), &edition.blake3, &aside, watch)?;
    came.bytes += adapter.bytes;
    came.seconds += adapter.seconds;
    lead_to(&export, &aside)?;
    atomic::place_dir(&aside, &target)?;
    Ok(came)
}

/// Writes into the manifest of an adapter where the export is that it is added to.
fn lead_to(export: &Path, dir: &Path) -> io::Result<()> {
    let path = dir.join(shared::manifest::MANIFEST_FILE);
    let mut manifest: WeightManifest = serde_json::from_slice(&fs::read(&path).map_err(named(&path))?)?;
    if let Some(adapter) = &mut manifest.adapter {
        adapter.base = export.to_path_buf();
    }
    atomic::write(&path, &serde_json::to_vec_pretty(&manifest)?)
}

/// Why an edition did not come.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This side's disk.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Removes the versions of a folder but these.
pub(super) fn keep_only(run_dir: &RunDir, kept: &[PolicyVersion]) {
    let versions = run_dir.versions().unwrap_or_default();
    for version in versions.into_iter().filter(|version| !kept.contains(version)) {
        remove(&run_dir.version(version));
    }
}

fn remove(path: &PathBuf) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("{}: {error}", path.display());
    }
}
