//! Passes of a model over rows without gradients: fixed log-probs, entropies and kept sets.

use std::sync::Arc;

use tch::Device;

use crate::{
    batch::{MicroBatch, Sequence, split},
    error::LearnerError,
    kept::{Kept, Truncation},
    model::{Decoder, to_host},
};

/// What a model says about a completion's tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    /// Log-prob of each token.
    pub logprobs: Vec<f64>,
    /// Entropy of each token's distribution, in nats.
    pub entropies: Vec<f64>,
}

/// Log-probs and entropies of the given rows' completions, without gradients. The result has one entry per sequence,
/// empty for rows that were not asked for.
///
/// # Errors
/// When libtorch refuses an operation.
pub fn evaluate(
    model: &Decoder,
    sequences: &[Sequence<'_>],
    rows: &[usize],
    temperature: f64,
    budget: usize,
    device: Device,
) -> Result<Vec<Evaluation>, LearnerError> {
    Forward { sequences: sequences.to_vec(), kept: None, temperature, budget, device }.evaluate(model, rows)
}

/// The sequences of a step and how they go through a model.
#[derive(Debug)]
pub struct Forward<'a> {
    /// Prompts and completions.
    pub sequences: Vec<Sequence<'a>>,
    /// With truncated sampling, the kept set of every token: `[row][token]`.
    pub kept: Option<Vec<Vec<Arc<Kept>>>>,
    /// Divides the logits.
    pub temperature: f64,
    /// Most positions of one forward pass.
    pub budget: usize,
    /// Where the model is.
    pub device: Device,
}

impl Forward<'_> {
    /// The rows in micro-batches.
    pub fn micro_batches(&self, rows: &[usize]) -> impl Iterator<Item = MicroBatch> {
        split(&self.sequences, rows, self.budget)
            .into_iter()
            .map(|rows| MicroBatch::new(&self.sequences, &rows, self.device).with_kept(self.kept.as_deref()))
    }

    /// Log-probs and entropies; one entry per sequence, empty for rows that were not asked for.
    ///
    /// # Errors
    /// When libtorch refuses an operation.
    pub fn evaluate(&self, model: &Decoder, rows: &[usize]) -> Result<Vec<Evaluation>, LearnerError> {
        let mut found = vec![Evaluation::default(); self.sequences.len()];
        for batch in self.micro_batches(rows) {
            let stats = model.evaluate(&batch, self.temperature);
            let (logprobs, entropies) = (to_host(&stats.logprobs_N)?, to_host(&stats.entropies_N)?);
            for (&row, span) in batch.rows.iter().zip(&batch.tokens) {
                let part = |values: &[f64]| values[span.clone()].to_vec();
                found[row] = Evaluation { logprobs: part(&logprobs), entropies: part(&entropies) };
            }
        }
        Ok(found)
    }

    /// Fixes the kept sets of the given rows as `model` has them; other rows have none.
    pub fn fix_kept_sets(&mut self, model: &Decoder, rows: &[usize], truncation: &Truncation) {
        let mut kept = vec![Vec::new(); self.sequences.len()];
        for batch in self.micro_batches(rows) {
            let sets = model.keep(&batch, self.temperature, truncation);
            for (&row, span) in batch.rows.iter().zip(&batch.tokens) {
                kept[row] = sets[span.clone()].to_vec();
            }
        }
        self.kept = Some(kept);
    }
}
