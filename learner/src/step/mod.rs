//! One training step: a generation batch, every optimiser update on it, one new policy version.

mod batch;
mod credit;
mod metrics;
mod passes;
mod stats;

use std::time::Instant;

use shared::{
    config::{LossType, TrainConfig},
    rng,
};
use tch::Device;

pub use batch::{Row, StepBatch};
pub use credit::{Assignment, CreditAssigner};
pub use metrics::record;
pub use passes::{Evaluation, evaluate};
pub use stats::{ClipStats, Mean, Mismatch, StepStats, Times};

use crate::{
    batch::Sequence,
    error::LearnerError,
    loss::{
        Objective,
        reduction::{Normaliser, row_weights},
    },
    model::{Decoder, Gradients},
    optimizer::{AdamW, AdamWOptions, Update},
    schedule::Schedule,
};
use passes::Pass;

/// Distinguishes the shuffle of a step from other uses of the seed.
const SHUFFLE_KEY: u64 = 0x7368_7566;

/// The policy being trained, with everything an update needs.
#[derive(Debug)]
pub struct Trainer {
    config: TrainConfig,
    objective: Objective,
    schedule: Schedule,
    policy: Decoder,
    /// The frozen starting policy; only there when the objective has a KL term.
    reference: Option<Decoder>,
    optimizer: AdamW,
    gradients: Gradients,
    credit: CreditAssigner,
    /// Optimiser updates done or skipped, which is what the schedule counts.
    updates: u64,
    device: Device,
}

impl Trainer {
    /// A trainer of `policy` for a run of `config.max_steps` steps.
    ///
    /// # Errors
    /// When the configuration asks for what the learner cannot do, or has a KL term and no reference comes with it.
    pub fn new(config: &TrainConfig, policy: Decoder, reference: Option<Decoder>) -> Result<Self, LearnerError> {
        check(config)?;
        let objective = Objective::from_config(config);
        if config.beta != 0.0 && reference.is_none() {
            return Err(LearnerError::Config("`beta` above 0 needs a reference model".into()));
        }
        let total_steps = config.max_steps.ok_or_else(|| {
            LearnerError::Config("`max_steps` is missing; `tandem train` fills it in from the dataset".into())
        })?;
        Ok(Self {
            objective,
            schedule: Schedule::from_config(config, total_steps * config.updates_per_step()),
            optimizer: AdamW::new(policy.parameters(), AdamWOptions::from_config(config)),
            gradients: policy.parameters().gradients(),
            credit: CreditAssigner::from_config(config)?,
            updates: 0,
            device: policy.parameters().flat().device(),
            config: config.clone(),
            policy,
            reference,
        })
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Decoder {
        &self.policy
    }

    /// The optimiser.
    #[must_use]
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// The reference policy, if it moves (`sync_ref_model`), so that a checkpoint must hold it.
    #[must_use]
    pub fn moving_reference(&self) -> Option<&Decoder> {
        self.reference.as_ref().filter(|_| self.config.sync_ref_model)
    }

    /// KL penalty and critic.
    #[must_use]
    pub fn credit(&self) -> &CreditAssigner {
        &self.credit
    }

    /// KL penalty and critic, to be set up.
    pub fn credit_mut(&mut self) -> &mut CreditAssigner {
        &mut self.credit
    }

    /// Optimiser updates so far, skipped ones included.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Goes on from a saved optimiser state and update count.
    ///
    /// # Errors
    /// A state that does not fit the model.
    pub fn restore(&mut self, updates: u64, state: &[(String, tch::Tensor)]) -> Result<(), LearnerError> {
        self.updates = updates;
        self.optimizer.restore(self.policy.parameters(), state)
    }

    /// Trains on one generation batch. `step` is the number of steps done before it.
    ///
    /// # Errors
    /// When libtorch refuses an operation.
    pub fn step(&mut self, batch: &StepBatch<'_>, step: u64) -> Result<StepStats, LearnerError> {
        let sequences: Vec<Sequence<'_>> = batch.rows.iter().map(Row::sequence).collect();
        let updates = self.plan(batch, step);
        let weights = self.weights(batch, &updates);
        let mut stats = StepStats { old_logprobs: vec![Vec::new(); batch.rows.len()], ..StepStats::default() };
        let ref_logprobs = self.ref_logprobs(batch, &sequences, &mut stats)?;
        let trains_policy = self.credit.trains_policy(step);
        // The first update's own pass gives the log-probs of its rows, unless they are needed before or it never comes.
        let early = if self.credit.needs_logprobs() || !trains_policy {
            &updates[..]
        } else {
            updates.get(1..).unwrap_or_default()
        };
        self.old_logprobs(batch, &sequences, early, &mut stats)?;
        let mut assignment = self.credit.assign(batch, &sequences, &stats.old_logprobs, &ref_logprobs)?;
        stats.advantages.clone_from(&assignment.advantages);
        let objective = self.objective;
        for iteration in 0..self.config.num_iterations {
            for (number, rows) in updates.iter().enumerate() {
                let pass = Pass {
                    objective: &objective,
                    batch,
                    sequences: &sequences,
                    weights: &weights,
                    ref_logprobs: &ref_logprobs,
                    temperature: f64::from(self.config.temperature),
                    budget: self.config.micro_batch_tokens as usize,
                    device: self.device,
                    first: iteration == 0,
                    // Nothing was updated yet: the current policy is the old one, and its log-probs are read off.
                    on_policy: iteration == 0 && number == 0,
                };
                if trains_policy {
                    self.update(&pass, rows, &mut stats)?;
                } else {
                    // The schedule goes on in the critic's warm-up, so that it ends with the run.
                    stats.learning_rate = self.schedule.rate(self.updates);
                    self.updates += 1;
                }
                self.credit.update(&mut assignment, &sequences, rows)?;
            }
        }
        stats.credit = assignment.record();
        Ok(stats)
    }

    /// Rows of each optimiser update, in a seeded random order as in TRL, so that an update does not consist of the
    /// neighbours of one prompt. The same in every iteration.
    fn plan(&self, batch: &StepBatch<'_>, step: u64) -> Vec<Vec<usize>> {
        let order = rng::permutation(batch.rows.len(), &[self.config.seed, SHUFFLE_KEY, step]);
        let order: Vec<usize> = order.into_iter().map(|i| i as usize).collect();
        let per_update = self.config.per_device_train_batch_size * self.config.gradient_accumulation_steps;
        order.chunks(per_update as usize).map(<[usize]>::to_vec).collect()
    }

    /// Weight of each row's tokens in the loss of its update.
    fn weights(&self, batch: &StepBatch<'_>, updates: &[Vec<usize>]) -> Vec<f64> {
        let mut weights = vec![0.0; batch.rows.len()];
        for rows in updates {
            let logical: Vec<&[usize]> = rows.chunks(self.config.per_device_train_batch_size as usize).collect();
            let normaliser = Normaliser {
                accumulation: logical.len() as f64,
                share: 1.0 / updates.len() as f64,
                generation_tokens: batch.completion_tokens() as f64,
                max_completion_length: f64::from(self.config.max_completion_length),
            };
            for rows in logical {
                let lengths: Vec<usize> = rows.iter().map(|&r| batch.rows[r].trained_tokens()).collect();
                for (&row, weight) in rows.iter().zip(row_weights(self.config.loss_type, &lengths, &normaliser)) {
                    weights[row] = weight;
                }
            }
        }
        weights
    }

    fn ref_logprobs(
        &self,
        batch: &StepBatch<'_>,
        sequences: &[Sequence<'_>],
        stats: &mut StepStats,
    ) -> Result<Vec<Vec<f64>>, LearnerError> {
        let Some(reference) = &self.reference else {
            return Ok(vec![Vec::new(); batch.rows.len()]);
        };
        let start = Instant::now();
        // In the reward, the penalty is part of the baseline, to which completions outside the loss belong as well.
        let all = self.credit.needs_logprobs();
        let wanted = |row: &Row<'_>| row.trained || all && row.valid;
        let rows: Vec<usize> = (0..batch.rows.len()).filter(|&r| wanted(&batch.rows[r])).collect();
        let found = self.evaluate(reference, sequences, &rows)?;
        stats.times.ref_logprobs = start.elapsed();
        Ok(found.into_iter().map(|e| e.logprobs).collect())
    }

    /// Log-probs of the policy as it is now, for the rows of the given updates.
    fn old_logprobs(
        &self,
        batch: &StepBatch<'_>,
        sequences: &[Sequence<'_>],
        updates: &[Vec<usize>],
        stats: &mut StepStats,
    ) -> Result<(), LearnerError> {
        let start = Instant::now();
        let valid: Vec<usize> = updates.iter().flatten().copied().filter(|&r| batch.rows[r].valid).collect();
        for (row, found) in self.evaluate(&self.policy, sequences, &valid)?.into_iter().enumerate() {
            if !found.logprobs.is_empty() {
                stats.old_logprobs[row] = found.logprobs;
            }
        }
        stats.times.old_logprobs = start.elapsed();
        Ok(())
    }

    fn evaluate(
        &self,
        model: &Decoder,
        sequences: &[Sequence<'_>],
        rows: &[usize],
    ) -> Result<Vec<Evaluation>, LearnerError> {
        let temperature = f64::from(self.config.temperature);
        evaluate(model, sequences, rows, temperature, self.config.micro_batch_tokens as usize, self.device)
    }

    fn update(&mut self, pass: &Pass<'_>, rows: &[usize], stats: &mut StepStats) -> Result<(), LearnerError> {
        let start = Instant::now();
        self.gradients.zero();
        let loss = pass.run(&self.policy, &mut self.gradients, rows, stats)?;
        stats.times.forward_backward += start.elapsed();

        let start = Instant::now();
        stats.learning_rate = self.schedule.rate(self.updates);
        self.updates += 1;
        stats.losses.push(loss);
        let update = if loss.is_finite() {
            self.optimizer.update(self.policy.parameters(), &self.gradients, stats.learning_rate)
        } else {
            Update { grad_norm: f64::NAN, applied: false }
        };
        stats.grad_norms.push(update.grad_norm);
        stats.times.optimizer += start.elapsed();
        if !update.applied {
            stats.skipped_updates += 1;
            tracing::warn!(loss, update = self.updates, "loss or gradient is not finite: the update is left out");
        }
        Ok(())
    }
}

/// What the learner cannot do is refused, rather than trained on a wrong ratio.
fn check(config: &TrainConfig) -> Result<(), LearnerError> {
    if !matches!(config.loss_type, LossType::Grpo | LossType::Bnpo | LossType::DrGrpo | LossType::Dapo) {
        return Err(LearnerError::Config(format!("`loss_type` {:?} is not implemented yet", config.loss_type)));
    }
    if config.sampling().truncated() {
        return Err(LearnerError::Config(
            "the learner cannot train on truncated sampling: leave `top_k` 0, `top_p` 1 and `min_p` unset".into(),
        ));
    }
    if config.repetition_penalty != 1.0 {
        return Err(LearnerError::Config(
            "the learner cannot train on penalised sampling: leave `repetition_penalty` 1".into(),
        ));
    }
    Ok(())
}
