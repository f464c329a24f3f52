//! Whether a group has a learning signal: the test by which dynamic sampling keeps it or replaces it.

use std::borrow::Cow;

use super::{Completion, Group, RewardFailure, RewardOutcome, weighted_sum};

/// A standard deviation up to this counts as 0: the tolerance of numpy's `isclose`, as in TRL's `frac_reward_zero_std`.
const ZERO_STD: f64 = 1e-8;

/// The values that must differ within a group for it to have a learning signal; they depend on the criterion and on the
/// way from rewards to advantages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Contrast {
    /// The completions' weighted rewards.
    Total,
    /// The rewards of any one function: each is normalised by itself (`normalize_then_sum`).
    AnyFunction,
    /// The scores that any one function gave to steps, over all steps of the group (`advantage_estimator` process).
    Steps,
    /// The scores of one function, by its index.
    Function(usize),
    /// Whether completions are right: some score at least `at` in a function, and some score less (DAPO,
    /// arXiv:2503.14476, eq. 11: 0 < number correct < G).
    Correct {
        /// Index of the function.
        function: usize,
        /// Score of a right answer.
        at: f64,
    },
}

/// Scores are sums of decimal fractions: a rounding error can put 4 x 0.2 below 0.8.
const ROUNDING: f64 = 1e-9;

impl Group {
    /// Whether the group has a learning signal by the given test. Aborted and empty completions and those that
    /// `failure` excludes are left out, as in the baseline.
    #[must_use]
    pub fn has_contrast(&self, contrast: Contrast, failure: RewardFailure) -> bool {
        let settled = self.settled(failure);
        let outcomes = |function: usize| settled.iter().filter_map(move |row| row.get(function));
        let scores = |function| outcomes(function).filter_map(RewardOutcome::score).collect::<Vec<f64>>();
        let mut functions = 0..self.reward_names.len();
        match contrast {
            Contrast::Total => differ(&self.weighted_rewards(failure)),
            Contrast::AnyFunction => functions.any(|function| differ(&scores(function))),
            Contrast::Steps => functions.any(|function| {
                let rows = self.usable().zip(&settled);
                let scores = rows.filter_map(|(completion, row)| {
                    let turns = completion.turn_scores(function);
                    let one = || row.get(function).map(RewardOutcome::step_scores);
                    if turns.is_empty() { one() } else { Some(turns.iter().map(|turn| turn.score).collect()) }
                });
                differ(&scores.flatten().collect::<Vec<f64>>())
            }),
            Contrast::Function(function) => differ(&scores(function)),
            Contrast::Correct { function, at } => {
                let scores = scores(function);
                let correct = scores.iter().filter(|score| **score >= at - ROUNDING).count();
                0 < correct && correct < scores.len()
            }
        }
    }

    /// Mean weighted reward of its completions; `None` if no function gave a score.
    #[must_use]
    pub fn mean_reward(&self, failure: RewardFailure) -> Option<f64> {
        let rewards = self.weighted_rewards(failure);
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        (!rewards.is_empty()).then_some(mean)
    }

    /// The functions' outcomes for the usable completions, after `failure` is applied.
    fn settled(&self, failure: RewardFailure) -> Vec<Cow<'_, [RewardOutcome]>> {
        self.usable().map(|completion| failure.settle(&completion.rewards)).collect()
    }

    fn usable(&self) -> impl Iterator<Item = &Completion> {
        self.completions.iter().filter(|completion| completion.is_usable())
    }

    /// Weighted rewards of the usable completions that have one.
    fn weighted_rewards(&self, failure: RewardFailure) -> Vec<f64> {
        let weights = || self.reward_names.iter().map(|(_, weight)| *weight);
        let settled = self.settled(failure);
        settled.iter().filter_map(|row| weighted_sum(row.iter().map(RewardOutcome::score), weights())).collect()
    }
}

impl RewardOutcome {
    /// The score of each step, or the one score.
    fn step_scores(&self) -> Vec<f64> {
        match self {
            Self::Steps(steps) => steps.iter().map(|step| step.score).collect(),
            other => other.score().into_iter().collect(),
        }
    }
}

/// Whether the standard deviation (n − 1) is above 0; fewer than two numbers have no standard deviation.
fn differ(values: &[f64]) -> bool {
    if values.len() < 2 || values.iter().all(|&value| value == values[0]) {
        return false;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt() > ZERO_STD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dropped, Episode, FinishReason, PromptId, StepScore, generation::testing};

    fn group(rewards: Vec<Vec<RewardOutcome>>) -> Group {
        let of = |(rewards, sample)| Completion { rewards, ..testing::completion(sample, vec![1, 2]) };
        Group {
            prompt_id: PromptId(3),
            reward_names: vec![("a".into(), 1.0), ("b".into(), 2.0)],
            ..testing::group(4, rewards.into_iter().zip(0..).map(of).collect())
        }
    }

    fn scores(rows: &[[f64; 2]]) -> Group {
        group(rows.iter().map(|row| row.map(RewardOutcome::Score).to_vec()).collect())
    }

    #[test]
    fn equal_totals_of_unequal_functions_have_contrast_only_per_function() {
        let cancelling = scores(&[[2.0, 0.0], [0.0, 1.0]]);
        assert!(!cancelling.has_contrast(Contrast::Total, RewardFailure::Exclude));
        assert!(cancelling.has_contrast(Contrast::AnyFunction, RewardFailure::Exclude));
        let flat = scores(&[[1.0, 0.1]; 3]);
        assert!(
            !flat.has_contrast(Contrast::Total, RewardFailure::Exclude)
                && !flat.has_contrast(Contrast::AnyFunction, RewardFailure::Exclude)
        );
        let usable = scores(&[[1.0, 0.1], [1.0, 0.1], [1.0, 0.2]]);
        assert!(
            usable.has_contrast(Contrast::Total, RewardFailure::Exclude)
                && usable.has_contrast(Contrast::AnyFunction, RewardFailure::Exclude)
        );
        // A rounding difference is no contrast.
        assert!(!scores(&[[0.1 + 0.2, 0.0], [0.3, 0.0]]).has_contrast(Contrast::Total, RewardFailure::Exclude));
    }

    #[test]
    fn answers_that_are_all_wrong_or_all_right_make_no_contrast_whatever_else_is_rewarded() {
        let correct = Contrast::Correct { function: 0, at: 1.5 };
        let format = Contrast::Function(1);
        let rule = RewardFailure::Exclude;
        for (rows, usable) in [
            ([[0.0, 0.2], [0.0, 0.8], [0.0, 0.0]], false),
            ([[2.0, 0.8], [1.5, 0.2], [1.5 - 1e-12, 0.0]], false),
            ([[2.0, 0.8], [0.0, 0.2], [0.0, 0.0]], true),
        ] {
            let group = scores(&rows);
            assert_eq!(group.has_contrast(correct, rule), usable, "{rows:?}");
            assert!(group.has_contrast(format, rule) && group.has_contrast(Contrast::Total, rule));
        }
        let abstaining = group(vec![vec![RewardOutcome::NotApplicable; 2]; 2]);
        assert!(!abstaining.has_contrast(correct, rule) && !abstaining.has_contrast(format, rule));
    }

    #[test]
    fn what_is_left_out_of_the_baseline_makes_no_contrast() {
        use RewardOutcome::{NotApplicable, Score};
        let mut two = scores(&[[1.0, 0.0], [0.0, 0.0]]);
        two.completions[1].episode = testing::episode(vec![1, 2], &[(0, 0)], FinishReason::Aborted);
        assert!(!two.has_contrast(Contrast::Total, RewardFailure::Exclude));
        let mut two = scores(&[[1.0, 0.0], [0.0, 0.0]]);
        two.completions[0].episode = Episode::default();
        assert!(!two.has_contrast(Contrast::Total, RewardFailure::Exclude));
        let one_scored = group(vec![vec![Score(1.0), NotApplicable], vec![NotApplicable, NotApplicable]]);
        assert!(!one_scored.has_contrast(Contrast::Total, RewardFailure::Exclude));
        let abstaining = group(vec![vec![Score(1.0), Score(1.0)], vec![Score(1.0), NotApplicable]]);
        assert!(
            abstaining.has_contrast(Contrast::Total, RewardFailure::Exclude),
            "an abstention is left out of the sum"
        );
    }

    /// DAPO's contrast is about rewards; a timeout that leaves only the score for the format makes none.
    #[test]
    fn a_failed_function_makes_no_contrast() {
        use RewardOutcome::{Failed, Score};
        let late = || vec![Failed("no result within 10 s".into()), Score(1.0)];
        let group = group(vec![vec![Score(1.0), Score(1.0)], vec![Score(1.0), Score(1.0)], late()]);
        for contrast in [Contrast::Total, Contrast::AnyFunction, Contrast::Steps] {
            assert!(!group.has_contrast(contrast, RewardFailure::Exclude), "{contrast:?}");
            assert!(group.has_contrast(contrast, RewardFailure::Zero), "{contrast:?}");
        }
        assert!(group.has_contrast(Contrast::Total, RewardFailure::SkipFunction));
        assert_eq!(group.mean_reward(RewardFailure::Exclude), Some(3.0));
        assert_eq!(group.mean_reward(RewardFailure::Zero), Some(8.0 / 3.0));
    }

    #[test]
    fn steps_may_differ_where_their_means_do_not() {
        let steps = |list: [f64; 2]| {
            let steps = list.into_iter().zip(0..).map(|(score, end)| StepScore { end, score });
            vec![RewardOutcome::Steps(steps.collect()), RewardOutcome::NotApplicable]
        };
        let same_means = group(vec![steps([0.0, 1.0]), steps([1.0, 0.0])]);
        assert!(!same_means.has_contrast(Contrast::Total, RewardFailure::Exclude));
        assert!(same_means.has_contrast(Contrast::Steps, RewardFailure::Exclude));
        assert!(
            !group(vec![steps([1.0, 1.0]), steps([1.0, 1.0])]).has_contrast(Contrast::Steps, RewardFailure::Exclude)
        );
    }

    #[test]
    fn a_dropped_group_leaves_its_reward_and_its_tokens() {
        let rule = RewardFailure::Exclude;
        let figures =
            |dropped: &Dropped| (dropped.prompt_id, dropped.mean_reward(rule), dropped.sampled_tokens(), dropped.stale);
        let group_of_two = scores(&[[1.0, 0.5], [1.0, 0.5]]);
        let found = Dropped { scored: group_of_two.clone().into(), stale: false };
        assert_eq!(figures(&found), (PromptId(3), Some(2.0), 4, false));
        assert_eq!(found.completions, group_of_two.completions, "it reaches the learner whole");
        let silent = group(vec![vec![RewardOutcome::NotApplicable; 2]]);
        assert_eq!(figures(&Dropped { scored: silent.into(), stale: true }), (PromptId(3), None, 2, true));
    }
}
