//! The thread that fetches editions, one at a time, the newest that is wanted.

use std::{
    sync::atomic::Ordering,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use shared::{
    RunDir,
    channel::fleet::{Edition, Unfetched},
};

use crate::weights::{self, Came, FetchError, GiveUp, Have, Origin};

/// Pause before an edition is tried again that did not come.
const PAUSE: Duration = Duration::from_secs(1);

/// Fetches what is wanted.
pub struct Fetcher {
    origin: Origin,
    run_dir: RunDir,
    under_way: Option<UnderWay>,
    /// The last that has come.
    here: Option<Edition>,
    /// Why the wanted one is not.
    unfetched: Option<Unfetched>,
    not_before: Instant,
}

struct UnderWay {
    edition: Edition,
    give_up: GiveUp,
    thread: JoinHandle<Result<Came, FetchError>>,
}

impl Fetcher {
    /// A fetcher that puts versions where `run_dir` has them.
    #[must_use]
    pub fn new(origin: Origin, run_dir: RunDir) -> Self {
        Self { origin, run_dir, under_way: None, here: None, unfetched: None, not_before: Instant::now() }
    }

    /// The last edition that has come.
    #[must_use]
    pub fn here(&self) -> Option<&Edition> {
        self.here.as_ref()
    }

    /// Whether an edition that could not be opened is not here any more: where workers read what the learner leaves,
    /// that removes and replaces versions as it goes on. It is then fetched again.
    pub fn has_lost(&mut self, edition: &Edition) -> bool {
        let Origin::Learner(learner) = &self.origin else { return false };
        // What goes does so file by file.
        thread::sleep(PAUSE);
        let lost = weights::look_in_place(learner, edition).is_err();
        self.here.take_if(|_| lost);
        lost
    }

    /// Why the wanted edition has not come, since it was tried for the first time, or has come by a longer way.
    #[must_use]
    pub fn unfetched(&self) -> Option<&Unfetched> {
        self.unfetched.as_ref()
    }

    /// One look: begins to fetch `wanted` if it is not here, by the difference to `in_use` if there is one, or takes
    /// note of what has come, and says what that took. `busy` tells of a version that is being read and must not be
    /// replaced.
    ///
    /// # Errors
    /// When there can be no thread, and when there is no room for it on this host.
    pub fn look(
        &mut self,
        wanted: Option<&Edition>,
        in_use: Option<&Edition>,
        busy: bool,
    ) -> anyhow::Result<Option<Came>> {
        if let Some(under_way) = &self.under_way
            && Some(&under_way.edition) != wanted
        {
            under_way.give_up.0.store(true, Ordering::Relaxed);
        }
        if let Some(UnderWay { edition, thread, .. }) =
            self.under_way.take_if(|under_way| under_way.thread.is_finished())
        {
            match thread.join() {
                Ok(Ok(came)) => {
                    let publication = edition.publication;
                    self.here = Some(edition);
                    let told = |reason| Unfetched {
                        publication,
                        is_damage: false,
                        reason: format!("fetched whole: {reason}"),
                    };
                    self.unfetched = came.detour.clone().map(told);
                    return Ok(Some(came));
                }
                // What keeps others from working on this host as well is not tried again and again.
                Ok(Err(error)) if error.is_full() => {
                    let place = format!("weights v{}, --cache {}", edition.version, self.run_dir.root().display());
                    return Err(anyhow::Error::new(error).context(place));
                }
                Ok(Err(error)) if Some(&edition) == wanted => {
                    tracing::warn!("weights v{} have not come, they are tried again: {error}", edition.version);
                    let (publication, is_damage) = (edition.publication, error.is_damage());
                    self.unfetched = Some(Unfetched { publication, is_damage, reason: error.to_string() });
                }
                Ok(Err(_)) => (),
                Err(_) => anyhow::bail!("the thread that fetches weights has panicked"),
            }
            self.not_before = Instant::now() + PAUSE;
        }
        let Some(wanted) = wanted.filter(|wanted| Some(*wanted) != self.here.as_ref()) else { return Ok(None) };
        if self.under_way.is_some() || busy || Instant::now() < self.not_before {
            return Ok(None);
        }
        if let Some(here) = self.here.as_ref().filter(|here| here.has_bytes_of(wanted)) {
            // Published again with the same bytes.
            debug_assert_eq!(here.version, wanted.version);
            self.here = Some(wanted.clone());
            return Ok(Some(Came::default()));
        }
        let have = in_use.map(|in_use| Have { edition: in_use.clone(), dir: self.run_dir.version(in_use.version) });
        self.begin(wanted.clone(), have).map(|()| None)
    }

    fn begin(&mut self, edition: Edition, have: Option<Have>) -> anyhow::Result<()> {
        let give_up = GiveUp::default();
        let (origin, run_dir, watch, what) =
            (self.origin.clone(), self.run_dir.clone(), give_up.clone(), edition.clone());
        self.unfetched.take_if(|what| what.publication != edition.publication);
        weights::forget_others(&run_dir, edition.version);
        let job = move || weights::fetch(&origin, &what, have.as_ref(), &run_dir, &watch);
        let thread = thread::Builder::new().name("fetch".into()).spawn(job)?;
        self.under_way = Some(UnderWay { edition, give_up, thread });
        Ok(())
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            under_way.give_up.0.store(true, Ordering::Relaxed);
            let _ = under_way.thread.join();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use shared::{PolicyVersion, model::manifest::MANIFEST_FILE};

    use super::*;

    /// The edition of a version whose folder in the run has this manifest and nothing else.
    pub fn published(run: &RunDir, version: PolicyVersion, publication: u64, manifest: &str) -> Edition {
        fs::create_dir_all(run.version(version)).unwrap();
        fs::write(run.version(version).join(MANIFEST_FILE), manifest).unwrap();
        let (blake3, differences) = (blake3::hash(manifest.as_bytes()).into(), Vec::new());
        Edition { version, publication, blake3, base: None, rounded: false, differences }
    }

    #[test]
    fn a_version_that_the_learner_has_replaced_is_lost_and_fetched_again() {
        let (run, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (learner, own) = (RunDir::new(run.path()), RunDir::new(scratch.path()));
        let version = PolicyVersion(1);
        let publish = |publication, manifest: &str| published(&learner, version, publication, manifest);
        let mut fetcher = Fetcher::new(Origin::Learner(learner.clone()), own.clone());
        let come = |fetcher: &mut Fetcher, edition: &Edition| {
            while fetcher.look(Some(edition), None, false).unwrap().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(fetcher.here(), Some(edition));
        };
        let first = publish(1, "one");
        come(&mut fetcher, &first);
        assert!(!fetcher.has_lost(&first) && fetcher.here().is_some());
        let second = publish(2, "two");
        assert!(fetcher.has_lost(&first) && fetcher.here().is_none());
        come(&mut fetcher, &second);
        assert_eq!(fs::read(own.version(version).join(MANIFEST_FILE)).unwrap(), b"two");
        fs::remove_dir_all(learner.version(version)).unwrap();
        assert!(fetcher.has_lost(&second));
        assert!(fetcher.look(Some(&second), None, false).unwrap().is_none());
        while fetcher.unfetched().is_none() {
            assert!(fetcher.look(Some(&second), None, false).unwrap().is_none());
        }
        assert!(fetcher.unfetched().unwrap().reason.contains("needs a `weights_store`"));
    }
}
