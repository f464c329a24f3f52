//! Whether a run has learned anything, told by its records.

use std::{error, fmt};

use super::{Notice, NoticeKind};
use crate::{
    config::TrainConfig,
    metrics::{GRAD_NORM, MetricRecord, REWARD, SKIPPED_UPDATES},
};

/// Kinds of notices that say why there is no gradient, the one that says most first.
const REASONS: [NoticeKind; 5] = [
    NoticeKind::Guard,
    NoticeKind::SkippedUpdates,
    NoticeKind::EqualGroups,
    NoticeKind::NoGradient,
    NoticeKind::RewardFailures,
];

/// No update of a run had a gradient, or the policy collapsed and stayed so.
#[derive(Debug, Clone, PartialEq)]
pub struct NothingLearned {
    /// Steps of the run.
    pub steps: usize,
    /// The notice that says why, if there is one.
    pub reason: Option<Notice>,
}

/// Steps at the end of a run whose reward says whether it has recovered from a collapse.
const LAST: usize = 3;

impl error::Error for NothingLearned {}

impl fmt::Display for NothingLearned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps;
        if let Some(notice) = self.reason.as_ref().filter(|notice| notice.kind == NoticeKind::Collapse) {
            return write!(f, "nothing was learned: since step {} {}; {}", notice.step, notice.text, notice.remedy);
        }
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

/// That nothing was learned, and why; nothing where some step had a gradient and the reward is not gone, or where there is no
/// step.
#[must_use]
pub fn nothing_learned(records: &[MetricRecord], notices: &[Notice], config: &TrainConfig) -> Option<NothingLearned> {
    if let Some(collapse) = notices.iter().find(|notice| notice.kind == NoticeKind::Collapse)
        && has_stayed_below(records)
    {
        return Some(NothingLearned { steps: records.len(), reason: Some(collapse.clone()) });
    }
    if records.is_empty() || records.iter().any(|record| had_gradient(record, config)) {
        return None;
    }
    let reason = REASONS.iter().find_map(|kind| notices.iter().find(|notice| notice.kind == *kind));
    Some(NothingLearned { steps: records.len(), reason: reason.cloned() })
}

/// Whether the last steps have earned less than the first.
fn has_stayed_below(records: &[MetricRecord]) -> bool {
    let rewards: Vec<f64> = records.iter().filter_map(|record| record.get(REWARD)).collect();
    let last = &rewards[rewards.len().saturating_sub(LAST)..];
    rewards.first().is_some_and(|first| last.iter().sum::<f64>() < first * last.len() as f64)
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
    fn a_run_that_collapsed_and_stayed_so_has_learned_nothing() {
        let rewarded = |reward: f64| {
            let mut record = record(0.3, 0);
            record.set(REWARD, reward);
            record
        };
        let collapse = [Notice::new(NoticeKind::Collapse, 4, "the policy has collapsed", "lower it")];
        let told = |rewards: &[f64], notices: &[Notice]| {
            let records: Vec<MetricRecord> = rewards.iter().map(|&reward| rewarded(reward)).collect();
            nothing_learned(&records, notices, &TrainConfig::default()).map(|nothing| nothing.to_string())
        };
        let text = "nothing was learned: since step 4 the policy has collapsed; lower it";
        assert_eq!(told(&[0.6, 0.0, 0.0, 0.0], &collapse).as_deref(), Some(text));
        assert_eq!(told(&[0.6, 0.0, 0.0, 0.7, 0.8, 0.8], &collapse), None, "it has recovered");
        assert_eq!(told(&[0.6, 0.0, 0.0, 0.0], &[]), None, "it may be the prompts");
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
