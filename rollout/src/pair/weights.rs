//! The versions that the learner of this host leaves in the run directory, on disk or in shared memory.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use shared::{
    PolicyVersion, RunDir, WeightReceiver,
    channel::{
        LearnerStatus, Refusal, SamplerStatus,
        weights::{Publication, SwapReport, WeightSource},
    },
};

/// Receives from the run directory: nothing is fetched, because a version is whole as soon as the learner's status
/// names it. What becomes of a version goes into the sampler's status, and the learner removes what is in no use.
pub struct DirectoryReceiver {
    run_dir: RunDir,
    newest: Publication,
    status: Arc<Mutex<SamplerStatus>>,
}

impl DirectoryReceiver {
    /// A receiver of the versions in a run directory. `status` is what is repeated to the learner.
    #[must_use]
    pub fn new(run_dir: RunDir, learner: &LearnerStatus, status: Arc<Mutex<SamplerStatus>>) -> Self {
        let newest = publication(&run_dir, learner);
        Self { run_dir, newest, status }
    }

    /// The learner says where it stands.
    pub fn hear(&mut self, learner: &LearnerStatus) {
        self.newest = publication(&self.run_dir, learner);
    }

    /// What the learner has published last.
    #[must_use]
    pub fn published(&self) -> &Publication {
        &self.newest
    }

    fn status(&self) -> MutexGuard<'_, SamplerStatus> {
        self.status.lock().expect("no holder of the lock panics")
    }
}

impl WeightReceiver for DirectoryReceiver {
    type Error = Infallible;

    fn newest(&mut self) -> Result<Option<Publication>, Infallible> {
        Ok(Some(self.newest.clone()))
    }

    fn taking(&mut self, publication: &Publication, in_use: PolicyVersion) {
        self.status().oldest_in_use = publication.source.version.min(in_use);
    }

    fn taken(&mut self, report: &SwapReport) {
        let mut status = self.status();
        status.version = report.version;
        status.oldest_in_use = report.version;
        status.swap_micros = micros(report.seconds);
        status.swap_stall_micros = micros(report.stall_seconds);
        status.gate_micros = micros(report.gate_seconds);
        status.refusal = None;
    }

    fn refused(&mut self, refusal: Refusal) {
        self.status().refusal = Some(refusal);
    }

    /// The learner need not know: it keeps the newest version, which is tried again.
    fn failed(&mut self) {}
}

/// A learner that makes versions again says so of all after one, and the step loop has more than weights to forget
/// then. So no single version is said to replace another here.
fn publication(run_dir: &RunDir, learner: &LearnerStatus) -> Publication {
    let version = learner.version;
    let source = WeightSource { dir: run_dir.version(version), version };
    Publication { source, number: learner.publication, is_last: learner.finished, replaces: false }
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learner_hears_what_becomes_of_its_versions_and_what_is_in_use() {
        let status = Arc::new(Mutex::new(SamplerStatus::default()));
        let mut learner = LearnerStatus { version: PolicyVersion(3), ..LearnerStatus::default() };
        let mut weights = DirectoryReceiver::new(RunDir::new("/nowhere"), &learner, Arc::clone(&status));
        let said = || status.lock().unwrap().clone();
        weights.taken(&SwapReport::of_first(PolicyVersion(3)));
        assert_eq!((said().version, said().oldest_in_use), (PolicyVersion(3), PolicyVersion(3)));

        (learner.version, learner.publication) = (PolicyVersion(4), 7);
        weights.hear(&learner);
        let offered = weights.newest().unwrap().unwrap();
        assert_eq!(offered.source.dir, RunDir::new("/nowhere").version(PolicyVersion(4)));
        assert!(&offered == weights.published() && !offered.is_last);
        weights.taking(&offered, PolicyVersion(3));
        assert_eq!((said().version, said().oldest_in_use), (PolicyVersion(3), PolicyVersion(3)));
        let refusal = Refusal { version: PolicyVersion(4), publication: 7, reason: "a hash".into() };
        assert!(offered.is_refused_by(&refusal));
        weights.refused(refusal.clone());
        assert_eq!(said().refusal, Some(refusal.clone()));

        (learner.publication, learner.finished) = (8, true);
        weights.hear(&learner);
        let offered = weights.newest().unwrap().unwrap();
        assert!(offered.is_last && !offered.is_refused_by(&refusal), "it was published again");
        weights.taking(&offered, PolicyVersion(3));
        let report = SwapReport { version: PolicyVersion(4), seconds: 0.5, stall_seconds: 0.25, gate_seconds: 0.125 };
        weights.taken(&report);
        let now = said();
        assert_eq!((now.version, now.oldest_in_use, now.refusal), (PolicyVersion(4), PolicyVersion(4), None));
        assert_eq!((now.swap_micros, now.swap_stall_micros, now.gate_micros), (500_000, 250_000, 125_000));

        learner.version = PolicyVersion(2);
        weights.hear(&learner);
        let offered = weights.newest().unwrap().unwrap();
        weights.taking(&offered, PolicyVersion(4));
        assert_eq!(said().oldest_in_use, PolicyVersion(2), "the learner goes on from an earlier version");
    }
}
