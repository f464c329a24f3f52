//! Passes with gradients: one optimiser update at a time.
//!
//! A method that looks at one token or one completion at a time gets its gradients while a micro-batch is under way. A
//! method that looks at a whole minibatch gets them beforehand, from log-probs of a pass without gradients; the passes
//! with gradients then only propagate them. Either way, [`Objective::differentiate`] computes them.

use std::ops::Range;

use shared::{
    config::TrainConfig,
    generation::rng,
    methods::{
        LossMetric, Scope,
        metric::{LOW_ENTROPY, OFF_POLICY},
    },
};
use tch::{Device, Tensor};

use super::{BatchRow, Evaluation, Fate, Forward, Mean, StepBatch, StepInputs, StepMetrics};
use crate::{
    batch::MicroBatch,
    error::LearnerError,
    host::to_host,
    loss::{Importance, LossGradient, Objective, Rows, Tokens},
    model::{Decoder, Gradients, Span, TokenGradients, TokenStats},
    ragged::Ragged,
    ranks::Ranks,
};

/// Entropies are rounded to multiples of this, in nats, before they are ranked.
const ENTROPY_GRID: f64 = 1.0 / 16384.0;

/// Purpose of the random numbers by which a loss draws tokens.
const LOTS: u64 = 0x6c6f_7473;

/// One pass over the rows of one optimiser update.
pub(super) struct Pass<'a> {
    pub(super) config: &'a TrainConfig,
    pub(super) objective: &'a Objective,
    pub(super) batch: &'a StepBatch<'a>,
    pub(super) forward: &'a Forward<'a>,
    pub(super) inputs: &'a mut StepInputs,
    pub(super) metrics: &'a mut StepMetrics,
    /// How often these rows were passed over before.
    pub(super) iteration: u32,
    /// The policy is still the one that the step began with.
    pub(super) on_policy: bool,
    /// This pass has to say with which log-probs its rows begin the step.
    pub(super) reads_old_logprobs: bool,
}

/// Sums over the rows of an update.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// The loss.
    pub(super) loss: f64,
    /// The loss without the entropy bonus.
    pub(super) policy_loss: f64,
    /// Entropies in the bonus.
    pub(super) entropy: Mean,
    /// Fates of the rows, if the update is made.
    pub(super) fates: Vec<(usize, Fate)>,
}

/// Values of some rows under the objective, with all their tokens in order.
#[derive(Default)]
struct TokenValues {
    logprobs: Vec<f64>,
    entropies: Vec<f64>,
    metrics: Vec<(LossMetric, Vec<f64>)>,
}

impl Pass<'_> {
    /// Adds the gradients of an update's rows.
    pub(super) fn run(
        &mut self,
        policy: &Decoder,
        gradients: &mut Gradients,
        rows: &[usize],
    ) -> Result<Totals, LearnerError> {
        let valid = rows.iter().copied().filter(|&r| self.batch.rows[r].valid);
        let (training, idle): (Vec<usize>, Vec<usize>) = valid.partition(|&r| {
            self.batch.rows[r].trained_tokens() > 0 && self.objective.trains(&self.inputs.advantages[r])
        });
        let mut totals = Totals::default();
        if self.objective.scope() == Scope::Minibatch {
            self.by_minibatch(policy, gradients, rows, &training, &mut totals)?;
        } else {
            let mut found = Vec::new();
            for micro in self.forward.micro_batches(&training) {
                found.push((micro.rows.clone(), self.by_micro_batch(policy, gradients, &micro, &mut totals)?));
            }
            for (rows, values) in self.of_all_ranks(&training, found, &mut totals)? {
                self.count(&rows, &values);
                totals.fates.extend(self.fates(&rows, &values));
            }
        }
        self.observe(policy, &idle, &mut totals)?;
        let in_loss = idle.into_iter().filter(|&row| self.batch.rows[row].trained);
        let fate = |row| if self.has_no_weight(row) { Fate::OffPolicy } else { Fate::Trained };
        totals.fates.extend(in_loss.map(|row| (row, fate(row))));
        Ok(totals)
    }

    /// Takes gradients on the way: the loss of a run of tokens is known when their log-probs are.
    fn by_micro_batch(
        &mut self,
        policy: &Decoder,
        gradients: &mut Gradients,
        micro: &MicroBatch,
        totals: &mut Totals,
    ) -> Result<TokenValues, LearnerError> {
        // The weights of the correction need the old log-probs of whole rows, which become known only in this pass.
        let weights_unknown = self.inputs.importance.is_some() && self.reads_old_logprobs;
        let whole = self.objective.scope() == Scope::Completion || weights_unknown;
        let span = if whole { Span::Completion(&micro.tokens) } else { Span::Token };
        let (mut failure, mut values) = (None, TokenValues::default());
        let report = policy.differentiate(micro, self.forward.temperature, span, gradients, &mut |run, stats| {
            self.differentiate_run(micro, &run, stats, &mut values, totals).unwrap_or_else(|error| {
                failure = Some(error);
                stats.logprobs_N.zeros_like().into()
            })
        });
        self.metrics.note(&report);
        failure.map_or(Ok(values), Err)
    }

    /// The values of an update's rows from all ranks, given those of this rank. `totals` become the sums over all
    /// ranks.
    fn of_all_ranks(
        &mut self,
        rows: &[usize],
        found: Vec<(Vec<usize>, TokenValues)>,
        totals: &mut Totals,
    ) -> Result<Vec<(Vec<usize>, TokenValues)>, LearnerError> {
        let ranks = &*self.forward.ranks;
        if ranks.count() == 1 {
            return Ok(found);
        }
        totals.sum(ranks)?;
        let tokens = |row: usize| self.forward.sequences[row].sampled();
        let rows: Vec<usize> = rows.iter().copied().filter(|&row| tokens(row) > 0).collect();
        let mut lengths = vec![0; self.batch.rows.len()];
        rows.iter().for_each(|&row| lengths[row] = tokens(row));
        let spread = |own: &mut dyn FnMut(&TokenValues) -> Option<Vec<f64>>| -> Result<Vec<f64>, LearnerError> {
            let mut all = Ragged::filled(0.0, lengths.iter().copied());
            for (rows, values) in &found {
                if let Some(values) = own(values) {
                    all.scatter(rows, &values);
                }
            }
            ranks.sum(all.values_mut())?;
            Ok(all.gather(&rows))
        };
        let mut all = TokenValues {
            logprobs: spread(&mut |values| Some(values.logprobs.clone()))?,
            entropies: spread(&mut |values| Some(values.entropies.clone()))?,
            metrics: Vec::new(),
        };
        // Only a rank with rows knows the metrics. The first rank has rows whenever any rank has, and its records
        // count.
        let known: Vec<LossMetric> = found
            .first()
            .map_or_else(Vec::new, |(_, values)| values.metrics.iter().map(|(metric, _)| *metric).collect());
        for at in 0..ranks.of_first(known.len() as f64)? as usize {
            let values = spread(&mut |values| values.metrics.get(at).map(|(_, values)| values.clone()))?;
            all.metrics.extend(known.get(at).map(|&metric| (metric, values)));
        }
        if self.reads_old_logprobs {
            self.inputs.remember(&rows, &all.logprobs);
        }
        Ok(vec![(rows, all)])
    }

    fn differentiate_run(
        &mut self,
        micro: &MicroBatch,
        run: &Range<i64>,
        stats: &TokenStats,
        values: &mut TokenValues,
        totals: &mut Totals,
    ) -> Result<TokenGradients, LearnerError> {
        values.logprobs.extend(to_host(&stats.logprobs_N)?);
        values.entropies.extend(to_host(&stats.entropies_N)?);
        if self.reads_old_logprobs {
            let ends = |row: &usize| run.contains(&(micro.tokens[*row].end as i64 - 1));
            for row in (0..micro.rows.len()).filter(ends) {
                self.inputs.remember(&micro.rows[row..=row], &values.logprobs[micro.tokens[row].clone()]);
            }
        }
        let tokens = self.tokens(&micro.rows, self.forward.device).slice(run);
        let found = self.objective.differentiate(&stats.logprobs_N, &stats.entropies_N, &tokens)?;
        totals.add(&found);
        values.add(&found.metrics)?;
        Ok(found.gradients)
    }

    /// Takes gradients beforehand: every log-prob of the update is known before the first loss.
    fn by_minibatch(
        &mut self,
        policy: &Decoder,
        gradients: &mut Gradients,
        rows: &[usize],
        training: &[usize],
        totals: &mut Totals,
    ) -> Result<(), LearnerError> {
        let found = self.forward.evaluate(policy, training)?;
        let mut logprob_gradients = Ragged::filled(0.0, found.logprobs.lengths());
        let mut entropy_gradients = logprob_gradients.clone();
        for minibatch in rows.chunks(self.config.per_device_train_batch_size as usize) {
            let minibatch: Vec<usize> = minibatch.iter().copied().filter(|r| training.contains(r)).collect();
            let loss = self.differentiate_minibatch(&minibatch, &found, totals)?;
            logprob_gradients.scatter(&minibatch, &to_host(&loss.gradients.logprobs_N)?);
            if let Some(entropies_N) = &loss.gradients.entropies_N {
                entropy_gradients.scatter(&minibatch, &to_host(entropies_N)?);
            }
        }
        let moves =
            |r: &usize| logprob_gradients[*r].iter().chain(&entropy_gradients[*r]).any(|&gradient| gradient != 0.0);
        let moving: Vec<usize> = training.iter().copied().filter(moves).collect();
        let (temperature, device) = (self.forward.temperature, self.forward.device);
        for micro in self.forward.micro_batches(&moving) {
            let column = |values: &Ragged<f64>| Tokens::column(&values.gather(&micro.rows), device);
            let fixed = TokenGradients {
                logprobs_N: column(&logprob_gradients),
                entropies_N: Some(column(&entropy_gradients)),
            };
            let mut gradient_of = |run: Range<i64>, _: &TokenStats| fixed.slice(&run);
            let report = policy.differentiate(&micro, temperature, Span::Token, gradients, &mut gradient_of);
            self.metrics.note(&report);
        }
        Ok(())
    }

    fn differentiate_minibatch(
        &mut self,
        rows: &[usize],
        found: &Evaluation,
        totals: &mut Totals,
    ) -> Result<LossGradient, LearnerError> {
        let (logprobs, entropies) = (found.logprobs.gather(rows), found.entropies.gather(rows));
        if self.reads_old_logprobs {
            self.inputs.remember(rows, &logprobs);
        }
        // Which tokens lie at the threshold of `top_entropy_quantile` must not depend on the last bits of an entropy.
        let rounded = entropies.iter().map(|entropy| (entropy / ENTROPY_GRID).round() * ENTROPY_GRID);
        let entropies_N = Tensor::from_slice(&rounded.collect::<Vec<f64>>());
        let tokens = self.tokens(rows, Device::Cpu);
        let gradient = self.objective.differentiate(&Tensor::from_slice(&logprobs), &entropies_N, &tokens)?;
        totals.add(&gradient);
        self.metrics.early_stopped += u64::from(gradient.stopped);
        let mut values = TokenValues { logprobs, entropies, metrics: Vec::new() };
        values.add(&gradient.metrics)?;
        self.count(rows, &values);
        let stopped = gradient.stopped.then_some(Fate::EarlyStopped);
        let fates = self.fates(rows, &values).into_iter();
        totals.fates.extend(fates.map(|(row, fate)| (row, stopped.unwrap_or(fate))));
        Ok(gradient)
    }

    /// Evaluates rows whose gradient is exactly 0 or that are left out of the loss. One pass without gradients is
    /// enough, unless an adaptive coefficient follows their entropies.
    fn observe(&mut self, policy: &Decoder, rows: &[usize], totals: &mut Totals) -> Result<(), LearnerError> {
        let trained = || rows.iter().copied().filter(|&row| self.batch.rows[row].trained);
        if self.iteration == 0 || self.config.use_adaptive_entropy {
            let found = self.forward.evaluate(policy, rows)?;
            if self.reads_old_logprobs {
                self.inputs.remember(rows, &found.logprobs.gather(rows));
            }
            for row in trained() {
                if self.iteration == 0 {
                    self.metrics.entropy.extend(&found.entropies[row]);
                    self.note_entropies(row, &found.entropies[row]);
                }
                totals.entropy.extend(&found.entropies[row]);
            }
        }
        for row in trained() {
            let tokens = self.batch.rows[row].trained_tokens();
            for &metric in self.objective.spec.metrics {
                if let Some(value) = metric.without_gradient {
                    self.metrics.measures.add(metric, &vec![value; tokens], self.objective.per_sequence(metric));
                }
            }
        }
        Ok(())
    }

    fn note_entropies(&mut self, row: usize, entropies: &[f64]) {
        if let Some(notes) = &mut self.metrics.notes {
            notes.entropies.scatter(&[row], entropies);
        }
    }

    fn count(&mut self, rows: &[usize], values: &TokenValues) {
        let mut start = 0;
        for &row in rows {
            let span = start..start + self.batch.rows[row].trained_tokens();
            start = span.end;
            if self.iteration == 0 {
                self.metrics.entropy.extend(&values.entropies[span.clone()]);
                self.note_entropies(row, &values.entropies[span.clone()]);
            }
            for (metric, values) in &values.metrics {
                if let Some(notes) = &mut self.metrics.notes {
                    notes.mark(metric, row, &values[span.clone()]);
                }
                self.metrics.measures.add(*metric, &values[span.clone()], self.objective.per_sequence(*metric));
            }
        }
    }

    /// Fates of the given rows in an update: a row is trained if any of its tokens is left in the policy term.
    fn fates(&self, rows: &[usize], values: &TokenValues) -> Vec<(usize, Fate)> {
        let of = |metric: LossMetric| values.metrics.iter().find(|(known, _)| known.mean.key == metric.mean.key);
        let (off_policy, low_entropy) = (of(OFF_POLICY), of(LOW_ENTROPY));
        let lengths: Vec<usize> = rows.iter().map(|&row| self.batch.rows[row].trained_tokens()).collect();
        let weights = self.inputs.importance.as_ref().map(|weights| weights.gather(rows, &lengths));
        let is_set = |mask: Option<&(LossMetric, Vec<f64>)>, at: usize| mask.is_some_and(|(_, mask)| mask[at] != 0.0);
        let mut start = 0;
        let fate_of = |(&row, &length): (&usize, &usize)| {
            let mut span = start..start + length;
            start = span.end;
            let off_policy_masked = span.clone().any(|at| is_set(off_policy, at));
            let left_out = |at: usize| {
                is_set(off_policy, at)
                    || is_set(low_entropy, at)
                    || weights.as_ref().is_some_and(|weights| weights[at] == 0.0)
            };
            let fate = if !span.all(left_out) {
                Fate::Trained
            } else if self.has_no_weight(row) {
                Fate::OffPolicy
            } else if off_policy_masked {
                Fate::OffPolicyMasked
            } else {
                Fate::LowEntropy
            };
            (row, fate)
        };
        rows.iter().zip(&lengths).map(fate_of).collect()
    }

    /// Whether the correction for the mismatch gives all tokens of a row the weight 0.
    fn has_no_weight(&self, row: usize) -> bool {
        let weights = self.inputs.importance.as_ref().map(|importance| &importance.rows[row]);
        weights.is_some_and(|weights| !weights.is_empty() && weights.iter().all(|&weight| weight == 0.0))
    }

    /// The objective's inputs for the tokens of the given rows.
    fn tokens(&self, rows: &[usize], device: Device) -> Tokens {
        let inputs = &*self.inputs;
        let column = |values: &Ragged<f64>| Tokens::column(&values.gather(rows), device);
        let lengths: Vec<usize> = rows.iter().map(|&r| inputs.advantages[r].len()).collect();
        let old_logprobs_N = if self.config.decoupled_objective {
            (!self.on_policy).then(|| column(&inputs.old_logprobs))
        } else {
            Some(column(&inputs.sampling_logprobs))
        };
        let importance = inputs.importance.as_ref().map(|weights| Importance {
            weights_N: Tokens::column(&weights.gather(rows, &lengths), device),
            per_sequence: weights.per_sequence,
        });
        Tokens {
            old_logprobs_N,
            sampling_logprobs_N: self
                .objective
                .config
                .off_policy_mask_threshold
                .map(|_| self.drawn_logprobs(rows, device)),
            ref_logprobs_N: (self.objective.beta != 0.0).then(|| column(&inputs.ref_logprobs)),
            advantages_N: column(&inputs.advantages),
            importance,
            lots_N: self.objective.spec.draws_tokens.then(|| self.lots(rows, device)),
            weights_N: column(&inputs.loss_weights),
            entropy_weights_N: column(&inputs.entropy_weights),
            rows: Rows::new(&lengths, device),
        }
    }

    /// Random numbers of the sampled tokens, the same in every order and on every rank.
    fn lots(&self, rows: &[usize], device: Device) -> Tensor {
        let of_row = |&row: &usize| {
            let BatchRow { group, completion, .. } = &self.batch.rows[row];
            let (group, sample) = ([group.id.step.0, group.id.index.into()], completion.sample.into());
            let key = rng::hash(&[LOTS, self.config.seed, group[0], group[1], sample, self.iteration.into()]);
            (0..self.inputs.advantages[row].len()).map(move |token| rng::uniform(&[key, token as u64]))
        };
        Tokens::column(&rows.iter().flat_map(of_row).collect::<Vec<f64>>(), device)
    }

    /// The log-probs that `off_policy_mask_threshold` compares with: the sampler's, or the learner's where the sampler
    /// gave none.
    fn drawn_logprobs(&self, rows: &[usize], device: Device) -> Tensor {
        let (drawn, old) = (self.inputs.sampling_logprobs.gather(rows), self.inputs.old_logprobs.gather(rows));
        let known = |(&drawn, &old): (&f64, &f64)| if drawn.is_nan() { old } else { drawn };
        Tokens::column(&drawn.iter().zip(&old).map(known).collect::<Vec<f64>>(), device)
    }
}

impl Totals {
    fn add(&mut self, found: &LossGradient) {
        self.loss += found.value;
        self.policy_loss += found.policy_value;
        self.entropy.add(found.active_entropy.0, found.active_entropy.1);
    }

    /// Becomes the sum over all ranks.
    fn sum(&mut self, ranks: &dyn Ranks) -> Result<(), LearnerError> {
        let (entropy, tokens) = self.entropy.parts();
        let mut all = [self.loss, self.policy_loss, entropy, tokens];
        ranks.sum(&mut all)?;
        (self.loss, self.policy_loss, self.entropy) = (all[0], all[1], Mean::default());
        self.entropy.add(all[2], all[3]);
        Ok(())
    }
}

impl TokenValues {
    fn add(&mut self, metrics: &[(LossMetric, Tensor)]) -> Result<(), LearnerError> {
        if metrics.is_empty() {
            return Ok(());
        }
        // One transfer for all metrics.
        let columns: Vec<Tensor> = metrics.iter().map(|(_, values_N)| values_N.to_kind(tch::Kind::Double)).collect();
        let values = to_host(&Tensor::stack(&columns, 0).reshape([-1]))?;
        let tokens = values.len() / metrics.len();
        for ((metric, _), values) in metrics.iter().zip(values.chunks(tokens.max(1))) {
            match self.metrics.iter_mut().find(|(known, _)| known.mean.key == metric.mean.key) {
                Some((_, all)) => all.extend(values),
                None => self.metrics.push((*metric, values.to_vec())),
            }
        }
        Ok(())
    }
}
