//! The editions that a worker is to sample from, on their way to this host.

use std::time::Instant;

use shared::{
    PolicyVersion, RunDir, WeightReceiver,
    channel::{
        Refusal,
        fleet::Edition,
        weights::{Publication, SwapReport, WeightSource},
    },
};

use super::{Client, fetcher::Fetcher};
use crate::weights::{Origin, keep_only};

/// Receives from the store, or from the run directory where the learner is on this host. What becomes of an edition
/// goes into the worker's report.
pub struct EditionReceiver<'a> {
    client: &'a Client,
    fetcher: Fetcher,
    /// Where versions are put.
    run_dir: RunDir,
    /// What the coordinator wants to be sampled from.
    wanted: Option<Edition>,
    /// Since when the coordinator wants it.
    wanted_since: Instant,
    /// What is being loaded.
    taking: Option<Edition>,
    /// What is sampled from.
    in_use: Option<Edition>,
    /// What the engine does not take, until it takes something.
    refusal: Option<Refusal>,
}

impl<'a> EditionReceiver<'a> {
    /// A receiver that puts versions where `run_dir` has them, and is to bring `wanted` first.
    #[must_use]
    pub fn new(client: &'a Client, origin: Origin, run_dir: RunDir, wanted: Option<Edition>) -> Self {
        Self {
            client,
            fetcher: Fetcher::new(origin, run_dir.clone()),
            run_dir,
            wanted,
            wanted_since: Instant::now(),
            taking: None,
            in_use: None,
            refusal: None,
        }
    }

    /// The coordinator says what it wants.
    pub fn want(&mut self, edition: Option<Edition>) {
        if edition != self.wanted {
            (self.wanted, self.wanted_since) = (edition, Instant::now());
        }
    }

    /// Whether what is wanted has not come.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.fetcher.here() != self.wanted.as_ref()
    }

    /// Whether the edition that was offered is not here any more; it is then fetched again.
    pub fn has_lost(&mut self) -> bool {
        self.fetcher.here().cloned().is_some_and(|here| self.fetcher.has_lost(&here))
    }

    /// New tokens are sampled from this edition now, and the one before is not needed any more.
    fn goes_over_to(&mut self, edition: Edition) {
        if self.in_use.replace(edition.clone()).is_some() {
            // Another one may have come while this one was being loaded, or be on its way.
            let others = self.fetcher.here().into_iter().chain(&self.wanted);
            let kept: Vec<PolicyVersion> = others.chain([&edition]).map(|edition| edition.version).collect();
            keep_only(&self.run_dir, &kept);
        }
        let (refusal, swap_s) = (self.refusal.clone(), self.wanted_since.elapsed().as_secs_f64());
        self.client.report(|report| {
            report.edition = Some(edition);
            report.refusal = refusal;
            report.work.swap_s = swap_s;
        });
    }
}

impl WeightReceiver for EditionReceiver<'_> {
    type Error = anyhow::Error;

    /// Begins to fetch what is wanted and not here, by the difference to what is in use if there is one.
    ///
    /// # Errors
    /// When there can be no thread, and when there is no room on this host.
    fn newest(&mut self) -> anyhow::Result<Option<Publication>> {
        let came = self.fetcher.look(self.wanted.as_ref(), self.in_use.as_ref(), self.taking.is_some())?;
        let unfetched = self.fetcher.unfetched().cloned();
        self.client.update(|report| {
            if let Some(came) = came {
                report.work.fetched_bytes += came.bytes;
                report.work.fetch_s += came.seconds;
            }
            report.unfetched = unfetched;
        });
        let Some(here) = self.fetcher.here().cloned() else { return Ok(None) };
        let of_number = self.in_use.as_ref().filter(|used| used.version == here.version);
        let replaces = of_number.is_some_and(|used| !used.has_bytes_of(&here));
        // The same bytes, published once more: there is nothing to load.
        let is_there = of_number.is_some_and(|used| used.has_bytes_of(&here) && *used != here);
        if is_there && self.taking.is_none() {
            self.goes_over_to(here.clone());
        }
        let source = WeightSource { dir: self.run_dir.version(here.version), version: here.version };
        Ok(Some(Publication { source, number: here.publication, is_last: false, replaces }))
    }

    fn taking(&mut self, _: &Publication, _: PolicyVersion) {
        self.taking = self.fetcher.here().cloned();
    }

    fn taken(&mut self, _: &SwapReport) {
        let taken = self.taking.take().or_else(|| self.fetcher.here().cloned());
        let edition = taken.expect("a version is offered before it is taken");
        self.refusal = None;
        self.goes_over_to(edition);
    }

    fn refused(&mut self, refusal: Refusal) {
        self.taking = None;
        self.refusal = Some(refusal.clone());
        self.client.update(|report| report.refusal = Some(refusal));
    }

    fn failed(&mut self) {
        self.taking = None;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        thread,
        time::Duration,
    };

    use shared::channel::{
        ChannelError,
        fleet::{Orders, Report, WorkerEnd},
    };

    use super::{
        super::{WorkerOptions, fetcher::tests::published},
        *,
    };

    /// A coordinator that listens and wants nothing.
    struct Listener(Arc<Mutex<Report>>);

    impl WorkerEnd for Listener {
        fn exchange(&mut self, report: &Report, _: Duration) -> Result<Orders, ChannelError> {
            *self.0.lock().unwrap() = report.clone();
            Ok(Orders::default())
        }

        fn listen(&mut self, timeout: Duration) -> bool {
            thread::sleep(timeout);
            false
        }
    }

    /// Longer than anything here takes.
    const STUCK: Duration = Duration::from_secs(60);

    /// Waits until an edition is offered.
    fn offered(weights: &mut EditionReceiver<'_>, edition: &Edition) -> Publication {
        let begun = Instant::now();
        loop {
            match weights.newest().unwrap() {
                Some(publication) if publication.number == edition.publication => return publication,
                _ => thread::sleep(Duration::from_millis(1)),
            }
            assert!(begun.elapsed() < STUCK, "the edition is not offered");
        }
    }

    /// Waits until the coordinator has heard something.
    fn heard(report: &Mutex<Report>, what: impl Fn(&Report) -> bool) {
        let begun = Instant::now();
        while !what(&report.lock().unwrap()) {
            assert!(begun.elapsed() < STUCK, "the coordinator does not hear of it");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_coordinator_hears_what_becomes_of_an_edition_and_the_same_bytes_are_not_loaded_again() {
        let (run, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (learner, own) = (RunDir::new(run.path()), RunDir::new(scratch.path()));
        let version = PolicyVersion(1);
        let publish = |publication, manifest: &str| published(&learner, version, publication, manifest);
        let is_here = |version| own.version(version).exists();
        let options = WorkerOptions {
            name: "of the test".into(),
            store: None,
            cache: scratch.path().to_path_buf(),
            threads: None,
            max_num_seqs: None,
            kernels: None,
            device: None,
            reward_dir: None,
            retry_for: STUCK,
            tokens_per_second: None,
        };
        let report = Arc::new(Mutex::new(Report::default()));
        let client = Client::start(Listener(Arc::clone(&report)), 1, &options).unwrap();
        let swap = SwapReport::of_first(version);

        let first = publish(1, "one");
        let mut weights =
            EditionReceiver::new(&client, Origin::Learner(learner.clone()), own.clone(), Some(first.clone()));
        let publication = offered(&mut weights, &first);
        assert_eq!(publication.source, WeightSource { dir: own.version(version), version });
        assert!(!publication.replaces && weights.in_use.is_none());
        weights.taken(&swap);
        assert_eq!(weights.in_use.as_ref(), Some(&first));
        heard(&report, |report| report.edition.as_ref() == Some(&first));

        let again = publish(2, "one");
        weights.want(Some(again.clone()));
        assert!(weights.is_behind());
        assert!(!offered(&mut weights, &again).replaces);
        heard(&report, |report| report.edition.as_ref() == Some(&again));

        let other = publish(3, "two");
        weights.want(Some(other.clone()));
        let publication = offered(&mut weights, &other);
        assert!(publication.replaces && !weights.is_behind());
        weights.taking(&publication, version);
        weights.refused(Refusal { version, publication: 3, reason: "a hash".into() });
        let is_refused = |report: &Report| report.refusal.as_ref().is_some_and(|refusal| refusal.publication == 3);
        heard(&report, |report| is_refused(report) && report.edition.as_ref() == Some(&again));
        weights.taking(&publication, version);
        weights.taken(&swap);
        heard(&report, |report| report.refusal.is_none() && report.edition.as_ref() == Some(&other));
        assert!(!offered(&mut weights, &other).replaces, "it is in use");

        // Published once more while the second version is being loaded: what was begun is what is in use then.
        let second = published(&learner, PolicyVersion(2), 4, "three");
        weights.want(Some(second.clone()));
        let publication = offered(&mut weights, &second);
        weights.taking(&publication, version);
        assert!(is_here(version), "it is sampled from until the swap");
        weights.fetcher.look(Some(&Edition { publication: 5, ..second.clone() }), None, false).unwrap();
        weights.taken(&SwapReport::of_first(PolicyVersion(2)));
        assert_eq!(weights.in_use, Some(second));
        assert!(is_here(PolicyVersion(2)) && !is_here(version), "nothing reads the first version any more");
    }
}
