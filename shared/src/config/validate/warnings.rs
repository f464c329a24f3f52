//! Settings that work but are probably not meant.

use std::collections::BTreeSet;

use super::words;
use crate::config::{
    AdvantageEstimator, Choice, Device, ImportanceSamplingLevel, ImportanceSamplingMode, KvDtype, LossType,
    RolloutDtype, TrainConfig,
};
use crate::methods::{KlCorrection, Ratio, Reduction};

impl TrainConfig {
    /// Remarks on settings that are allowed but probably not meant, one line each; for the launcher to show.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut list = Vec::new();
        macro_rules! warn_if {
            ($holds:expr, $($message:tt)+) => {
                if $holds {
                    list.push(format!($($message)+));
                }
            };
        }
        warn_if!(
            !(0.7..=1.0).contains(&self.temperature),
            "`temperature` {} is outside 0.7 to 1.0: below it completions of a prompt hardly differ, above it they \
             fall apart",
            self.temperature
        );
        warn_if!(
            self.num_generations < 4,
            "`num_generations` {} makes a poor baseline; 8 or more is usual",
            self.num_generations
        );
        list.extend(self.uneven_updates());
        let estimator = self.advantage_estimator;
        warn_if!(
            self.normalize_advantages && self.advantage_estimator.spec().whitens,
            "`normalize_advantages` adds nothing: `advantage_estimator` {estimator} whitens by itself"
        );
        list.extend(self.kl_remark());
        list.extend(self.warmup_remark(self.max_steps.map(|steps| self.updates_of(steps))));
        warn_if!(
            self.max_steps.is_some_and(|steps| self.critic_warmup_steps >= steps),
            "`critic_warmup_steps` {} is not below `max_steps`, so only the critic learns",
            self.critic_warmup_steps
        );
        let reduction = self.loss_aggregation.map_or(self.loss_type.spec().reduction, Reduction::Aggregation);
        warn_if!(
            self.use_valid_token_scale && reduction.is_token_mean(),
            "`use_valid_token_scale` leaves the policy term as it is: its reduction ({}) weighs each minibatch by its \
             tokens already",
            reduction.about()
        );
        for (key, reason) in self.loss_type.spec().advised {
            warn_if!(!self.is_set(key), "`{key}` has its default with `loss_type` {}: {reason}", self.loss_type);
        }
        warn_if!(
            self.num_iterations > 4,
            "`num_iterations` {} goes over each batch many times; the ratios may drift far",
            self.num_iterations
        );
        warn_if!(
            !self.importance_sampling_correction && self.max_staleness > 0 && self.decoupled_objective,
            "`importance_sampling_correction` is off with `max_staleness` above 0: nothing corrects for older weights"
        );
        warn_if!(
            !self.importance_sampling_correction && self.rollout_dtype != RolloutDtype::Auto,
            "`importance_sampling_correction` is off with a rounded `rollout_dtype`: nothing corrects for the rounding"
        );
        warn_if!(
            !self.importance_sampling_correction && self.kv_dtype != KvDtype::Auto,
            "`importance_sampling_correction` is off with a rounded `kv_dtype`: nothing corrects for the rounding"
        );
        warn_if!(
            self.shard_optimizer && self.learner_ranks == 1,
            "`shard_optimizer` has no effect with `learner_ranks` 1: one process holds all of the optimiser's moments"
        );
        warn_if!(
            self.old_policy_kl_coef > 0.0 && self.updates_per_step() == 1,
            "`old_policy_kl_coef` has no effect with one optimiser update per step: that begins with the old policy \
             itself"
        );
        let is_penalty = self.loss_type.spec().moves_without_advantage;
        warn_if!(
            is_penalty && self.decoupled_objective && self.updates_per_step() == 1,
            "the penalty of `loss_type` {} has no effect with one optimiser update per step: that begins with the old \
             policy itself; with `num_iterations` 2, later updates feel it",
            self.loss_type
        );
        let several = self.multi_objective_aggregation;
        warn_if!(
            !several.spec().one_reward && self.is_set("lone_advantage"),
            "`lone_advantage` has no effect with `multi_objective_aggregation` {several}"
        );
        warn_if!(
            self.filter_groups_metric.is_some() && !self.dynamic_sampling,
            "`filter_groups_metric` has no effect without `dynamic_sampling`"
        );
        warn_if!(
            self.eval_dataset.is_some() && !self.evaluates(),
            "`eval_dataset` is not evaluated on: `eval_steps`, the steps between evaluations, is absent"
        );
        let every = self.eval_steps.filter(|_| self.save_ratio.is_none() && self.metric_for_best_model.is_some());
        warn_if!(
            every.is_some_and(|every| self.save_steps != every),
            "`metric_for_best_model` compares evaluations of steps that have a checkpoint: `save_steps` {} is not \
             `eval_steps` {}, so some evaluations do not count",
            self.save_steps,
            every.unwrap_or_default()
        );
        warn_if!(
            self.num_completions_to_print > 0 && !self.log_completions,
            "`num_completions_to_print` has no effect without `log_completions`, whose files it prints from"
        );
        if let Some(rounding) = self.rounding().filter(|_| self.corrects_sequences()) {
            let mode = self.importance_sampling_mode;
            list.push(format!(
                "{rounding} rounds the log-prob of each token, and `importance_sampling_mode` {mode} gathers that over \
                 a completion: with int8 the weight of one of 512 tokens was measured at about e^1 or e^-1 from \
                 rounding alone, and int4 rounds more; token_truncate or token_mask weigh each token"
            ));
        }
        for key in self.unused_by_tools() {
            list.push(format!("`{key}` has no effect without `tools` or `environment_factory`"));
        }
        for key in self.unused_by_agent() {
            list.push(format!("`{key}` has no effect without `agent`"));
        }
        for key in self.options_without_effect() {
            let (losses, estimators) = (LossType::with_option(key), AdvantageEstimator::with_option(key));
            let (option, own, others) = if losses.is_empty() {
                ("advantage_estimator", self.advantage_estimator.to_string(), words(&estimators))
            } else {
                ("loss_type", self.loss_type.to_string(), words(&losses))
            };
            list.push(format!("`{key}` has no effect with `{option}` {own}; it is an option of {others}"));
        }
        list
    }

    /// A remark if the updates of a step do not have the size that the options name.
    fn uneven_updates(&self) -> Option<String> {
        let (step, update) = (self.completions_per_step(), self.completions_per_update());
        let named = "`per_device_train_batch_size` × `gradient_accumulation_steps`";
        let left = step % update.max(1);
        if update > step {
            return Some(format!(
                "an optimiser update takes {step} completions and not {update} ({named}), because it does not reach \
                 beyond a generation batch; raise `steps_per_generation` for larger updates"
            ));
        }
        (left > 0).then(|| {
            format!(
                "the last optimiser update of a step takes {left} completions and the others {update} ({named}), \
                 because a generation batch has {step}"
            )
        })
    }

    /// A remark if the KL penalty does not have the gradient of the divergence.
    fn kl_remark(&self) -> Option<String> {
        let (name, spec) = (self.kl_estimator_in_use(), self.kl_estimator_in_use().spec());
        if self.beta == 0.0 {
            return None;
        }
        if self.use_kl_in_reward {
            return (!spec.right_in_reward).then(|| {
                format!(
                    "`kl_estimator` {name} in the reward (`use_kl_in_reward`) has not the gradient of the divergence, \
                     which k1 has there"
                )
            });
        }
        let of_token = match self.loss_type.spec().ratio {
            Ratio::Chosen => self.importance_sampling_level == ImportanceSamplingLevel::Token,
            Ratio::OfToken => true,
            Ratio::OfCompletion => false,
        };
        match (spec.correction, self.use_bias_correction_kl) {
            (KlCorrection::Nothing, _) => Some(format!(
                "`kl_estimator` {name} is multiplied by nothing: no form of it has the true gradient of the \
                 divergence; k1, k2 and k3 have"
            )),
            (KlCorrection::Ratio { without }, Some(false)) => Some(format!(
                "`use_bias_correction_kl` is false, and `kl_estimator` {name} without the ratio {without}; leave the \
                 option out, or use k2 or k1+"
            )),
            (KlCorrection::Ratio { .. }, Some(true)) if !of_token => Some(format!(
                "`use_bias_correction_kl` true multiplies `kl_estimator` {name} by the ratio of the whole completion, \
                 as TRL does, which gives the gradient of no divergence; leave the option out, and the ratio is that \
                 of each token"
            )),
            (KlCorrection::Ratio { .. } | KlCorrection::DetachedRatio { .. }, _) => None,
        }
    }

    /// Options of other losses and advantage estimators that are set to values other than their defaults.
    #[must_use]
    pub fn options_without_effect(&self) -> Vec<&'static str> {
        let of_losses = LossType::ALL.iter().flat_map(|loss| loss.spec().options);
        let of_estimators = AdvantageEstimator::ALL.iter().flat_map(|estimator| estimator.spec().options);
        let keys: BTreeSet<&str> = of_losses.chain(of_estimators).copied().collect();
        let own = [self.loss_type.spec().options, self.advantage_estimator.spec().options].concat();
        keys.into_iter().filter(|key| !own.contains(key) && self.is_set(key)).collect()
    }

    /// Whether sampler and learner compute the same numbers, except for rounding in float32: with the same weights, in
    /// float32, on the same device.
    #[must_use]
    pub fn computes_alike(&self) -> bool {
        let one_version = self.max_staleness == 0;
        one_version && self.rounding().is_none() && self.learner_device == Device::Cpu
    }

    /// The largest `mismatch_kl` that number formats and staleness explain. Rounding in float32 gives some 1e-12;
    /// rounded formats and a few versions of staleness give up to some 1e-2.
    #[must_use]
    pub fn mismatch_explained(&self) -> f64 {
        if self.computes_alike() { 1e-5 } else { 0.1 }
    }

    /// The option that makes sampler and learner compute in different precisions, if there is one.
    fn rounding(&self) -> Option<&'static str> {
        match (self.rollout_device, self.rollout_dtype, self.kv_dtype) {
            (Device::Cuda | Device::Tensorrt, _, _) => Some("`rollout_device` (fp16)"),
            (Device::Cpu, RolloutDtype::Int8 | RolloutDtype::Int4 | RolloutDtype::Bf16 | RolloutDtype::Bf16Dot, _) => {
                Some("`rollout_dtype`")
            }
            (Device::Cpu, RolloutDtype::Auto | RolloutDtype::Bf16x3, KvDtype::Int8 | KvDtype::Bf16) => {
                Some("`kv_dtype`")
            }
            (Device::Cpu, RolloutDtype::Auto | RolloutDtype::Bf16x3, KvDtype::Auto) => self.bf16.then_some("`bf16`"),
        }
    }

    /// Whether completions are weighted by a ratio over all their tokens.
    fn corrects_sequences(&self) -> bool {
        use ImportanceSamplingMode::{SequenceMask, SequenceTruncate};
        self.importance_sampling_correction
            && self.decoupled_objective
            && matches!(self.importance_sampling_mode, SequenceMask | SequenceTruncate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        KlEstimator, LoneAdvantage, LossAggregation, LrSchedulerType, MultiObjectiveAggregation,
        validate::testing::valid,
    };

    #[test]
    fn the_defaults_are_not_remarked_on() {
        assert_eq!(valid().warnings(), Vec::<String>::new());
        let sizes = |steps_per_generation, gradient_accumulation_steps| TrainConfig {
            num_generations: 8,
            per_device_train_batch_size: 8,
            steps_per_generation: Some(steps_per_generation),
            gradient_accumulation_steps,
            ..valid()
        };
        let told = |steps, accumulation| sizes(steps, accumulation).warnings().join("\n");
        assert_eq!(told(4, 2), "");
        assert!(told(2, 4).starts_with("an optimiser update takes 16 completions and not 32 ("), "{}", told(2, 4));
        let words = "the last optimiser update of a step takes 8 completions and the others 16 (";
        assert!(told(3, 2).starts_with(words), "{}", told(3, 2));
    }

    #[test]
    fn a_penalty_with_the_gradient_of_the_divergence_is_not_remarked_on() {
        use KlEstimator::{K1, K1Plus, K2, K3, K3Plus, Mse};
        for level in [ImportanceSamplingLevel::Token, ImportanceSamplingLevel::Sequence] {
            for estimator in [K1, K2, K3, Mse, K1Plus, K3Plus] {
                let config = TrainConfig {
                    beta: 0.1,
                    kl_estimator: Some(estimator),
                    importance_sampling_level: level,
                    ..valid()
                };
                assert_eq!(config.warnings(), Vec::<String>::new(), "{estimator}");
            }
        }
        for estimator in [K1, K1Plus] {
            let config = TrainConfig { beta: 0.1, kl_estimator: Some(estimator), use_kl_in_reward: true, ..valid() };
            assert_eq!(config.warnings(), Vec::<String>::new(), "{estimator}");
        }
        for estimator in [K1, K3] {
            let given = Some(true);
            let config =
                TrainConfig { beta: 0.1, kl_estimator: Some(estimator), use_bias_correction_kl: given, ..valid() };
            assert_eq!(config.warnings(), Vec::<String>::new(), "{estimator}");
        }
    }

    #[test]
    fn a_rounded_sampler_is_not_remarked_on_where_tokens_are_weighed() {
        for mode in [ImportanceSamplingMode::TokenTruncate, ImportanceSamplingMode::TokenMask] {
            let rounded = TrainConfig {
                rollout_dtype: RolloutDtype::Int8,
                kv_dtype: KvDtype::Int8,
                importance_sampling_mode: mode,
                ..valid()
            };
            assert_eq!(rounded.warnings(), Vec::<String>::new());
        }
        let close = TrainConfig { rollout_dtype: RolloutDtype::Bf16x3, ..valid() };
        assert_eq!(close.warnings(), Vec::<String>::new());
    }

    #[test]
    fn moments_that_ranks_share_are_not_remarked_on() {
        let ranks = TrainConfig { shard_optimizer: true, learner_ranks: 2, ..valid() };
        assert_eq!(ranks.warnings(), Vec::<String>::new());
    }

    #[test]
    fn every_remark_names_its_option() {
        type Change = fn(&mut TrainConfig);
        let cases: [(&str, Change); 37] = [
            ("temperature", |c| c.temperature = 1.2),
            ("temperature", |c| c.temperature = 0.5),
            ("num_generations", |c| c.num_generations = 2),
            ("normalize_advantages", |c| {
                (c.normalize_advantages, c.advantage_estimator) = (true, AdvantageEstimator::ReinforcePlusPlus);
            }),
            ("gamma", |c| c.gamma = 0.9),
            ("use_bias_correction_kl", |c| {
                (c.beta, c.kl_estimator, c.use_bias_correction_kl) = (0.1, Some(KlEstimator::K1), Some(false));
            }),
            ("use_bias_correction_kl", |c| (c.beta, c.use_bias_correction_kl) = (0.1, Some(false))),
            ("use_bias_correction_kl", |c| {
                (c.beta, c.use_bias_correction_kl) = (0.1, Some(true));
                c.importance_sampling_level = ImportanceSamplingLevel::Sequence;
            }),
            ("use_bias_correction_kl", |c| {
                (c.beta, c.use_bias_correction_kl, c.loss_type) = (0.1, Some(true), LossType::Gspo);
            }),
            ("kl_estimator", |c| (c.beta, c.kl_estimator) = (0.1, Some(KlEstimator::Abs))),
            ("kl_estimator", |c| {
                (c.beta, c.kl_estimator, c.use_bias_correction_kl) = (0.1, Some(KlEstimator::Abs), Some(false));
            }),
            ("kl_estimator", |c| {
                (c.beta, c.kl_estimator, c.use_kl_in_reward) = (0.1, Some(KlEstimator::K3), true);
            }),
            ("kl_estimator", |c| {
                (c.beta, c.kl_estimator, c.use_kl_in_reward) = (0.1, Some(KlEstimator::K2), true);
            }),
            ("epsilon", |c| (c.loss_type, c.clip_ratio_c) = (LossType::DppoKl, 20.0)),
            ("clip_ratio_c", |c| c.loss_type = LossType::DppoTv),
            ("num_iterations", |c| c.loss_type = LossType::KlCov),
            ("num_iterations", |c| c.num_iterations = 8),
            ("lr_scheduler_type", |c| (c.warmup_steps, c.lr_scheduler_type) = (5, LrSchedulerType::Constant)),
            ("warmup_steps", |c| (c.warmup_steps, c.max_steps) = (5, Some(5))),
            ("critic_warmup_steps", |c| {
                (c.critic_warmup_steps, c.max_steps) = (4, Some(4));
                c.advantage_estimator = AdvantageEstimator::Gae;
            }),
            ("use_valid_token_scale", |c| {
                (c.use_valid_token_scale, c.loss_type) = (true, LossType::Grpo);
                c.loss_aggregation = Some(LossAggregation::TokenMean);
            }),
            ("use_valid_token_scale", |c| c.use_valid_token_scale = true),
            ("importance_sampling_correction", |c| {
                (c.max_staleness, c.importance_sampling_correction) = (2, false);
            }),
            ("importance_sampling_correction", |c| {
                (c.rollout_dtype, c.importance_sampling_correction) = (RolloutDtype::Int8, false);
            }),
            ("kv_dtype", |c| (c.kv_dtype, c.importance_sampling_correction) = (KvDtype::Int8, false)),
            ("rollout_dtype", |c| c.rollout_dtype = RolloutDtype::Int8),
            ("rollout_dtype", |c| {
                (c.rollout_dtype, c.importance_sampling_mode) =
                    (RolloutDtype::Bf16, ImportanceSamplingMode::SequenceTruncate);
            }),
            ("kv_dtype", |c| (c.kv_dtype, c.rollout_dtype) = (KvDtype::Int8, RolloutDtype::Bf16x3)),
            ("rollout_device", |c| c.rollout_device = Device::Cuda),
            ("bf16", |c| c.bf16 = true),
            ("shard_optimizer", |c| c.shard_optimizer = true),
            ("old_policy_kl_coef", |c| c.old_policy_kl_coef = 1.0),
            ("lone_advantage", |c| {
                c.lone_advantage = LoneAdvantage::Reward;
                c.multi_objective_aggregation = MultiObjectiveAggregation::NormalizeThenSum;
            }),
            ("num_completions_to_print", |c| (c.num_completions_to_print, c.log_completions) = (3, false)),
            ("filter_groups_metric", |c| c.filter_groups_metric = Some("reward".into())),
            ("eval_dataset", |c| c.eval_dataset = Some("eval.jsonl".into())),
            ("vespo_k_pos", |c| c.vespo_k_pos = 1.0),
        ];
        for (key, change) in cases {
            let mut config = valid();
            change(&mut config);
            config.validate().unwrap();
            let found = config.warnings();
            assert!(found.len() == 1 && found[0].contains(&format!("`{key}`")), "{key}: {found:?}");
            assert!(!found[0].contains('\n'));
        }
    }
}
