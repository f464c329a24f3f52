//! What the learner tells of a run that does not learn: a detector for each sign, over the metrics of the steps.
//!
//! Detectors see nothing but the records of the steps, so that a run which goes on from a checkpoint has them in the
//! state that they were in by showing them the records that it kept.

mod collapse;
mod completions;
mod fallen;
mod groups;
mod loss;
mod mismatch;
mod policy;
mod resumed;
mod rewards;
mod streak;
#[cfg(test)]
mod testing;
mod tools;

use std::path::Path;

use shared::{
    config::TrainConfig,
    files::journal::Skipped,
    metrics::{self, MetricRecord},
    run::notices::{Notice, NoticesFile},
};

use super::failures::Failures;
use crate::error::LearnerError;

pub use resumed::{damaged, disk_short, records_damaged, records_removed, since_checkpoint, unchecked};

/// What detectors are shown of a step.
pub struct Seen<'a> {
    /// The options of the run.
    pub config: &'a TrainConfig,
    /// The metrics of the step.
    pub record: &'a MetricRecord,
    /// Reward functions that failed in it, with their reasons; empty for a step that is shown again.
    pub failures: &'a [Failures],
}

impl Seen<'_> {
    /// Number of the step.
    fn step(&self) -> u64 {
        self.record.get(metrics::STEP).unwrap_or(0.0) as u64
    }
}

/// Looks for one sign, step by step. It may find the same again and again: it is told once.
trait Detector {
    /// What is to be said after this step.
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice>;
}

/// The notices of a run.
pub struct Notices {
    file: NoticesFile,
    /// Told in the place of what it brings about.
    collapse: collapse::Collapse,
    detectors: Vec<Box<dyn Detector>>,
}

impl Notices {
    /// The notices of a run that goes on after `completed_steps` steps; what was found in later ones is cut off. The
    /// records of its steps are then to be shown, with [`Notices::recall`]. With it come the lines of the file that
    /// were left out.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn open(path: &Path, config: &TrainConfig, completed_steps: u64) -> Result<(Self, Skipped), LearnerError> {
        let detectors: Vec<Box<dyn Detector>> = vec![
            Box::new(rewards::Failing),
            Box::new(rewards::Constant::default()),
            Box::new(groups::Equal::new(config)),
            Box::new(completions::Truncated::new(config)),
            Box::new(tools::Tools::new(config)),
            Box::new(policy::NoGradient::new(config)),
            Box::new(policy::Skipped::new(config)),
            Box::new(policy::EntropyGone::new(config)),
            Box::new(mismatch::Apart::new(config)),
            Box::new(fallen::Fallen::default()),
            Box::new(loss::NearZero::default()),
        ];
        let collapse = collapse::Collapse::new(config);
        let (file, skipped) = NoticesFile::open_and_look(path, completed_steps)?;
        Ok((Self { file, collapse, detectors }, skipped))
    }

    /// Looks at a step that has been told of.
    pub fn recall(&mut self, config: &TrainConfig, record: &MetricRecord) {
        let seen = Seen { config, record, failures: &[] };
        drop(self.find(&seen));
    }

    /// Looks at a step, and tells what is new.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn look(&mut self, seen: &Seen<'_>) -> Result<(), LearnerError> {
        let found = self.find(seen);
        self.tell(found)
    }

    /// What all detectors find in a step. What a collapse has brought about is held back: it would name another reason.
    fn find(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let mut found = self.collapse.look(seen);
        let others = self.detectors.iter_mut().flat_map(|detector| detector.look(seen));
        found.extend(others.filter(|notice| !self.collapse.explains(notice.kind)));
        found
    }

    /// Tells what is new of these.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn tell(&mut self, notices: impl IntoIterator<Item = Notice>) -> Result<(), LearnerError> {
        for notice in notices {
            let line = notice.to_string();
            if self.file.add(notice)? {
                tracing::warn!("notice: {line}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shared::run::notices::{self, NoticeKind};

    use super::{testing::step, *};

    fn path(dir: &tempfile::TempDir) -> std::path::PathBuf {
        dir.path().join("notices.jsonl")
    }

    fn look(notices: &mut Notices, record: &MetricRecord) {
        notices.look(&Seen { config: &TrainConfig::default(), record, failures: &[] }).unwrap();
    }

    /// Steps of which nothing is learned, whose completions are cut off from the second on.
    fn records() -> Vec<MetricRecord> {
        let record = |number| {
            let mut record = step(number);
            record.set(metrics::FRAC_REWARD_ZERO_STD, 1.0).set(metrics::GRAD_NORM, 0.0).set(metrics::REWARD, 0.0);
            record.set(metrics::COMPLETIONS_CLIPPED_RATIO, if number == 1 { 0.0 } else { 0.9 });
            record
        };
        (1..=6).map(record).collect()
    }

    #[test]
    fn each_notice_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut notices = Notices::open(&path(&dir), &TrainConfig::default(), 0).unwrap().0;
        records().iter().for_each(|record| look(&mut notices, record));
        let told: Vec<_> = notices::read(&path(&dir)).unwrap().iter().map(|n| (n.kind, n.step)).collect();
        assert_eq!(told, [(NoticeKind::EqualGroups, 3), (NoticeKind::Truncated, 4)]);
    }

    #[test]
    fn a_collapse_is_told_in_the_place_of_what_it_brings_about() {
        let dir = tempfile::tempdir().unwrap();
        let config = TrainConfig { per_device_train_batch_size: 256, learning_rate: 10.0, ..TrainConfig::default() };
        let mut notices = Notices::open(&path(&dir), &config, 0).unwrap().0;
        for number in 1..=30 {
            let mut record = step(number);
            if number > 1 {
                record.set(metrics::REWARD, 0.0).set(metrics::REWARD_STD, 0.0).set(metrics::ENTROPY, 5.0);
                record.set(metrics::FRAC_REWARD_ZERO_STD, 1.0).set(metrics::GRAD_NORM, 0.0);
                record.set(metrics::COMPLETIONS_CLIPPED_RATIO, 1.0);
            }
            notices.look(&Seen { config: &config, record: &record, failures: &[] }).unwrap();
        }
        let told: Vec<_> = notices::read(&path(&dir)).unwrap().iter().map(|n| (n.kind, n.step)).collect();
        assert_eq!(told, [(NoticeKind::Collapse, 4)]);
    }

    /// Wherever a run is stopped, or falls back to: nothing is told twice, nothing is lost.
    #[test]
    fn a_run_that_goes_on_tells_what_it_would_have_told() {
        let whole = tempfile::tempdir().unwrap();
        let (records, config) = (records(), TrainConfig::default());
        let mut notices = Notices::open(&path(&whole), &config, 0).unwrap().0;
        records.iter().for_each(|record| look(&mut notices, record));
        let expected = std::fs::read(path(&whole)).unwrap();
        for (stopped, checkpoint) in (0..=6usize).flat_map(|stopped| (0..=stopped).map(move |at| (stopped, at))) {
            let dir = tempfile::tempdir().unwrap();
            let mut notices = Notices::open(&path(&dir), &config, 0).unwrap().0;
            records[..stopped].iter().for_each(|record| look(&mut notices, record));
            let mut notices = Notices::open(&path(&dir), &config, checkpoint as u64).unwrap().0;
            records[..checkpoint].iter().for_each(|record| notices.recall(&config, record));
            records[checkpoint..].iter().for_each(|record| look(&mut notices, record));
            assert_eq!(std::fs::read(path(&dir)).unwrap(), expected, "{stopped}, {checkpoint}");
        }
    }
}
