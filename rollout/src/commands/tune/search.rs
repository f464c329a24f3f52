//! Tries one setting after the other: kernels and threads, then the number of sequences, then the budget of prefill; at
//! last the best against the usual setting. Within a stage all candidates are measured in turns and equally often, so
//! that changing load on the machine does not decide, and only within a stage are rates compared.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::Context;
use shared::{
    Dtype, ModelDir, PolicyVersion,
    config::{Device, KvDtype, RolloutDtype},
};

use super::{
    super::{
        bench::{
            export,
            measure::{Measurement, median},
        },
        flags::BatchingFlags,
    },
    work::Task,
};
use crate::engine::{Engine, EngineOptions, Kernels, WeightSource};

/// Rounds over the candidates of a stage, time permitting.
const ROUNDS: usize = 3;
/// A setting this near to the best counts as good as the best: smaller differences are noise.
pub(super) const TIE: f64 = 0.98;
/// Sequences at once in the first stage.
const FIRST_SEQUENCES: usize = 32;
/// Batches down to this part of the largest one are tried.
const SMALLEST_PART: usize = 16;
/// Share of the time budget at which each stage ends.
const STAGES: [f64; 4] = [0.25, 0.6, 0.75, 1.0];
/// Share of the time budget that a step of a setting gets outside the stages.
const SINGLE: f64 = 0.1;
/// A trial gets at least this long.
const SHORTEST: Duration = Duration::from_millis(200);

/// A setting that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub kernels: Kernels,
    pub threads: usize,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernels, threads, max_num_seqs, max_num_batched_tokens } = self;
        write!(
            f,
            "{kernels} kernels, {threads} threads, {max_num_seqs} sequences, {max_num_batched_tokens} prompt tokens"
        )
    }
}

/// A setting and its measurements.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub setting: Setting,
    /// Tokens per second, one per round.
    pub rates: Vec<f64>,
    /// Whether a round was cut short and its rate projected.
    pub projected: bool,
    /// Most bytes of keys and values in use.
    pub kv_bytes: u64,
}

impl Trial {
    fn new(setting: Setting) -> Self {
        Self { setting, rates: Vec::new(), projected: false, kv_bytes: 0 }
    }

    /// Median of the rounds; 0 without any.
    pub fn rate(&self) -> f64 {
        median(&self.rates).unwrap_or(0.0)
    }
}

/// The search and its record.
pub(super) struct Search<'a> {
    model: &'a ModelDir,
    weights: WeightSource,
    task: &'a Task,
    pub options: EngineOptions,
    began: Instant,
    ends: Instant,
    /// Largest number of sequences that memory allows.
    most: usize,
    /// Stages with all that was measured in them.
    pub stages: Vec<(&'static str, Vec<Trial>)>,
}

impl<'a> Search<'a> {
    pub fn new(
        model: &'a ModelDir,
        dtype: Dtype,
        task: &'a Task,
        options: EngineOptions,
        ends: Instant,
    ) -> anyhow::Result<Self> {
        let mut largest = EngineOptions { max_num_seqs: task.workload.sequences(), ..options.clone() };
        largest.fit(None, model.config(), dtype)?;
        let most = largest.max_num_seqs;
        let weights = WeightSource { dir: export(model, dtype, options.max_model_len)?, version: PolicyVersion(0) };
        Ok(Self { model, weights, task, options, began: Instant::now(), ends, most, stages: Vec::new() })
    }

    /// Tries everything that no flag fixes. Returns the usual setting, that is, the one without a proposal, and the
    /// best one, as they were measured beside each other.
    pub fn run(&mut self, given: &BatchingFlags) -> anyhow::Result<(Trial, Trial)> {
        let usual = Setting {
            kernels: self.options.kernels,
            threads: self.options.threads,
            max_num_seqs: given.max_num_seqs.unwrap_or(self.most),
            max_num_batched_tokens: self.options.max_num_batched_tokens,
        };
        let first = Setting { max_num_seqs: usual.max_num_seqs.min(FIRST_SEQUENCES), ..usual };
        let best = self.stage("kernels and threads", 0, self.resources(first, given))?;
        let sizes = if given.max_num_seqs.is_some() { vec![usual.max_num_seqs] } else { sizes(self.most) };
        let candidates = sizes.into_iter().map(|n| Setting { max_num_seqs: n, ..best.setting }).collect();
        let best = self.stage("sequences at once", 1, candidates)?;
        let best = self.stage("prompt tokens between two steps", 2, self.budgets(best.setting, given))?;
        let mut candidates = vec![usual, best.setting];
        candidates.dedup();
        let best = self.stage("the usual setting and the best one", 3, candidates)?;
        let last = self.stages.iter().rev().flat_map(|(_, trials)| trials);
        let usual = last.into_iter().find(|t| t.setting == usual).cloned().unwrap_or_else(|| best.clone());
        Ok((usual, best))
    }

    /// Seconds of a step under one setting.
    pub fn step_seconds(&self, setting: Setting) -> anyhow::Result<f64> {
        let limit = self.ends.saturating_duration_since(self.began).mul_f64(SINGLE).max(SHORTEST);
        let mut trial = Trial::new(setting);
        self.measure(&mut trial, limit).with_context(|| setting.to_string())?;
        Ok(self.task.completion_tokens() as f64 / trial.rate())
    }

    /// Kernels and threads, the likeliest first.
    fn resources(&self, first: Setting, given: &BatchingFlags) -> Vec<Setting> {
        let mut list = vec![first];
        if given.threads.is_none() && first.threads > 1 {
            // Two threads of one core share its arithmetic.
            list.push(Setting { threads: first.threads / 2, ..first });
        }
        let EngineOptions { rollout_dtype, kv_dtype, speculative_tokens, .. } = self.options;
        let packed_only = rollout_dtype != RolloutDtype::Auto || kv_dtype != KvDtype::Auto || speculative_tokens > 0;
        if given.kernels.is_none() && self.options.device == Device::Cpu && !packed_only {
            list.push(Setting { kernels: Kernels::Stock, ..first });
        }
        list
    }

    /// Budgets of prefill, the usual one first. It is the only one where all prompts together are within the smallest.
    fn budgets(&self, best: Setting, given: &BatchingFlags) -> Vec<Setting> {
        let mut list = vec![best];
        if given.max_num_batched_tokens.is_some() {
            return list;
        }
        let longest = self.task.workload.prompts.iter().map(|p| p.len()).max().unwrap_or(1);
        let all = self.task.prompt_tokens() as usize;
        let least = longest.next_power_of_two();
        for budget in [least, 4 * least, 16 * least].into_iter().filter(|&n| n < all && n < best.max_num_batched_tokens)
        {
            list.push(Setting { max_num_batched_tokens: budget, ..best });
        }
        list
    }

    /// Measures the candidates, the one to beat first, and returns the first one that is as good as the best.
    /// Candidates for which there was no time drop out; the first one always has a round.
    fn stage(&mut self, name: &'static str, stage: usize, candidates: Vec<Setting>) -> anyhow::Result<Trial> {
        let total = self.ends.saturating_duration_since(self.began);
        let ends = self.began + total.mul_f64(STAGES[stage]);
        let mut trials: Vec<Trial> = candidates.into_iter().map(Trial::new).collect();
        let count = trials.len();
        // Without alternatives, a setting that was measured before is not measured again.
        let known = self.stages.iter().flat_map(|(_, trials)| trials).rfind(|t| t.setting == trials[0].setting);
        if let (1, Some(known)) = (count, known) {
            return Ok(known.clone());
        }
        let (mut measured, mut spent) = (count, Duration::ZERO);
        for round in 0..ROUNDS {
            let begun = Instant::now();
            if round > 0 && ends.saturating_duration_since(begun) < spent {
                break;
            }
            for (i, trial) in trials[..measured].iter_mut().enumerate() {
                let left = ends.saturating_duration_since(Instant::now());
                if round == 0 && i > 0 && left.is_zero() {
                    measured = i;
                    break;
                }
                let share = left / (count - i) as u32;
                self.measure(trial, share.max(SHORTEST)).with_context(|| trial.setting.to_string())?;
            }
            spent = begun.elapsed();
        }
        let best = trials.iter().map(Trial::rate).fold(0.0, f64::max);
        let chosen = trials[..measured].iter().find(|t| t.rate() >= TIE * best);
        let chosen = chosen.expect("the best is as good as itself").clone();
        self.stages.push((name, trials));
        Ok(chosen)
    }

    /// One round of a setting, at most about `limit` long.
    fn measure(&self, trial: &mut Trial, limit: Duration) -> anyhow::Result<()> {
        let Setting { kernels, threads, max_num_seqs, max_num_batched_tokens } = trial.setting;
        let options = EngineOptions { kernels, threads, max_num_seqs, max_num_batched_tokens, ..self.options.clone() };
        let begin = Instant::now();
        let mut engine = Engine::new(self.weights.clone(), self.model, options)?;
        self.task.first_group.warm_up(&mut engine)?;
        let left = limit.saturating_sub(begin.elapsed()).max(SHORTEST);
        let measured = Measurement::take(&mut engine, &self.task.workload, left)?;
        let rate = projected_rate(&measured, self.task);
        trial.projected |= measured.generated_tokens < self.task.completion_tokens();
        trial.kv_bytes = trial.kv_bytes.max(measured.profile.kv_bytes_peak);
        trial.rates.push(rate);
        shared::tell!("{}: {rate:.0} tokens/s", trial.setting);
        Ok(())
    }
}

/// Tokens per second of the whole step, if prefill and the rest go on as so far.
fn projected_rate(measured: &Measurement, task: &Task) -> f64 {
    let prefill = measured.profile.prefill.as_secs_f64();
    let scale = |all: u64, done: u64| all as f64 / done.max(1) as f64;
    let seconds = prefill * scale(task.prompt_tokens(), measured.profile.prefill_tokens)
        + (measured.seconds - prefill) * scale(task.completion_tokens(), measured.generated_tokens);
    task.completion_tokens() as f64 / seconds
}

/// The largest number, which is the usual one, and powers of two below it, descending.
fn sizes(most: usize) -> Vec<usize> {
    let powers = (0..usize::BITS - 1).rev().map(|bit| 1 << bit);
    let least = most.div_ceil(SMALLEST_PART);
    [most].into_iter().chain(powers.filter(|&n| n < most && n >= least)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_up_to_what_fits() {
        assert_eq!(sizes(64), [64, 32, 16, 8, 4]);
        assert_eq!(sizes(100), [100, 64, 32, 16, 8]);
        assert_eq!(sizes(3), [3, 2, 1]);
        assert_eq!(sizes(1), [1]);
    }

    #[test]
    fn the_rate_of_a_trial_is_the_median_of_its_rounds() {
        let setting = Setting { kernels: Kernels::Packed, threads: 1, max_num_seqs: 1, max_num_batched_tokens: 1 };
        let trial = |rates: &[f64]| Trial { setting, rates: rates.to_vec(), projected: false, kv_bytes: 0 };
        assert_eq!((trial(&[3.0, 1.0, 2.0]).rate(), trial(&[3.0, 1.0]).rate(), trial(&[]).rate()), (2.0, 2.0, 0.0));
    }
}
