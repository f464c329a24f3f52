//! The effect of a failed reward function on a completion.

use std::borrow::Cow;

use super::{RewardOutcome, weighted_sum};
use crate::declare::choices;

choices! {
    /// The effect of a failed reward function on a completion.
    RewardFailure {
        /// The completion has no reward: it is in no baseline, no loss and no contrast, as if it had not been sampled.
        Exclude = "exclude",
        /// The function's score is 0.
        Zero = "zero",
        /// The function is left out of the completion's sum, as where it abstains. With several functions, the
        /// completion is then compared with others that have more functions' scores.
        SkipFunction = "skip_function",
    }
}

impl RewardFailure {
    /// Whether a completion with these outcomes has no reward because a function failed.
    #[must_use]
    pub fn excludes(self, outcomes: &[RewardOutcome]) -> bool {
        self == Self::Exclude && outcomes.iter().any(RewardOutcome::has_failed)
    }

    /// The outcomes of one completion after this rule is applied to failed functions.
    #[must_use]
    pub fn settle(self, outcomes: &[RewardOutcome]) -> Cow<'_, [RewardOutcome]> {
        if !outcomes.iter().any(RewardOutcome::has_failed) {
            return Cow::Borrowed(outcomes);
        }
        let settled = |outcome: &RewardOutcome| match self {
            Self::Exclude => RewardOutcome::NotApplicable,
            Self::Zero if outcome.has_failed() => RewardOutcome::Score(0.0),
            Self::Zero | Self::SkipFunction => outcome.clone(),
        };
        Cow::Owned(outcomes.iter().map(settled).collect())
    }

    /// What a completion earns in all: the [`weighted_sum`] of its settled scores.
    #[must_use]
    pub fn reward(self, outcomes: &[RewardOutcome], weights: impl IntoIterator<Item = f64>) -> Option<f64> {
        weighted_sum(self.settle(outcomes).iter().map(RewardOutcome::score), weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::group::StepScore;

    /// Correct and well formed, against wrong and well formed: if the first function fails, nothing is known.
    #[test]
    fn a_failed_function_takes_the_reward_away_unless_it_is_told_otherwise() {
        use RewardOutcome::{Failed, NotApplicable, Score, Steps};
        let steps = || Steps(vec![StepScore { end: 1, score: 0.5 }]);
        let reward = |rule: RewardFailure, outcomes: &[RewardOutcome]| rule.reward(outcomes, [1.0, 5.0, 2.0]);
        let failed = [Failed("no result within 10 s".into()), NotApplicable, Score(0.5)];
        assert_eq!(reward(RewardFailure::Exclude, &failed), None);
        assert_eq!(reward(RewardFailure::Zero, &failed), Some(1.0));
        assert_eq!(reward(RewardFailure::SkipFunction, &failed), Some(1.0));
        assert_eq!(RewardFailure::Zero.settle(&failed)[0], Score(0.0));
        assert!(RewardFailure::Exclude.excludes(&failed) && !RewardFailure::Zero.excludes(&failed));
        let alone = [Failed("no".into()), NotApplicable, NotApplicable];
        assert_eq!(reward(RewardFailure::Zero, &alone), Some(0.0), "a score of 0 and not none at all");
        assert_eq!(reward(RewardFailure::SkipFunction, &alone), None);
        // Under every rule, abstaining is no failure.
        let abstains = [steps(), NotApplicable, Score(-1.0)];
        for rule in [RewardFailure::Exclude, RewardFailure::Zero, RewardFailure::SkipFunction] {
            assert_eq!(reward(rule, &abstains), Some(-1.5));
            assert_eq!(reward(rule, &[NotApplicable, NotApplicable, NotApplicable]), None);
            assert!(!rule.excludes(&abstains));
        }
    }
}
