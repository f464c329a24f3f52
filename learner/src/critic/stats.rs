//! The critic's metrics of a step.

use shared::metrics::{self, MetricRecord};

use super::value_loss::clip_fraction;
use crate::advantage::Moments;

/// Added to the variance of returns in the explained variance, as in verl.
const EPSILON: f64 = 1e-5;

/// Figures of the critic's updates in one step.
#[derive(Debug, Clone, Default)]
pub struct CriticStats {
    /// Loss of each update.
    pub losses: Vec<f64>,
    /// Global gradient norm of each update, before clipping.
    pub grad_norms: Vec<f64>,
    /// Updates left out because loss or gradient was not finite.
    pub skipped_updates: u64,
    /// Rate of the last update.
    pub learning_rate: f64,
    /// Sum of all predictions.
    pub predictions: f64,
    /// Number of predictions.
    pub tokens: usize,
    /// Predictions whose loss was clipped.
    pub clipped: usize,
}

impl CriticStats {
    /// Adds the figures to a record.
    pub fn record(&self, record: &mut MetricRecord) {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        record.set(metrics::LOSS_VALUE_AVG, mean(&self.losses));
        record.set(metrics::VAL_CLIPFRAC_AVG, clip_fraction(self.clipped, self.tokens));
        record.set(metrics::CRITIC_VPRED_MEAN, self.predictions / self.tokens as f64);
        record.set(metrics::CRITIC_GRAD_NORM, mean(&self.grad_norms));
        record.set(metrics::CRITIC_LR, self.learning_rate);
        record.count(metrics::CRITIC_SKIPPED_UPDATES, self.skipped_updates);
    }
}

/// Adds verl's `critic/{name}/{mean,max,min}` of tokens.
pub fn spread(record: &mut MetricRecord, name: &str, tokens: &[f64]) {
    record.set(metrics::CRITIC_MEAN.of(name), tokens.iter().sum::<f64>() / tokens.len() as f64);
    record.set(metrics::CRITIC_MAX.of(name), tokens.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    record.set(metrics::CRITIC_MIN.of(name), tokens.iter().copied().fold(f64::INFINITY, f64::min));
}

/// Share of the variance of returns that values account for: `1 − var(R − V) / var(R)`. verl
/// `critic/vf_explained_var`.
#[must_use]
pub fn explained_variance(returns: &[f64], values: &[f64]) -> f64 {
    let variance = |tokens: Vec<Option<f64>>| Moments::of(&tokens).std.powi(2);
    let rest = variance(returns.iter().zip(values).map(|(r, v)| Some(r - v)).collect());
    1.0 - rest / (variance(returns.iter().map(|&r| Some(r)).collect()) + EPSILON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_equal_the_returns_explain_everything_and_constant_ones_nothing() {
        let returns = [0.5, -1.0, 2.0, 3.5];
        assert!((explained_variance(&returns, &returns) - 1.0).abs() < 1e-12);
        assert!(explained_variance(&returns, &[0.7; 4]).abs() < 1e-4);
        assert!(explained_variance(&returns, &[-0.5, 1.0, -2.0, -3.5]) < -2.9);
    }
}
