//! Updates without a gradient, or left out, and a policy that has nothing left to choose from.

use shared::{
    config::TrainConfig,
    metrics,
    run::notices::{Notice, NoticeKind, had_gradient},
};

use super::{Detector, Seen, streak::Streak};

/// Entropy below which nearly every token is certain: at 0.01 nats, a completion of 100 tokens has about one
/// alternative.
const NO_ENTROPY: f64 = 0.01;

/// No update of several steps had a gradient, and equal groups are not the reason.
pub struct NoGradient {
    streak: Streak,
    equal: Streak,
}

impl NoGradient {
    pub fn new(config: &TrainConfig) -> Self {
        Self { streak: Streak::new(config), equal: Streak::new(config) }
    }
}

impl Detector for NoGradient {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let step = seen.step();
        let reward = seen.record.get(metrics::REWARD);
        let none = seen.record.get(metrics::GRAD_NORM) == Some(0.0);
        let equal = seen.config.advantage_estimator.spec().baseline_of_group
            && reward.is_some()
            && seen.record.get(metrics::FRAC_REWARD_ZERO_STD).is_some_and(|share| share >= 1.0);
        let (long, explained) = (self.streak.is_long(none), self.equal.is_long(none && equal));
        if !long || explained {
            return Vec::new();
        }
        let cut_off = seen.record.get(metrics::COMPLETIONS_CLIPPED_RATIO).is_some_and(|share| share >= 1.0);
        let (why, remedy) = if reward.is_none() {
            (
                "no completion has a reward",
                "see which functions fail or abstain (rewards/{name}/failed and /abstained in metrics.jsonl), and why \
                 (logs/rollout.log)",
            )
        } else if cut_off && seen.config.mask_truncated_completions {
            (
                "every completion is truncated, and `mask_truncated_completions` leaves those out",
                "raise `max_completion_length`, or set `mask_truncated_completions` to false",
            )
        } else {
            (
                "what the completions earned made no advantage",
                "look at rewards and advantages in completions/step-N.jsonl",
            )
        };
        let text = format!("no update of {} had a gradient: {why}", self.streak.words(step));
        vec![Notice::new(NoticeKind::NoGradient, step, text, remedy)]
    }
}

/// Every update of several steps was left out.
pub struct Skipped {
    streak: Streak,
}

impl Skipped {
    pub fn new(config: &TrainConfig) -> Self {
        Self { streak: Streak::new(config) }
    }
}

impl Detector for Skipped {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let skipped = seen.record.get(metrics::SKIPPED_UPDATES).is_some_and(|count| count > 0.0);
        if !self.streak.is_long(skipped && !had_gradient(seen.record, seen.config)) {
            return Vec::new();
        }
        let step = seen.step();
        let text = format!(
            "every update of {} was left out, since its loss or gradient was no finite number or `guard` says so",
            self.streak.words(step)
        );
        let remedy = "lower `learning_rate` and begin again from a checkpoint before that; if it is so from the first \
            step on, look at the rewards";
        vec![Notice::new(NoticeKind::SkippedUpdates, step, text, remedy)]
    }
}

/// The entropy is next to nothing, several steps running.
pub struct EntropyGone {
    streak: Streak,
    first: Option<f64>,
}

impl EntropyGone {
    pub fn new(config: &TrainConfig) -> Self {
        Self { streak: Streak::new(config), first: None }
    }
}

impl Detector for EntropyGone {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let Some(entropy) = seen.record.get(metrics::ENTROPY) else {
            return Vec::new();
        };
        let first = *self.first.get_or_insert(entropy);
        if !self.streak.is_long(entropy < NO_ENTROPY) {
            return Vec::new();
        }
        let step = seen.step();
        let fallen = if first > entropy { format!(" (it began at {first:.3})") } else { String::new() };
        let text = format!(
            "the entropy is {entropy:.4} nats per token by {}{fallen}: completions of a prompt hardly differ",
            self.streak.words(step)
        );
        let remedy = "if the task is not solved, go back to an earlier checkpoint with a lower `learning_rate`, a \
            higher `epsilon_high`, an `entropy_coef`, or a `beta` above 0";
        vec![Notice::new(NoticeKind::EntropyGone, step, text, remedy)]
    }
}

#[cfg(test)]
mod tests {
    use shared::{config::AdvantageEstimator, metrics::MetricRecord};

    use super::{super::testing::told, *};

    fn no_gradient(record: &mut MetricRecord) {
        record.set(metrics::GRAD_NORM, 0.0);
    }

    #[test]
    fn steps_without_a_gradient_are_told_of_with_the_reason() {
        let config = TrainConfig { mask_truncated_completions: true, ..TrainConfig::default() };
        let after = |steps, change: fn(&mut MetricRecord)| {
            told(&mut NoGradient::new(&config), &config, steps, |record| {
                no_gradient(record);
                change(record);
            })
        };
        assert_eq!(after(2, |_| ()), []);
        let equal_groups = |record: &mut MetricRecord| {
            record.set(metrics::FRAC_REWARD_ZERO_STD, 1.0);
        };
        assert_eq!(after(9, equal_groups), [], "that is another notice");
        let text = |change| after(3, change).remove(0).text;
        assert!(text(|_| ()).starts_with("no update of steps 1 to 3 had a gradient: "));
        let truncated = text(|record| {
            record.set(metrics::COMPLETIONS_CLIPPED_RATIO, 1.0);
        });
        assert!(truncated.contains("`mask_truncated_completions`"), "{truncated}");
        let unscored = text(|record| {
            record.set(metrics::REWARD, f64::NAN).set(metrics::FRAC_REWARD_ZERO_STD, 1.0);
        });
        assert!(unscored.contains("no completion has a reward"), "{unscored}");
        assert_eq!(told(&mut NoGradient::new(&config), &config, 9, |_| ()), []);
        // Nobody else explains equal groups where the baseline is not theirs.
        let config = TrainConfig { advantage_estimator: AdvantageEstimator::ReinforcePlusPlus, ..config };
        let equal = |record: &mut MetricRecord| {
            no_gradient(record);
            equal_groups(record);
        };
        assert_eq!(told(&mut NoGradient::new(&config), &config, 3, equal).len(), 1);
    }

    #[test]
    fn steps_of_which_every_update_was_left_out_are_told_of() {
        let config = TrainConfig { num_iterations: 2, ..TrainConfig::default() };
        let after = |steps, skipped| {
            told(&mut Skipped::new(&config), &config, steps, |record| {
                record.set(metrics::GRAD_NORM, f64::NAN).count(metrics::SKIPPED_UPDATES, skipped);
            })
        };
        assert_eq!((after(2, 2), after(9, 1)), (vec![], vec![]));
        assert_eq!(after(3, 2)[0].kind, NoticeKind::SkippedUpdates);
    }

    #[test]
    fn an_entropy_next_to_nothing_is_told_of_with_where_it_began() {
        let config = TrainConfig::default();
        let after = |steps, last: f64| {
            told(&mut EntropyGone::new(&config), &config, steps, |record| {
                let first = record.get(metrics::STEP) == Some(1.0);
                record.set(metrics::ENTROPY, if first { 1.25 } else { last });
            })
        };
        assert_eq!((after(3, 0.002), after(9, 0.02)), (vec![], vec![]));
        let text = after(4, 0.002).remove(0).text;
        assert!(text.contains("0.0020 nats per token by steps 2 to 4 (it began at 1.250)"), "{text}");
    }
}
