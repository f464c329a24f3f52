//! Whether a run has learned anything, from its records.

use std::{error, fmt};

use super::{Notice, NoticeKind};
use crate::{
    config::TrainConfig,
    metrics::{GRAD_NORM, MetricRecord, REWARD, SKIPPED_UPDATES, STEP},
};

/// Kinds of notices that explain a missing gradient, the most telling first.
const REASONS: [NoticeKind; 5] = [
    NoticeKind::Guard,
    NoticeKind::SkippedUpdates,
    NoticeKind::EqualGroups,
    NoticeKind::NoGradient,
    NoticeKind::RewardFailures,
];

/// No update of a run had a gradient, or the policy collapsed and did not recover.
#[derive(Debug, Clone, PartialEq)]
pub struct NothingLearned {
    /// Steps of the run.
    pub steps: usize,
    /// The notice with the reason, if there is one.
    pub reason: Option<Notice>,
    /// The notice that conversations lost their environment, if there is one: what is left of them may be too little to
    /// learn from.
    pub lost: Option<Box<Notice>>,
}

/// What a notice of the kind [`NoticeKind::NoGradient`] has before its reason.
const NO_GRADIENT: &str = " had a gradient: ";

/// Number of last steps whose mean reward shows whether a run has recovered from a collapse: as many as a collapse is
/// detected in.
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
        if let Some(notice) = &self.reason {
            // The notice begins with the same sentence.
            let why = notice.text.split_once(NO_GRADIENT).map_or(&*notice.text, |(_, why)| why);
            write!(f, "; {why}; {}", notice.remedy)?;
        }
        if let Some(notice) = &self.lost {
            write!(f, "; in step {}, {}; {}", notice.step, notice.text, notice.remedy)?;
        }
        if self.reason.is_none() && self.lost.is_none() {
            f.write_str("; metrics.jsonl and logs/learner.log say what the steps were like")?;
        }
        Ok(())
    }
}

/// Whether any update of a step had a gradient. A step counts as one with a gradient if this is unknown: the critic's
/// first steps have no update of the policy, and a mean over updates is no number if one of them was skipped.
#[must_use]
pub fn had_gradient(record: &MetricRecord, config: &TrainConfig) -> bool {
    let skipped = record.get(SKIPPED_UPDATES).unwrap_or(0.0);
    skipped < config.updates_per_step() as f64 && record.get(GRAD_NORM).is_none_or(|norm| norm != 0.0)
}

/// The conclusion that nothing was learned, and why; none if a step had a gradient and the reward has not collapsed, or
/// if there is no step.
#[must_use]
pub fn nothing_learned(records: &[MetricRecord], notices: &[Notice], config: &TrainConfig) -> Option<NothingLearned> {
    if let Some(collapse) = notices.iter().find(|notice| notice.kind == NoticeKind::Collapse)
        && has_stayed_below(records, collapse)
    {
        return Some(NothingLearned { steps: records.len(), reason: Some(collapse.clone()), lost: None });
    }
    if records.is_empty() || records.iter().any(|record| had_gradient(record, config)) {
        return None;
    }
    let of_kind = |kind: &NoticeKind| notices.iter().find(|notice| notice.kind == *kind).cloned();
    let reason = REASONS.iter().find_map(of_kind);
    Some(NothingLearned { steps: records.len(), reason, lost: of_kind(&NoticeKind::EnvironmentLost).map(Box::new) })
}

/// Whether the last steps stay below the middle between the reward after a collapse and the best reward before it.
fn has_stayed_below(records: &[MetricRecord], collapse: &Notice) -> bool {
    let rewards: Vec<(u64, f64)> =
        records.iter().filter_map(|record| Some((record.get(STEP)? as u64, record.get(REWARD)?))).collect();
    // A collapse is reported in its last step.
    let end = rewards.partition_point(|(step, _)| *step <= collapse.step);
    // In a run of few steps it is detected in fewer.
    let begin = end.saturating_sub(LAST).max(1).min(end);
    let mean = |steps: &[(u64, f64)]| {
        let count = steps.len() as f64;
        (count > 0.0).then(|| steps.iter().map(|(_, reward)| reward).sum::<f64>() / count)
    };
    let (before, collapsed) = (&rewards[..begin], &rewards[begin..end]);
    let best = before.windows(LAST.min(before.len()).max(1)).filter_map(mean).fold(f64::NEG_INFINITY, f64::max);
    let last = mean(&rewards[rewards.len().saturating_sub(LAST).max(begin)..]);
    mean(collapsed).zip(last).is_some_and(|(low, last)| last < f64::midpoint(low, best))
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
        let rewarded = |(step, reward): (u64, f64)| {
            let mut record = record(0.3, 0);
            record.count(STEP, step).set(REWARD, reward);
            record
        };
        let collapse = [Notice::new(NoticeKind::Collapse, 4, "the policy has collapsed", "lower it")];
        let told = |rewards: &[f64], notices: &[Notice]| {
            let records: Vec<MetricRecord> = (1..).zip(rewards.iter().copied()).map(rewarded).collect();
            nothing_learned(&records, notices, &TrainConfig::default()).map(|nothing| nothing.to_string())
        };
        let text = "nothing was learned: since step 4 the policy has collapsed; lower it";
        assert_eq!(told(&[0.6, 0.0, 0.0, 0.0], &collapse).as_deref(), Some(text));
        assert_eq!(told(&[0.6, 0.0, 0.0, 0.7, 0.8, 0.8], &collapse), None, "it has recovered");
        assert_eq!(told(&[0.6, 0.0, 0.0, 0.0], &[]), None, "it may be the prompts");
        assert_eq!(told(&[0.6, 0.06, 0.05, 0.06, 0.2, 0.3, 0.4, 0.45, 0.5], &collapse), None, "it recovers");
        assert_eq!(told(&[0.62, 0.13, 0.1, 0.12, 0.3, 0.5, 0.6, 0.7], &collapse), None, "it has recovered");
        let up_and_down = [0.1, 0.5, 0.9, 0.9, 0.9, 0.15, 0.1, 0.15, 0.15, 0.15];
        let late = [Notice::new(NoticeKind::Collapse, 8, "the policy has collapsed", "lower it")];
        assert!(told(&up_and_down, &late).is_some(), "it is above its first step, and far below its best");
        let short = [Notice::new(NoticeKind::Collapse, 2, "the policy has collapsed", "lower it")];
        assert!(told(&[0.6, 0.0], &short).is_some(), "it has but two steps");
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

    #[test]
    fn lost_environments_are_named_and_no_sentence_stands_twice() {
        let because = "no update of step 1 had a gradient: what the completions earned made no advantage";
        let reason = Notice::new(NoticeKind::NoGradient, 1, because, "look at rewards");
        let lost = Notice::new(NoticeKind::EnvironmentLost, 1, "of 8 conversations 6 lost theirs", "correct it");
        let told = |notices: &[Notice]| {
            nothing_learned(&[record(0.0, 0)], notices, &TrainConfig::default()).unwrap().to_string()
        };
        let begin = "nothing was learned: no update of 1 step had a gradient; ";
        let why = format!("{begin}what the completions earned made no advantage; look at rewards");
        let of_lost = "in step 1, of 8 conversations 6 lost theirs; correct it";
        assert_eq!(told(std::slice::from_ref(&reason)), why);
        assert_eq!(told(&[lost.clone(), reason]), format!("{why}; {of_lost}"));
        assert_eq!(told(&[lost]), format!("{begin}{of_lost}"));
    }
}
