//! The options with a closed list of values: each value with its word in `run.toml`, other words for it and its meaning.

use super::declare::choices;
use crate::manifest::Dtype;

choices! {
    /// Policy term and, unless `loss_aggregation` says otherwise, reduction. TRL `loss_type`, verl
    /// `policy_loss.loss_mode`.
    LossType {
        /// Clipped surrogate; mean over a sequence's tokens, then over sequences (DeepSeekMath eq. 3).
        Grpo = "grpo",
        /// Clipped surrogate; mean over the tokens of the logical batch.
        Bnpo = "bnpo",
        /// Clipped surrogate; sum over tokens divided by (sequences × `max_completion_length`) (Dr. GRPO).
        DrGrpo = "dr_grpo",
        /// Clipped surrogate; sum over tokens divided by the tokens of the whole generation batch (DAPO eq. 8).
        Dapo = "dapo",
        /// Clipped surrogate; sum over a sequence's tokens, mean over sequences, so that long answers are not devalued
        /// (LUSPO).
        Luspo = "luspo",
        /// Log-prob weighted by the capped, detached ratio; the cap is `epsilon_high` itself; reduced like `dapo`
        /// (MiniMax-M1).
        Cispo = "cispo",
        /// A sigmoid gate on the ratio instead of a clip; reduced like `grpo` (SAPO).
        Sapo = "sapo",
        /// Log-prob weighted by a detached gamma-shaped function of the sequence's ratio; reduced like `dapo` (VESPO).
        Vespo = "vespo",
        /// verl's `vanilla`: the clipped surrogate with dual clip (`clip_ratio_c`), log-ratios bounded to ±20; token
        /// mean over the update.
        Vanilla = "vanilla",
        /// verl's `gspo`: a sequence-level ratio that reaches every token's log-prob; mean over a sequence's tokens,
        /// then over sequences (GSPO-token).
        Gspo = "gspo",
        /// verl's `cispo`: the detached ratio is clipped to [1 − `epsilon`, 1 + `epsilon_high`]; token mean over the
        /// update.
        VerlCispo = "verl_cispo",
        /// verl's `geo_mean`: the clipped ratios' geometric mean over a sequence; mean over sequences (GMPO).
        GeoMean = "geo_mean" | "gmpo",
        /// Plain policy gradient, `−logprob × advantage`; token mean over the update (GPG).
        Gpg = "gpg",
    }

    /// How token losses are reduced to one number, where that is not left to `loss_type`. verl `loss_agg_mode`.
    LossAggregation {
        /// Mean over all tokens of an optimiser update.
        TokenMean = "token-mean",
        /// Sum over a sequence's tokens, mean over sequences.
        SeqMeanTokenSum = "seq-mean-token-sum",
        /// Mean over a sequence's tokens, mean over sequences.
        SeqMeanTokenMean = "seq-mean-token-mean",
        /// Sum over all tokens divided by `loss_scale_factor`.
        SeqMeanTokenSumNorm = "seq-mean-token-sum-norm",
    }

    /// What the importance ratio of policy to old policy is taken over. TRL `importance_sampling_level`.
    ImportanceSamplingLevel {
        /// Each token has its own.
        Token = "token",
        /// A sequence has one: the geometric mean of its tokens' (GSPO eq. 7).
        Sequence = "sequence",
    }

    /// How rewards become advantages. verl `adv_estimator`, RLinf `adv_type`.
    AdvantageEstimator {
        /// Reward minus the group's mean, divided as `scale_rewards` says (DeepSeekMath eq. 3).
        Grpo = "grpo",
        /// Reward minus the mean of the group's other rewards (RLOO).
        Rloo = "rloo",
        /// Discounted reward-to-go, whitened over the batch (REINFORCE++).
        ReinforcePlusPlus = "reinforce_plus_plus" | "reinforce++" | "reinpp",
        /// Reward minus the group's mean, whitened over the batch (REINFORCE++ with baseline).
        ReinforcePlusPlusBaseline = "reinforce_plus_plus_baseline" | "reinforce++-baseline" | "reinpp_baseline",
        /// Reward minus the group's length-weighted mean (OPO).
        Opo = "opo",
        /// Reward minus the group's mean, scaled by completions ÷ completions with a reward other than 0 (GPG).
        Gpg = "gpg",
        /// Only the best completion of a group counts: its lead over the second best, divided by the group's standard
        /// deviation unless `scale_rewards` is none (pass@k policy optimisation).
        GrpoPassk = "grpo_passk" | "pass_at_k",
        /// Process supervision: rewards of steps, normalised over all steps of the group, summed over the steps to come
        /// (DeepSeekMath, section 4.1.3). A reward of the whole completion counts as one step that ends with it.
        Process = "process",
        /// Generalised advantage estimation with a learned critic (PPO).
        Gae = "gae",
    }

    /// How several reward functions become one advantage. TRL `multi_objective_aggregation`.
    MultiObjectiveAggregation {
        /// Weighted sum of the rewards, then the advantage of the sum.
        SumThenNormalize = "sum_then_normalize",
        /// Each function is normalised in its group; the weighted sum is normalised over the batch (GDPO).
        NormalizeThenSum = "normalize_then_sum",
    }

    /// Estimator of the KL divergence from the reference policy. verl `kl_loss_type`, RLinf `kl_penalty_type`.
    KlEstimator {
        /// `logprob − ref_logprob`: unbiased, of either sign.
        K1 = "k1" | "kl",
        /// Half the squared difference: biased, of low variance.
        K2 = "k2",
        /// `exp(d) − d − 1` with `d = ref_logprob − logprob`: unbiased, never negative. With a loss type of verl
        /// (`vanilla`, `gspo`, `verl_cispo`, `geo_mean`, `gpg`) and in the reward, d is bounded to ±20 and the value to
        /// ±10, as there.
        K3 = "k3" | "low_var_kl",
        /// Absolute difference.
        Abs = "abs",
        /// Another name of k2 (verl, RLinf).
        Mse = "mse",
        /// Value of k1, gradient of k2 (straight through).
        K1Plus = "k1+",
        /// Value of k3, gradient of k2 (straight through).
        K3Plus = "k3+",
    }

    /// How the coefficient of the KL penalty in the reward moves. verl `kl_ctrl.type`.
    KlController {
        /// It stays at `beta`.
        Fixed = "fixed",
        /// It follows the measured KL towards `kl_target` (Ziegler et al. 2019, section 2.2).
        Adaptive = "adaptive",
    }

    /// Correction for the mismatch between sampler and learner: what the ratio `exp(old − sampling log-prob)` is taken
    /// over, and what happens outside its bounds. TRL `vllm_importance_sampling_mode`.
    ImportanceSamplingMode {
        /// Each token's ratio, clamped to the bounds.
        TokenTruncate = "token_truncate",
        /// Each token's ratio; a token outside the bounds leaves the loss.
        TokenMask = "token_mask",
        /// The product over the sequence, clamped to the bounds.
        SequenceTruncate = "sequence_truncate",
        /// The product over the sequence; a sequence outside the bounds leaves the loss.
        SequenceMask = "sequence_mask",
    }

    /// Divisor of the centred rewards. TRL `scale_rewards`.
    ScaleRewards {
        /// The group's standard deviation (n − 1), plus 1e-4.
        Group = "group",
        /// The whole batch's standard deviation, plus 1e-4.
        Batch = "batch",
        /// None: centred rewards as they are.
        None = "none",
    }

    /// Learning-rate schedule. transformers `lr_scheduler_type`.
    LrSchedulerType {
        /// The peak rate throughout.
        Constant = "constant",
        /// The peak rate after a linear warm-up.
        ConstantWithWarmup = "constant_with_warmup",
        /// Linear to 0 after a linear warm-up.
        Linear = "linear",
        /// Half a cosine to 0 after a linear warm-up.
        Cosine = "cosine",
    }

    /// What happens to running sequences when new weights arrive (only with `max_staleness` above 0).
    WeightSwap {
        /// Running sequences finish on the weights they began with; new ones wait until the swap.
        Drain = "drain",
        /// Running sequences go on under the new weights with the keys and values they have; each token carries its
        /// version.
        Continue = "continue",
    }

    /// What the sampler's linear layers compute in.
    RolloutDtype {
        /// The element type of the export: fp32 on the CPU, fp16 on CUDA.
        Auto = "auto",
        /// Bytes, with a scale for each output and, from call to call, for each row of the input; every version is
        /// rounded anew when it is loaded. Log-probs are those of the rounded model. On the CPU, with the packed
        /// kernels.
        Int8 = "int8",
        /// Weights and inputs rounded to bf16, sums in fp32; the rest of the model stays fp32. On the CPU, with the
        /// packed kernels.
        Bf16 = "bf16",
        /// Weights and inputs as sums of two bf16, sums in fp32: close to fp32, and faster with AMX. On the CPU, with
        /// the packed kernels.
        Bf16x3 = "bf16x3",
    }

    /// What the sampler stores keys and values as.
    KvDtype {
        /// The element type of the export.
        Auto = "auto",
        /// Bytes, with a scale for each position and head, rounded once when a position is stored: a quarter of the
        /// memory, and of what a step reads. Log-probs are those of attention over the rounded keys and values. On the
        /// CPU, with the packed kernels.
        Int8 = "int8",
    }

    /// What computes the sampler's model on the CPU.
    Kernels {
        /// This program's operators over packed weights and paged keys and values, for fp32 on the CPU; elsewhere as
        /// `stock`.
        Packed = "packed",
        /// ONNX Runtime's operators on the published graph: slower, and a check on the others.
        Stock = "stock",
    }

    /// Where a process computes.
    Device {
        /// Processor cores, in fp32: bit for bit the same everywhere.
        Cpu = "cpu",
        /// The first CUDA device; needs the CUDA build of the library.
        Cuda = "cuda",
        /// TensorRT where it can take the graph, which takes minutes for new weights, CUDA for the rest (sampler only;
        /// not yet run on a GPU).
        Tensorrt = "tensorrt",
    }
}

impl Device {
    /// The element type that the sampler's graph is exported in: single precision on the CPU, whose kernels have no
    /// other; half precision elsewhere, because GroupQueryAttention on CUDA (ONNX Runtime 1.31) decodes wrongly in
    /// single precision when the cache is extended in place.
    #[must_use]
    pub fn export_dtype(self) -> Dtype {
        match self {
            Self::Cpu => Dtype::Fp32,
            Self::Cuda | Self::Tensorrt => Dtype::Fp16,
        }
    }
}
