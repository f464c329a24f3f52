//! Descriptions of KL estimators.

use crate::declare::choices;

choices! {
    /// Estimator of the KL divergence from the reference policy. verl `kl_loss_type`, RLinf `kl_penalty_type`.
    KlEstimator {
        /// `logprob − ref_logprob`: unbiased, of either sign.
        K1 = "k1" | "kl",
        /// Half the squared difference: biased, of low variance.
        K2 = "k2",
        /// `exp(d) − d − 1` with `d = ref_logprob − logprob`: unbiased, never negative. With a loss of verl
        /// (one with verl's name in its description) and in the reward, d is bounded to ±20 and the value to ±10, as
        /// there.
        K3 = "k3" | "low_var_kl",
        /// Absolute difference. Its gradient is a sign, so where policy and reference agree, as in the first update, it
        /// is the sign of a rounding error.
        Abs = "abs",
        /// Another name of k2 (verl, RLinf).
        Mse = "mse",
        /// Value of k1, gradient of k2 (straight through).
        K1Plus = "k1+",
        /// Value of k3, gradient of k2 (straight through).
        K3Plus = "k3+",
    }
}

/// The factor on a token's estimate in the loss that makes its expected gradient over the tokens of the old policy that
/// of the divergence. `r` is the ratio of the policy's probability of the token to the old policy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KlCorrection {
    /// r, with its derivative.
    Ratio {
        /// The gradient without the factor.
        without: &'static str,
    },
    /// The value of r without its derivative; it is 1 on policy.
    DetachedRatio {
        /// The gradient that r with its derivative would give.
        differentiated: &'static str,
    },
    /// None, since no form of the estimate has the gradient of the divergence.
    Nothing,
}

impl KlCorrection {
    /// The factor in a few words, for tables.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::Ratio { .. } => "the ratio",
            Self::DetachedRatio { .. } => "the ratio without its derivative",
            Self::Nothing => "nothing: no form has the true gradient",
        }
    }
}

/// Description of a KL estimator, without its formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KlSpec {
    /// The estimate with d = `ref_logprob − logprob`.
    pub formula: &'static str,
    /// Its factor in the loss, unless `use_bias_correction_kl` says otherwise.
    pub correction: KlCorrection,
    /// Whether it has the gradient of the divergence when it is subtracted from the reward.
    pub right_in_reward: bool,
    /// Its source.
    pub source: &'static str,
}

/// The correction of an estimate whose own gradient is right; the ratio with its derivative would spoil it.
const OF_NO_DIVERGENCE: KlCorrection = KlCorrection::DetachedRatio { differentiated: "the gradient of no divergence" };

impl KlEstimator {
    /// The description of this estimator.
    #[must_use]
    pub const fn spec(self) -> &'static KlSpec {
        match self {
            Self::K1 => &KlSpec {
                formula: "−d",
                correction: KlCorrection::Ratio { without: "has a gradient of 0 on average and holds nothing back" },
                right_in_reward: true,
                source: "Schulman 2020; verl `kl`",
            },
            Self::K2 => &KlSpec {
                formula: "d² / 2",
                correction: OF_NO_DIVERGENCE,
                right_in_reward: false,
                source: "Schulman 2020",
            },
            Self::K3 => &KlSpec {
                formula: "exp(d) − d − 1",
                correction: KlCorrection::Ratio {
                    without: "has on policy the gradient of KL(reference‖policy) instead of KL(policy‖reference)",
                },
                right_in_reward: false,
                source: "Schulman 2020; DeepSeekMath eq. 4; TRL; verl `low_var_kl`",
            },
            Self::Abs => &KlSpec {
                formula: "abs(d)",
                correction: KlCorrection::Nothing,
                right_in_reward: false,
                source: "verl `abs`",
            },
            Self::Mse => &KlSpec {
                formula: "d² / 2, as k2",
                correction: OF_NO_DIVERGENCE,
                right_in_reward: false,
                source: "verl `mse`",
            },
            Self::K1Plus => &KlSpec {
                formula: "value of k1, gradient of k2",
                correction: KlCorrection::DetachedRatio {
                    differentiated: "exactly twice the gradient of the divergence",
                },
                right_in_reward: true,
                source: "verl `k1+`",
            },
            Self::K3Plus => &KlSpec {
                formula: "value of k3, gradient of k2",
                correction: OF_NO_DIVERGENCE,
                right_in_reward: false,
                source: "verl `k3+`",
            },
        }
    }
}
