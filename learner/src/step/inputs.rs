//! What the losses of a step read: a value for each sampled token of the batch.

use super::{BatchRow, StepBatch};
use crate::{
    loss::reduction::RowWeights,
    mismatch::{Correction, Weights},
    ragged::Ragged,
};

/// Inputs of the losses, with a row for each completion of the generation batch.
#[derive(Debug)]
pub struct StepInputs {
    /// Log-probs under the policy that the step began with. A row's may be unknown until the first pass over it; rows
    /// that do not count are empty.
    pub old_logprobs: Ragged<f64>,
    /// Log-probs under the distribution that the tokens were drawn from; NaN where the sampler gave none.
    pub sampling_logprobs: Ragged<f64>,
    /// Log-probs under the reference policy; rows without a KL estimate are empty.
    pub ref_logprobs: Ragged<f64>,
    /// Advantages.
    pub advantages: Ragged<f64>,
    /// Weights of the correction for the mismatch, known with the old log-probs.
    pub importance: Option<Weights>,
    /// Weight of each token's loss in the loss of its update.
    pub(super) loss_weights: Ragged<f64>,
    /// Weight of each token's entropy in the entropy bonus.
    pub(super) entropy_weights: Ragged<f64>,
    correction: Option<Correction>,
}

impl StepInputs {
    /// Inputs as far as batch and configuration determine them; the rest has no rows, or zeros.
    pub(super) fn new(batch: &StepBatch<'_>, weights: &RowWeights, correction: Option<Correction>) -> Self {
        let tokens = BatchRow::tokens;
        let known = |row: &BatchRow<'_>| if row.valid { row.tokens() } else { 0 };
        let old_logprobs = Ragged::filled(0.0, batch.rows.iter().map(known));
        let spread = |values: &[f64]| {
            let rows = batch.rows.iter().zip(values);
            rows.map(|(row, &value)| std::iter::repeat_n(value, tokens(row))).collect()
        };
        Self {
            sampling_logprobs: batch.rows.iter().map(BatchRow::sampling_logprobs).collect(),
            ref_logprobs: Ragged::default(),
            advantages: Ragged::default(),
            importance: correction.map(|correction| Weights::ones(correction.per_sequence(), old_logprobs.lengths())),
            loss_weights: spread(&weights.losses),
            entropy_weights: spread(&weights.entropies),
            old_logprobs,
            correction,
        }
    }

    /// Takes note of the old log-probs of the given rows, back to back. A correction that is relative to the batch
    /// needs those of all rows at once.
    pub(super) fn remember(&mut self, rows: &[usize], logprobs: &[f64]) {
        self.old_logprobs.scatter(rows, logprobs);
        if let (Some(correction), Some(importance)) = (self.correction, &mut self.importance) {
            let rows: Vec<usize> = rows.iter().copied().filter(|&row| !self.old_logprobs[row].is_empty()).collect();
            let of_row = |&row: &usize| log_ratios(&self.old_logprobs[row], &self.sampling_logprobs[row]);
            let weights = correction.weights(&rows.iter().map(of_row).collect());
            importance.rows.scatter(&rows, weights.rows.values());
        }
    }

    /// `old_logprobs − sampling_logprobs` of each row's tokens; rows without old log-probs are empty.
    pub fn log_ratios(&self) -> impl Iterator<Item = Vec<f64>> {
        self.old_logprobs.rows().zip(self.sampling_logprobs.rows()).map(|(old, sampled)| log_ratios(old, sampled))
    }
}

fn log_ratios(old_logprobs: &[f64], sampling_logprobs: &[f64]) -> Vec<f64> {
    old_logprobs.iter().zip(sampling_logprobs).map(|(old, sampled)| old - sampled).collect()
}
