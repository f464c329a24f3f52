//! The way of a version into the store.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, TryRecvError, bounded};
use rollout::engine::{self, EngineError, WeightSource};
use rollout_rounded::{RoundedError, difference, round};
use shared::{
    ModelConfig, PolicyVersion, RunDir, WeightManifest, WeightSender,
    channel::{
        fleet::{Difference, Edition},
        incarnation,
    },
    config::RolloutDtype,
    files::atomic::named,
    model::manifest::MANIFEST_FILE,
};
use shared_store::{Held, Published, Store, StoreError, Watch};

use super::{BASE, GiveUp, prefix, prefix_of_difference, record::Record, remove};

/// How often a transfer that failed is tried again, and the pause before that, which doubles.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_secs(1);
/// Differences to an edition at most: as many as there are versions that workers sample from at a time.
const MOST_DIFFERENCES: usize = 2;
/// How often an edition is sent again that somebody damages in the store.
const MOST_REPAIRS: u32 = 3;

/// How versions are sent.
pub struct Sending {
    /// Where they lie for workers.
    pub store: Arc<Store>,
    /// Nothing is sent: workers read versions where the learner leaves them.
    pub versions_stay: bool,
    /// The model that they are of.
    pub model: ModelConfig,
    /// Whether they are looked at before.
    pub conformity_gate: bool,
    /// What they are rounded to, if they are.
    pub rounded: Option<RolloutDtype>,
    /// Where they lie rounded as long as the store has them.
    pub rounded_dir: PathBuf,
}

/// Carries versions of a run into the store.
pub struct Publisher {
    sending: Arc<Sending>,
    publications: u64,
    record: Record,
    most_kept: usize,
    bytes: Arc<AtomicU64>,
    trouble: Trouble,
    /// What was begun last, with how often it was sent again.
    newest: Option<(WeightSource, u32)>,
    /// Shared with every transfer for as long as it runs.
    running: Arc<()>,
    over: GiveUp,
}

/// What an edition is published from.
pub struct Received {
    /// The version, as the learner has left it.
    pub source: WeightSource,
    /// What workers have in use: a shorter way is published from each of these.
    pub in_use: Vec<Edition>,
}

/// What is in the way of a version, for as long as it is.
#[derive(Clone, Default)]
pub struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    fn is(&self, now: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// What it is now.
    #[must_use]
    pub fn now(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
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
    /// A publisher that leaves `most_kept` versions in the store besides the newest one, and takes over what one before
    /// it has left there.
    ///
    /// # Errors
    /// A record of that which cannot be read.
    pub fn open(sending: Sending, run_dir: &RunDir, most_kept: usize) -> io::Result<Self> {
        let record = Record::open(run_dir.editions())?;
        let (bytes, trouble, over) = (Arc::default(), Trouble::default(), GiveUp::default());
        // No number of a coordinator before this one comes again: workers remember what they refused.
        let publications = incarnation() >> 1;
        Ok(Self {
            sending: Arc::new(sending),
            publications,
            record,
            most_kept,
            bytes,
            trouble,
            newest: None,
            running: Arc::default(),
            over,
        })
    }

    /// Begins to publish the newest version once more, of which the store has something else by now. Nothing if that
    /// has been of no use several times.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn repair(&mut self, damaged: Edition) -> io::Result<Option<OnItsWay>> {
        let Some((source, repairs)) = &mut self.newest else { return Ok(None) };
        if *repairs >= MOST_REPAIRS {
            return Ok(None);
        }
        *repairs += 1;
        let source = source.clone();
        self.send(source, Vec::new(), Some(damaged)).map(Some)
    }

    fn send(&mut self, source: WeightSource, in_use: Vec<Edition>, damaged: Option<Edition>) -> io::Result<OnItsWay> {
        if !self.sending.versions_stay {
            self.record.begin(source.version);
            if let Err(error) = self.write_record() {
                tracing::warn!("should the run be killed now, a part of a version stays in the store: {error}");
            }
        }
        self.publications += 1;
        let (publication, begun) = (self.publications, Instant::now());
        let (done, result) = bounded(1);
        let (sending, over, bytes) = (Arc::clone(&self.sending), self.over.clone(), Arc::clone(&self.bytes));
        let (from, trouble, running) = (source.clone(), self.trouble.clone(), Arc::clone(&self.running));
        let job = move || {
            if let Some(damaged) = damaged {
                sending.remove(&damaged);
                damaged.base.iter().for_each(|base| sending.remove_object(BASE, base));
            }
            let journey = Journey { sending: &sending, over: &over, bytes: &bytes, trouble: &trouble };
            let _ = done.send(journey.carry(&from, publication, &in_use));
            drop(running);
        };
        let thread = thread::Builder::new().name("publish".into()).spawn(job)?;
        Ok(OnItsWay { source, begun, result, thread: Some(thread) })
    }

    /// Removes what was sent of versions that were never announced, because the coordinator was killed or the learner
    /// began anew, unless something is still being sent.
    fn clear_away(&mut self) {
        if self.record.begun().is_empty() || Arc::strong_count(&self.running) > 1 {
            return;
        }
        match self.sending.remove_begun(&self.record) {
            Ok(()) => self.record.forget_begun(),
            Err(error) => tracing::warn!("versions that were not announced stay in the store: {error}"),
        }
    }

    fn write_record(&self) -> io::Result<()> {
        self.record.write().map_err(named(self.record.path()))
    }

    /// Versions that the store has.
    #[must_use]
    pub fn versions(&self) -> usize {
        self.record.editions().len()
    }

    /// What is in the way of what is sent.
    #[must_use]
    pub fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }

    /// Bytes sent so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl WeightSender for Publisher {
    type Weights<'a> = Received;
    type Version = Edition;
    type Published = OnItsWay;
    type Error = io::Error;

    /// Begins to check and to publish a version, on a side thread, with the way to it from what workers have in use.
    ///
    /// # Errors
    /// When there can be no thread.
    fn publish(&mut self, Received { source, in_use }: Received) -> io::Result<OnItsWay> {
        self.newest = Some((source.clone(), 0));
        self.send(source, in_use, None)
    }

    /// An edition was announced: of those in the store, the oldest go, as far as no worker of `in_use` samples from
    /// them, and all that an earlier coordinator has left there if versions are not sent any more. What was sent and
    /// never announced goes, too.
    ///
    /// # Errors
    /// When the next coordinator cannot be told what the store has.
    fn let_go(&mut self, newest: Edition, in_use: &[Edition]) -> io::Result<()> {
        let most = match self.sending.versions_stay {
            true if self.versions() == 0 && self.record.begun().is_empty() => return Ok(()),
            true => 0,
            false => {
                self.record.note(newest);
                self.most_kept + 1
            }
        };
        while let Some(gone) = self.record.take_oldest(most, in_use) {
            self.sending.remove(&gone);
            remove(&self.sending.rounded_at(&gone));
        }
        self.clear_away();
        self.write_record()
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

impl Sending {
    /// Removes what the store has of an edition. The export that adapters are added to stays: others are, too.
    fn remove(&self, edition: &Edition) {
        for known in &edition.differences {
            self.remove_object(&prefix_of_difference(known.from, edition.version), &known.blake3);
        }
        self.remove_object(&prefix(edition.version), &edition.blake3);
    }

    fn remove_object(&self, prefix: &str, blake3: &[u8; 32]) {
        if let Err(error) = self.store.remove(prefix, blake3, &()) {
            tracing::warn!("{prefix} stays in the store: {error}");
        }
    }

    /// Removes what store and host have of versions that were begun to be sent, but for the editions of the record.
    /// The export that adapters are added to stays.
    fn remove_begun(&self, record: &Record) -> Result<(), StoreError> {
        let is_begun = |name: &str| record.begun().iter().any(|version| is_of(name, *version));
        let is_known = |held: &Held| record.editions().any(|edition| is_part(held, edition));
        for held in self.store.list(&())?.iter().filter(|held| is_begun(&held.prefix) && !is_known(held)) {
            self.store.remove_held(held, &())?;
            tracing::warn!("{} was not announced, and is removed from the store", held.prefix);
        }
        let kept: Vec<PathBuf> = record.editions().map(|edition| self.rounded_at(edition)).collect();
        let rounded = fs::read_dir(&self.rounded_dir).into_iter().flatten().flatten();
        let begun = rounded.filter(|entry| entry.file_name().to_str().is_some_and(is_begun));
        begun.map(|entry| entry.path()).filter(|path| !kept.contains(path)).for_each(|path| remove(&path));
        Ok(())
    }

    /// Where an edition lies rounded on this host.
    fn rounded_at(&self, edition: &Edition) -> PathBuf {
        let hash8 = &blake3::Hash::from_bytes(edition.blake3).to_hex()[..8];
        self.rounded_dir.join(format!("{}-{hash8}", prefix(edition.version)))
    }
}

/// Whether a name is that of a version, or begins with it, as that of a difference to it does.
fn is_of(name: &str, version: PolicyVersion) -> bool {
    name.strip_prefix(&prefix(version)).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Whether a folder of the store is an edition, or a difference to it.
fn is_part(held: &Held, edition: &Edition) -> bool {
    let is_difference = |known: &Difference| held.is(&prefix_of_difference(known.from, edition.version), &known.blake3);
    held.is(&prefix(edition.version), &edition.blake3) || edition.differences.iter().any(is_difference)
}

/// A version on its way, on the thread that carries it.
struct Journey<'a> {
    sending: &'a Sending,
    over: &'a GiveUp,
    bytes: &'a AtomicU64,
    trouble: &'a Trouble,
}

impl Journey<'_> {
    /// Checks a version and carries it into the store.
    fn carry(&self, source: &WeightSource, publication: u64, in_use: &[Edition]) -> Result<Edition, EngineError> {
        let manifest = engine::examine(source, &self.sending.model, self.sending.conformity_gate)?;
        let version = source.version;
        let carried = self.carry_examined(source, &manifest, publication, in_use);
        carried.map_err(|error| match error {
            SendError::Store(error) => EngineError::Unsent { version, reason: error.to_string() },
            other => EngineError::Swap { version, message: other.to_string() },
        })
    }

    fn carry_examined(
        &self,
        source: &WeightSource,
        manifest: &WeightManifest,
        publication: u64,
        in_use: &[Edition],
    ) -> Result<Edition, SendError> {
        let version = source.version;
        let plain = |blake3, base| {
            let (rounded, differences) = (false, Vec::new());
            Edition { version, publication, blake3, base, rounded, differences }
        };
        if self.sending.versions_stay {
            let manifest = fs::read(source.dir.join(MANIFEST_FILE))?;
            return Ok(plain(blake3::hash(&manifest).into(), None));
        }
        if let Some(adapter) = &manifest.adapter {
            let base = self.publish(BASE, &adapter.base)?;
            return Ok(plain(self.publish(&prefix(version), &source.dir)?.blake3, Some(base.blake3)));
        }
        match self.sending.rounded {
            None => Ok(plain(self.publish(&prefix(version), &source.dir)?.blake3, None)),
            Some(dtype) => {
                let edition = |blake3| Edition { rounded: true, ..plain(blake3, None) };
                self.carry_rounded(source, dtype, edition, in_use)
            }
        }
    }

    fn carry_rounded(
        &self,
        source: &WeightSource,
        dtype: RolloutDtype,
        edition: impl FnOnce([u8; 32]) -> Edition,
        in_use: &[Edition],
    ) -> Result<Edition, SendError> {
        let begun = Instant::now();
        fs::create_dir_all(&self.sending.rounded_dir)?;
        let fresh = self.sending.rounded_dir.join(prefix(source.version));
        let size = round(&source.dir, dtype, &fresh)?.packed;
        let seconds = begun.elapsed().as_secs_f64();
        tracing::debug!("weights v{} rounded to {size} bytes in {seconds:.2} s", source.version);
        let mut edition = edition(self.publish(&prefix(source.version), &fresh)?.blake3);
        let place = self.sending.rounded_at(&edition);
        remove(&place);
        fs::rename(&fresh, &place)?;
        let mut from: Vec<&Edition> = in_use.iter().filter(|used| used.blake3 != edition.blake3).collect();
        from.sort_by_key(|used| std::cmp::Reverse(used.version));
        from.dedup_by_key(|used| used.blake3);
        from.retain(|used| used.rounded && self.sending.rounded_at(used).is_dir());
        for used in from.into_iter().take(MOST_DIFFERENCES) {
            match self.send_difference(used, &edition, size) {
                Ok(Some(difference)) => edition.differences.push(difference),
                Ok(None) => (),
                Err(error) if self.over.give_up() => return Err(error),
                Err(error) => tracing::warn!("v{} goes without a difference: {error}", source.version),
            }
        }
        Ok(edition)
    }

    /// Publishes the difference between two editions where that is less than the newer one, of `whole` bytes.
    fn send_difference(&self, from: &Edition, to: &Edition, whole: u64) -> Result<Option<Difference>, SendError> {
        let prefix = prefix_of_difference(from.version, to.version);
        let place = self.sending.rounded_dir.join(&prefix);
        let size = difference(&self.sending.rounded_at(to), &self.sending.rounded_at(from), &place)?.packed;
        // A tenth is not worth the second way.
        let published = (size * 10 < whole * 9).then(|| self.publish(&prefix, &place));
        remove(&place);
        let leads = |published: Published| Difference {
            from: from.version,
            from_blake3: from.blake3,
            blake3: published.blake3,
        };
        Ok(published.transpose()?.map(leads))
    }

    fn publish(&self, prefix: &str, dir: &Path) -> Result<Published, StoreError> {
        let published = again(self.over, self.trouble, || self.sending.store.publish(prefix, dir, self.over))?;
        self.bytes.fetch_add(published.bytes, Ordering::Relaxed);
        tracing::info!("{prefix} is in the store: {} bytes in {:.2} s", published.bytes, published.seconds);
        Ok(published)
    }
}

/// Why a version did not get into the store.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Rounded(#[from] RoundedError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Tries until it works, a bounded number of times: a store may be full or away for a moment.
fn again<T>(
    over: &GiveUp,
    trouble: &Trouble,
    mut what: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        let error = match what() {
            Err(error) if !over.give_up() => error,
            done => {
                trouble.is(None);
                return done;
            }
        };
        tracing::warn!("the store is tried again in {} s: {error}", pause.as_secs());
        trouble.is(Some(error.to_string()));
        let until = Instant::now() + pause;
        while Instant::now() < until && !over.give_up() {
            thread::sleep(Duration::from_millis(50));
        }
        pause *= 2;
    }
    what()
}

#[cfg(test)]
mod tests {
    use harness::tiny_model::{self, SMALL};
    use shared::ModelDir;

    use super::*;

    /// A run directory with a model, and a store.
    struct Place {
        run_dir: RunDir,
        model: ModelConfig,
        store: Arc<Store>,
        _folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let model = folder.path().join("model");
            SMALL.write(&model, 5);
            tiny_model::write_tokenizer(&model);
            let model = ModelDir::open(&model).unwrap().config().clone();
            let run_dir = RunDir::new(folder.path());
            let store = Arc::new(Store::open(&run_dir.store().display().to_string()).unwrap());
            Self { run_dir, model, store, _folder: folder }
        }

        /// A publisher of a coordinator that begins.
        fn publisher(&self, versions_stay: bool) -> Publisher {
            let sending = Sending {
                store: Arc::clone(&self.store),
                versions_stay,
                model: self.model.clone(),
                conformity_gate: false,
                rounded: None,
                rounded_dir: self.run_dir.rounded(),
            };
            Publisher::open(sending, &self.run_dir, 2).unwrap()
        }

        /// Puts something into the store, and returns its hash.
        fn put(&self, prefix: &str, content: &str) -> [u8; 32] {
            let file = self.run_dir.root().join("content");
            fs::write(&file, content).unwrap();
            self.store.publish_files(prefix, &[file], &()).unwrap().blake3
        }

        /// What the store has: prefix and hash.
        fn held(&self) -> Vec<(String, String)> {
            let held = self.store.list(&()).unwrap().into_iter();
            let mut held: Vec<_> = held.map(|held| (held.prefix, held.hash8)).collect();
            held.sort();
            held
        }
    }

    fn edition(version: u64, blake3: [u8; 32]) -> Edition {
        let (version, publication) = (PolicyVersion(version), version);
        Edition { version, publication, blake3, base: None, rounded: false, differences: Vec::new() }
    }

    fn object(prefix: &str, blake3: [u8; 32]) -> (String, String) {
        (prefix.to_owned(), blake3::Hash::from_bytes(blake3).to_hex()[..8].to_owned())
    }

    #[test]
    fn what_a_killed_coordinator_has_sent_and_not_announced_goes_with_the_next_announcement() {
        let place = Place::new();
        let known = place.put("v000003", "known");
        let mut record = Record::open(place.run_dir.editions()).unwrap();
        record.note(edition(3, known));
        record.begin(PolicyVersion(4));
        record.write().unwrap();
        place.put("v000004", "not announced");
        place.put("v000004-from-v000003", "a difference to it");
        let (base, other) = (place.put("base", "of adapters"), place.put("v0000041", "of another version"));
        let rounded = place.run_dir.rounded();
        let [left, kept] = ["v000004-00112233", "v0000041"].map(|name| rounded.join(name));
        [&left, &kept].into_iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let mut publisher = place.publisher(false);
        publisher.record.begin(PolicyVersion(4));
        let again = place.put("v000004", "made again");
        let under_way = Arc::clone(&publisher.running);
        publisher.let_go(edition(4, again), &[]).unwrap();
        assert_eq!(place.held().len(), 6, "something is still being sent");
        drop(under_way);
        publisher.record.begin(PolicyVersion(5));
        let next = place.put("v000005", "the next one");
        publisher.let_go(edition(5, next), &[]).unwrap();
        let stays = [("base", base), ("v000003", known), ("v000004", again), ("v0000041", other), ("v000005", next)];
        assert_eq!(place.held(), stays.map(|(prefix, blake3)| object(prefix, blake3)));
        assert!(!left.exists() && kept.exists());
        let record = Record::open(place.run_dir.editions()).unwrap();
        assert!(record.begun().is_empty() && record.editions().len() == 3);
    }

    #[test]
    fn what_is_left_goes_when_versions_are_not_sent_any_more() {
        let place = Place::new();
        let mut record = Record::open(place.run_dir.editions()).unwrap();
        record.begin(PolicyVersion(4));
        record.write().unwrap();
        place.put("v000004", "not announced");
        place.publisher(true).let_go(edition(5, [5; 32]), &[]).unwrap();
        assert!(place.held().is_empty());
    }

    #[test]
    fn a_version_is_noted_down_before_it_is_sent() {
        let place = Place::new();
        let source = WeightSource { dir: place.run_dir.root().join("missing"), version: PolicyVersion(7) };
        for (versions_stay, begun) in [(true, Vec::new()), (false, vec![PolicyVersion(7)])] {
            let mut publisher = place.publisher(versions_stay);
            let mut way = publisher.publish(Received { source: source.clone(), in_use: Vec::new() }).unwrap();
            assert_eq!(Record::open(place.run_dir.editions()).unwrap().begun(), begun);
            let result = loop {
                if let Some(result) = way.try_join() {
                    break result;
                }
                thread::sleep(Duration::from_millis(5));
            };
            assert!(result.is_err(), "there is no such version");
            assert_eq!(Arc::strong_count(&publisher.running), 1);
        }
    }
}
