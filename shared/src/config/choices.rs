//! The options with a closed list of values.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::manifest::Dtype;

/// Policy term and, unless `loss_aggregation` says otherwise, reduction. TRL `loss_type`, verl
/// `policy_loss.loss_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// Clipped surrogate; mean over a sequence's tokens, then over sequences (DeepSeekMath eq. 3).
    Grpo,
    /// Clipped surrogate; mean over the tokens of the logical batch.
    Bnpo,
    /// Clipped surrogate; sum over tokens divided by (sequences × `max_completion_length`) (Dr. GRPO).
    DrGrpo,
    /// Clipped surrogate; sum over tokens divided by the tokens of the whole generation batch (DAPO eq. 8).
    #[default]
    Dapo,
    /// Clipped surrogate; sum over a sequence's tokens, mean over sequences, so that long answers are not devalued
    /// (LUSPO).
    Luspo,
    /// Log-prob weighted by the capped, detached ratio; the cap is `epsilon_high` itself; reduced like `dapo`
    /// (MiniMax-M1).
    Cispo,
    /// A sigmoid gate on the ratio instead of a clip; reduced like `grpo` (SAPO).
    Sapo,
    /// Log-prob weighted by a detached gamma-shaped function of the sequence's ratio; reduced like `dapo` (VESPO).
    Vespo,
    /// verl's `vanilla`: the clipped surrogate with dual clip (`clip_ratio_c`), log-ratios bounded to ±20; token mean
    /// over the update.
    Vanilla,
    /// verl's `gspo`: a sequence-level ratio that reaches every token's log-prob; mean over a sequence's tokens, then
    /// over sequences (GSPO-token).
    Gspo,
    /// verl's `cispo`: the detached ratio is clipped to [1 − `epsilon`, 1 + `epsilon_high`]; token mean over the update.
    VerlCispo,
    /// verl's `geo_mean`: the clipped ratios' geometric mean over a sequence; mean over sequences (GMPO).
    #[serde(alias = "gmpo")]
    GeoMean,
    /// Plain policy gradient, `−logprob × advantage`; token mean over the update (GPG).
    Gpg,
}

/// How token losses are reduced to one number, where that is not left to `loss_type`. verl `loss_agg_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossAggregation {
    /// Mean over all tokens of an optimiser update.
    TokenMean,
    /// Sum over a sequence's tokens, mean over sequences.
    SeqMeanTokenSum,
    /// Mean over a sequence's tokens, mean over sequences.
    SeqMeanTokenMean,
    /// Sum over all tokens divided by `loss_scale_factor`.
    SeqMeanTokenSumNorm,
}

/// What the importance ratio of policy to old policy is taken over. TRL `importance_sampling_level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingLevel {
    /// Each token has its own.
    #[default]
    Token,
    /// A sequence has one: the geometric mean of its tokens' (GSPO eq. 7).
    Sequence,
}

/// How rewards become advantages. verl `adv_estimator`, RLinf `adv_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// Reward minus the group's mean, divided as `scale_rewards` says (DeepSeekMath eq. 3).
    #[default]
    Grpo,
    /// Reward minus the mean of the group's other rewards (RLOO).
    Rloo,
    /// Discounted reward-to-go, whitened over the batch (REINFORCE++).
    #[serde(alias = "reinforce++", alias = "reinpp")]
    ReinforcePlusPlus,
    /// Reward minus the group's mean, whitened over the batch (REINFORCE++ with baseline).
    #[serde(alias = "reinforce++-baseline", alias = "reinpp_baseline")]
    ReinforcePlusPlusBaseline,
    /// Reward minus the group's length-weighted mean (OPO).
    Opo,
    /// Reward minus the group's mean, scaled by completions ÷ completions with a reward other than 0 (GPG).
    Gpg,
    /// Only the best completion of a group counts: its lead over the second best, divided by the group's standard
    /// deviation unless `scale_rewards` is none (pass@k policy optimisation).
    #[serde(alias = "pass_at_k")]
    GrpoPassk,
    /// Process supervision: rewards of steps, normalised over all steps of the group, summed over the steps to come
    /// (DeepSeekMath, section 4.1.3). A reward of the whole completion counts as one step that ends with it.
    Process,
    /// Generalised advantage estimation with a learned critic (PPO).
    Gae,
}

/// How several reward functions become one advantage. TRL `multi_objective_aggregation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum MultiObjectiveAggregation {
    /// Weighted sum of the rewards, then the advantage of the sum.
    #[default]
    SumThenNormalize,
    /// Each function is normalised in its group; the weighted sum is normalised over the batch (GDPO).
    NormalizeThenSum,
}

/// Estimator of the KL divergence from the reference policy. verl `kl_loss_type`, RLinf `kl_penalty_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// `logprob − ref_logprob`: unbiased, of either sign.
    #[serde(alias = "kl")]
    K1,
    /// Half the squared difference: biased, of low variance.
    K2,
    /// `exp(d) − d − 1` with `d = ref_logprob − logprob`: unbiased, never negative. With a loss type of verl (`vanilla`,
    /// `gspo`, `verl_cispo`, `geo_mean`, `gpg`) and in the reward, d is bounded to ±20 and the value to ±10, as there.
    #[default]
    #[serde(alias = "low_var_kl")]
    K3,
    /// Absolute difference.
    Abs,
    /// Another name of k2 (verl, RLinf).
    Mse,
    /// Value of k1, gradient of k2 (straight through).
    #[serde(rename = "k1+")]
    K1Plus,
    /// Value of k3, gradient of k2 (straight through).
    #[serde(rename = "k3+")]
    K3Plus,
}

/// How the coefficient of the KL penalty in the reward moves. verl `kl_ctrl.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum KlController {
    /// It stays at `beta`.
    #[default]
    Fixed,
    /// It follows the measured KL towards `kl_target` (Ziegler et al. 2019, section 2.2).
    Adaptive,
}

/// Correction for the mismatch between sampler and learner: what the ratio `exp(old − sampling log-prob)` is taken over,
/// and what happens outside its bounds. TRL `vllm_importance_sampling_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingMode {
    /// Each token's ratio, clamped to the bounds.
    TokenTruncate,
    /// Each token's ratio; a token outside the bounds leaves the loss.
    TokenMask,
    /// The product over the sequence, clamped to the bounds.
    SequenceTruncate,
    /// The product over the sequence; a sequence outside the bounds leaves the loss.
    #[default]
    SequenceMask,
}

/// Divisor of the centred rewards. TRL `scale_rewards`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The group's standard deviation (n − 1), plus 1e-4.
    #[default]
    Group,
    /// The whole batch's standard deviation, plus 1e-4.
    Batch,
    /// None: centred rewards as they are.
    None,
}

/// Learning-rate schedule. transformers `lr_scheduler_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedulerType {
    /// The peak rate throughout.
    Constant,
    /// The peak rate after a linear warm-up.
    ConstantWithWarmup,
    /// Linear to 0 after a linear warm-up.
    #[default]
    Linear,
    /// Half a cosine to 0 after a linear warm-up.
    Cosine,
}

/// What happens to running sequences when new weights arrive (only with `max_staleness` above 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum WeightSwap {
    /// Running sequences finish on the weights they began with; new ones wait until the swap.
    #[default]
    Drain,
    /// Running sequences go on under the new weights with the keys and values they have; each token carries its
    /// version.
    Continue,
}

/// What the sampler's linear layers compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum RolloutDtype {
    /// The element type of the export: fp32 on the CPU, fp16 on CUDA.
    #[default]
    Auto,
    /// Bytes, with a scale for each output and, from call to call, for each row of the input; every version is rounded
    /// anew when it is loaded. Log-probs are those of the rounded model. On the CPU, with the packed kernels.
    Int8,
    /// Weights and inputs rounded to bf16, sums in fp32; the rest of the model stays fp32. On the CPU, with the packed
    /// kernels.
    Bf16,
    /// Weights and inputs as sums of two bf16, sums in fp32: close to fp32, and faster with AMX. On the CPU, with the
    /// packed kernels.
    Bf16x3,
}

impl fmt::Display for RolloutDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Int8 => "int8",
            Self::Bf16 => "bf16",
            Self::Bf16x3 => "bf16x3",
        })
    }
}

/// What the sampler stores keys and values as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum KvDtype {
    /// The element type of the export.
    #[default]
    Auto,
    /// Bytes, with a scale for each position and head, rounded once when a position is stored: a quarter of the memory,
    /// and of what a step reads. Log-probs are those of attention over the rounded keys and values. On the CPU, with the
    /// packed kernels.
    Int8,
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Int8 => "int8",
        })
    }
}

/// What computes the sampler's model on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Kernels {
    /// This program's operators over packed weights and paged keys and values, for fp32 on the CPU; elsewhere as `stock`.
    #[default]
    Packed,
    /// ONNX Runtime's operators on the published graph: slower, and a check on the others.
    Stock,
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Packed => "packed",
            Self::Stock => "stock",
        })
    }
}

/// Where a process computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// Processor cores.
    #[default]
    Cpu,
    /// The first CUDA device.
    Cuda,
    /// TensorRT where it can take the graph, CUDA for the rest (sampler only).
    Tensorrt,
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

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Tensorrt => "tensorrt",
        })
    }
}
