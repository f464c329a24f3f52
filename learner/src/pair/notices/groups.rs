//! Groups whose completions all earned the same.

use shared::{
    config::TrainConfig,
    metrics::{self, Figure},
    run::notices::{Notice, NoticeKind, had_gradient},
};

use super::{Detector, Seen, streak::Streak};

/// Rewards this close to the best step's are as good.
const AS_GOOD: f64 = 1e-6;

/// The completions of every prompt earned the same, several steps running.
pub struct Equal {
    streak: Streak,
    has_learned: bool,
    best: f64,
}

impl Equal {
    pub fn new(config: &TrainConfig) -> Self {
        Self { streak: Streak::new(config), has_learned: false, best: f64::NEG_INFINITY }
    }
}

impl Detector for Equal {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        // Where the baseline is another than the group's, equal rewards within it teach as well.
        if !seen.config.advantage_estimator.spec().baseline_of_group {
            return Vec::new();
        }
        let reward = seen.record.get(metrics::REWARD);
        self.has_learned |= had_gradient(seen.record, seen.config);
        let best = reward.is_some_and(|reward| reward >= self.best - AS_GOOD);
        self.best = reward.map_or(self.best, |reward| reward.max(self.best));
        let equal =
            reward.is_some() && seen.record.get(metrics::FRAC_REWARD_ZERO_STD).is_some_and(|share| share >= 1.0);
        if !self.streak.is_long(equal) {
            return Vec::new();
        }
        let step = seen.step();
        let text = format!(
            "all completions of each prompt earned the same in {} (reward {:.3}), so nothing said which is better",
            self.streak.words(step),
            Figure(reward.unwrap_or_default())
        );
        let remedy = if self.has_learned && best {
            "if these prompts are solved, the run can end here or go on with harder ones"
        } else {
            "take prompts that the model solves now and then (`tandem eval` counts), warm it up with `tandem sft`, or \
             give a part of the reward for a part of the way"
        };
        vec![Notice::new(NoticeKind::EqualGroups, step, text, remedy)]
    }
}

#[cfg(test)]
mod tests {
    use shared::{config::AdvantageEstimator, metrics::MetricRecord};

    use super::{
        super::testing::{step, told},
        *,
    };

    fn equal(record: &mut MetricRecord) {
        record.set(metrics::FRAC_REWARD_ZERO_STD, 1.0).set(metrics::GRAD_NORM, 0.0).set(metrics::REWARD, 0.0);
    }

    #[test]
    fn equal_groups_are_told_of_after_three_steps() {
        let config = TrainConfig::default();
        let after = |steps| told(&mut Equal::new(&config), &config, steps, equal);
        assert_eq!(after(2), []);
        let notice = after(3).remove(0);
        assert!(notice.text.contains("in steps 1 to 3 (reward 0.000)"), "{}", notice.text);
        assert!(notice.remedy.contains("tandem sft"), "{}", notice.remedy);
        let nearly = |record: &mut MetricRecord| {
            record.set(metrics::FRAC_REWARD_ZERO_STD, 0.9);
        };
        assert_eq!(told(&mut Equal::new(&config), &config, 9, nearly), []);
    }

    #[test]
    fn a_run_that_has_solved_its_prompts_is_told_so() {
        let config = TrainConfig::default();
        let mut detector = Equal::new(&config);
        assert_eq!(detector.look(&Seen { config: &config, record: &step(1), failures: &[] }), []);
        let solved = |record: &mut MetricRecord| {
            equal(record);
            record.set(metrics::REWARD, 1.0);
        };
        assert!(told(&mut detector, &config, 3, solved)[0].remedy.contains("solved"));
    }

    #[test]
    fn an_estimator_without_a_baseline_of_the_group_learns_from_equal_groups() {
        for advantage_estimator in [AdvantageEstimator::Gae, AdvantageEstimator::ReinforcePlusPlus] {
            let config = TrainConfig { advantage_estimator, ..TrainConfig::default() };
            assert_eq!(told(&mut Equal::new(&config), &config, 9, equal), []);
        }
    }
}
