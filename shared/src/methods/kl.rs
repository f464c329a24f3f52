//! KL estimators as data.

use crate::declare::choices;

choices! {
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
}

/// What there is to know of a KL estimator besides its formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KlSpec {
    /// The estimate with d = `ref_logprob − logprob`.
    pub formula: &'static str,
    /// Why its gradient in the loss holds nothing back; `None` where it does.
    pub idle_in_loss: Option<&'static str>,
    /// Where it comes from.
    pub source: &'static str,
}

impl KlEstimator {
    /// The description of this estimator.
    #[must_use]
    pub const fn spec(self) -> &'static KlSpec {
        match self {
            Self::K1 => &KlSpec {
                formula: "−d",
                idle_in_loss: Some("has a gradient of 0 on average and holds nothing back"),
                source: "Schulman 2020; verl `kl`",
            },
            Self::K2 => &KlSpec { formula: "d² / 2", idle_in_loss: None, source: "Schulman 2020" },
            Self::K3 => &KlSpec {
                formula: "exp(d) − d − 1",
                idle_in_loss: None,
                source: "Schulman 2020; DeepSeekMath eq. 4; TRL; verl `low_var_kl`",
            },
            Self::Abs => &KlSpec { formula: "abs(d)", idle_in_loss: None, source: "verl `abs`" },
            Self::Mse => &KlSpec { formula: "d² / 2, as k2", idle_in_loss: None, source: "verl `mse`" },
            Self::K1Plus => {
                &KlSpec { formula: "value of k1, gradient of k2", idle_in_loss: None, source: "verl `k1+`" }
            }
            Self::K3Plus => {
                &KlSpec { formula: "value of k3, gradient of k2", idle_in_loss: None, source: "verl `k3+`" }
            }
        }
    }
}
