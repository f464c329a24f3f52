//! The clipped value loss of PPO (Schulman et al. 2017, as in OpenAI's baselines and verl's `compute_value_loss`).

use crate::verl::EPSILON;

/// Loss of a run of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueLoss {
    /// Sum of the weighted token losses.
    pub value: f64,
    /// Its derivative with respect to each prediction.
    pub gradients: Vec<f64>,
    /// Tokens whose clipped loss is the larger one.
    pub clipped: usize,
}

/// `½ w max((V − R)², (clip(V, V_old ± range) − R)²)` for each token: predictions V, values V_old that the step began
/// with, returns R and weights w.
#[must_use]
pub fn value_loss(predictions: &[f64], values: &[f64], returns: &[f64], weights: &[f64], range: f64) -> ValueLoss {
    let mut found = ValueLoss { value: 0.0, gradients: Vec::with_capacity(predictions.len()), clipped: 0 };
    for (((&prediction, &value), &target), &weight) in predictions.iter().zip(values).zip(returns).zip(weights) {
        let bounded = prediction.min(value + range).max(value - range);
        let (own, clipped) = ((prediction - target).powi(2), (bounded - target).powi(2));
        found.value += 0.5 * weight * own.max(clipped);
        // Where the clipped loss is the larger one, the prediction is beyond the bound and has gradient 0.
        found.gradients.push(if clipped > own { 0.0 } else { weight * (prediction - target) });
        found.clipped += usize::from(clipped > own);
    }
    found
}

/// Share of clipped tokens. TRL `val/clipfrac_avg`, verl `critic/vf_clipfrac`.
#[must_use]
pub fn clip_fraction(clipped: usize, tokens: usize) -> f64 {
    clipped as f64 / (tokens as f64 + EPSILON)
}
