//! Weights of a generation batch's tokens in the losses of its updates.

use shared::config::TrainConfig;

use super::StepBatch;
use crate::{
    loss::reduction::{Normaliser, RowWeights, update_weights},
    ragged::Ragged,
};

impl StepBatch<'_> {
    /// Weights of an optimiser update: one for each of its rows, in their order, 0 for rows that do not count. Each
    /// `per_device_train_batch_size` rows are a minibatch.
    ///
    /// A row that does not count, or is excluded, is as if it had not been sampled: it takes a place in its minibatch
    /// and is in no divisor. The share of an incomplete last update is that of its rows in the generation batch, as in
    /// TRL.
    #[must_use]
    pub fn weights(&self, config: &TrainConfig, update: &[usize]) -> RowWeights {
        let counted = |&&row: &&usize| self.rows[row].valid && !self.rows[row].excluded;
        let lengths = |rows: &[usize]| -> Vec<usize> {
            rows.iter().filter(counted).map(|&row| self.rows[row].trained_tokens()).collect()
        };
        let minibatches: Ragged<usize> = update
            .chunks(config.per_device_train_batch_size as usize)
            .map(lengths)
            .filter(|minibatch| !minibatch.is_empty())
            .collect();
        let normaliser = Normaliser {
            accumulation: minibatches.len() as f64,
            share: update.len() as f64 / self.rows.len() as f64,
            generation_tokens: self.trained_tokens() as f64,
            max_completion_length: f64::from(config.max_completion_length),
        };
        let RowWeights { losses, entropies } = update_weights(config, &minibatches, &normaliser);
        let spread = |found: Vec<f64>| {
            let mut found = found.into_iter();
            let mut of = |row: &usize| if counted(&row) { found.next() } else { None };
            update.iter().map(|row| of(row).unwrap_or(0.0)).collect()
        };
        RowWeights { losses: spread(losses), entropies: spread(entropies) }
    }
}
