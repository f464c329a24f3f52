//! PPO's critic: a value for the state before each sampled token, trained beside the policy on the same minibatches.

mod stats;
mod value_loss;

use std::{path::Path, sync::Arc};

use shared::{ModelDir, config::TrainConfig, methods::advantage::CRITIC_AGGREGATION};
use tch::Device;

pub use stats::{CriticStats, explained_variance, spread};
pub use value_loss::{ValueLoss, clip_fraction, value_loss};

use crate::{
    batch::{MicroBatch, Sequence, share, split, token_budget},
    error::LearnerError,
    loss::reduction::Aggregation,
    model::{LoadOptions, Scorer, load_scorer},
    optimizer::AdamWOptions,
    ragged::Ragged,
    ranks::Ranks,
    schedule::Schedule,
    trained::{Among, Trained},
};

/// A value model with everything an update needs.
#[derive(Debug)]
pub struct Critic {
    /// The model that it started from, even if it goes on from a checkpoint, which may be deleted meanwhile.
    source: ModelDir,
    trained: Trained<Scorer>,
    range: f64,
    aggregation: Aggregation,
    budget: usize,
    device: Device,
    ranks: Arc<dyn Ranks>,
}

impl Critic {
    /// The critic of a run: the one that was `saved` in a folder, else the model that `critic_model` names, else the
    /// policy's with a head that starts at 0. `vocabulary` is the policy's. The passes are shared out `among` ranks as
    /// the policy's are.
    ///
    /// # Errors
    /// A model that cannot be loaded or has a smaller vocabulary than the policy.
    pub fn open(
        config: &TrainConfig,
        saved: Option<&Path>,
        vocabulary: usize,
        options: LoadOptions,
        among: Among,
    ) -> Result<Self, LearnerError> {
        let source = ModelDir::open(config.critic_model.as_ref().unwrap_or(&config.model))?;
        if source.config().vocab_size < vocabulary {
            return Err(LearnerError::content(
                source.path(),
                format!(
                    "the critic's vocabulary of {} is smaller than the policy's of {vocabulary}; name another \
                     `critic_model`",
                    source.config().vocab_size
                ),
            ));
        }
        let saved = saved.map(ModelDir::open).transpose()?;
        let scorer = load_scorer(saved.as_ref().unwrap_or(&source), options)?;
        let schedule = Schedule {
            peak: config.critic_learning_rate,
            ..Schedule::from_config(config, config.updates_of(config.max_steps.unwrap_or_default()))
        };
        Ok(Self {
            source,
            ranks: Arc::clone(&among.ranks),
            trained: Trained::among(scorer, AdamWOptions::from_config(config), schedule, among),
            range: config.cliprange_value,
            aggregation: Aggregation::new(
                config.loss_aggregation.unwrap_or(CRITIC_AGGREGATION),
                config.loss_scale_factor.unwrap_or(f64::from(config.max_completion_length)),
            ),
            budget: token_budget(config)?,
            device: options.device,
        })
    }

    /// The directory that the critic started from, with configuration and tokenizer.
    #[must_use]
    pub fn source(&self) -> &ModelDir {
        &self.source
    }

    /// The model.
    #[must_use]
    pub fn trained(&self) -> &Trained<Scorer> {
        &self.trained
    }

    /// The model, to be restored.
    pub fn trained_mut(&mut self) -> &mut Trained<Scorer> {
        &mut self.trained
    }

    /// The sequences as rows of the critic, whose positions may be other than the policy's.
    fn own<'a>(&self, sequences: &[Sequence<'a>]) -> Vec<Sequence<'a>> {
        let model = self.trained.model().config();
        sequences.iter().map(|sequence| sequence.of_model(model)).collect()
    }

    /// Value of the state before each sampled token of the given rows: a row for each sequence, empty for sequences
    /// outside `rows`.
    pub fn values(&self, sequences: &[Sequence<'_>], rows: &[usize]) -> Result<Ragged<f64>, LearnerError> {
        let sequences = &self.own(sequences);
        let mut lengths = vec![0; sequences.len()];
        rows.iter().for_each(|&row| lengths[row] = sequences[row].sampled());
        let mut found = Ragged::filled(0.0, lengths);
        let own = share(sequences, rows, self.ranks.rank(), self.ranks.count());
        for rows in split(sequences, &own, self.budget) {
            let micro = MicroBatch::new(sequences, &rows, self.device);
            found.scatter(&rows, &self.trained.model().evaluate(&micro.packed, &micro.positions_N)?);
        }
        self.ranks.sum(found.values_mut())?;
        Ok(found)
    }

    /// One update on the given rows. `values` are those that the step began with, `returns` the targets.
    pub fn update(
        &mut self,
        sequences: &[Sequence<'_>],
        rows: &[usize],
        values: &Ragged<f64>,
        returns: &Ragged<f64>,
        stats: &mut CriticStats,
    ) -> Result<(), LearnerError> {
        let lengths: Vec<usize> = rows.iter().map(|&row| sequences[row].sampled()).collect();
        if lengths.iter().all(|&length| length == 0) {
            stats.learning_rate = self.trained.skip();
            return Ok(());
        }
        let sequences = &self.own(sequences);
        let mut weights = vec![0.0; sequences.len()];
        for (&row, weight) in rows.iter().zip(self.aggregation.weights(&lengths)) {
            weights[row] = weight;
        }
        let (budget, device, range, ranks) = (self.budget, self.device, self.range, &*self.ranks);
        let update = self.trained.update(|scorer, gradients| {
            let (mut loss, mut own) = (0.0, CriticStats::default());
            for rows in split(sequences, &share(sequences, rows, ranks.rank(), ranks.count()), budget) {
                let micro = MicroBatch::new(sequences, &rows, device);
                let (values, returns) = (values.gather(&rows), returns.gather(&rows));
                let weights = micro.per_token(|row| weights[row]);
                scorer.differentiate(&micro.packed, &micro.positions_N, gradients, &mut |predictions| {
                    let found = value_loss(predictions, &values, &returns, &weights, range);
                    loss += found.value;
                    own.predictions += predictions.iter().sum::<f64>();
                    own.tokens += predictions.len();
                    own.clipped += found.clipped;
                    found.gradients
                })?;
            }
            let mut all = [loss, own.predictions, own.tokens as f64, own.clipped as f64];
            ranks.sum(&mut all)?;
            stats.predictions += all[1];
            stats.tokens += all[2] as usize;
            stats.clipped += all[3] as usize;
            Ok(all[0])
        })?;
        stats.learning_rate = update.learning_rate;
        stats.losses.push(update.loss);
        if update.loss.is_finite() {
            stats.grad_norms.push(update.grad_norm);
        }
        stats.skipped_updates += u64::from(!update.applied);
        Ok(())
    }
}
