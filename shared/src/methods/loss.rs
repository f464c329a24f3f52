//! Descriptions of losses.

use super::{Counted, LossMetric, Reduction, reduction::LossAggregation};
use crate::{
    declare::{Choice, choices},
    metrics,
};

choices! {
    /// Policy term and, unless `loss_aggregation` says otherwise, reduction. TRL `loss_type`, verl
    /// `policy_loss.loss_mode`.
    LossType {
        /// Clipped surrogate; mean over a sequence's tokens, then over sequences (DeepSeekMath eq. 3).
        Grpo = "grpo",
        /// Clipped surrogate; mean over the tokens of the minibatch.
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
        /// verl's `gpg`: plain policy gradient, `−logprob × advantage`; token mean over the update (GPG).
        Gpg = "gpg",
        /// verl's `dppo_tv`: log-prob weighted by the detached ratio (at most `clip_ratio_c`), without the tokens whose
        /// probability has moved by more than `epsilon` down or `epsilon_high` up, in the direction of their advantage;
        /// token mean over the update (DPPO).
        DppoTv = "dppo_tv",
        /// verl's `dppo_kl`: as `dppo_tv`, where the bounds are on the KL divergence of the two policies, each taken as
        /// the token against all others together (DPPO).
        DppoKl = "dppo_kl",
        /// verl's `clip_cov`: clipped surrogate, without `clip_cov_ratio` of the tokens, drawn among those of large
        /// covariance of log-prob and advantage; token mean over the update (Clip-Cov).
        ClipCov = "clip_cov",
        /// verl's `kl_cov`: unclipped surrogate, with a penalty on the log-ratio of the `kl_cov_ratio` tokens of
        /// largest covariance of log-prob and advantage; token mean over the update (KL-Cov).
        KlCov = "kl_cov",
        /// verl's `dro`: plain policy gradient with a square penalty on the log-ratio (`dro_beta`); token mean over the
        /// update (DRO).
        Dro = "dro",
    }

    /// Unit of the importance ratio of policy to old policy. TRL `importance_sampling_level`.
    ImportanceSamplingLevel {
        /// Each token has its own.
        Token = "token",
        /// A sequence has one: the geometric mean of its tokens' (GSPO eq. 7).
        Sequence = "sequence",
    }
}

/// The unit that a method must see at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Any run of tokens.
    Token,
    /// Whole completions.
    Completion,
    /// A whole minibatch.
    Minibatch,
}

/// The unit of a loss's importance ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ratio {
    /// `importance_sampling_level` chooses it.
    Chosen,
    /// Each token has its own, and `importance_sampling_level` sequence is refused.
    OfToken,
    /// The loss itself forms one for the whole completion, and `importance_sampling_level` sequence is refused.
    OfCompletion,
}

/// How a loss applies the weights that correct the mismatch between sampler and learner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportanceWeights {
    /// They multiply the loss of each token.
    Multiply,
    /// The formula applies them itself.
    Inside,
}

/// Description of a loss, without its formula.
#[derive(Debug, Clone, Copy)]
pub struct LossSpec {
    /// Its name in the literature.
    pub title: &'static str,
    /// Its distinguishing feature, in a few words.
    pub about: &'static str,
    /// Paper with its equation, and the name in TRL or verl.
    pub source: &'static str,
    /// The least unit that it must see at once; options may ask for more.
    pub scope: Scope,
    /// The unit of its ratio.
    pub ratio: Ratio,
    /// Bound of a token's log-ratio on both sides: 20 in some of verl's losses.
    pub log_ratio_bound: Option<f64>,
    /// How importance weights are applied.
    pub importance: ImportanceWeights,
    /// Whether the k3 estimate of the KL term has verl's bounds.
    pub kl_bounded: bool,
    /// How token losses become one number.
    pub reduction: Reduction,
    /// Whether `loss_aggregation` may name another reduction.
    pub reduction_can_change: bool,
    /// Metrics of its formula, in addition to those of ratio and KL. Every formula of the loss records exactly these.
    pub metrics: &'static [LossMetric],
    /// Options that it reads; an option of other losses that is not listed here has no effect.
    pub options: &'static [&'static str],
    /// Options that must be given, each with the reason.
    pub required: &'static [(&'static str, &'static str)],
    /// Options whose defaults do not suit it, each with the reason.
    pub advised: &'static [(&'static str, &'static str)],
    /// Whether it has a gradient where the advantage is 0.
    pub moves_without_advantage: bool,
    /// Whether it draws tokens at random.
    pub draws_tokens: bool,
    /// verl's name for the loss, if verl has it.
    pub verl: Option<&'static str>,
    /// Options that are usually set with it.
    pub recipe: &'static [&'static str],
}

/// Ratio below its bound with a negative advantage.
pub const CLIP_LOW: LossMetric = LossMetric {
    smallest: Some(metrics::CLIP_RATIO_LOW_MIN),
    ..LossMetric::of_clipping(metrics::CLIP_RATIO_LOW_MEAN, Counted::Ratio)
};
/// Ratio above its bound with a positive advantage.
pub const CLIP_HIGH: LossMetric = LossMetric {
    largest: Some(metrics::CLIP_RATIO_HIGH_MAX),
    ..LossMetric::of_clipping(metrics::CLIP_RATIO_HIGH_MEAN, Counted::Ratio)
};
/// Either of the two above.
pub const CLIP_REGION: LossMetric = LossMetric::of_clipping(metrics::CLIP_RATIO_REGION_MEAN, Counted::Ratio);
/// Ratio above cispo's cap, with a positive advantage.
pub const CISPO_CLIP: LossMetric = LossMetric::of_clipping(metrics::CISPO_CLIP_RATIO, Counted::Ratio);
/// VESPO's weight of the completion; 1 for an empty one.
pub const PHI: LossMetric =
    LossMetric { counted: Counted::Completion, of_empty: 1.0, ..LossMetric::of_tokens(metrics::VESPO_PHI_SEQ_MEAN) };
/// The clipped loss is the larger of the two.
pub const PG_CLIP: LossMetric = LossMetric::of_clipping(metrics::POLICY_CLIPFRAC_AVG, Counted::Token);
/// Clipped by the second bound of dual clip, or outside the clip range with a negative advantage (geo_mean).
pub const PG_CLIP_LOWER: LossMetric = LossMetric::of_clipping(metrics::ACTOR_PG_CLIPFRAC_LOWER, Counted::Token);
/// Outside the clip range with a positive advantage.
pub const OUTSIDE: LossMetric = LossMetric::of_clipping(metrics::ACTOR_PG_CLIPFRAC, Counted::Token);
/// Clipped or dropped, as verl counts it, whatever the advantage, so tokens without a gradient have no known value.
pub const OUTSIDE_ANY: LossMetric = LossMetric::of_marked(metrics::ACTOR_PG_CLIPFRAC);

/// The ratio is above the cap of the factor on the log-prob, whatever the advantage.
pub const CAPPED: LossMetric = LossMetric::of_marked(metrics::ACTOR_PG_CLIPFRAC_LOWER);

/// The clipped surrogate of TRL, whose loss types differ in the reduction. Other TRL losses inherit from it the fields
/// that they do not set.
const SURROGATE: LossSpec = LossSpec {
    title: "",
    about: "",
    source: "",
    scope: Scope::Token,
    ratio: Ratio::Chosen,
    log_ratio_bound: None,
    importance: ImportanceWeights::Multiply,
    kl_bounded: false,
    reduction: Reduction::CompletionMean,
    reduction_can_change: true,
    metrics: &[CLIP_LOW, CLIP_HIGH, CLIP_REGION],
    options: &["epsilon", "epsilon_high", "delta"],
    required: &[],
    advised: &[],
    moves_without_advantage: false,
    draws_tokens: false,
    verl: None,
    recipe: &[],
};

/// Fields that most losses of verl share.
const VERL: LossSpec = LossSpec {
    ratio: Ratio::OfToken,
    kl_bounded: true,
    reduction: Reduction::Aggregation(LossAggregation::TokenMean),
    metrics: &[],
    options: &["epsilon", "epsilon_high"],
    ..SURROGATE
};

/// What the losses of DPPO have in common.
const DPPO: LossSpec = LossSpec {
    log_ratio_bound: VERL_BOUND,
    metrics: &[OUTSIDE_ANY, CAPPED],
    options: &["epsilon", "epsilon_high", "clip_ratio_c"],
    advised: &[DPPO_CAP],
    ..VERL
};

/// Why DPPO wants another cap than the dual clip.
const DPPO_CAP: (&str, &str) =
    ("clip_ratio_c", "it caps the ratio that weighs a log-prob, and rare tokens pass 3 soon; 20 is usual");

/// verl's bound of a log-ratio.
const VERL_BOUND: Option<f64> = Some(20.0);

impl LossType {
    /// The description of this loss.
    #[must_use]
    pub const fn spec(self) -> &'static LossSpec {
        match self {
            Self::Grpo => &LossSpec {
                title: "GRPO",
                about: "clipped surrogate, mean over each completion, then over completions",
                source: "DeepSeekMath eq. 3; TRL `grpo`",
                reduction: Reduction::CompletionMean,
                ..SURROGATE
            },
            Self::Bnpo => &LossSpec {
                title: "BNPO",
                about: "clipped surrogate, token mean of the minibatch",
                source: "TRL `bnpo`",
                reduction: Reduction::MinibatchTokenMean,
                ..SURROGATE
            },
            Self::DrGrpo => &LossSpec {
                title: "Dr. GRPO",
                about: "clipped surrogate, constant divisor, rewards not scaled",
                source: "Liu et al. 2025, \"Understanding R1-Zero-like training\"; TRL `dr_grpo`",
                reduction: Reduction::LengthConstant,
                recipe: &["scale_rewards=none"],
                ..SURROGATE
            },
            Self::Dapo => &LossSpec {
                title: "DAPO",
                about: "clipped surrogate, token mean of the generation batch, clip-higher, dynamic sampling",
                source: "DAPO eq. 8; TRL `dapo`",
                reduction: Reduction::GenerationTokenMean,
                recipe: &["epsilon_high=0.28", "dynamic_sampling=true"],
                ..SURROGATE
            },
            Self::Luspo => &LossSpec {
                title: "LUSPO",
                about: "clipped surrogate of one ratio per completion, token sums instead of means",
                source: "LUSPO; TRL `luspo`",
                reduction: Reduction::CompletionSum,
                recipe: &["importance_sampling_level=sequence", "epsilon=3e-4", "epsilon_high=4e-4"],
                ..SURROGATE
            },
            Self::Cispo => &LossSpec {
                title: "CISPO",
                about: "log-prob weighted by the capped, detached ratio",
                source: "MiniMax-M1 eq. 4; TRL `cispo`",
                reduction: Reduction::GenerationTokenMean,
                metrics: &[CISPO_CLIP],
                options: &["epsilon_high"],
                required: &[(
                    "epsilon_high",
                    "it is the cap of the ratio itself, not a distance from 1 (TRL recommends 5.0)",
                )],
                recipe: &["epsilon_high=5"],
                ..SURROGATE
            },
            Self::Sapo => &LossSpec {
                title: "SAPO",
                about: "sigmoid gate on the ratio instead of a clip",
                source: "SAPO eq. 6; TRL `sapo`",
                reduction: Reduction::CompletionMean,
                metrics: &[],
                options: &["sapo_temperature_pos", "sapo_temperature_neg"],
                ..SURROGATE
            },
            Self::Vespo => &LossSpec {
                title: "VESPO",
                about: "log-prob weighted by a gamma-shaped function of the completion's ratio",
                source: "VESPO; TRL `vespo`",
                scope: Scope::Completion,
                importance: ImportanceWeights::Inside,
                reduction: Reduction::GenerationTokenMean,
                metrics: &[PHI],
                options: &["vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"],
                ..SURROGATE
            },
            Self::Vanilla => &LossSpec {
                title: "dual clip",
                about: "verl's vanilla loss: clipped surrogate, bounded for negative advantages",
                source: "Ye et al. 2020; verl `vanilla`",
                log_ratio_bound: VERL_BOUND,
                metrics: &[PG_CLIP, PG_CLIP_LOWER],
                options: &["epsilon", "epsilon_high", "clip_ratio_c"],
                verl: Some("vanilla"),
                ..VERL
            },
            Self::Gspo => &LossSpec {
                title: "GSPO-token",
                about: "clipped surrogate of the completion's ratio, which reaches every token's log-prob",
                source: "GSPO eq. 14; verl `gspo`",
                scope: Scope::Completion,
                ratio: Ratio::OfCompletion,
                reduction: Reduction::Aggregation(LossAggregation::SeqMeanTokenMean),
                metrics: &[PG_CLIP],
                verl: Some("gspo"),
                recipe: &["epsilon=3e-4", "epsilon_high=4e-4"],
                ..VERL
            },
            Self::VerlCispo => &LossSpec {
                title: "CISPO of verl",
                about: "log-prob weighted by the clipped, detached ratio",
                source: "MiniMax-M1 eq. 4; verl `cispo`",
                log_ratio_bound: VERL_BOUND,
                metrics: &[OUTSIDE_ANY],
                verl: Some("cispo"),
                ..VERL
            },
            Self::GeoMean => &LossSpec {
                title: "GMPO",
                about: "geometric mean of the completion's clipped ratios",
                source: "GMPO; verl `geo_mean`",
                scope: Scope::Completion,
                importance: ImportanceWeights::Inside,
                reduction: Reduction::UpdateMean,
                reduction_can_change: false,
                metrics: &[OUTSIDE, PG_CLIP_LOWER],
                verl: Some("geo_mean"),
                recipe: &["epsilon=0.4"],
                ..VERL
            },
            Self::Gpg => &LossSpec {
                title: "GPG",
                about: "plain policy gradient, rewards scaled by the share that is not 0",
                source: "GPG; verl `gpg`",
                options: &[],
                verl: Some("gpg"),
                recipe: &["advantage_estimator=gpg"],
                ..VERL
            },
            Self::DppoTv => &LossSpec {
                title: "DPPO, total variation",
                about: "log-prob weighted by the detached ratio, within a bound on the change of probability",
                source: "arXiv 2602.04879; verl `dppo_tv`",
                verl: Some("dppo_tv"),
                recipe: &["epsilon=0.15", "epsilon_high=0.2", "clip_ratio_c=20"],
                ..DPPO
            },
            Self::DppoKl => &LossSpec {
                title: "DPPO, KL",
                about: "log-prob weighted by the detached ratio, within a bound on the divergence at the token",
                source: "arXiv 2602.04879; verl `dppo_kl`",
                verl: Some("dppo_kl"),
                advised: &[
                    (
                        "epsilon",
                        "it bounds a KL divergence, for which 0.2 is far too wide; 0.02, and 0.05 for \
                         `epsilon_high`, are usual",
                    ),
                    DPPO_CAP,
                ],
                recipe: &["epsilon=0.02", "epsilon_high=0.05", "clip_ratio_c=20"],
                ..DPPO
            },
            Self::ClipCov => &LossSpec {
                title: "Clip-Cov",
                about: "clipped surrogate without a random few tokens of large covariance",
                source: "arXiv 2505.22617; verl `clip_cov`",
                scope: Scope::Minibatch,
                metrics: &[OUTSIDE_ANY],
                options: &["epsilon", "epsilon_high", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"],
                draws_tokens: true,
                verl: Some("clip_cov"),
                ..VERL
            },
            Self::KlCov => &LossSpec {
                title: "KL-Cov",
                about: "unclipped surrogate, with a penalty on the tokens of largest covariance",
                source: "arXiv 2505.22617; verl `kl_cov`",
                scope: Scope::Minibatch,
                options: &["kl_cov_ratio", "ppo_kl_coef"],
                moves_without_advantage: true,
                verl: Some("kl_cov"),
                ..VERL
            },
            Self::Dro => &LossSpec {
                title: "DRO",
                about: "plain policy gradient with a square penalty on the log-ratio",
                source: "arXiv 2405.19107; verl `dro`",
                options: &["dro_beta"],
                required: &[(
                    "dro_beta",
                    "it is the weight of the penalty, and nothing else bounds the policy's steps",
                )],
                moves_without_advantage: true,
                verl: Some("dro"),
                recipe: &["dro_beta=0.3"],
                ..VERL
            },
        }
    }

    /// The losses that read an option.
    #[must_use]
    pub fn with_option(key: &str) -> Vec<Self> {
        Self::ALL.iter().copied().filter(|loss| loss.spec().options.contains(&key)).collect()
    }

    /// The loss with this name in verl.
    #[must_use]
    pub fn of_verl(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|loss| loss.spec().verl == Some(name))
    }
}

impl ImportanceSamplingLevel {
    /// The unit that a ratio on this level must see at once.
    #[must_use]
    pub const fn scope(self) -> Scope {
        match self {
            Self::Token => Scope::Token,
            Self::Sequence => Scope::Completion,
        }
    }
}

impl Ratio {
    /// The level of a loss's ratio; a loss with a fixed level contradicts another chosen one.
    #[must_use]
    pub const fn level(self, chosen: ImportanceSamplingLevel) -> ImportanceSamplingLevel {
        match self {
            Self::Chosen => chosen,
            Self::OfToken | Self::OfCompletion => ImportanceSamplingLevel::Token,
        }
    }
}
