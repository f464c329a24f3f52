//! The policy under training, and its training step.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use shared::{
    config::{RouterReplay, TrainConfig},
    generation::rng,
};
use tch::Device;

use super::{
    BatchRow, CreditAssigner, Fate, Forward, Mean, StepBatch, StepInputs, StepMetrics, TokenNotes,
    passes::{Pass, Totals},
};
use crate::{
    batch::{Sequence, token_budget},
    constraint::Constraint,
    device::wait_for,
    error::LearnerError,
    kl::k3_value,
    loss::{
        Objective,
        entropy::{EntropyController, EntropyState},
        old_policy::OldPolicyPenalty,
        reduction::RowWeights,
    },
    mismatch::Correction,
    model::{Decoder, Trainable},
    optimizer::AdamWOptions,
    ragged::Ragged,
    ranks::Ranks,
    schedule::Schedule,
    support::Truncation,
    trained::{Among, Trained},
};

/// Distinguishes the shuffle of a step from other uses of the seed.
const SHUFFLE_KEY: u64 = 0x7368_7566;

/// A step before one of its updates: the gradients of the update are known, and nothing has moved yet.
#[derive(Debug)]
pub struct Before<'a> {
    /// The batch.
    pub batch: &'a StepBatch<'a>,
    /// Inputs of the losses. The old log-probs of every row are known.
    pub inputs: &'a StepInputs,
    /// The report so far, with loss and gradient norm of the update.
    pub metrics: &'a StepMetrics,
    /// Number of the update within the step, from 0.
    pub update: usize,
    /// Whether loss and gradient are finite. An update without finite ones is left out in any case.
    pub finite: bool,
}

/// Says whether an update may be made; if not, it and all further ones of the step are left out.
pub type Allows<'a> = dyn FnMut(&Before<'_>) -> bool + 'a;

/// The result of a step.
#[derive(Debug)]
pub struct TrainedStep {
    /// Inputs of the losses.
    pub inputs: StepInputs,
    /// The report on the step.
    pub metrics: StepMetrics,
}

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
    /// Weight of the penalty on the distance from the old policy, which may adapt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_policy_kl_coef: Option<f64>,
    /// Factor of the policy's learning rates, if they were lowered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_factor: Option<f64>,
}

impl Carried {
    /// This state, at the place in the schedule of another one.
    #[must_use]
    pub fn at(self, place: &Self) -> Self {
        Self { updates: place.updates, rate_factor: place.rate_factor, ..self }
    }
}

/// The policy being trained, with everything an update needs.
#[derive(Debug)]
pub struct Trainer {
    config: Arc<TrainConfig>,
    objective: Objective,
    entropy: EntropyController,
    old_policy: Option<OldPolicyPenalty>,
    correction: Option<Correction>,
    constraint: Option<Constraint>,
    truncation: Option<Truncation>,
    policy: Trained<Decoder>,
    /// The starting policy, frozen but for `sync_ref_model`; absent without a KL penalty.
    reference: Option<Decoder>,
    credit: CreditAssigner,
    keeps_gradient: bool,
    /// Most tokens of one forward pass.
    budget: usize,
    device: Device,
    ranks: Arc<dyn Ranks>,
}

/// What became of an update.
struct Updated {
    /// Whether the step goes on with the next.
    goes_on: bool,
    /// Whether the policy was moved.
    applied: bool,
}

impl Trainer {
    /// A trainer of `policy` for a run of `config.max_steps` steps.
    ///
    /// # Errors
    /// A configuration that asks for something the learner cannot do, or a KL term without a reference.
    pub fn new(config: &TrainConfig, policy: Decoder, reference: Option<Decoder>) -> Result<Self, LearnerError> {
        Self::among(config, policy, reference, Among::default())
    }

    /// A trainer that is one rank of several, all of which must be given the same batches. What the first rank
    /// allows decides for all, and its metrics are those of the step.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn among(
        config: &TrainConfig,
        policy: Decoder,
        reference: Option<Decoder>,
        among: Among,
    ) -> Result<Self, LearnerError> {
        if config.beta != 0.0 && reference.is_none() {
            return Err(LearnerError::Config("`beta` above 0 needs a reference model".into()));
        }
        let total_steps = config.max_steps.ok_or_else(|| {
            LearnerError::Config("`max_steps` is missing; `tandem train` fills it in from the dataset".into())
        })?;
        let schedule = Schedule::from_config(config, config.updates_of(total_steps));
        Ok(Self {
            budget: token_budget(config)?,
            objective: Objective::from_config(config),
            entropy: EntropyController::from_config(config),
            old_policy: OldPolicyPenalty::from_config(config),
            correction: Correction::from_config(config),
            constraint: Constraint::of_run(config)?,
            truncation: Truncation::of(&config.sampling()),
            credit: CreditAssigner::from_config(config),
            keeps_gradient: false,
            device: policy.device(),
            ranks: Arc::clone(&among.ranks),
            policy: Trained::among(policy, AdamWOptions::from_config(config), schedule, among),
            config: Arc::new(config.clone()),
            reference,
        })
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Trained<Decoder> {
        &self.policy
    }

    /// The policy, to be restored.
    pub fn policy_mut(&mut self) -> &mut Trained<Decoder> {
        &mut self.policy
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

    /// The trainer's state in a checkpoint, besides models and optimisers.
    #[must_use]
    pub fn carried(&self) -> Carried {
        Carried {
            updates: self.policy.updates(),
            kl_coef: self.credit.kl_coef(),
            entropy: self.entropy.state(),
            old_policy_kl_coef: self.old_policy.map(|penalty| penalty.coef),
            rate_factor: Some(self.policy.rate_factor()).filter(|&factor| factor != 1.0),
        }
    }

    /// Whether weights and optimisers hold finite numbers only.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.policy.is_finite() && self.credit.critic().is_none_or(|critic| critic.trained().is_finite())
    }

    /// Multiplies the policy's learning rate with `factor` from now on.
    pub fn lower_learning_rate(&mut self, factor: f64) {
        self.policy.set_rate_factor(self.policy.rate_factor() * factor);
    }

    /// Goes on from a checkpoint; models and optimisers are restored separately.
    pub fn restore(&mut self, carried: &Carried) {
        self.entropy.restore(carried.entropy);
        if let (Some(penalty), Some(coef)) = (&mut self.old_policy, carried.old_policy_kl_coef) {
            penalty.coef = coef;
        }
        self.policy.set_rate_factor(carried.rate_factor.unwrap_or(1.0));
        self.credit.restore(carried);
    }

    /// Keeps the gradient of each step's first update in [`StepMetrics::first_gradient`].
    pub fn keep_first_gradient(&mut self) {
        self.keeps_gradient = true;
    }

    /// Trains on one generation batch. `step` is the number of steps done before it.
    ///
    /// # Errors
    /// When gae has no critic.
    pub fn step(&mut self, batch: &StepBatch<'_>, step: u64) -> Result<TrainedStep, LearnerError> {
        self.step_if(batch, step, &mut |_| true)
    }

    /// As [`Trainer::step`], as long as `allows` permits updates. It is asked before each update of the policy.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn step_if(
        &mut self,
        batch: &StepBatch<'_>,
        step: u64,
        allows: &mut Allows<'_>,
    ) -> Result<TrainedStep, LearnerError> {
        let (config, updates) = (Arc::clone(&self.config), self.plan(batch, step));
        let mut inputs = StepInputs::new(batch, &self.weights(batch, &updates), self.correction);
        let notes = (config.token_records > 0).then(|| TokenNotes::new(batch.rows.iter().map(BatchRow::tokens)));
        let mut metrics = StepMetrics { notes, ..StepMetrics::default() };
        let forward = self.forward(batch, &mut metrics)?;
        inputs.ref_logprobs = self.ref_logprobs(batch, &forward, &mut metrics)?;
        let trains_policy = self.credit.trains_policy(step);
        // The first update's own pass gives the log-probs of its rows, unless they are needed earlier or the update
        // never comes.
        let normalised = self.correction.is_some_and(|correction| correction.batch_normalize);
        let all_before = self.credit.needs_logprobs() || normalised || !trains_policy;
        let before = if all_before { &updates[..] } else { updates.get(1..).unwrap_or_default() };
        self.old_logprobs(batch, &forward, before, &mut inputs, &mut metrics)?;
        // Choices of experts are those of the policy, and mean nothing to a critic.
        let unrouted: Vec<Sequence<'_>> = forward.sequences.iter().map(|sequence| sequence.unrouted()).collect();
        let credit = self.credit.assign(batch, &unrouted, &inputs.old_logprobs, &inputs.ref_logprobs)?;
        let (advantages, mut assignment) = credit;
        inputs.advantages = advantages;
        let (mut goes_on, mut moved) = (true, false);
        for iteration in 0..config.num_iterations {
            for (number, rows) in updates.iter().enumerate() {
                let mut is_left_out = |fate: Fate| {
                    let trained = rows.iter().filter(|&&row| batch.rows[row].trained);
                    trained.for_each(|&row| metrics.fates.note(row, fate));
                };
                if !goes_on {
                    is_left_out(Fate::UpdateSkipped);
                    metrics.learning_rate = self.policy.skip();
                    metrics.skipped_updates += 1;
                    self.credit.skip(&mut assignment);
                    continue;
                }
                // Nothing was updated yet: the current policy is the old one, and its log-probs are read off.
                let on_policy = iteration == 0 && number == 0;
                if trains_policy {
                    let pass = Pass {
                        config: &config,
                        objective: &Objective {
                            entropy_coef: self.entropy.applied(),
                            old_policy_kl_coef: self.old_policy.map_or(0.0, |penalty| penalty.coef),
                            ..self.objective.clone()
                        },
                        batch,
                        forward: &forward,
                        inputs: &mut inputs,
                        metrics: &mut metrics,
                        iteration,
                        on_policy,
                        reads_old_logprobs: on_policy && !all_before,
                    };
                    let update = self.update(pass, rows, allows)?;
                    goes_on = update.goes_on;
                    moved |= update.applied;
                } else {
                    is_left_out(Fate::CriticWarmup);
                    metrics.learning_rate = self.policy.skip();
                }
                if goes_on {
                    self.credit.update(&mut assignment, &unrouted, rows)?;
                } else {
                    self.credit.skip(&mut assignment);
                }
            }
        }
        metrics.credit = assignment.record(&inputs.advantages);
        if moved {
            self.measure_distance(batch, &forward, &inputs, &mut metrics)?;
        }
        self.sync_reference(step + 1);
        Ok(TrainedStep { inputs, metrics })
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
        for rows in updates {
            let found = batch.weights(&self.config, rows);
            for (i, &row) in rows.iter().enumerate() {
                (weights.losses[row], weights.entropies[row]) = (found.losses[i], found.entropies[i]);
            }
        }
        weights
    }

    /// The sequences of a step; with truncated or constrained sampling, their supports under the current policy.
    fn forward<'b>(&self, batch: &StepBatch<'b>, metrics: &mut StepMetrics) -> Result<Forward<'b>, LearnerError> {
        let model = self.policy.model().config();
        self.require_choices(batch)?;
        let mut forward = Forward {
            sequences: batch.rows.iter().map(|row| self.routed(row).of_model(model)).collect(),
            supports: None,
            temperature: f64::from(self.config.temperature),
            budget: self.budget,
            device: self.device,
            ranks: Arc::clone(&self.ranks),
        };
        let start = Instant::now();
        let rows: Vec<usize> = (0..batch.rows.len()).filter(|&r| batch.rows[r].valid).collect();
        // As in the sampler, truncation cuts what the constraint leaves.
        if let Some(constraint) = &self.constraint {
            forward.supports = Some(constraint.supports(&forward.sequences, &rows)?);
        }
        if let Some(truncation) = &self.truncation {
            forward.supports = Some(forward.supports(self.policy.model(), &rows, truncation));
        }
        if let Some(supports) = &forward.supports {
            metrics.support_sizes = Some(supports.map(|support| support.count()));
            metrics.times.old_logprobs += start.elapsed();
        }
        Ok(forward)
    }

    /// Whether every row that is trained on has the choices of experts that the run asks for, of this model.
    fn require_choices(&self, batch: &StepBatch<'_>) -> Result<(), LearnerError> {
        let (replay, model) = (self.config.router_replay, self.policy.model().config());
        let Some(experts) = model.experts.as_ref().filter(|_| replay != RouterReplay::Disabled) else { return Ok(()) };
        let width = (model.num_hidden_layers - experts.dense_layers.len()) * experts.per_token;
        for row in batch.rows.iter().filter(|row| row.trained) {
            let problem = match row.completion.routing.as_deref() {
                Some(routing) if routing.width as usize == width => continue,
                Some(_) => "has choices of experts of another model",
                None if replay == RouterReplay::Compare => continue,
                None => "has no choices of experts, which `router_replay` R3 computes with",
            };
            let message = format!("completion {} of group {} {problem}", row.completion.sample, row.group.id);
            return Err(LearnerError::Peer(message));
        }
        Ok(())
    }

    /// The sequence of a row, with the experts that the sampler chose where the run asks for them.
    fn routed<'b>(&self, row: &BatchRow<'b>) -> Sequence<'b> {
        let replay = self.config.router_replay;
        let routing = row.completion.routing.as_deref().filter(|_| replay != RouterReplay::Disabled);
        row.sequence().routed(routing, replay == RouterReplay::R3)
    }

    fn ref_logprobs(
        &self,
        batch: &StepBatch<'_>,
        forward: &Forward<'_>,
        metrics: &mut StepMetrics,
    ) -> Result<Ragged<f64>, LearnerError> {
        let Some(reference) = &self.reference else {
            return Ok(Ragged::filled(0.0, batch.rows.iter().map(|_| 0)));
        };
        let start = Instant::now();
        // In the reward, the penalty is part of the baseline, to which completions outside the loss belong as well.
        let all = self.credit.needs_logprobs();
        let wanted = |row: &BatchRow<'_>| row.trained || all && row.valid;
        let rows: Vec<usize> = (0..batch.rows.len()).filter(|&r| wanted(&batch.rows[r])).collect();
        // The reference has its own choices of experts.
        let own = (self.config.router_replay != RouterReplay::Disabled).then(|| forward.unrouted());
        let found = own.as_ref().unwrap_or(forward).evaluate(reference, &rows)?;
        metrics.times.ref_logprobs = start.elapsed();
        Ok(found.logprobs)
    }

    /// Log-probs of the current policy, for the rows of the given updates.
    fn old_logprobs(
        &self,
        batch: &StepBatch<'_>,
        forward: &Forward<'_>,
        updates: &[Vec<usize>],
        inputs: &mut StepInputs,
        metrics: &mut StepMetrics,
    ) -> Result<(), LearnerError> {
        let start = Instant::now();
        let mut valid: Vec<usize> = updates.iter().flatten().copied().filter(|&r| batch.rows[r].valid).collect();
        // The sums that a correction is relative to are taken in the order of the batch.
        valid.sort_unstable();
        let found = forward.evaluate(self.policy.model(), &valid)?;
        inputs.remember(&valid, &found.logprobs.gather(&valid));
        metrics.times.old_logprobs += start.elapsed();
        Ok(())
    }

    /// Measures how far the updates of a step have moved the policy, if there is a penalty on this distance. The
    /// penalty's weight follows.
    fn measure_distance(
        &mut self,
        batch: &StepBatch<'_>,
        forward: &Forward<'_>,
        inputs: &StepInputs,
        metrics: &mut StepMetrics,
    ) -> Result<(), LearnerError> {
        let Some(penalty) = &mut self.old_policy else { return Ok(()) };
        let start = Instant::now();
        let rows: Vec<usize> = (0..batch.rows.len()).filter(|&r| batch.rows[r].trained).collect();
        let now = forward.evaluate(self.policy.model(), &rows)?.logprobs;
        let mut distance = Mean::default();
        let tokens = rows.iter().flat_map(|&row| now[row].iter().zip(&inputs.old_logprobs[row]));
        distance.extend(&tokens.map(|(now, old)| k3_value(now - old)).collect::<Vec<f64>>());
        metrics.old_policy = Some((distance.get(), penalty.coef));
        penalty.observe(distance.get());
        metrics.times.old_logprobs += start.elapsed();
        Ok(())
    }

    /// Moves the reference policy towards the policy, every `ref_model_sync_steps` steps (TRL `sync_ref_model`).
    fn sync_reference(&self, steps: u64) {
        let due = self.config.sync_ref_model && steps.is_multiple_of(self.config.ref_model_sync_steps);
        let Some(reference) = self.reference.as_ref().filter(|_| due) else { return };
        tch::no_grad(|| {
            let mut flat = reference.weights().trained().flat().shallow_clone();
            let _ = flat.lerp_(self.policy.parameters().flat(), self.config.ref_model_mixup_alpha);
        });
        reference.moved();
    }

    /// One update of the policy, if `allows` permits it.
    fn update(&mut self, mut pass: Pass<'_>, rows: &[usize], allows: &mut Allows<'_>) -> Result<Updated, LearnerError> {
        let (start, mut passed) = (Instant::now(), Duration::ZERO);
        let mut totals = Totals::default();
        let mut update = self.policy.differentiate(|policy, gradients| {
            totals = pass.run(policy, gradients, rows)?;
            wait_for(self.device);
            passed = start.elapsed();
            Ok(totals.loss)
        })?;
        let wanted = self.keeps_gradient && pass.metrics.first_gradient.is_none();
        let gradient = wanted.then(|| self.policy.gradients().flat().copy());
        let Pass { metrics, inputs, batch, .. } = pass;
        let number = metrics.losses.len();
        metrics.first_gradient = gradient.or(metrics.first_gradient.take());
        metrics.learning_rate = update.learning_rate;
        metrics.losses.push(update.loss);
        metrics.policy_losses.push(totals.policy_loss);
        metrics.grad_norms.push(update.grad_norm);
        let finite = update.grad_norm.is_finite();
        let asked = Instant::now();
        let goes_on = allows(&Before { batch, inputs, metrics, update: number, finite });
        let goes_on = self.ranks.of_first(f64::from(u8::from(goes_on)))? != 0.0;
        let asked = asked.elapsed();
        if goes_on {
            self.policy.apply(&mut update)?;
            wait_for(self.device);
        }
        for (row, fate) in totals.fates {
            metrics.fates.note(row, if update.applied { fate } else { Fate::UpdateSkipped });
        }
        metrics.times.guard += asked;
        metrics.times.forward_backward += passed;
        metrics.times.optimizer += start.elapsed().saturating_sub(passed + asked);
        if goes_on && self.entropy.enabled() {
            self.entropy.observe(totals.entropy.get());
            metrics.entropy_coef = Some(self.entropy.coef);
        }
        metrics.skipped_updates += u64::from(!update.applied);
        if !finite {
            let (loss, update) = (update.loss, self.policy.updates());
            tracing::warn!(loss, update, "loss or gradient is not finite: the update is left out");
        }
        Ok(Updated { goes_on, applied: update.applied })
    }
}
