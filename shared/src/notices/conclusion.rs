//! Whether a run has learned anything, told by its records.

use std::{error, fmt};

use super::{Notice, NoticeKind};
use crate::{
    config::TrainConfig,
    metrics::{GRAD_NORM, MetricRecord, SKIPPED_UPDATES},
};

/// Kinds of notices that say why there is no gradient, the one that says most first.
const REASONS: [NoticeKind; 5] = [
    NoticeKind::Guard,
    NoticeKind::SkippedUpdates,
    NoticeKind::EqualGroups,
    NoticeKind::NoGradient,
    NoticeKind::RewardFailures,
];

/// No update of a run had a gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct NothingLearned {
    /// Steps of the run.
    pub steps: usize,
    /// The notice that says why, if there is one.
    pub reason: Option<Notice>,
}

impl error::Error for NothingLearned {}

impl fmt::Display for NothingLearned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps;
        write!(
            f,
            "nothing was learned: no update of {steps} step{} had a gradient",
            if steps == 1 { "" } else { "s" }
        )?;
        match &self.reason {
            Some(notice) => write!(f, "; {}; {}", notice.text, notice.remedy),
            None => f.write_str("; metrics.jsonl and logs/learner.log say what the steps were like"),
        }
    }
}

/// Whether any update of a step had a gradient. A step of which that is not known counts as one that had: the critic's
/// first steps have no update of the policy, and a mean over updates of which one was skipped is no number.
#[must_use]
pub fn had_gradient(record: &MetricRecord, config: &TrainConfig) -> bool {
    let skipped = record.get(SKIPPED_UPDATES).unwrap_or(0.0);
    skipped < config.updates_per_step() as f64 && record.get(GRAD_NORM).is_none_or(|norm| norm != 0.0)
}

/// That nothing was learned, and why; nothing where some step had a gradient, or where there is none.
#[must_use]
pub fn nothing_learned(records: &[MetricRecord], notices: &[Notice], config: &TrainConfig) -> Option<NothingLearned> {
    if records.is_empty() || records.iter().any(|record| had_gradient(record, config)) {
        return None;
    }
    let reason = REASONS.iter().find_map(|kind| notices.iter().find(|notice| notice.kind == *kind));
    Some(NothingLearned { steps: records.len(), reason: reason.cloned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(norm: f64, skipped: u64) -> MetricRecord {
        let mut record = MetricRecord::default();
        record.set(GRAD_NORM, norm).count(SKIPPED_UPDATES, skipped);
        record
    }

    #[test]
    fn a_run_has_learned_nothing_when_no_step_had_a_gradient() {
        let config = TrainConfig { num_iterations: 2, ..TrainConfig::default() };
        let learned = |records: &[MetricRecord]| nothing_learned(records, &[], &config).is_none();
        assert!(!learned(&[record(0.0, 0), record(0.0, 0)]));
        assert!(!learned(&[record(0.0, 0), record(f64::NAN, 2)]), "both updates of the step were skipped");
        assert!(!learned(&[record(0.3, 2)]), "the guard left them out");
        assert!(learned(&[record(0.0, 0), record(0.1, 0)]));
        assert!(learned(&[record(f64::NAN, 1)]), "the other update may have had one");
        assert!(learned(&[record(f64::NAN, 0)]), "the critic alone was trained");
        assert!(learned(&[MetricRecord::default()]) && learned(&[]), "nothing is known");
    }

    #[test]
    fn the_reason_is_the_notice_that_says_most_about_it() {
        let notice = |kind| Notice::new(kind, 3, format!("{kind} was found"), "do this");
        let told = |kinds: &[NoticeKind]| {
            let notices: Vec<Notice> = kinds.iter().map(|&kind| notice(kind)).collect();
            nothing_learned(&[record(0.0, 0)], &notices, &TrainConfig::default()).unwrap().to_string()
        };
        use NoticeKind::{EqualGroups, NoGradient, Truncated};
        let begin = "nothing was learned: no update of 1 step had a gradient; ";
        assert_eq!(told(&[Truncated, NoGradient, EqualGroups]), format!("{begin}equal_groups was found; do this"));
        assert!(told(&[Truncated]).starts_with(&format!("{begin}metrics.jsonl")));
    }
}
