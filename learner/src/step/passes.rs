//! Passes with gradients: one optimiser update at a time.
//!
//! A method that looks at one token or one completion at a time gets its slopes while a micro-batch is under way. One
//! that looks at a whole logical batch gets them beforehand, from log-probs of a pass without gradients; the passes with
//! gradients then only carry them out. Either way [`Objective::differentiate`] says what they are.

use std::ops::Range;

use tch::{Device, Tensor};

use super::{Evaluation, Forward, StepBatch, StepStats};
use crate::{
    batch::MicroBatch,
    error::LearnerError,
    loss::{Importance, LossGradient, Measure, Objective, Rows, Scope, Tokens, reduction::RowWeights},
    mismatch::{Correction, Weights},
    model::{Decoder, Gradients, Slopes, Span, TokenStats, to_host},
};

/// Entropies are rounded to multiples of this, in nats, before they are ranked.
const ENTROPY_GRID: f64 = 1.0 / 16384.0;

/// One pass over the rows of one optimiser update. Lists are indexed by row of the generation batch.
pub(super) struct Pass<'a> {
    pub(super) objective: &'a Objective,
    pub(super) batch: &'a StepBatch<'a>,
    pub(super) forward: &'a Forward<'a>,
    /// Completions of a logical batch.
    pub(super) logical_rows: usize,
    pub(super) weights: &'a RowWeights,
    /// Advantage of each token.
    pub(super) advantages: &'a [Vec<f64>],
    pub(super) ref_logprobs: &'a [Vec<f64>],
    /// Log-probs of the sampler, for an objective whose ratio is taken against them.
    pub(super) sampling_logprobs: Option<&'a [Vec<f64>]>,
    pub(super) correction: Option<&'a Correction>,
    /// The weights of the correction, where they are relative to the whole generation batch.
    pub(super) importance: Option<&'a Weights>,
    /// First time that these rows are passed over.
    pub(super) first: bool,
    /// The mean entropy of every update is needed, also over rows without a gradient.
    pub(super) watches_entropy: bool,
    /// The policy is still the one the step began with.
    pub(super) on_policy: bool,
}

/// What the objective said about some rows, with all their tokens in order.
#[derive(Default)]
struct Outcome {
    logprobs: Vec<f64>,
    entropies: Vec<f64>,
    figures: Vec<(Measure, Vec<f64>)>,
}

impl Pass<'_> {
    /// Adds the gradients of an update's rows and returns its loss.
    pub(super) fn run(
        &self,
        policy: &Decoder,
        gradients: &mut Gradients,
        rows: &[usize],
        stats: &mut StepStats,
    ) -> Result<f64, LearnerError> {
        let valid: Vec<usize> = rows.iter().copied().filter(|&r| self.batch.rows[r].valid).collect();
        let (training, idle): (Vec<usize>, Vec<usize>) =
            valid.into_iter().partition(|&r| self.batch.rows[r].trained && self.objective.trains(&self.advantages[r]));
        let loss = if self.objective.scope() == Scope::Batch {
            self.by_logical_batch(policy, gradients, rows, &training, stats)?
        } else {
            let mut loss = 0.0;
            for micro in self.forward.micro_batches(&training) {
                loss += self.by_micro_batch(policy, gradients, &micro, stats)?;
            }
            loss
        };
        self.observe(policy, &idle, stats)?;
        Ok(loss)
    }

    /// Slopes on the way: the loss of a run of tokens is known when their log-probs are.
    fn by_micro_batch(
        &self,
        policy: &Decoder,
        gradients: &mut Gradients,
        micro: &MicroBatch,
        stats: &mut StepStats,
    ) -> Result<f64, LearnerError> {
        // The weights of the correction go over whole rows of old log-probs, which here may only just become known.
        let weights_unknown = self.correction.is_some() && self.importance.is_none() && self.on_policy;
        let whole = self.objective.scope() == Scope::Row || weights_unknown;
        let span = if whole { Span::Whole } else { Span::Run };
        let (mut loss, mut failure, mut outcome) = (0.0, None, Outcome::default());
        policy.differentiate(micro, self.forward.temperature, span, gradients, &mut |run, token_stats| {
            let found = self.differentiate_run(micro, &run, token_stats, stats, &mut outcome);
            found.map(|found| (loss += found.value, found.slopes).1).unwrap_or_else(|error| {
                failure = Some(error);
                token_stats.logprobs_N.zeros_like().into()
            })
        });
        if let Some(error) = failure {
            return Err(error);
        }
        for (&row, span) in micro.rows.iter().zip(&micro.tokens) {
            self.count(row, span, &outcome, stats);
        }
        Ok(loss)
    }

    fn differentiate_run(
        &self,
        micro: &MicroBatch,
        run: &Range<i64>,
        token_stats: &TokenStats,
        stats: &mut StepStats,
        outcome: &mut Outcome,
    ) -> Result<LossGradient, LearnerError> {
        outcome.logprobs.extend(to_host(&token_stats.logprobs_N)?);
        outcome.entropies.extend(to_host(&token_stats.entropies_N)?);
        if outcome.logprobs.len() == micro.targets_N.numel() {
            for (&row, span) in micro.rows.iter().zip(&micro.tokens) {
                self.remember(row, &outcome.logprobs[span.clone()], stats);
            }
        }
        let tokens = self.tokens(&micro.rows, stats, self.forward.device).slice(run);
        let found = self.objective.differentiate(&token_stats.logprobs_N, &token_stats.entropies_N, &tokens)?;
        stats.add_loss(&found);
        outcome.add(&found.figures)?;
        Ok(found)
    }

    /// Slopes beforehand: every log-prob of the update is known before the first loss.
    fn by_logical_batch(
        &self,
        policy: &Decoder,
        gradients: &mut Gradients,
        rows: &[usize],
        training: &[usize],
        stats: &mut StepStats,
    ) -> Result<f64, LearnerError> {
        let found = self.forward.evaluate(policy, training)?;
        let mut loss = 0.0;
        let mut slopes = vec![Vec::new(); self.batch.rows.len()];
        let mut entropy_slopes = slopes.clone();
        for logical in rows.chunks(self.logical_rows) {
            let logical: Vec<usize> = logical.iter().copied().filter(|r| training.contains(r)).collect();
            let (gradient, spans) = self.differentiate_logical(&logical, &found, stats)?;
            loss += gradient.value;
            let own = to_host(&gradient.slopes.logprobs_N)?;
            let entropy = gradient.slopes.entropies_N.as_ref().map(to_host).transpose()?;
            for (&row, span) in logical.iter().zip(spans) {
                let entropy = entropy.as_ref().map_or_else(|| vec![0.0; span.len()], |e| e[span.clone()].to_vec());
                (slopes[row], entropy_slopes[row]) = (own[span].to_vec(), entropy);
            }
        }
        let moves = |r: &usize| slopes[*r].iter().chain(&entropy_slopes[*r]).any(|&slope| slope != 0.0);
        let moving: Vec<usize> = training.iter().copied().filter(moves).collect();
        for micro in self.forward.micro_batches(&moving) {
            let column = |lists: &[Vec<f64>]| Tokens::column(&micro.gather(lists), self.forward.device);
            let fixed = Slopes { logprobs_N: column(&slopes), entropies_N: Some(column(&entropy_slopes)) };
            let temperature = self.forward.temperature;
            policy.differentiate(&micro, temperature, Span::Run, gradients, &mut |run, _| fixed.slice(&run));
        }
        Ok(loss)
    }

    /// The loss of one logical batch, and where each of its rows lies among its tokens.
    fn differentiate_logical(
        &self,
        rows: &[usize],
        found: &[Evaluation],
        stats: &mut StepStats,
    ) -> Result<(LossGradient, Vec<Range<usize>>), LearnerError> {
        let mut outcome = Outcome::default();
        let mut spans = Vec::new();
        for &row in rows {
            self.remember(row, &found[row].logprobs, stats);
            spans.push(outcome.logprobs.len()..outcome.logprobs.len() + found[row].logprobs.len());
            outcome.logprobs.extend(&found[row].logprobs);
            outcome.entropies.extend(&found[row].entropies);
        }
        let tokens = self.tokens(rows, stats, Device::Cpu);
        let logprobs_N = Tensor::from_slice(&outcome.logprobs);
        // Which tokens lie at the threshold of `top_entropy_quantile` must not hang on the last bits of an entropy.
        let rounded = outcome.entropies.iter().map(|entropy| (entropy / ENTROPY_GRID).round() * ENTROPY_GRID);
        let entropies_N = Tensor::from_slice(&rounded.collect::<Vec<f64>>());
        let gradient = self.objective.differentiate(&logprobs_N, &entropies_N, &tokens)?;
        stats.add_loss(&gradient);
        stats.early_stopped += u64::from(gradient.stopped);
        outcome.add(&gradient.figures)?;
        for (&row, span) in rows.iter().zip(&spans) {
            self.count(row, span, &outcome, stats);
        }
        Ok((gradient, spans))
    }

    /// Rows whose gradient is exactly 0 or that are left out of the loss: they are only looked at, and only once unless
    /// their entropies lead a coefficient.
    fn observe(&self, policy: &Decoder, rows: &[usize], stats: &mut StepStats) -> Result<(), LearnerError> {
        let looks = self.first || self.watches_entropy;
        let found = if looks { self.forward.evaluate(policy, rows)? } else { Vec::new() };
        for &row in rows {
            let trained = self.batch.rows[row].trained;
            if let Some(found) = found.get(row) {
                self.remember(row, &found.logprobs, stats);
                if trained {
                    if self.first {
                        stats.entropy.extend(&found.entropies);
                    }
                    stats.active_entropy.0 += found.entropies.iter().sum::<f64>();
                    stats.active_entropy.1 += found.entropies.len() as f64;
                }
            }
            if trained {
                let tokens = self.batch.rows[row].trained_tokens();
                for measure in Measure::CLIPPED {
                    if self.objective.clips_by(measure) {
                        stats.measures.add(measure, &vec![0.0; tokens], self.objective.per_sequence(measure));
                    }
                }
            }
        }
        Ok(())
    }

    /// Keeps the log-probs that the step begins with.
    fn remember(&self, row: usize, logprobs: &[f64], stats: &mut StepStats) {
        if self.on_policy && stats.old_logprobs[row].is_empty() {
            stats.old_logprobs[row] = logprobs.to_vec();
        }
    }

    fn count(&self, row: usize, span: &Range<usize>, outcome: &Outcome, stats: &mut StepStats) {
        debug_assert_eq!(span.len(), self.batch.rows[row].trained_tokens());
        if self.first {
            stats.entropy.extend(&outcome.entropies[span.clone()]);
        }
        for (measure, values) in &outcome.figures {
            stats.measures.add(*measure, &values[span.clone()], self.objective.per_sequence(*measure));
        }
    }

    fn tokens(&self, rows: &[usize], stats: &StepStats, device: Device) -> Tokens {
        let lengths: Vec<usize> = rows.iter().map(|&r| self.forward.sequences[r].completion.len()).collect();
        let gather = |lists: &[Vec<f64>]| {
            let values: Vec<f64> = rows.iter().flat_map(|&r| lists[r].iter().copied()).collect();
            Tokens::column(&values, device)
        };
        let spread = |values: &[f64]| {
            let values: Vec<f64> =
                rows.iter().zip(&lengths).flat_map(|(&r, &n)| std::iter::repeat_n(values[r], n)).collect();
            Tokens::column(&values, device)
        };
        let old_logprobs_N = match self.sampling_logprobs {
            Some(sampling) => Some(gather(sampling)),
            None => (!self.on_policy).then(|| gather(&stats.old_logprobs)),
        };
        Tokens {
            rows: Rows::new(&lengths, device),
            old_logprobs_N,
            sampling_logprobs_N: self.drawn_logprobs(rows, stats, device),
            ref_logprobs_N: (self.objective.beta != 0.0).then(|| gather(self.ref_logprobs)),
            advantages_N: gather(self.advantages),
            importance: self.importance(rows, &lengths, stats, device),
            weights_N: spread(&self.weights.losses),
            entropy_weights_N: spread(&self.weights.entropies),
        }
    }

    /// What `off_policy_mask_threshold` goes by: log-probs of the sampler, and of the learner where it gave none.
    fn drawn_logprobs(&self, rows: &[usize], stats: &StepStats, device: Device) -> Option<Tensor> {
        self.objective.off_policy_mask_threshold?;
        let of_row = |&r: &usize| {
            let known = |(drawn, &old): (f64, &f64)| if drawn.is_nan() { old } else { drawn };
            self.batch.rows[r].sampling_logprobs().zip(&stats.old_logprobs[r]).map(known)
        };
        Some(Tokens::column(&rows.iter().flat_map(of_row).collect::<Vec<f64>>(), device))
    }

    fn importance(&self, rows: &[usize], lengths: &[usize], stats: &StepStats, device: Device) -> Option<Importance> {
        let correction = self.correction?;
        let values: Vec<f64> = match self.importance {
            Some(weights) => rows.iter().zip(lengths).flat_map(|(&r, &n)| weights.of_row(r, n)).collect(),
            None => {
                let log_ratios: Vec<Vec<f64>> =
                    rows.iter().map(|&r| self.batch.rows[r].log_ratios(&stats.old_logprobs[r])).collect();
                let weights = correction.weights(&log_ratios);
                lengths.iter().enumerate().flat_map(|(i, &n)| weights.of_row(i, n)).collect()
            }
        };
        Some(Importance { weights_N: Tokens::column(&values, device), per_sequence: correction.per_sequence() })
    }
}

impl Outcome {
    fn add(&mut self, figures: &[(Measure, Tensor)]) -> Result<(), LearnerError> {
        if figures.is_empty() {
            return Ok(());
        }
        // One transfer for all.
        let columns: Vec<Tensor> = figures.iter().map(|(_, values_N)| values_N.to_kind(tch::Kind::Double)).collect();
        let values = to_host(&Tensor::stack(&columns, 0).reshape([-1]))?;
        let tokens = values.len() / figures.len();
        for ((measure, _), values) in figures.iter().zip(values.chunks(tokens.max(1))) {
            match self.figures.iter_mut().find(|(known, _)| known == measure) {
                Some((_, all)) => all.extend(values),
                None => self.figures.push((*measure, values.to_vec())),
            }
        }
        Ok(())
    }
}
