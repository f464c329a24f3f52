//! The penalty on the distance from the policy that a step began with (Schulman et al. 2017, "Proximal policy
//! optimization algorithms", eq. 8), and the rule that adapts its weight.

use shared::config::TrainConfig;

/// How far from the target the divergence may be before the weight moves, as a factor (section 4).
const TOLERANCE: f64 = 1.5;

/// Factor by which the weight is then multiplied or divided.
const STEP: f64 = 2.0;

/// The weight β of the penalty β KL[π_old, π] over the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OldPolicyPenalty {
    /// The weight.
    pub coef: f64,
    /// KL per token that the weight aims at; a constant weight has none.
    target: Option<f64>,
}

impl OldPolicyPenalty {
    /// The penalty of a run that has one, with the weight that it begins with.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Option<Self> {
        let coef = config.old_policy_kl_coef;
        (coef > 0.0).then_some(Self { coef, target: config.old_policy_kl_target })
    }

    /// Moves the weight after the updates of a step. `kl` is the distance that they have moved the policy, in nats per
    /// token.
    pub fn observe(&mut self, kl: f64) {
        let Some(target) = self.target else { return };
        if kl < target / TOLERANCE {
            self.coef /= STEP;
        } else if kl > target * TOLERANCE {
            self.coef *= STEP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalty(target: Option<f64>) -> OldPolicyPenalty {
        let config = TrainConfig { old_policy_kl_coef: 0.5, old_policy_kl_target: target, ..TrainConfig::default() };
        OldPolicyPenalty::from_config(&config).unwrap()
    }

    /// PPO, section 4: halved below d_targ / 1.5, doubled above 1.5 d_targ, and left alone between them.
    #[test]
    fn the_weight_follows_schulmans_rule() {
        let mut penalty = penalty(Some(0.03));
        for (kl, expected) in
            [(0.019, 0.25), (0.021, 0.25), (0.044, 0.25), (0.046, 0.5), (1.0, 1.0), (0.0, 0.5), (f64::NAN, 0.5)]
        {
            penalty.observe(kl);
            assert_eq!(penalty.coef, expected, "after {kl}");
        }
    }

    #[test]
    fn a_weight_without_a_target_is_constant_and_one_of_0_is_no_penalty() {
        let mut constant = penalty(None);
        constant.observe(9.0);
        assert_eq!(constant.coef, 0.5);
        assert_eq!(OldPolicyPenalty::from_config(&TrainConfig::default()), None);
    }
}
