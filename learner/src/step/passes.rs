//! Passes of a model over rows: with gradients for an update, without them for fixed log-probs.

use tch::{Device, Kind, Tensor};

use super::{StepBatch, StepStats};
use crate::{
    batch::{MicroBatch, Sequence, split},
    error::LearnerError,
    loss::{Objective, Tokens},
    model::{Decoder, Gradients},
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
    let mut found = vec![Evaluation::default(); sequences.len()];
    for rows in split(sequences, rows, budget) {
        let batch = MicroBatch::new(sequences, &rows, device);
        let stats = model.evaluate(&batch, temperature);
        let (logprobs, entropies) = (to_host(&stats.logprobs_N)?, to_host(&stats.entropies_N)?);
        for (&row, span) in batch.rows.iter().zip(&batch.tokens) {
            found[row] =
                Evaluation { logprobs: logprobs[span.clone()].to_vec(), entropies: entropies[span.clone()].to_vec() };
        }
    }
    Ok(found)
}

fn to_host(values_N: &Tensor) -> Result<Vec<f64>, LearnerError> {
    Ok(Vec::<f64>::try_from(values_N.to_kind(Kind::Double).to_device(Device::Cpu))?)
}

/// One pass over the rows of one optimiser update.
pub(super) struct Pass<'a> {
    pub(super) objective: &'a Objective,
    pub(super) batch: &'a StepBatch<'a>,
    pub(super) sequences: &'a [Sequence<'a>],
    /// Weight of each row's tokens.
    pub(super) weights: &'a [f64],
    pub(super) ref_logprobs: &'a [Vec<f64>],
    pub(super) temperature: f64,
    pub(super) budget: usize,
    pub(super) device: Device,
    /// First time that these rows are passed over.
    pub(super) first: bool,
    /// The policy is still the one the step began with.
    pub(super) on_policy: bool,
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
            valid.into_iter().partition(|&r| self.batch.rows[r].trained && self.teaches(r, stats));
        let mut loss = 0.0;
        for rows in split(self.sequences, &training, self.budget) {
            loss += self.differentiate(policy, gradients, &rows, stats)?;
        }
        self.observe(policy, &idle, stats)?;
        Ok(loss)
    }

    fn differentiate(
        &self,
        policy: &Decoder,
        gradients: &mut Gradients,
        rows: &[usize],
        stats: &mut StepStats,
    ) -> Result<f64, LearnerError> {
        let micro = MicroBatch::new(self.sequences, rows, self.device);
        let tokens = self.tokens(&micro, stats);
        let (mut loss, mut failure) = (0.0, None);
        let (mut logprobs, mut entropies, mut kl) = (Vec::new(), Vec::new(), Vec::new());
        policy.differentiate(&micro, self.temperature, gradients, &mut |run, token_stats| {
            let result = (|| {
                logprobs.extend(to_host(&token_stats.logprobs_N)?);
                entropies.extend(to_host(&token_stats.entropies_N)?);
                let found = self.objective.differentiate(&token_stats.logprobs_N, &tokens.slice(run))?;
                loss += found.value;
                if let Some(kl_N) = &found.kl_N {
                    kl.extend(to_host(kl_N)?);
                }
                Ok(found.slope_N)
            })();
            result.unwrap_or_else(|error: LearnerError| {
                failure = Some(error);
                token_stats.logprobs_N.zeros_like()
            })
        });
        if let Some(error) = failure {
            return Err(error);
        }
        stats.kl.extend(&kl);
        if self.first {
            stats.entropy.extend(&entropies);
        }
        for (&row, span) in micro.rows.iter().zip(&micro.tokens) {
            let own = &logprobs[span.clone()];
            if self.on_policy {
                stats.old_logprobs[row] = own.to_vec();
            }
            self.count_clipped(row, own, stats);
        }
        Ok(loss)
    }

    /// Rows whose gradient is exactly 0 (no advantage and no KL term) or that are left out of the loss: they are only
    /// looked at, and only once.
    fn observe(&self, policy: &Decoder, rows: &[usize], stats: &mut StepStats) -> Result<(), LearnerError> {
        let found = if self.first {
            evaluate(policy, self.sequences, rows, self.temperature, self.budget, self.device)?
        } else {
            Vec::new()
        };
        for &row in rows {
            if let Some(found) = found.get(row) {
                if self.on_policy {
                    stats.old_logprobs[row].clone_from(&found.logprobs);
                }
                if self.batch.rows[row].trained {
                    stats.entropy.extend(&found.entropies);
                }
            }
            stats.clip.add(0, 0, self.batch.rows[row].trained_tokens());
        }
        Ok(())
    }

    fn tokens(&self, micro: &MicroBatch, stats: &StepStats) -> Tokens {
        let gather = |lists: &[Vec<f64>]| {
            Tensor::from_slice(&micro.rows.iter().flat_map(|&r| lists[r].iter().copied()).collect::<Vec<f64>>())
        };
        let has_reference = self.objective.beta != 0.0;
        Tokens {
            old_logprobs_N: (!self.on_policy).then(|| gather(&stats.old_logprobs)),
            ref_logprobs_N: has_reference.then(|| gather(self.ref_logprobs)),
            advantages_N: gather(&stats.advantages),
            importance_N: None,
            weights_N: Tensor::from_slice(&micro.per_token(|r| self.weights[r])),
        }
        .to_device(self.device)
    }

    fn count_clipped(&self, row: usize, logprobs: &[f64], stats: &mut StepStats) {
        let (floor, ceiling) = (1.0 - self.objective.epsilon_low, 1.0 + self.objective.epsilon_high);
        let ratios = logprobs.iter().zip(&stats.old_logprobs[row]).map(|(now, old)| (now - old).exp());
        let tokens = || ratios.clone().zip(&stats.advantages[row]);
        let low = tokens().filter(|&(ratio, &advantage)| advantage < 0.0 && ratio < floor).count();
        let high = tokens().filter(|&(ratio, &advantage)| advantage > 0.0 && ratio > ceiling).count();
        stats.clip.add(low, high, logprobs.len());
    }

    /// Whether any token of a row can contribute to the gradient.
    fn teaches(&self, row: usize, stats: &StepStats) -> bool {
        stats.advantages[row].iter().any(|&advantage| self.objective.trains(advantage))
    }
}
