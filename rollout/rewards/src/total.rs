//! One number out of several scores.

use shared::RewardOutcome;

/// As [`shared::weighted_sum`], of what the functions said: the very sum that the learner makes.
///
/// `outcomes` and `weights` have one entry per function.
#[must_use]
pub fn weighted_sum(outcomes: &[RewardOutcome], weights: &[f64]) -> Option<f64> {
    shared::weighted_sum(outcomes.iter().map(RewardOutcome::score), weights.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_without_a_score_are_left_out() {
        let abstains = RewardOutcome::NotApplicable;
        let failed = RewardOutcome::Failed("timed out".into());
        let score = RewardOutcome::Score;
        assert_eq!(weighted_sum(&[score(2.0), abstains.clone(), score(0.5)], &[1.0, 5.0, 2.0]), Some(3.0));
        assert_eq!(weighted_sum(&[failed.clone(), score(-1.0)], &[1.0, 0.5]), Some(-0.5));
        assert_eq!(weighted_sum(&[score(0.0), abstains.clone()], &[1.0, 1.0]), Some(0.0));
        assert_eq!(weighted_sum(&[failed, abstains], &[1.0, 1.0]), None);
    }
}
