//! Passes of a model over rows without gradients: fixed log-probs, entropies and supports.

use std::sync::Arc;

use shared::process::heartbeat::{self, Phase};
use tch::Device;

use crate::{
    batch::{MicroBatch, Sequence, share, split},
    cores,
    error::LearnerError,
    host::to_host,
    model::Decoder,
    ragged::Ragged,
    ranks::{Alone, Ranks},
    support::{Support, Truncation},
};

/// A model's log-probs and entropies of completions: a row for each sequence, empty for those that were not asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Log-prob of each sampled token.
    pub logprobs: Ragged<f64>,
    /// Entropy of each token's distribution, in nats.
    pub entropies: Ragged<f64>,
}

/// Log-probs and entropies of the given rows' completions, without gradients.
pub fn evaluate(
    model: &Decoder,
    sequences: &[Sequence<'_>],
    rows: &[usize],
    temperature: f64,
    budget: usize,
    device: Device,
) -> Result<Evaluation, LearnerError> {
    let sequences = sequences.iter().map(|sequence| sequence.of_model(model.config())).collect();
    Forward { sequences, supports: None, temperature, budget, device, ranks: Arc::new(Alone) }.evaluate(model, rows)
}

/// The sequences of a step and how they go through a model.
#[derive(Debug)]
pub struct Forward<'a> {
    /// Prompts and completions.
    pub sequences: Vec<Sequence<'a>>,
    /// With truncated or constrained sampling, the support of every token's distribution.
    pub supports: Option<Ragged<Arc<Support>>>,
    /// Divides the logits.
    pub temperature: f64,
    /// Most positions of one forward pass.
    pub budget: usize,
    /// Device of the model.
    pub device: Device,
    /// Ranks that share the rows.
    pub ranks: Arc<dyn Ranks>,
}

impl<'a> Forward<'a> {
    /// The same for another model than the one that the sampler has.
    #[must_use]
    pub fn unrouted(&self) -> Self {
        Self {
            sequences: self.sequences.iter().map(|sequence| sequence.unrouted()).collect(),
            supports: self.supports.clone(),
            ranks: Arc::clone(&self.ranks),
            ..*self
        }
    }

    /// This rank's share of the rows, in micro-batches.
    pub fn micro_batches(&self, rows: &[usize]) -> impl Iterator<Item = MicroBatch> {
        self.all_micro_batches(share(&self.sequences, rows, self.ranks.rank(), self.ranks.count()))
    }

    fn all_micro_batches(&self, rows: Vec<usize>) -> impl Iterator<Item = MicroBatch> {
        let (mut done, all) = (0, rows.len());
        split(&self.sequences, &rows, self.budget).into_iter().map(move |rows| {
            cores::follow_sampler();
            heartbeat::beat(Phase::Step);
            heartbeat::part(Phase::Step, done, all);
            done += rows.len();
            MicroBatch::new(&self.sequences, &rows, self.device).with_supports(self.supports.as_ref())
        })
    }

    /// Log-probs and entropies of the given rows.
    pub fn evaluate(&self, model: &Decoder, rows: &[usize]) -> Result<Evaluation, LearnerError> {
        let mut logprobs = Ragged::filled(0.0, self.lengths(rows));
        let mut entropies = logprobs.clone();
        for batch in self.micro_batches(rows) {
            let stats = model.evaluate(&batch, self.temperature);
            logprobs.scatter(&batch.rows, &to_host(&stats.logprobs_N)?);
            entropies.scatter(&batch.rows, &to_host(&stats.entropies_N)?);
        }
        self.ranks.sum(logprobs.values_mut())?;
        self.ranks.sum(entropies.values_mut())?;
        Ok(Evaluation { logprobs, entropies })
    }

    /// What truncation leaves of the supports of the given rows, under `model`; other rows have none. Every rank
    /// computes them for all rows, because each update shares the rows out anew.
    #[must_use]
    pub fn supports(&self, model: &Decoder, rows: &[usize], truncation: &Truncation) -> Ragged<Arc<Support>> {
        let mut supports = Ragged::filled(Arc::new(Support::new(&[], 0)), self.lengths(rows));
        for batch in self.all_micro_batches(rows.to_vec()) {
            supports.scatter(&batch.rows, &model.supports(&batch, self.temperature, truncation));
        }
        supports
    }

    /// Sampled tokens of the given rows; 0 for the others.
    fn lengths(&self, rows: &[usize]) -> Vec<usize> {
        let mut lengths = vec![0; self.sequences.len()];
        rows.iter().for_each(|&row| lengths[row] = self.sequences[row].sampled());
        lengths
    }
}
