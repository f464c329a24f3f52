//! Advantages, critic, objective, entropy and reference policy. What belongs to one method alone is in its description,
//! [`crate::methods`].

use super::words;
use crate::{
    config::{AdvantageEstimator, ConfigError, KlController, LossAggregation, LossType, TrainConfig},
    methods::KlCorrection,
};

impl TrainConfig {
    pub(super) fn check_advantages(&self) -> Result<(), ConfigError> {
        let (spec, name) = (self.advantage_estimator.spec(), self.advantage_estimator);
        let (several, combined) = (self.multi_objective_aggregation.spec(), self.multi_objective_aggregation);
        let scale = self.scale_rewards;
        ensure!(
            spec.aggregations.contains(&self.multi_objective_aggregation),
            "`multi_objective_aggregation` {combined} is an advantage of its own and cannot be combined with \
             `advantage_estimator` {name}; use sum_then_normalize, or the estimator grpo"
        );
        ensure!(
            spec.scales.contains(&self.scale_rewards),
            "`scale_rewards` {scale} has no effect with `advantage_estimator` {name}, which does its own scaling; \
             remove it, or use the estimator grpo"
        );
        ensure!(
            several.scales.contains(&self.scale_rewards),
            "`scale_rewards` {scale} has no effect with `multi_objective_aggregation` {combined}, which divides by \
             the deviations of group and batch; remove one of them"
        );
        if let Some(reason) = spec.no_dynamic_sampling.filter(|_| self.dynamic_sampling) {
            return Err(ConfigError::Value(format!(
                "`dynamic_sampling` cannot be combined with `advantage_estimator` {name}: {reason}; switch one of them \
                 off"
            )));
        }
        if let Some(reason) = spec.no_kl_in_reward.filter(|_| self.use_kl_in_reward) {
            return Err(ConfigError::Value(format!(
                "`use_kl_in_reward` cannot be combined with `advantage_estimator` {name}, which {reason}; leave the \
                 penalty in the loss"
            )));
        }
        ensure!(
            several.one_reward || !self.use_kl_in_reward,
            "`use_kl_in_reward` needs one reward per completion to subtract the penalty from, which \
             `multi_objective_aggregation` {combined} does not have; leave the penalty in the loss"
        );
        Ok(())
    }

    pub(super) fn check_critic(&self) -> Result<(), ConfigError> {
        if self.advantage_estimator.spec().critic {
            return Ok(());
        }
        for key in AdvantageEstimator::CRITIC_OPTIONS {
            ensure!(
                !self.is_set(key),
                "`{key}` is an option of the critic, and `advantage_estimator` {} has none; remove it, or use the \
                 estimator {}",
                self.advantage_estimator,
                words(&AdvantageEstimator::with_option(key))
            );
        }
        Ok(())
    }

    pub(super) fn check_objective(&self) -> Result<(), ConfigError> {
        let (spec, name) = (self.loss_type.spec(), self.loss_type);
        for (key, reason) in spec.required {
            ensure!(self.is_set(key), "`loss_type` {name} needs `{key}`: {reason}");
        }
        ensure!(
            self.clip_cov_lb < self.clip_cov_ub,
            "`clip_cov_lb` {} must be below `clip_cov_ub` {}: clip_cov drops tokens of a covariance between the two",
            self.clip_cov_lb,
            self.clip_cov_ub
        );
        if let Some(delta) = self.delta {
            ensure!(
                spec.options.contains(&"delta"),
                "`delta` has no effect with `loss_type` {name}: two-sided clipping belongs to {}",
                words(&LossType::with_option("delta"))
            );
            let ceiling = 1.0 + self.epsilon_high.unwrap_or(self.epsilon);
            ensure!(
                delta >= ceiling && delta.is_finite(),
                "`delta` must be at least 1 + `epsilon_high` ({ceiling}), or that is never reached; got {delta}"
            );
        }
        ensure!(
            spec.ratio.level(self.importance_sampling_level) == self.importance_sampling_level,
            "`importance_sampling_level` sequence cannot be combined with `loss_type` {name}, which defines its ratio \
             itself; for a ratio per sequence use gspo as it is, or sequence with grpo or dapo"
        );
        ensure!(
            self.loss_aggregation.is_none() || spec.reduction_can_change,
            "`loss_aggregation` has no effect with `loss_type` {name}, which fixes its own; remove it"
        );
        ensure!(
            self.loss_scale_factor.is_none() || self.loss_aggregation.is_some_and(LossAggregation::has_scale_factor),
            "`loss_scale_factor` is the divisor of `loss_aggregation` seq-mean-token-sum-norm and has no effect \
             without it"
        );
        Ok(())
    }

    pub(super) fn check_entropy(&self) -> Result<(), ConfigError> {
        ensure!(
            self.entropy_coef_min <= self.entropy_coef_max,
            "`entropy_coef_min` ({}) must not be above `entropy_coef_max` ({})",
            self.entropy_coef_min,
            self.entropy_coef_max
        );
        Ok(())
    }

    pub(super) fn check_reference(&self) -> Result<(), ConfigError> {
        if self.use_bias_correction_kl == Some(true) {
            self.check_bias_correction()?;
        }
        ensure!(
            self.beta != 0.0 || !self.use_kl_in_reward,
            "`use_kl_in_reward` needs `beta` above 0: it is the weight of the penalty"
        );
        ensure!(
            self.use_kl_in_reward || self.kl_controller == KlController::Fixed,
            "`kl_controller` adaptive moves the weight of the penalty in the reward; set `use_kl_in_reward` too, or \
             leave the controller fixed"
        );
        ensure!(
            self.beta != 0.0 || !self.sync_ref_model,
            "`sync_ref_model` needs `beta` above 0: without a KL penalty there is no reference policy to move"
        );
        ensure!(
            self.old_policy_kl_target.is_none() || self.old_policy_kl_coef > 0.0,
            "`old_policy_kl_target` leads the weight of a penalty that is off: set `old_policy_kl_coef`, where it \
             begins"
        );
        ensure!(
            self.old_policy_kl_coef == 0.0 || self.decoupled_objective,
            "`old_policy_kl_coef` needs `decoupled_objective`: without it the old policy's log-probs are not computed, \
             and the penalty would hold the policy at the sampler's"
        );
        Ok(())
    }

    /// Correction by the ratio with its derivative is defined for k1 and k3.
    fn check_bias_correction(&self) -> Result<(), ConfigError> {
        let name = self.kl_estimator_in_use();
        let (makes, way_out) = match name.spec().correction {
            KlCorrection::Ratio { .. } => return Ok(()),
            KlCorrection::DetachedRatio { differentiated } => {
                (differentiated, "leave the option out, and the estimate is weighed by the value of the ratio")
            }
            KlCorrection::Nothing => ("the gradient of no divergence, as any form of it", "use another estimator"),
        };
        Err(ConfigError::Value(format!(
            "`use_bias_correction_kl` true multiplies by the ratio with its derivative, with which `kl_estimator` \
             {name} has {makes}; {way_out}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Choice, ImportanceSamplingLevel, KlEstimator, MultiObjectiveAggregation, ScaleRewards,
        validate::testing::{accepted, refused},
    };

    #[test]
    fn advantages_that_contradict_themselves_are_refused() {
        refused("normalize_then_sum", |c| {
            c.advantage_estimator = AdvantageEstimator::Gae;
            c.multi_objective_aggregation = MultiObjectiveAggregation::NormalizeThenSum;
        });
        refused("`scale_rewards` none has no effect with `advantage_estimator` rloo", |c| {
            c.advantage_estimator = AdvantageEstimator::Rloo;
            c.scale_rewards = ScaleRewards::None;
        });
        for scale in [ScaleRewards::None, ScaleRewards::Batch] {
            refused("no effect with `advantage_estimator` process", |c| {
                (c.advantage_estimator, c.scale_rewards) = (AdvantageEstimator::Process, scale);
            });
            refused("no effect with `multi_objective_aggregation` normalize_then_sum", |c| {
                c.multi_objective_aggregation = MultiObjectiveAggregation::NormalizeThenSum;
                c.scale_rewards = scale;
            });
        }
        refused("`scale_rewards` batch has no effect with `advantage_estimator` grpo_passk", |c| {
            (c.advantage_estimator, c.scale_rewards) = (AdvantageEstimator::GrpoPassk, ScaleRewards::Batch);
        });
        accepted(|c| (c.advantage_estimator, c.scale_rewards) = (AdvantageEstimator::GrpoPassk, ScaleRewards::None));
        refused("`dynamic_sampling` cannot", |c| {
            c.advantage_estimator = AdvantageEstimator::Gae;
            c.dynamic_sampling = true;
        });
        refused("`dynamic_sampling_max_attempts`", |c| c.dynamic_sampling_max_attempts = 0);
        refused("step by step", |c| {
            c.advantage_estimator = AdvantageEstimator::Process;
            (c.beta, c.use_kl_in_reward) = (0.1, true);
        });
        refused("one reward per completion", |c| {
            c.multi_objective_aggregation = MultiObjectiveAggregation::NormalizeThenSum;
            (c.beta, c.use_kl_in_reward) = (0.1, true);
        });
        refused("`gamma`", |c| c.gamma = 1.1);
        refused("`lam`", |c| c.lam = -0.1);
        accepted(|c| {
            c.advantage_estimator = AdvantageEstimator::Opo;
            c.dynamic_sampling = true;
        });
        accepted(|c| {
            (c.scale_rewards, c.dynamic_sampling) = (ScaleRewards::Batch, true);
        });
        accepted(|c| c.multi_objective_aggregation = MultiObjectiveAggregation::NormalizeThenSum);
    }

    #[test]
    fn options_of_the_critic_need_one() {
        refused("`critic_model`", |c| c.critic_model = Some("m".into()));
        refused("`critic_learning_rate`", |c| c.critic_learning_rate = 1e-4);
        refused("`critic_warmup_steps`", |c| c.critic_warmup_steps = 3);
        refused("`cliprange_value`", |c| c.cliprange_value = 0.5);
        refused("`cliprange_value`", |c| c.cliprange_value = 0.0);
        accepted(|c| {
            c.advantage_estimator = AdvantageEstimator::Gae;
            (c.critic_learning_rate, c.critic_warmup_steps, c.cliprange_value) = (1e-4, 3, 0.5);
        });
    }

    #[test]
    fn clipping_that_cannot_work_is_refused() {
        refused("`loss_type` cispo needs `epsilon_high`", |c| c.loss_type = LossType::Cispo);
        accepted(|c| (c.loss_type, c.epsilon_high) = (LossType::Cispo, Some(5.0)));
        refused("`delta` has no effect with `loss_type` sapo", |c| {
            (c.loss_type, c.delta) = (LossType::Sapo, Some(4.0));
        });
        refused("`delta` must be at least", |c| c.delta = Some(1.1));
        refused("`delta` must be at least", |c| (c.epsilon_high, c.delta) = (Some(4.0), Some(4.0)));
        accepted(|c| c.delta = Some(4.0));
        refused("`clip_ratio_c`", |c| c.clip_ratio_c = 1.0);
        refused("`early_stop_imp_ratio`", |c| c.early_stop_imp_ratio = Some(0.5));
        accepted(|c| c.early_stop_imp_ratio = Some(5.0));
    }

    #[test]
    fn ratio_and_reduction_must_fit_the_loss() {
        refused("`clip_cov_lb` 5 must be below `clip_cov_ub` 5", |c| c.clip_cov_lb = 5.0);
        refused("`loss_type` dro needs `dro_beta`", |c| c.loss_type = LossType::Dro);
        let of_verl = LossType::ALL.iter().copied().filter(|loss| loss.spec().verl.is_some());
        for loss_type in of_verl {
            let config = move |c: &mut TrainConfig| {
                (c.loss_type, c.dro_beta) = (loss_type, Some(1.0));
                c.importance_sampling_level = ImportanceSamplingLevel::Sequence;
            };
            refused("`importance_sampling_level` sequence", config);
        }
        accepted(|c| c.importance_sampling_level = ImportanceSamplingLevel::Sequence);
        let token_mean = |loss_type| {
            move |c: &mut TrainConfig| (c.loss_type, c.loss_aggregation) = (loss_type, Some(LossAggregation::TokenMean))
        };
        refused("`loss_aggregation` has no effect", token_mean(LossType::GeoMean));
        accepted(token_mean(LossType::Gspo));
        refused("`loss_scale_factor` is the divisor", |c| c.loss_scale_factor = Some(100.0));
        let norm = |factor: f64| {
            move |c: &mut TrainConfig| {
                c.loss_aggregation = Some(LossAggregation::SeqMeanTokenSumNorm);
                c.loss_scale_factor = Some(factor);
            }
        };
        refused("`loss_scale_factor` must be", norm(0.0));
        accepted(norm(100.0));
    }

    #[test]
    fn shares_and_coefficients_have_ranges() {
        refused("`top_entropy_quantile`", |c| c.top_entropy_quantile = 0.0);
        refused("`top_entropy_quantile`", |c| c.top_entropy_quantile = 1.5);
        refused("`off_policy_mask_threshold`", |c| c.off_policy_mask_threshold = Some(-1.0));
        refused("`sapo_temperature_neg`", |c| c.sapo_temperature_neg = 0.0);
        refused("`vespo_k_pos`", |c| c.vespo_k_pos = f64::NAN);
        refused("`entropy_coef_min` (2) must not be above", |c| c.entropy_coef_min = 2.0);
        refused("`entropy_coef`", |c| c.entropy_coef = -0.1);
        refused("`ref_model_mixup_alpha`", |c| c.ref_model_mixup_alpha = 1.5);
    }

    #[test]
    fn the_differentiated_ratio_belongs_to_two_estimators() {
        use KlEstimator::{Abs, K1, K1Plus, K2, K3, K3Plus, Mse};
        let with = |estimator, correction| {
            move |c: &mut TrainConfig| {
                (c.beta, c.kl_estimator, c.use_bias_correction_kl) = (0.1, Some(estimator), correction);
            }
        };
        for (estimator, reason) in [
            (K2, "k2 has the gradient of no divergence; leave the option out"),
            (Mse, "mse has the gradient of no divergence; leave the option out"),
            (K1Plus, "k1+ has exactly twice the gradient of the divergence; leave the option out"),
            (K3Plus, "k3+ has the gradient of no divergence; leave the option out"),
            (Abs, "abs has the gradient of no divergence, as any form of it; use another estimator"),
        ] {
            refused(reason, with(estimator, Some(true)));
            accepted(with(estimator, None));
            accepted(with(estimator, Some(false)));
        }
        for estimator in [K1, K3] {
            [None, Some(true), Some(false)].into_iter().for_each(|given| accepted(with(estimator, given)));
        }
    }

    #[test]
    fn a_reference_policy_is_there_only_with_beta() {
        refused("`use_kl_in_reward` needs `beta`", |c| c.use_kl_in_reward = true);
        refused("`sync_ref_model` needs `beta`", |c| c.sync_ref_model = true);
        refused("`old_policy_kl_target` leads the weight", |c| c.old_policy_kl_target = Some(0.01));
        refused("`old_policy_kl_target`", |c| (c.old_policy_kl_coef, c.old_policy_kl_target) = (1.0, Some(0.0)));
        accepted(|c| (c.old_policy_kl_coef, c.old_policy_kl_target) = (1.0, Some(0.01)));
        refused("`old_policy_kl_coef` needs `decoupled_objective`", |c| {
            (c.old_policy_kl_coef, c.decoupled_objective) = (1.0, false);
        });
        refused("`kl_controller` adaptive", |c| (c.beta, c.kl_controller) = (0.1, KlController::Adaptive));
        refused("`kl_target`", |c| c.kl_target = 0.0);
        accepted(|c| {
            (c.beta, c.use_kl_in_reward, c.kl_controller) = (0.1, true, KlController::Adaptive);
            (c.sync_ref_model, c.advantage_estimator) = (true, AdvantageEstimator::Gae);
        });
    }
}
