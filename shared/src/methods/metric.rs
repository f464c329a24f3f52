//! Metrics that are means over values of the loss's tokens.

use crate::metrics::{self, Metric};

/// The unit over which a metric's mean is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// A token.
    Token,
    /// A completion, by the mean of its tokens.
    Completion,
    /// The unit that has a ratio: a token, or with `importance_sampling_level` sequence a completion.
    Ratio,
}

/// A metric for which a loss computes a value for every token.
#[derive(Debug, Clone, Copy)]
pub struct LossMetric {
    /// The mean over a step.
    pub mean: &'static Metric,
    /// The smallest mean of a completion, if it is recorded.
    pub smallest: Option<&'static Metric>,
    /// The largest mean of a completion, if it is recorded.
    pub largest: Option<&'static Metric>,
    /// The unit of the mean.
    pub counted: Counted,
    /// Value of a completion without tokens, if the unit is a completion.
    pub of_empty: f64,
    /// Whether it counts tokens that the loss has clipped, dropped or masked, so that their records name it.
    pub marks: bool,
    /// Value of tokens without a gradient, when no advantage differs from 0; `None` leaves them out. Tokens whose ratio
    /// is clipped in the direction of their advantage have an advantage other than 0, so metrics of clipping have the
    /// value 0 there.
    pub without_gradient: Option<f64>,
}

impl LossMetric {
    /// A mean over the tokens with a gradient.
    #[must_use]
    pub const fn of_tokens(mean: &'static Metric) -> Self {
        Self {
            mean,
            smallest: None,
            largest: None,
            counted: Counted::Token,
            of_empty: 0.0,
            marks: false,
            without_gradient: None,
        }
    }

    /// The share of marked tokens among those with a gradient.
    #[must_use]
    pub const fn of_marked(mean: &'static Metric) -> Self {
        Self { marks: true, ..Self::of_tokens(mean) }
    }

    /// The share of clipped tokens among all tokens.
    #[must_use]
    pub const fn of_clipping(mean: &'static Metric, counted: Counted) -> Self {
        Self { counted, without_gradient: Some(0.0), ..Self::of_marked(mean) }
    }
}

/// The importance ratio.
pub const RATIO: LossMetric = LossMetric::of_tokens(metrics::RATIO);
/// `old_logprobs − logprobs`.
pub const PPO_KL: LossMetric = LossMetric::of_tokens(metrics::ACTOR_PPO_KL);
/// The KL estimate of the penalty in the loss, bias correction included.
pub const KL: LossMetric = LossMetric::of_tokens(metrics::KL);
/// Tokens that `off_policy_mask_threshold` leaves out.
pub const OFF_POLICY: LossMetric = LossMetric::of_marked(metrics::OFF_POLICY_MASKED_FRAC);
/// Tokens that `top_entropy_quantile` leaves out.
pub const LOW_ENTROPY: LossMetric = LossMetric::of_marked(metrics::LOW_ENTROPY_MASKED_FRAC);
