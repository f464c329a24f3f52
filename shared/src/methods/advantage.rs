//! Descriptions of advantage estimators, and of the ways to combine several rewards.

use super::reduction::LossAggregation;
use crate::{
    Contrast,
    declare::{Choice, choices},
};

choices! {
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
        /// Reward over the group's mean, minus 1; 0 in groups whose mean is not above 0 (MaxRL).
        MaxRl = "max_rl" | "maxrl",
        /// Only the best completion of a group counts: its lead over the second best, divided by the group's standard
        /// deviation unless `scale_rewards` is none (pass@k policy optimisation).
        GrpoPassk = "grpo_passk" | "pass_at_k",
        /// Process supervision: rewards of steps, normalised over all steps of the group, summed over the steps to come
        /// (DeepSeekMath, section 4.1.3). A reward of the whole completion counts as one step that ends with it. Each
        /// reward function is normalised by itself, and its advantages count with its weight.
        Process = "process",
        /// Generalised advantage estimation with a learned critic (PPO).
        Gae = "gae",
    }

    /// The part of a conversation that has a reward of its own.
    AdvantageLevel {
        /// The whole conversation. Rewards that an environment gives by turn are summed.
        Trajectory = "trajectory",
        /// A turn: what the policy samples between two replies. Process supervision takes each turn for a step.
        Turn = "turn",
    }

    /// How several reward functions become one advantage. TRL `multi_objective_aggregation`.
    MultiObjectiveAggregation {
        /// Weighted sum of the rewards, then the advantage of the sum. `advantage_estimator` process normalises
        /// each function by itself instead.
        SumThenNormalize = "sum_then_normalize",
        /// Each function is normalised in its group; the weighted sum is normalised over the batch (GDPO).
        NormalizeThenSum = "normalize_then_sum",
    }

    /// Divisor of the centred rewards. TRL `scale_rewards`.
    ScaleRewards {
        /// The group's standard deviation (n − 1), plus `advantage_epsilon`.
        Group = "group",
        /// The whole batch's standard deviation, plus `advantage_epsilon`.
        Batch = "batch",
        /// None: centred rewards as they are.
        None = "none",
    }
}

/// The unit for which an estimator computes an advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreditUnit {
    /// A completion; its tokens share it.
    Completion,
    /// A step of the reasoning.
    Step,
    /// A token.
    Token,
}

/// Description of an advantage estimator, without its formula.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdvantageSpec {
    /// Its name in the literature.
    pub title: &'static str,
    /// Its distinguishing feature, in a few words.
    pub about: &'static str,
    /// Paper, and the name in TRL or verl.
    pub source: &'static str,
    /// The unit for which it computes an advantage.
    pub unit: CreditUnit,
    /// Term added to standard deviations: 1e-4 in TRL, 1e-6 in verl.
    pub epsilon: f64,
    /// Whether it whitens the advantages of a batch as part of its formula.
    pub whitens: bool,
    /// Whether it needs a critic.
    pub critic: bool,
    /// Allowed values of `scale_rewards`.
    pub scales: &'static [ScaleRewards],
    /// Allowed values of `multi_objective_aggregation`.
    pub aggregations: &'static [MultiObjectiveAggregation],
    /// Why the KL penalty cannot be subtracted from its rewards; `None` where it can.
    pub no_kl_in_reward: Option<&'static str>,
    /// Why groups without contrast must not be replaced; `None` where `dynamic_sampling` makes sense.
    pub no_dynamic_sampling: Option<&'static str>,
    /// Whether the baseline comes from the group, so that a group with equal rewards has no learning signal.
    pub baseline_of_group: bool,
    /// The values that must differ within a group for it to have a learning signal.
    pub contrast: Contrast,
    /// Options that it reads; an option of other estimators that is not listed here has no effect.
    pub options: &'static [&'static str],
    /// Options that are usually set with it.
    pub recipe: &'static [&'static str],
}

/// TRL's term in the denominator of standardised rewards.
const TRL_EPSILON: f64 = 1e-4;
/// verl's term in the denominator of standardised rewards.
const VERL_EPSILON: f64 = 1e-6;

/// Reward of a completion minus a baseline from its group, as in most of verl's estimators.
const GROUP_BASELINE: AdvantageSpec = AdvantageSpec {
    title: "",
    about: "",
    source: "",
    unit: CreditUnit::Completion,
    epsilon: VERL_EPSILON,
    whitens: false,
    critic: false,
    scales: &[ScaleRewards::Group],
    aggregations: &[MultiObjectiveAggregation::SumThenNormalize],
    no_kl_in_reward: None,
    no_dynamic_sampling: None,
    baseline_of_group: true,
    contrast: Contrast::Total,
    options: &[],
    recipe: &[],
};

impl AdvantageEstimator {
    /// Options of the critic; they are the first options of its estimator.
    pub const CRITIC_OPTIONS: &[&str] = Self::Gae.spec().options.split_at(4).0;

    /// The description of this estimator.
    #[must_use]
    pub const fn spec(self) -> &'static AdvantageSpec {
        match self {
            Self::Grpo => &AdvantageSpec {
                title: "GRPO",
                about: "reward minus the group's mean, over its standard deviation",
                source: "DeepSeekMath eq. 3; TRL; verl `grpo`",
                epsilon: TRL_EPSILON,
                scales: &[ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None],
                aggregations: &[
                    MultiObjectiveAggregation::SumThenNormalize,
                    MultiObjectiveAggregation::NormalizeThenSum,
                ],
                options: &["advantage_epsilon", "lone_advantage"],
                ..GROUP_BASELINE
            },
            Self::Rloo => &AdvantageSpec {
                title: "RLOO",
                about: "leave-one-out baseline",
                source: "Ahmadian et al. 2024; verl `rloo`",
                ..GROUP_BASELINE
            },
            Self::ReinforcePlusPlus => &AdvantageSpec {
                title: "REINFORCE++",
                about: "discounted reward to come, whitened over the batch",
                source: "REINFORCE++; verl `reinforce_plus_plus`",
                unit: CreditUnit::Token,
                whitens: true,
                baseline_of_group: false,
                options: &["gamma"],
                ..GROUP_BASELINE
            },
            Self::ReinforcePlusPlusBaseline => &AdvantageSpec {
                title: "REINFORCE++ with baseline",
                about: "reward minus the group's mean, whitened over the batch",
                source: "REINFORCE++; verl `reinforce_plus_plus_baseline`",
                whitens: true,
                ..GROUP_BASELINE
            },
            Self::Opo => &AdvantageSpec {
                title: "OPO",
                about: "length-weighted baseline",
                source: "OPO; verl `opo`",
                ..GROUP_BASELINE
            },
            Self::Gpg => &AdvantageSpec {
                title: "GPG advantage",
                about: "centred rewards, scaled by the share that is not 0",
                source: "GPG eq. 7; verl `gpg`",
                no_kl_in_reward: Some("counts the rewards that are not 0"),
                ..GROUP_BASELINE
            },
            Self::MaxRl => &AdvantageSpec {
                title: "MaxRL",
                about: "reward over the group's mean, minus 1, for rewards of at least 0",
                source: "arXiv 2602.02710; prime-rl `max_rl`",
                no_kl_in_reward: Some("divides by the mean, and is for rewards of at least 0"),
                ..GROUP_BASELINE
            },
            Self::GrpoPassk => &AdvantageSpec {
                title: "pass@k",
                about: "lead of the best completion over the second best",
                source: "Pass@k policy optimisation; verl `grpo_passk`",
                scales: &[ScaleRewards::Group, ScaleRewards::None],
                no_kl_in_reward: Some("only looks at the best completions"),
                options: &["advantage_epsilon"],
                ..GROUP_BASELINE
            },
            Self::Process => &AdvantageSpec {
                title: "process supervision",
                about: "normalised rewards of the steps to come",
                source: "DeepSeekMath section 4.1.3",
                unit: CreditUnit::Step,
                epsilon: TRL_EPSILON,
                no_kl_in_reward: Some("takes its rewards step by step"),
                contrast: Contrast::Steps,
                recipe: &["reward_funcs=correctness,format,step_arithmetic"],
                options: &["advantage_epsilon", "step_deviation", "advantage_level"],
                ..GROUP_BASELINE
            },
            Self::Gae => &AdvantageSpec {
                title: "PPO",
                about: "a critic and generalised advantage estimation",
                source: "Schulman et al. 2016; verl `gae`",
                unit: CreditUnit::Token,
                whitens: true,
                critic: true,
                baseline_of_group: false,
                no_dynamic_sampling: Some("the critic's advantages do not need completions of one prompt to differ"),
                options: &[
                    "critic_model",
                    "critic_learning_rate",
                    "critic_warmup_steps",
                    "cliprange_value",
                    "gamma",
                    "lam",
                ],
                recipe: &["critic_learning_rate=1e-3", "use_kl_in_reward=true", "beta=0.01"],
                ..GROUP_BASELINE
            },
        }
    }

    /// The estimators that read an option.
    #[must_use]
    pub fn with_option(key: &str) -> Vec<Self> {
        Self::ALL.iter().copied().filter(|estimator| estimator.spec().options.contains(&key)).collect()
    }
}

/// Aggregation of the critic's losses, unless `loss_aggregation` is set (verl).
pub const CRITIC_AGGREGATION: LossAggregation = LossAggregation::TokenMean;

impl ScaleRewards {
    /// Whether it divides centred rewards by a standard deviation.
    #[must_use]
    pub const fn divides(self) -> bool {
        match self {
            Self::Group | Self::Batch => true,
            Self::None => false,
        }
    }
}

/// Description of a way to combine several rewards, without its formula.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MultiObjectiveSpec {
    /// Allowed values of `scale_rewards`.
    pub scales: &'static [ScaleRewards],
    /// Whether a completion has a single reward, from which the KL penalty can be subtracted.
    pub one_reward: bool,
    /// The values that must differ within a group, if not those of the estimator.
    pub contrast: Option<Contrast>,
}

impl MultiObjectiveAggregation {
    /// The description of this way.
    #[must_use]
    pub const fn spec(self) -> &'static MultiObjectiveSpec {
        match self {
            Self::SumThenNormalize => &MultiObjectiveSpec {
                scales: &[ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None],
                one_reward: true,
                contrast: None,
            },
            Self::NormalizeThenSum => &MultiObjectiveSpec {
                scales: &[ScaleRewards::Group],
                one_reward: false,
                contrast: Some(Contrast::AnyFunction),
            },
        }
    }
}
