//! The report on a step, on the host in float64.

use std::{collections::BTreeMap, time::Duration};

use shared::{
    methods::LossMetric,
    metrics::{self, MetricRecord},
};
use tch::Tensor;

use crate::{
    kl::k3_value,
    loss::LossMetrics,
    model::{ExpertLoad, PassReport, PassTimes},
    ragged::Ragged,
};

/// The report on a training step.
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
    /// Metrics of KL penalty and critic, with verl's keys.
    pub credit: MetricRecord,
    /// Entropies along the first pass over each completion.
    pub entropy: Mean,
    /// Metrics that the losses of all passes count: ratio, clipping, KL and more.
    pub measures: LossMetrics,
    /// KL per token from the policy at the beginning of the step to the policy at its end, and the weight of the
    /// penalty on this distance; absent without a penalty.
    pub old_policy: Option<(f64, f64)>,
    /// Policy loss of each update, without the entropy bonus.
    pub policy_losses: Vec<f64>,
    /// Minibatches that `early_stop_imp_ratio` left out.
    pub early_stopped: u64,
    /// Coefficient of the entropy bonus after the last update; absent without a bonus.
    pub entropy_coef: Option<f64>,
    /// Size of the support that each token was drawn from; absent without truncation.
    pub support_sizes: Option<Ragged<u32>>,
    /// What happened to each token; absent if it is not kept.
    pub notes: Option<TokenNotes>,
    /// What became of the completions that may be trained on.
    pub fates: Fates,
    /// Gradient of the first update, before clipping; absent if it is not kept.
    pub first_gradient: Option<Tensor>,
    /// How evenly tokens were spread over experts in the passes with gradients of this rank.
    pub experts: ExpertLoad,
    /// Where the time went.
    pub times: Times,
}

impl StepMetrics {
    /// Adds what a pass with gradients tells.
    pub(super) fn note(&mut self, report: &PassReport) {
        self.times.passes += report.times;
        self.experts += report.experts;
    }
}

/// What happened to each token of a batch, a row for each completion.
#[derive(Debug)]
pub struct TokenNotes {
    /// Entropy of its distribution in the first pass; NaN where it was in none.
    pub entropies: Ragged<f64>,
    /// Whether it was clipped or masked in any pass, by the key of the metric that counts such tokens.
    pub marks: BTreeMap<&'static str, Ragged<bool>>,
}

impl TokenNotes {
    /// Empty notes for completions with these numbers of tokens.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        Self { entropies: Ragged::filled(f64::NAN, lengths), marks: BTreeMap::new() }
    }

    /// Takes note of a metric's values for a completion's tokens, if the metric counts clipped or masked tokens.
    pub fn mark(&mut self, metric: &LossMetric, row: usize, values: &[f64]) {
        if !metric.marks {
            return;
        }
        let unmarked = || Ragged::filled(false, self.entropies.lengths());
        let marks = self.marks.entry(metric.mean.key).or_insert_with(unmarked);
        let marked: Vec<bool> = marks[row].iter().zip(values).map(|(known, value)| *known || *value != 0.0).collect();
        marks.scatter(&[row], &marked);
    }
}

/// What became of a completion that may be trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was in the loss of an update that was made.
    Trained,
    /// The correction for the mismatch gave all of its tokens the weight 0.
    OffPolicy,
    /// `off_policy_mask_threshold` left it out of the policy term.
    OffPolicyMasked,
    /// `top_entropy_quantile` left out all of its tokens that nothing else had left out.
    LowEntropy,
    /// `early_stop_imp_ratio` left out its minibatch.
    EarlyStopped,
    /// The update was not made.
    UpdateSkipped,
    /// Only the critic was trained.
    CriticWarmup,
}

/// The fates of a batch's completions, by row.
#[derive(Debug, Clone, Default)]
pub struct Fates(BTreeMap<usize, Fate>);

impl Fates {
    /// Takes note of a pass over a completion: it was trained if it was in any pass, else the first reason counts.
    pub fn note(&mut self, row: usize, fate: Fate) {
        let known = self.0.entry(row).or_insert(fate);
        if fate == Fate::Trained {
            *known = fate;
        }
    }

    /// The fate of a row; absent for one that may not be trained on.
    #[must_use]
    pub fn of(&self, row: usize) -> Option<Fate> {
        self.0.get(&row).copied()
    }
}

/// Seconds by phase.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Log-probs of the old policy, where a pass of their own is needed.
    pub old_logprobs: Duration,
    /// Log-probs of the reference policy.
    pub ref_logprobs: Duration,
    /// Forward and backward passes, with the work between and beside them.
    pub forward_backward: Duration,
    /// The passes alone, by part.
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

    /// Sum and number of the values.
    #[must_use]
    pub fn parts(&self) -> (f64, f64) {
        (self.sum, self.count)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_trained_if_it_was_in_any_pass() {
        let mut fates = Fates::default();
        for (row, fate) in [
            (0, Fate::OffPolicyMasked),
            (0, Fate::EarlyStopped),
            (1, Fate::LowEntropy),
            (1, Fate::Trained),
            (1, Fate::UpdateSkipped),
        ] {
            fates.note(row, fate);
        }
        assert_eq!([0, 1, 2].map(|row| fates.of(row)), [Some(Fate::OffPolicyMasked), Some(Fate::Trained), None]);
    }
}
