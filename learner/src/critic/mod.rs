//! PPO's critic: a value for the state before each completion token, trained beside the policy on the same minibatches.

mod stats;
mod value_loss;

use std::path::Path;

use shared::{
    ModelDir,
    config::{LossAggregation, TrainConfig},
};
use tch::{Device, Tensor};

pub use stats::{CriticStats, explained_variance, spread};
pub use value_loss::{ValueLoss, clip_fraction, value_loss};

use crate::{
    batch::{MicroBatch, Sequence, split},
    error::LearnerError,
    loss::reduction::Aggregation,
    model::{Gradients, LoadOptions, Parameters, Scorer, load_scorer},
    optimizer::{AdamW, AdamWOptions},
    schedule::Schedule,
};

/// Folder of the critic in a checkpoint.
pub const CRITIC_DIR: &str = "critic";

/// A value model with everything an update needs.
#[derive(Debug)]
pub struct Critic {
    /// Where it started, also when it goes on from a checkpoint, which may be deleted meanwhile.
    model: ModelDir,
    scorer: Scorer,
    optimizer: AdamW,
    gradients: Gradients,
    schedule: Schedule,
    /// Updates done or skipped, which is what the schedule counts.
    updates: u64,
    range: f64,
    aggregation: Aggregation,
    budget: usize,
    device: Device,
}

impl Critic {
    /// The critic of a run: that of `checkpoint`, else the model that `critic_model` names, else the policy's with a head
    /// that starts at 0. `vocabulary` is the policy's.
    ///
    /// # Errors
    /// A model that cannot be loaded or has a smaller vocabulary than the policy.
    pub fn open(
        config: &TrainConfig,
        checkpoint: Option<&Path>,
        vocabulary: usize,
        options: LoadOptions,
    ) -> Result<Self, LearnerError> {
        let model = ModelDir::open(config.critic_model.as_ref().unwrap_or(&config.model))?;
        if model.config().vocab_size < vocabulary {
            return Err(LearnerError::content(
                model.path(),
                format!(
                    "the critic's vocabulary of {} is smaller than the policy's of {vocabulary}; name another \
                     `critic_model`",
                    model.config().vocab_size
                ),
            ));
        }
        let saved = checkpoint.map(|checkpoint| ModelDir::open(checkpoint.join(CRITIC_DIR))).transpose()?;
        let scorer = load_scorer(saved.as_ref().unwrap_or(&model), options)?;
        Ok(Self {
            optimizer: AdamW::new(scorer.parameters(), AdamWOptions::from_config(config)),
            gradients: scorer.parameters().gradients(),
            schedule: Schedule {
                peak: config.critic_learning_rate,
                ..Schedule::from_config(config, config.updates_of(config.max_steps.unwrap_or_default()))
            },
            updates: 0,
            range: config.cliprange_value,
            aggregation: Aggregation::new(
                config.loss_aggregation.unwrap_or(LossAggregation::TokenMean),
                config.loss_scale_factor.unwrap_or(f64::from(config.max_completion_length)),
            ),
            budget: config.micro_batch_tokens as usize,
            device: options.device,
            model,
            scorer,
        })
    }

    /// The parameters.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        self.scorer.parameters()
    }

    /// The directory that the critic started from, with configuration and tokenizer.
    #[must_use]
    pub fn model(&self) -> &ModelDir {
        &self.model
    }

    /// The optimiser.
    #[must_use]
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// Goes on from a saved optimiser state and update count.
    ///
    /// # Errors
    /// A state that does not fit the model.
    pub fn restore(&mut self, updates: u64, state: &[(String, Tensor)]) -> Result<(), LearnerError> {
        self.updates = updates;
        self.optimizer.restore(self.scorer.parameters(), state)
    }

    /// Value of the state before each completion token of the given rows: one entry per sequence, empty for rows that
    /// were not asked for.
    ///
    /// # Errors
    /// When libtorch refuses an operation.
    pub fn values(&self, sequences: &[Sequence<'_>], rows: &[usize]) -> Result<Vec<Vec<f64>>, LearnerError> {
        let mut found = vec![Vec::new(); sequences.len()];
        for rows in split(sequences, rows, self.budget) {
            let micro = MicroBatch::new(sequences, &rows, self.device);
            let values = self.scorer.evaluate(&micro.input_ids_BS, &micro.positions_N)?;
            for (&row, span) in micro.rows.iter().zip(&micro.tokens) {
                found[row] = values[span.clone()].to_vec();
            }
        }
        Ok(found)
    }

    /// One update on the given rows. `values` are those that the step began with, `returns` what should have been said.
    ///
    /// # Errors
    /// When libtorch refuses an operation.
    pub fn update(
        &mut self,
        sequences: &[Sequence<'_>],
        rows: &[usize],
        values: &[Vec<f64>],
        returns: &[Vec<f64>],
        stats: &mut CriticStats,
    ) -> Result<(), LearnerError> {
        let rate = self.schedule.rate(self.updates);
        self.updates += 1;
        stats.learning_rate = rate;
        let lengths: Vec<usize> = rows.iter().map(|&row| sequences[row].completion.len()).collect();
        if lengths.iter().all(|&length| length == 0) {
            return Ok(());
        }
        let mut weights = vec![0.0; sequences.len()];
        for (&row, weight) in rows.iter().zip(self.aggregation.weights(&lengths)) {
            weights[row] = weight;
        }
        self.gradients.zero();
        let mut loss = 0.0;
        for rows in split(sequences, rows, self.budget) {
            let micro = MicroBatch::new(sequences, &rows, self.device);
            let (values, returns) = (micro.gather(values), micro.gather(returns));
            let weights = micro.per_token(|row| weights[row]);
            let (inputs, positions) = (&micro.input_ids_BS, &micro.positions_N);
            self.scorer.differentiate(inputs, positions, &mut self.gradients, &mut |predictions| {
                let found = value_loss(predictions, &values, &returns, &weights, self.range);
                loss += found.value;
                stats.predictions += predictions.iter().sum::<f64>();
                stats.tokens += predictions.len();
                stats.clipped += found.clipped;
                found.slopes
            })?;
        }
        stats.losses.push(loss);
        if !loss.is_finite() {
            stats.skipped_updates += 1;
            return Ok(());
        }
        let update = self.optimizer.update(self.scorer.parameters(), &self.gradients, rate);
        stats.grad_norms.push(update.grad_norm);
        stats.skipped_updates += u64::from(!update.applied);
        Ok(())
    }
}
