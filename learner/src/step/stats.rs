//! What is told of a step, on the host in float64.

use std::time::Duration;

use shared::metrics::{self, MetricRecord};
use tch::Tensor;

use crate::{kl::k3_value, loss::LossMetrics, model::PassTimes, ragged::Ragged};

/// What is told of a training step.
#[derive(Debug, Default)]
pub struct StepMetrics {
    /// Loss of each optimiser update.
    pub losses: Vec<f64>,
    /// Global gradient norm of each update, before clipping.
    pub grad_norms: Vec<f64>,
    /// Updates left out because loss or gradient was not finite, or because the step was stopped before them.
    pub skipped_updates: u64,
    /// Rate of the last update.
    pub learning_rate: f64,
    /// What KL penalty and critic say, with verl's keys.
    pub credit: MetricRecord,
    /// Entropies along the first pass over each completion.
    pub entropy: Mean,
    /// What the losses of all passes count: ratio, clipping, KL and more.
    pub measures: LossMetrics,
    /// KL per token from the policy that the step began with to the one that it ended with, and the weight that the penalty
    /// on it had; absent without one.
    pub old_policy: Option<(f64, f64)>,
    /// Policy loss of each update, without the entropy bonus.
    pub policy_losses: Vec<f64>,
    /// Minibatches that `early_stop_imp_ratio` left out.
    pub early_stopped: u64,
    /// Coefficient of the entropy bonus after the last update; absent without a bonus.
    pub entropy_coef: Option<f64>,
    /// Size of the support that each token was drawn from; absent without truncation.
    pub support_sizes: Option<Ragged<u32>>,
    /// Gradient of the first update, before clipping, where it is to be kept.
    pub first_gradient: Option<Tensor>,
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
    /// Forward and backward passes, with what lies between and beside them.
    pub forward_backward: Duration,
    /// Those alone, by part.
    pub passes: PassTimes,
    /// Clipping and AdamW.
    pub optimizer: Duration,
    /// The guard's looks at the step, before its updates.
    pub guard: Duration,
}

/// A running mean.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    /// Adds values.
    pub fn extend(&mut self, values: &[f64]) {
        self.add(values.iter().sum(), values.len() as f64);
    }

    /// Adds `count` values by their sum.
    pub fn add(&mut self, sum: f64, count: f64) {
        self.sum += sum;
        self.count += count;
    }

    /// The mean; NaN of nothing.
    #[must_use]
    pub fn get(&self) -> f64 {
        self.sum / self.count
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
    /// Adds a completion: `old_logprobs − sampling_logprobs` of each token, both of the same distribution. NaN, where
    /// the sampler gave none, is left out.
    pub fn add(&mut self, log_ratios: &[f64]) {
        for &difference in log_ratios.iter().filter(|d| !d.is_nan()) {
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

    /// The mismatch as metrics.
    pub fn record(&self, record: &mut MetricRecord) {
        record.set(metrics::MISMATCH_KL, self.kl());
        record.set(metrics::SAMPLING_SAMPLING_LOGP_DIFFERENCE_MEAN, self.mean());
        record.set(metrics::SAMPLING_SAMPLING_LOGP_DIFFERENCE_MAX, self.max);
    }
}
