//! What a step's passes leave behind for the metrics, on the host in float64.

use std::time::Duration;

use shared::metrics::MetricRecord;

use crate::kl::k3_value;

/// Figures of a training step.
#[derive(Debug, Clone, Default)]
pub struct StepStats {
    /// Loss of each optimiser update.
    pub losses: Vec<f64>,
    /// Global gradient norm of each update, before clipping.
    pub grad_norms: Vec<f64>,
    /// Updates left out because loss or gradient was not finite.
    pub skipped_updates: u64,
    /// Rate of the last update.
    pub learning_rate: f64,
    /// Log-probs of each row's tokens under the policy that the step began with; empty for rows that were not
    /// evaluated.
    pub old_logprobs: Vec<Vec<f64>>,
    /// Advantage of each row's tokens.
    pub advantages: Vec<Vec<f64>>,
    /// What KL penalty and critic say, with verl's keys.
    pub credit: MetricRecord,
    /// Entropies along the first pass over each completion.
    pub entropy: Mean,
    /// KL estimates of all passes.
    pub kl: Mean,
    /// Clipping in all passes.
    pub clip: ClipStats,
    /// Where the time went.
    pub times: Times,
}

/// Seconds by phase.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Log-probs of the old policy, where a pass of their own is needed.
    pub old_logprobs: Duration,
    /// Log-probs of the reference policy.
    pub ref_logprobs: Duration,
    /// Forward and backward passes.
    pub forward_backward: Duration,
    /// Clipping and AdamW.
    pub optimizer: Duration,
}

/// A running mean.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    /// Adds values.
    pub fn extend(&mut self, values: &[f64]) {
        self.sum += values.iter().sum::<f64>();
        self.count += values.len();
    }

    /// The mean; NaN of nothing.
    #[must_use]
    pub fn get(&self) -> f64 {
        self.sum / self.count as f64
    }
}

/// Shares of clipped tokens, as TRL's `clip_ratio/*`.
#[derive(Debug, Clone, Copy)]
pub struct ClipStats {
    low: usize,
    high: usize,
    tokens: usize,
    /// Smallest share of low-clipped tokens of a completion.
    pub low_min: f64,
    /// Largest share of high-clipped tokens of a completion.
    pub high_max: f64,
}

impl Default for ClipStats {
    fn default() -> Self {
        Self { low: 0, high: 0, tokens: 0, low_min: f64::INFINITY, high_max: f64::NEG_INFINITY }
    }
}

impl ClipStats {
    /// Adds one pass over one completion, of which `low` and `high` tokens were clipped.
    pub fn add(&mut self, low: usize, high: usize, tokens: usize) {
        if tokens == 0 {
            return;
        }
        self.low += low;
        self.high += high;
        self.tokens += tokens;
        self.low_min = self.low_min.min(low as f64 / tokens as f64);
        self.high_max = self.high_max.max(high as f64 / tokens as f64);
    }

    /// Share of tokens clipped below.
    #[must_use]
    pub fn low_mean(&self) -> f64 {
        self.low as f64 / self.tokens as f64
    }

    /// Share of tokens clipped above.
    #[must_use]
    pub fn high_mean(&self) -> f64 {
        self.high as f64 / self.tokens as f64
    }

    /// Share of tokens clipped at all.
    #[must_use]
    pub fn region_mean(&self) -> f64 {
        (self.low + self.high) as f64 / self.tokens as f64
    }
}

/// How far the learner's log-probs are from the sampler's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mismatch {
    kl: Mean,
    difference: Mean,
    /// Largest absolute difference of a token's log-prob.
    pub max: f64,
}

impl Mismatch {
    /// Adds a completion: log-probs of the same distribution on both sides.
    pub fn add(&mut self, old_logprobs: &[f64], sampling_logprobs: impl Iterator<Item = f64>) {
        for (old, sampled) in old_logprobs.iter().zip(sampling_logprobs) {
            let difference = old - sampled;
            self.kl.extend(&[k3_value(difference)]);
            self.difference.extend(&[difference.abs()]);
            self.max = self.max.max(difference.abs());
        }
    }

    /// `mismatch_kl`: token mean of exp(d) − 1 − d with d = old − sampling.
    #[must_use]
    pub fn kl(&self) -> f64 {
        self.kl.get()
    }

    /// Mean absolute difference.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.difference.get()
    }
}
