//! One training step: a generation batch, every optimiser update on it, one new policy version.

mod batch;
mod credit;
mod forward;
mod metrics;
mod passes;
mod stats;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use shared::{config::TrainConfig, rng};
use tch::Device;

pub use batch::{Row, StepBatch};
pub use credit::{Assignment, CreditAssigner};
pub use forward::{Evaluation, Forward, evaluate};
pub use metrics::record;
pub use stats::{Mean, Mismatch, StepStats, Times};

use crate::{
    device::wait_for,
    error::LearnerError,
    kept::{Kept, Truncation},
    loss::{
        Objective,
        entropy::{EntropyController, EntropyState},
        reduction::{Normaliser, RowWeights, update_weights},
    },
    mismatch::{Correction, Weights},
    model::Decoder,
    optimizer::AdamWOptions,
    schedule::Schedule,
    trained::{OptimizerState, Trained},
};
use passes::Pass;

/// Distinguishes the shuffle of a step from other uses of the seed.
const SHUFFLE_KEY: u64 = 0x7368_7566;

/// What a trainer carries from step to step besides models and optimisers; part of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// Optimiser updates, skipped ones included. Policy and critic have the same number.
    pub updates: u64,
    /// Weight of the KL penalty in the reward, which an adaptive controller moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_coef: Option<f64>,
    /// Coefficient of the entropy bonus, where it is adaptive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy: Option<EntropyState>,
}

/// The policy being trained, with everything an update needs.
#[derive(Debug)]
pub struct Trainer {
    config: TrainConfig,
    objective: Objective,
    entropy: EntropyController,
    correction: Option<Correction>,
    truncation: Option<Truncation>,
    policy: Trained<Decoder>,
    /// The starting policy, frozen but for `sync_ref_model`; only there when there is a KL penalty.
    reference: Option<Decoder>,
    credit: CreditAssigner,
    keeps_gradient: bool,
    device: Device,
}

impl Trainer {
    /// A trainer of `policy` for a run of `config.max_steps` steps.
    ///
    /// # Errors
    /// When the configuration asks for what the learner cannot do, or has a KL term and no reference comes with it.
    pub fn new(config: &TrainConfig, policy: Decoder, reference: Option<Decoder>) -> Result<Self, LearnerError> {
        if config.beta != 0.0 && reference.is_none() {
            return Err(LearnerError::Config("`beta` above 0 needs a reference model".into()));
        }
        let total_steps = config.max_steps.ok_or_else(|| {
            LearnerError::Config("`max_steps` is missing; `tandem train` fills it in from the dataset".into())
        })?;
        let schedule = Schedule::from_config(config, config.updates_of(total_steps));
        Ok(Self {
            objective: Objective::from_config(config),
            entropy: EntropyController::from_config(config),
            correction: Correction::from_config(config),
            truncation: Truncation::of(&config.sampling()),
            credit: CreditAssigner::from_config(config),
            keeps_gradient: false,
            device: policy.parameters().flat().device(),
            policy: Trained::new(policy, AdamWOptions::from_config(config), schedule),
            config: config.clone(),
            reference,
        })
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Trained<Decoder> {
        &self.policy
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

    /// What a checkpoint holds of it besides models and optimisers.
    #[must_use]
    pub fn carried(&self) -> Carried {
        Carried { updates: self.policy.updates(), kl_coef: self.credit.kl_coef(), entropy: self.entropy.state() }
    }

    /// Goes on from a checkpoint, given the states of the policy's optimiser and, where it holds one, of the critic's.
    ///
    /// # Errors
    /// A state that does not fit its model.
    pub fn restore(
        &mut self,
        carried: &Carried,
        policy: &OptimizerState,
        critic: Option<&OptimizerState>,
    ) -> Result<(), LearnerError> {
        self.entropy.restore(carried.entropy);
        self.credit.restore(carried, critic)?;
        self.policy.restore(carried.updates, policy)
    }

    /// Has the gradient of each step's first update left in [`StepStats::first_gradient`].
    pub fn keep_first_gradient(&mut self) {
        self.keeps_gradient = true;
    }

    /// Trains on one generation batch. `step` is the number of steps done before it.
    ///
    /// # Errors
    /// When libtorch refuses an operation.
    pub fn step(&mut self, batch: &StepBatch<'_>, step: u64) -> Result<StepStats, LearnerError> {
        let updates = self.plan(batch, step);
        let weights = self.weights(batch, &updates);
        let mut stats = StepStats { old_logprobs: vec![Vec::new(); batch.rows.len()], ..StepStats::default() };
        let forward = self.forward(batch, &mut stats);
        let ref_logprobs = self.ref_logprobs(batch, &forward, &mut stats)?;
        let trains_policy = self.credit.trains_policy(step);
        // The first update's own pass gives the log-probs of its rows, unless they are needed before or it never comes.
        let normalised = self.correction.is_some_and(|correction| correction.batch_normalize);
        let early = if self.credit.needs_logprobs() || normalised || !trains_policy {
            &updates[..]
        } else {
            updates.get(1..).unwrap_or_default()
        };
        self.old_logprobs(batch, &forward, early, &mut stats)?;
        let mut assignment = self.credit.assign(batch, &forward.sequences, &stats.old_logprobs, &ref_logprobs)?;
        let importance = self.batch_importance(batch, &stats);
        let sampling_logprobs = (!self.config.decoupled_objective).then(|| sampling_logprobs(batch));
        let correction = self.correction;
        for iteration in 0..self.config.num_iterations {
            for (number, rows) in updates.iter().enumerate() {
                let objective = Objective { entropy_coef: self.entropy.applied(), ..self.objective };
                let pass = Pass {
                    objective: &objective,
                    batch,
                    forward: &forward,
                    logical_rows: self.config.per_device_train_batch_size as usize,
                    weights: &weights,
                    advantages: &assignment.advantages,
                    ref_logprobs: &ref_logprobs,
                    sampling_logprobs: sampling_logprobs.as_deref(),
                    correction: correction.as_ref(),
                    importance: importance.as_ref(),
                    first: iteration == 0,
                    watches_entropy: self.config.use_adaptive_entropy,
                    // Nothing was updated yet: the current policy is the old one, and its log-probs are read off.
                    on_policy: iteration == 0 && number == 0,
                };
                if trains_policy {
                    self.update(&pass, rows, &mut stats)?;
                } else {
                    // The schedule goes on in the critic's warm-up, so that it ends with the run.
                    stats.learning_rate = self.policy.skip();
                }
                self.credit.update(&mut assignment, &forward.sequences, rows)?;
            }
        }
        stats.credit = assignment.record();
        stats.advantages = assignment.advantages;
        stats.importance = importance.or_else(|| self.importance(batch, &stats));
        self.sync_reference(step + 1);
        Ok(stats)
    }

    /// Rows of each optimiser update, in a seeded random order as in TRL, so that an update does not consist of the
    /// neighbours of one prompt. The same in every iteration.
    fn plan(&self, batch: &StepBatch<'_>, step: u64) -> Vec<Vec<usize>> {
        let order = rng::permutation(batch.rows.len(), &[self.config.seed, SHUFFLE_KEY, step]);
        let order: Vec<usize> = order.into_iter().map(|i| i as usize).collect();
        let per_update =
            self.config.per_device_train_batch_size.saturating_mul(self.config.gradient_accumulation_steps);
        order.chunks(per_update as usize).map(<[usize]>::to_vec).collect()
    }

    /// Weight of each row's tokens in the loss of its update.
    fn weights(&self, batch: &StepBatch<'_>, updates: &[Vec<usize>]) -> RowWeights {
        let rows = batch.rows.len();
        let mut weights = RowWeights { losses: vec![0.0; rows], entropies: vec![0.0; rows] };
        let logical_rows = self.config.per_device_train_batch_size as usize;
        for rows in updates {
            let normaliser = Normaliser {
                accumulation: rows.len().div_ceil(logical_rows) as f64,
                share: 1.0 / updates.len() as f64,
                generation_tokens: batch.completion_tokens() as f64,
                max_completion_length: f64::from(self.config.max_completion_length),
            };
            let lengths: Vec<usize> = rows.iter().map(|&r| batch.rows[r].trained_tokens()).collect();
            let found = update_weights(&self.config, &lengths, logical_rows, &normaliser);
            for (i, &row) in rows.iter().enumerate() {
                (weights.losses[row], weights.entropies[row]) = (found.losses[i], found.entropies[i]);
            }
        }
        weights
    }

    /// The sequences of a step; with truncated sampling, their kept sets under the policy as it is now.
    fn forward<'b>(&self, batch: &StepBatch<'b>, stats: &mut StepStats) -> Forward<'b> {
        let mut forward = Forward {
            sequences: batch.rows.iter().map(Row::sequence).collect(),
            kept: None,
            temperature: f64::from(self.config.temperature),
            budget: self.config.micro_batch_tokens as usize,
            device: self.device,
        };
        if let Some(truncation) = &self.truncation {
            let start = Instant::now();
            let rows: Vec<usize> = (0..batch.rows.len()).filter(|&r| batch.rows[r].valid).collect();
            forward.fix_kept_sets(self.policy.model(), &rows, truncation);
            let counts = |sets: &Vec<Arc<Kept>>| sets.iter().map(|set| set.count()).collect();
            stats.kept_counts = forward.kept.as_ref().map(|kept| kept.iter().map(counts).collect());
            stats.times.old_logprobs += start.elapsed();
        }
        forward
    }

    fn ref_logprobs(
        &self,
        batch: &StepBatch<'_>,
        forward: &Forward<'_>,
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
        let found = forward.evaluate(reference, &rows)?;
        stats.times.ref_logprobs = start.elapsed();
        Ok(found.into_iter().map(|e| e.logprobs).collect())
    }

    /// Log-probs of the policy as it is now, for the rows of the given updates.
    fn old_logprobs(
        &self,
        batch: &StepBatch<'_>,
        forward: &Forward<'_>,
        updates: &[Vec<usize>],
        stats: &mut StepStats,
    ) -> Result<(), LearnerError> {
        let start = Instant::now();
        let valid: Vec<usize> = updates.iter().flatten().copied().filter(|&r| batch.rows[r].valid).collect();
        for (row, found) in forward.evaluate(self.policy.model(), &valid)?.into_iter().enumerate() {
            if !found.logprobs.is_empty() {
                stats.old_logprobs[row] = found.logprobs;
            }
        }
        stats.times.old_logprobs += start.elapsed();
        Ok(())
    }

    /// The correction's weights, where they depend on all old log-probs.
    fn batch_importance(&self, batch: &StepBatch<'_>, stats: &StepStats) -> Option<Weights> {
        self.correction.filter(|correction| correction.batch_normalize).and(self.importance(batch, stats))
    }

    /// The correction's weights of the rows with old log-probs; none for other rows.
    fn importance(&self, batch: &StepBatch<'_>, stats: &StepStats) -> Option<Weights> {
        let correction = self.correction?;
        let known: Vec<usize> = (0..batch.rows.len()).filter(|&r| !stats.old_logprobs[r].is_empty()).collect();
        let log_ratios: Vec<Vec<f64>> =
            known.iter().map(|&r| batch.rows[r].log_ratios(&stats.old_logprobs[r])).collect();
        let weights = correction.weights(&log_ratios);
        let mut rows = vec![Vec::new(); batch.rows.len()];
        for (row, weights) in known.into_iter().zip(weights.rows) {
            rows[row] = weights;
        }
        Some(Weights { rows, ..weights })
    }

    /// Moves the reference policy towards the policy, every `ref_model_sync_steps` steps (TRL `sync_ref_model`).
    fn sync_reference(&self, steps: u64) {
        let due = self.config.sync_ref_model && steps.is_multiple_of(self.config.ref_model_sync_steps);
        let Some(reference) = self.reference.as_ref().filter(|_| due) else { return };
        tch::no_grad(|| {
            let mut flat = reference.parameters().flat().shallow_clone();
            let _ = flat.lerp_(self.policy.parameters().flat(), self.config.ref_model_mixup_alpha);
        });
    }

    fn update(&mut self, pass: &Pass<'_>, rows: &[usize], stats: &mut StepStats) -> Result<(), LearnerError> {
        let (start, mut passed) = (Instant::now(), Duration::ZERO);
        stats.begin_update();
        let update = self.policy.update(|policy, gradients| {
            let loss = pass.run(policy, gradients, rows, stats)?;
            wait_for(self.device);
            passed = start.elapsed();
            if self.keeps_gradient && stats.first_gradient.is_none() {
                stats.first_gradient = Some(gradients.flat().copy());
            }
            Ok(loss)
        })?;
        wait_for(self.device);
        stats.times.forward_backward += passed;
        stats.times.optimizer += start.elapsed() - passed;
        stats.learning_rate = update.learning_rate;
        stats.losses.push(update.loss);
        stats.grad_norms.push(update.grad_norm);
        if self.entropy.enabled() {
            self.entropy.observe(stats.active_entropy.0 / stats.active_entropy.1);
            stats.entropy_coef = Some(self.entropy.coef);
        }
        if !update.applied {
            stats.skipped_updates += 1;
            let (loss, update) = (update.loss, self.policy.updates());
            tracing::warn!(loss, update, "loss or gradient is not finite: the update is left out");
        }
        Ok(())
    }
}

/// Log-probs under the laws that the tokens were drawn from: `[row][token]`.
fn sampling_logprobs(batch: &StepBatch<'_>) -> Vec<Vec<f64>> {
    batch.rows.iter().map(|row| row.sampling_logprobs().collect()).collect()
}
