//! How it is learned: batches, memory, advantages, the objective and its corrections, the optimiser, the guard.

/// Hands the sections of this file on to the next macro of the list, behind those that came before.
macro_rules! learning {
    ($next:ident $(, $rest:ident)*; $($before:tt)*) => { $next! { $($rest),*; $($before)*

    "Batch and schedule" {
        /// Completions of one minibatch.
        per_device_train_batch_size: u32 = 8, trl, at_least(1.0);
        /// Minibatches per optimiser update. An update takes completions of one generation batch, where TRL's may
        /// reach over several.
        gradient_accumulation_steps: u32 = 1, trl, at_least(1.0);
        /// Minibatches per generation batch.
        steps_per_generation: Option<u32> = None, absent("`gradient_accumulation_steps`"), trl, at_least(1.0);
        /// Completions per step. Rounded up to whole groups.
        generation_batch_size: Option<u32> = None,
            absent("`per_device_train_batch_size` × `steps_per_generation`"), trl, at_least(1.0);
        /// Passes over the training prompts; `max_steps` wins.
        num_train_epochs: f64 = 3.0, trl, also(&["total_epochs"]), above(0.0);
        /// Number of steps: generation batches with all their optimiser updates. TRL counts the updates, also for
        /// `save_steps`, `eval_steps` and `ref_model_sync_steps`.
        max_steps: Option<u64> = None, absent("as many as `num_train_epochs` makes"), trl,
            also(&["total_training_steps"]), at_least(1.0);
        /// Optimisation passes over each generation batch (μ).
        num_iterations: u32 = 1, trl, also(&["ppo_epochs"]), at_least(1.0);
        /// Most tokens that the learner holds in one forward pass, where a prompt goes through once for all of its
        /// completions that fit. It bounds memory and changes a gradient by rounding alone (with `kl_estimator` abs, a
        /// rounding error decides signs). Groups that do not fit have their prompt computed once for each part.
        micro_batch_tokens: Option<u32> = None,
            absent("the smallest that is as fast as larger ones, less where the memory of the machine is too small; a \
                    resumed run keeps its own"),
            at_least(1.0);
    }

    "Memory of the learner" {
        /// Keep each layer's input alone and compute the layer again on the way back: activations take a small part of
        /// the memory, a step about a third more time, and the result is the same bit for bit. TRL's default is true.
        gradient_checkpointing: bool = false, trl, keeps_results;
        /// Compute the learner's layers in bfloat16, with float32 copies of what is trained; norms, softmax, loss and
        /// the sums of logits stay in float32. Faster where the processor multiplies bfloat16 (AMX, AVX-512 BF16,
        /// GPUs); the sampler gets the rounded weights, but under `use_peft` a frozen model that is not rounded. TRL's
        /// default is true.
        bf16: bool = false, trl;
        /// Train a low-rank adapter (LoRA) beside the frozen model instead of the model itself: gradients and optimiser
        /// state of a hundredth of the size, a cheaper backward pass, versions of a few megabytes, and a reference
        /// policy at no memory. Versions and checkpoints are PEFT directories. It wants about ten times the learning
        /// rate.
        use_peft: bool = false, trl;
        /// With `use_peft`: rank of the adapter. More can learn more, and costs more.
        lora_r: u32 = 16, trl, at_least(1.0);
        /// With `use_peft`: the adapter's product is multiplied by `lora_alpha` / `lora_r`.
        lora_alpha: f64 = 32.0, trl, above(0.0);
        /// With `use_peft`: the linear layers that have an adapter, by the ends of their names, as `q_proj`. Empty and
        /// `all-linear` mean all of them. A file of TRL without it gets PEFT's `q_proj` and `v_proj`.
        lora_target_modules: Vec<String> = Vec::new(), trl;
        /// With `use_peft`: share of the adapter's inputs that training drops. Only 0: log-probs would not be the
        /// sampler's.
        lora_dropout: f64 = 0.0, trl, at_least(0.0), below(1.0);
        /// With `use_peft`: multiply by `lora_alpha` / √`lora_r` (rank-stabilised LoRA).
        use_rslora: bool = false, trl;
        /// With `use_peft`: hold the frozen model in bytes, with one scale for each row of a matrix. The layers'
        /// matrices take a quarter of their memory in float32 and are widened one at a time; the sampler computes with
        /// the same numbers.
        load_in_8bit: bool = false, trl;
        /// With `use_peft`: hold the frozen model in NormalFloat numbers of four bits, with a scale for each 64 of them
        /// (QLoRA). The layers' matrices take a seventh of their memory in float32.
        load_in_4bit: bool = false, trl;
    }

    "Advantages" {
        /// How rewards become advantages.
        advantage_estimator: AdvantageEstimator = AdvantageEstimator::Grpo,
            source("verl `adv_estimator`, RLinf `adv_type`"), also(&["adv_estimator", "adv_type"]);
        /// In conversations with an environment that gives rewards by turn: whether these are summed for the whole
        /// conversation, or each turn has an advantage of its own. `turn` needs `advantage_estimator` process, which
        /// takes turns for steps.
        advantage_level: AdvantageLevel = AdvantageLevel::Trajectory;
        /// What centred rewards are divided by (with `advantage_estimator` grpo; grpo_passk has `group` and `none`).
        scale_rewards: ScaleRewards = ScaleRewards::Group,
            source("TRL `scale_rewards`, verl `norm_adv_by_std_in_grpo`");
        /// Added to the standard deviations that rewards are divided by (`advantage_estimator` grpo, grpo_passk and
        /// process).
        advantage_epsilon: Option<f64> = None,
            absent("1e-4 for grpo and process, as in TRL, and 1e-6 for grpo_passk, as in verl"),
            source("verl's argument `epsilon`, 1e-6 for grpo too"), at_least(0.0);
        /// Advantage of the only completion of a group that has a reward, with `advantage_estimator` grpo.
        lone_advantage: LoneAdvantage = LoneAdvantage::Zero, source("TRL; `reward` is verl's rule");
        /// Standard deviation that rewards of steps are divided by, with `advantage_estimator` process.
        step_deviation: StepDeviation = StepDeviation::Unbiased, source("DeepSeekMath section 4.1.3");
        /// How several reward functions become one advantage.
        multi_objective_aggregation: MultiObjectiveAggregation = MultiObjectiveAggregation::SumThenNormalize, trl;
        /// Whiten the advantages over all trained tokens of the generation batch.
        normalize_advantages: bool = false, source("RLinf `normalize_advantages`");
        /// Discount of rewards to come (`advantage_estimator` gae and reinforce_plus_plus).
        gamma: f64 = 1.0, trl, at_least(0.0), at_most(1.0);
        /// λ of generalised advantage estimation.
        lam: f64 = 0.95, trl, at_least(0.0), at_most(1.0);
    }

    "Critic (advantage_estimator gae)" {
        /// Model directory that the critic starts from. A head that is not there starts at 0.
        critic_model: Option<PathBuf> = None, absent("the policy's"), on_hub;
        /// Peak learning rate of the critic.
        critic_learning_rate: f64 = 1e-5, source("verl `critic.optim.lr`"), at_least(0.0);
        /// Steps in which only the critic learns.
        critic_warmup_steps: u64 = 0, source("verl `trainer.critic_warmup`"), also(&["critic_warmup"]);
        /// How far a value may move from the one that the step began with before its loss is clipped.
        cliprange_value: f64 = 0.2, trl, above(0.0);
    }

    "Objective" {
        /// Policy term and reduction.
        loss_type: LossType = LossType::Dapo, source("TRL `loss_type`, verl `policy_loss.loss_mode`"),
            also(&["loss_mode"]);
        /// How the losses of tokens are reduced to one number.
        loss_aggregation: Option<LossAggregation> = None, absent("that of `loss_type`"),
            source("verl `loss_agg_mode`, RLinf `loss_agg_func`"), also(&["loss_agg_mode", "loss_agg_func"]);
        /// Divisor of `seq-mean-token-sum-norm`.
        loss_scale_factor: Option<f64> = None, absent("`max_completion_length`"), source("verl `loss_scale_factor`"),
            above(0.0);
        /// What the importance ratio is taken over.
        importance_sampling_level: ImportanceSamplingLevel = ImportanceSamplingLevel::Token, trl;
        /// Clip range below (and above, without `epsilon_high`).
        epsilon: f64 = 0.2, trl, also(&["clip_ratio", "clip_ratio_low", "ratio_clip_eps", "eps_clip"]),
            at_least(0.0), below(1.0);
        /// Clip range above. For `loss_type` cispo it is the cap of the ratio itself.
        epsilon_high: Option<f64> = None, absent("`epsilon`"), trl,
            also(&["clip_ratio_high", "eps_clip_high"]), at_least(0.0);
        /// Cap of the unclipped ratio (two-sided clipping, INTELLECT-2).
        delta: Option<f64> = None, absent("none"), trl, above(0.0);
        /// Dual clip of `loss_type` vanilla: bound of the loss of tokens with a negative advantage. Of dppo_tv and
        /// dppo_kl: the largest factor on a log-prob; larger ratios count as this one.
        clip_ratio_c: f64 = 3.0, source("verl `clip_ratio_c`"), above(1.0), because("it bounds a ratio");
        /// Share of the tokens of a minibatch that clip_cov drops; one at least.
        clip_cov_ratio: f64 = 0.0002, source("verl `clip_cov_ratio`"), above(0.0), at_most(1.0);
        /// Covariance above which clip_cov may drop a token.
        clip_cov_lb: f64 = 1.0, source("verl `clip_cov_lb`"), at_least(-1e9);
        /// Covariance below which clip_cov may drop a token.
        clip_cov_ub: f64 = 5.0, source("verl `clip_cov_ub`"), at_least(-1e9);
        /// Share of the tokens of a minibatch that kl_cov penalises, those of largest covariance; one at least.
        kl_cov_ratio: f64 = 0.0002, source("verl `kl_cov_ratio`"), above(0.0), at_most(1.0);
        /// Weight of the penalty of kl_cov, on the absolute log-ratio.
        ppo_kl_coef: f64 = 0.1, source("verl `ppo_kl_coef`"), at_least(0.0);
        /// Weight of the penalty of dro, on half the square of the log-ratio.
        dro_beta: Option<f64> = None, absent("none"), source("verl `dro_beta`"), above(0.0);
        /// SAPO's temperature for advantages above 0.
        sapo_temperature_pos: f64 = 1.0, trl, above(0.0);
        /// SAPO's temperature for the other advantages.
        sapo_temperature_neg: f64 = 1.05, trl, above(0.0);
        /// VESPO's exponent for advantages of at least 0.
        vespo_k_pos: f64 = 2.0, trl, at_least(0.0);
        /// VESPO's decay for advantages of at least 0.
        vespo_lambda_pos: f64 = 3.0, trl, at_least(0.0);
        /// VESPO's exponent for negative advantages.
        vespo_k_neg: f64 = 3.0, trl, at_least(0.0);
        /// VESPO's decay for negative advantages.
        vespo_lambda_neg: f64 = 2.0, trl, at_least(0.0);
        /// Leave truncated completions out of the loss; they still count in the baseline.
        mask_truncated_completions: bool = false, trl;
        /// Train only on this share of each minibatch's tokens, those of highest entropy; 1 = all.
        top_entropy_quantile: f64 = 1.0, trl, above(0.0), at_most(1.0);
        /// Leave out completions with a negative advantage whose mean `sampling_logprobs − logprobs` is above this.
        /// It grows with every update since the completion was sampled (`max_staleness`, `num_iterations`) and with a
        /// rounded sampler (`rollout_dtype`, `kv_dtype`).
        off_policy_mask_threshold: Option<f64> = None, absent("none"), trl, at_least(0.0);
        /// Leave a minibatch out when its mean ratio is above this.
        early_stop_imp_ratio: Option<f64> = None, absent("none"), source("RLinf `early_stop_imp_ratio`"),
            above(1.0), because("it bounds a ratio");
        /// Weigh each minibatch by its share of the update's trained tokens.
        use_valid_token_scale: bool = false, source("RLinf `use_valid_token_scale`");
        /// Weight of the entropy bonus: the mean entropy of the trained tokens of each minibatch, whatever the
        /// reduction.
        entropy_coef: f64 = 0.0, source("TRL `entropy_coef`, RLinf `entropy_bonus`"),
            also(&["entropy_bonus", "entropy_coeff"]), at_least(0.0);
        /// After each update, move `entropy_coef` up when its entropy was not above `entropy_target`, down otherwise;
        /// the next update has a bonus only in the first case.
        use_adaptive_entropy: bool = false, trl;
        /// Smallest adaptive coefficient.
        entropy_coef_min: f64 = 0.0, trl, at_least(0.0);
        /// Largest adaptive coefficient.
        entropy_coef_max: f64 = 1.0, trl, at_least(0.0);
        /// Step of the adaptive coefficient.
        entropy_coef_delta: f64 = 0.005, trl, at_least(0.0);
        /// Entropy that the adaptive coefficient aims at, in nats.
        entropy_target: f64 = 0.2, trl, at_least(0.0);
    }

    "Reference policy" {
        /// Weight of the KL penalty against the reference policy; 0 = no reference model in memory.
        beta: f64 = 0.0, trl, also(&["kl_beta", "kl_loss_coef"]), at_least(0.0);
        /// Estimator of the penalty.
        kl_estimator: Option<KlEstimator> = None,
            absent("k3 in the loss, as in DeepSeekMath and TRL; k1 with `use_kl_in_reward`, which is PPO's"),
            source("verl `kl_loss_type`, RLinf `kl_penalty_type`"), also(&["kl_loss_type", "kl_penalty_type"]);
        /// Multiply the KL estimate in the loss by the importance ratio. Its gradient is then that of the divergence,
        /// also after several updates. Absent, the factor depends on the estimator: the token's ratio for k1 and k3,
        /// the value of that ratio without its gradient for k2, mse, k1+ and k3+, and none for abs, of which no form
        /// has that gradient. `importance_sampling_level` does not matter then. `true` is TRL's form, for k1 and k3
        /// only: the factor is the ratio of the policy term, of the sequence where that level is `sequence`. `false`
        /// adds the estimate as it is, as verl and RLinf do.
        use_bias_correction_kl: Option<bool> = None, absent("the factor of the estimator"), trl;
        /// Subtract the penalty from each token's reward (PPO) instead of adding it to the loss (GRPO).
        use_kl_in_reward: bool = false, source("verl `use_kl_in_reward`");
        /// Weight of a penalty in the loss on the KL divergence from the policy that the step began with, of π from
        /// π_old (PPO-penalty); 0 = none. It holds back what clipping does not, and needs no reference model. Without
        /// effect in a step of one optimiser update.
        old_policy_kl_coef: f64 = 0.0, source("Schulman et al. 2017, PPO, eq. 8"), at_least(0.0);
        /// The KL per token that `old_policy_kl_coef` aims at: the coefficient is halved after a step whose KL is below
        /// 2/3 of this target, and doubled after one whose KL is above 3/2 of it.
        old_policy_kl_target: Option<f64> = None, absent("the weight is constant"),
            source("Schulman et al. 2017, PPO, section 4, d_targ"), above(0.0);
        /// How the penalty in the reward is weighted over time.
        kl_controller: KlController = KlController::Fixed, source("verl `kl_ctrl.type`");
        /// KL per token that the adaptive controller aims at.
        kl_target: f64 = 0.1, source("verl `kl_ctrl.target_kl`"), also(&["target_kl"]), above(0.0);
        /// Completions over which the adaptive controller acts.
        kl_horizon: f64 = 10_000.0, source("verl `kl_ctrl.horizon`"), above(0.0);
        /// Move the reference policy towards the policy every `ref_model_sync_steps` steps.
        sync_ref_model: bool = false, trl;
        /// Share of the policy in the new reference.
        ref_model_mixup_alpha: f64 = 0.6, trl, at_least(0.0), at_most(1.0);
        /// Steps (generation batches) between two moves of the reference; in TRL, optimiser updates.
        ref_model_sync_steps: u64 = 512, trl, at_least(1.0);
    }

    "Mismatch between sampler and learner" {
        /// Weigh the policy term by the ratio of the learner's to the sampler's probability.
        importance_sampling_correction: bool = true, source("TRL `vllm_importance_sampling_correction`"),
            also(&["vllm_importance_sampling_correction"]);
        /// What that ratio is taken over, and what happens outside its bounds.
        importance_sampling_mode: ImportanceSamplingMode = ImportanceSamplingMode::SequenceMask,
            source("TRL `vllm_importance_sampling_mode`"), also(&["vllm_importance_sampling_mode"]);
        /// Upper bound of the ratio; inf = none.
        importance_sampling_clip_max: f64 = 3.0, source("TRL `vllm_importance_sampling_clip_max`"),
            also(&["vllm_importance_sampling_clip_max"]), above(0.0), or_infinite;
        /// Lower bound of the ratio.
        importance_sampling_clip_min: Option<f64> = None, absent("none"),
            source("TRL `vllm_importance_sampling_clip_min`"), also(&["vllm_importance_sampling_clip_min"]),
            at_least(0.0);
        /// Divide the weights by their mean over the generation batch, after bounding their logs to ±20.
        importance_sampling_batch_normalize: bool = false, source("verl `rollout_is_batch_normalize`");
        /// Clip against the policy that the step began with and weigh by its distance from the one that sampled (the
        /// decoupled objective); false = clip against the sampler's log-probs.
        decoupled_objective: bool = true, source("AReaL `use_decoupled_loss`"), also(&["use_decoupled_loss"]);
    }

    "Optimiser" {
        /// Peak learning rate of AdamW.
        learning_rate: f64 = 1e-6, trl, at_least(0.0);
        /// Schedule after the warm-up.
        lr_scheduler_type: LrSchedulerType = LrSchedulerType::Linear, trl;
        /// Settings of the schedule, by the names of transformers, as in `{ min_lr_rate = 0.1 }`: each schedule below
        /// says which it has.
        lr_scheduler_kwargs: Option<JsonTable> = None, absent("those of transformers"), trl;
        /// Optimiser updates (not steps) of warm-up, as in TRL; wins over `warmup_ratio`. A number below 1 is
        /// `warmup_ratio`.
        warmup_steps: u64 = 0, trl, share("warmup_ratio");
        /// Share of all updates spent warming up.
        warmup_ratio: f64 = 0.0, trl, at_least(0.0), at_most(1.0);
        /// Decay of AdamW's first moment (β₁).
        adam_beta1: f64 = 0.9, trl, at_least(0.0), below(1.0);
        /// Decay of AdamW's second moment (β₂).
        adam_beta2: f64 = 0.999, trl, at_least(0.0), below(1.0);
        /// What AdamW adds to the root of the second moment (ε).
        adam_epsilon: f64 = 1e-8, trl, above(0.0);
        /// Decoupled weight decay on matrices.
        weight_decay: f64 = 0.0, trl, at_least(0.0);
        /// Largest global gradient norm; 0 = no clipping.
        max_grad_norm: f64 = 1.0, trl, also(&["grad_clip"]), at_least(0.0);
    }

    "Guard" {
        /// What is done when a run is in trouble, as a list of `sign=action`, looked at before the weights are moved.
        /// Signs: `non_finite`, `mismatch`, `gradient_spike`, `kl`, `entropy_gone`, `truncated`, `equal_groups`,
        /// `reward_failures`; actions: `warn`, `lower_learning_rate`, `skip_step`, `roll_back`, `stop`.
        /// `mismatch=skip_step:above=0.01:steps=2` also says from where on (for entropy_gone `below`), and how many
        /// steps in a row; docs/guard.md has the usual figures.
        guard: Vec<String> = Vec::new();
        /// What `lower_learning_rate` multiplies the learning rate with, each time.
        guard_learning_rate_factor: f64 = 0.5, above(0.0), below(1.0);
        /// How often a run may go back to an earlier checkpoint before it ends with an error.
        guard_max_roll_backs: u32 = 3, keeps_results;
    }

    } };
}
pub(super) use learning;
