//! Metrics that are made of a value for every token of the loss.

use crate::metrics::{self, Metric};

/// What is counted once in the mean of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// A token.
    Token,
    /// A completion, by the mean of its tokens.
    Completion,
    /// Whatever has a ratio of its own: a token, or with `importance_sampling_level` sequence a completion.
    Ratio,
}

/// A metric that a loss has a value of for every token.
#[derive(Debug, Clone, Copy)]
pub struct LossMetric {
    /// The mean over a step.
    pub mean: &'static Metric,
    /// The smallest mean of a completion, where that is recorded.
    pub smallest: Option<&'static Metric>,
    /// The largest mean of a completion, where that is recorded.
    pub largest: Option<&'static Metric>,
    /// What is counted once.
    pub counted: Counted,
    /// Value of a completion without tokens, where completions are counted.
    pub of_empty: f64,
    /// Value of tokens that have no gradient because no advantage differs from 0; `None` leaves them out. What is
    /// clipped on the side on which an advantage pushes never is such a token, so its value there is 0.
    pub without_gradient: Option<f64>,
}

impl LossMetric {
    /// A mean over the tokens that have a gradient.
    #[must_use]
    pub const fn of_tokens(mean: &'static Metric) -> Self {
        Self { mean, smallest: None, largest: None, counted: Counted::Token, of_empty: 0.0, without_gradient: None }
    }

    /// The share of tokens that are clipped, of all tokens.
    #[must_use]
    pub const fn of_clipping(mean: &'static Metric, counted: Counted) -> Self {
        Self { counted, without_gradient: Some(0.0), ..Self::of_tokens(mean) }
    }
}

/// The importance ratio.
pub const RATIO: LossMetric = LossMetric::of_tokens(metrics::RATIO);
/// `old_logprobs − logprobs`.
pub const PPO_KL: LossMetric = LossMetric::of_tokens(metrics::ACTOR_PPO_KL);
/// The KL estimate of the penalty in the loss, bias correction included.
pub const KL: LossMetric = LossMetric::of_tokens(metrics::KL);
/// Tokens that `off_policy_mask_threshold` leaves out.
pub const OFF_POLICY: LossMetric = LossMetric::of_tokens(metrics::OFF_POLICY_MASKED_FRAC);
/// Tokens that `top_entropy_quantile` leaves out.
pub const LOW_ENTROPY: LossMetric = LossMetric::of_tokens(metrics::LOW_ENTROPY_MASKED_FRAC);
