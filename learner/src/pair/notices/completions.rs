//! Completions that are cut off.

use shared::{
    config::TrainConfig,
    metrics,
    run::notices::{Notice, NoticeKind},
};

use super::{Detector, Seen, streak::Streak};

/// Share of truncated completions above which most of what is sampled is lost.
const MOST: f64 = 0.5;

/// Most completions are truncated, several steps running.
pub struct Truncated {
    streak: Streak,
}

impl Truncated {
    pub fn new(config: &TrainConfig) -> Self {
        Self { streak: Streak::new(config) }
    }
}

impl Detector for Truncated {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let share = seen.record.get(metrics::COMPLETIONS_CLIPPED_RATIO).unwrap_or(0.0);
        if !self.streak.is_long(share > MOST) {
            return Vec::new();
        }
        let (step, limit) = (seen.step(), seen.config.max_completion_length);
        let text = format!(
            "more than half of the completions of {}, and {:.0} % of the last step's, were cut off at \
             `max_completion_length` {limit}, most likely before their answer",
            self.streak.words(step),
            100.0 * share
        );
        let remedy = "raise it, ask for shorter answers in `system_prompt`, or name a text that ends an answer in \
            `stop`; a base model may never end by itself";
        vec![Notice::new(NoticeKind::Truncated, step, text, remedy)]
    }
}

#[cfg(test)]
mod tests {
    use shared::metrics::MetricRecord;

    use super::{super::testing::told, *};

    #[test]
    fn truncation_is_told_of_when_it_hits_most_completions_for_three_steps() {
        let config = TrainConfig { max_completion_length: 128, ..TrainConfig::default() };
        let after = |steps, share| {
            let change = |record: &mut MetricRecord| {
                record.set(metrics::COMPLETIONS_CLIPPED_RATIO, share);
            };
            told(&mut Truncated::new(&config), &config, steps, change)
        };
        assert_eq!((after(2, 1.0), after(9, 0.5)), (vec![], vec![]));
        let text = after(3, 0.83).remove(0).text;
        assert!(text.contains("steps 1 to 3, and 83 % ") && text.contains("`max_completion_length` 128"), "{text}");
    }
}
