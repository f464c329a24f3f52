//! From the rewards of a generation batch to the advantage of every token.

use std::{borrow::Cow, ops::Range};

use shared::{
    RewardOutcome,
    config::{
        AdvantageEstimator as Estimator, LoneAdvantage, MultiObjectiveAggregation, RewardFailure, ScaleRewards,
        StepDeviation, TrainConfig,
    },
    methods::CreditUnit,
    weighted_sum,
};

use super::{
    estimators,
    gae::{gae, normalise, rewards_to_go, whiten},
    moments::{Moments, is_zero, members, pick},
    outcome::{Normalised, grpo, normalize_then_sum},
    process::process,
};
use crate::ragged::Ragged;

/// A completion as the estimators see it.
#[derive(Debug, Clone)]
pub struct Sample<'a> {
    /// Names its group.
    pub group: usize,
    /// Sampled tokens.
    pub tokens: usize,
    /// Where each path of the completion ends, in sampled tokens; empty for a single one.
    pub paths: Vec<usize>,
    /// Whether it counts at all; a completion that does not is in no baseline and has advantage 0.
    pub valid: bool,
    /// Whether its tokens are part of the loss, and so of whitening.
    pub trained: bool,
    /// Outcome of each reward function. The end of a step is an index among the sampled tokens.
    pub outcomes: Cow<'a, [RewardOutcome]>,
    /// Weight of each reward function.
    pub weights: Vec<f64>,
    /// Rewards of turns as (last token, reward), for each reward that is their sum; may be shorter than `weights`.
    pub turns: Vec<Vec<(usize, f64)>>,
}

impl Sample<'_> {
    /// The sampled tokens of each path.
    fn path_spans(&self) -> impl Iterator<Item = Range<usize>> {
        let whole = self.paths.is_empty().then_some(self.tokens);
        let ends = self.paths.iter().copied().chain(whole);
        ends.scan(0, |begin, end| Some(std::mem::replace(begin, end)..end))
    }

    fn scores(&self, failure: RewardFailure) -> Vec<Option<f64>> {
        failure.settle(&self.outcomes).iter().map(|outcome| outcome.score().filter(|_| self.valid)).collect()
    }

    fn reward(&self, failure: RewardFailure) -> Option<f64> {
        weighted_sum(self.scores(failure), self.weights.iter().copied())
    }

    /// Steps of one reward function as (last token, reward): its steps, or turns. A score of the whole completion is
    /// one step that ends with it.
    fn steps(&self, function: usize, failure: RewardFailure) -> Vec<(usize, f64)> {
        if let Some(turns) = self.turns.get(function).filter(|turns| self.valid && !turns.is_empty()) {
            return turns.clone();
        }
        match failure.settle(&self.outcomes).get(function) {
            Some(RewardOutcome::Score(score)) if self.valid => vec![(self.tokens.saturating_sub(1), *score)],
            Some(RewardOutcome::Steps(steps)) if self.valid => {
                steps.iter().map(|step| (step.end as usize, step.score)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// How rewards become advantages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CreditOptions {
    /// The method.
    pub estimator: Estimator,
    /// Divisor of grpo; grpo_passk only asks whether there is one.
    pub scale: ScaleRewards,
    /// How several reward functions are combined.
    pub aggregation: MultiObjectiveAggregation,
    /// How a completion with a failed reward function counts.
    pub failure: RewardFailure,
    /// Added to standard deviations.
    pub eps: f64,
    /// grpo's rule for the only scored completion of a group.
    pub lone: LoneAdvantage,
    /// Divisor of rewards of steps.
    pub deviation: StepDeviation,
    /// γ of gae and reinforce_plus_plus.
    pub gamma: f64,
    /// λ of gae.
    pub lam: f64,
    /// Whether the advantages are normalised over the trained tokens in the end. RLinf `normalize_advantages`.
    pub normalize: bool,
}

impl CreditOptions {
    /// The options of a configuration.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Self {
        Self {
            estimator: config.advantage_estimator,
            scale: config.scale_rewards,
            aggregation: config.multi_objective_aggregation,
            failure: config.reward_failure,
            eps: config.advantage_epsilon.unwrap_or(config.advantage_estimator.spec().epsilon),
            lone: config.lone_advantage,
            deviation: config.step_deviation,
            gamma: config.gamma,
            lam: config.lam,
            normalize: config.normalize_advantages,
        }
    }
}

/// Rewards of a generation batch, before penalties, with their statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardSummary {
    /// Weighted reward of each completion; `None` when every function abstained or a failed one excludes it.
    pub rewards: Vec<Option<f64>>,
    /// Standard deviation for each completion: the divisor of its advantage, else the deviation of its group. NaN where
    /// there is none, and for rewards of steps.
    pub stds: Vec<f64>,
    /// Whether the rewards that a completion is compared with are all the same, so that it teaches nothing.
    pub zero_std: Vec<bool>,
    /// Mean reward of the completions that have one. NaN without any.
    pub reward_mean: f64,
    /// Standard deviation (n − 1) of all rewards. NaN with fewer than two.
    pub reward_std: f64,
}

impl RewardSummary {
    /// The summary of a batch.
    #[must_use]
    pub fn new(options: &CreditOptions, samples: &[Sample<'_>]) -> Self {
        let rewards: Vec<Option<f64>> = samples.iter().map(|sample| sample.reward(options.failure)).collect();
        let all = Moments::of(&rewards);
        let (stds, zero_std) = match options.estimator.spec().unit {
            CreditUnit::Step => (vec![f64::NAN; samples.len()], process_zero_std(samples, options.failure)),
            CreditUnit::Completion | CreditUnit::Token => {
                let stds = trl(options, samples, &rewards).stds;
                let zero_std = stds.iter().map(|&std| is_zero(std)).collect();
                (stds, zero_std)
            }
        };
        Self { rewards, stds, zero_std, reward_mean: all.mean, reward_std: all.std }
    }

    /// Share of completions whose standard deviation is 0.
    #[must_use]
    pub fn frac_zero_std(&self) -> f64 {
        self.zero_std.iter().filter(|&&zero| zero).count() as f64 / self.zero_std.len().max(1) as f64
    }
}

/// Advantages of a generation batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Credit {
    /// One row per completion, one entry per token.
    pub advantages: Ragged<f64>,
    /// Targets of a value model, in the same layout: for gae advantage plus value, for reinforce_plus_plus the
    /// discounted reward to come, else the advantage.
    pub returns: Ragged<f64>,
}

/// Advantages of every token. `penalties` are subtracted from the tokens' rewards: token by token for gae and
/// reinforce_plus_plus, summed up for estimators that know only completions. `values` are those of the critic, which
/// gae needs. Rows of either may be empty.
#[must_use]
pub fn credit(
    options: &CreditOptions,
    samples: &[Sample<'_>],
    penalties: Option<&Ragged<f64>>,
    values: Option<&Ragged<f64>>,
) -> Credit {
    let batch = Batch {
        samples,
        rewards: samples.iter().map(|sample| sample.reward(options.failure)).collect(),
        groups: samples.iter().map(|sample| sample.group).collect(),
        penalties,
        values,
    };
    let completions = |advantages: Vec<f64>| (batch.spread(&advantages), None);
    let (rewards, groups) = (batch.lowered(), &batch.groups);
    let (mut advantages, returns) = match options.estimator {
        Estimator::Grpo => completions(trl(options, samples, &rewards).advantages),
        Estimator::Rloo => completions(estimators::rloo(&rewards, groups)),
        Estimator::ReinforcePlusPlus => {
            let returns = batch.tokens(|_, _, rewards| rewards_to_go(rewards, options.gamma));
            (returns.clone(), Some(returns))
        }
        Estimator::ReinforcePlusPlusBaseline => completions(estimators::centred(&rewards, groups)),
        Estimator::Opo => {
            let lengths: Vec<usize> = samples.iter().map(|sample| sample.tokens).collect();
            completions(estimators::opo(&rewards, &lengths, groups))
        }
        Estimator::Gpg => completions(estimators::gpg(&rewards, groups)),
        Estimator::MaxRl => completions(estimators::max_rl(&rewards, groups)),
        Estimator::GrpoPassk => {
            let scaled = options.scale.divides();
            completions(estimators::grpo_passk(&rewards, groups, scaled, options.eps))
        }
        Estimator::Process => (process_advantages(options, samples), None),
        Estimator::Gae => batch.gae(options),
    };
    if options.estimator.spec().whitens {
        whiten(&mut advantages, &batch.counts());
    }
    if options.normalize {
        normalise(&mut advantages, &batch.counts());
    }
    batch.clear_unrewarded(&mut advantages);
    let returns = returns.unwrap_or_else(|| advantages.clone());
    Credit { advantages, returns }
}

/// A generation batch with its penalties and values.
struct Batch<'a> {
    samples: &'a [Sample<'a>],
    rewards: Vec<Option<f64>>,
    groups: Vec<usize>,
    penalties: Option<&'a Ragged<f64>>,
    values: Option<&'a Ragged<f64>>,
}

impl Batch<'_> {
    /// Advantages and returns.
    fn gae(&self, options: &CreditOptions) -> (Ragged<f64>, Option<Ragged<f64>>) {
        let of_row = |row: usize| -> Vec<f64> {
            let known = self.values.map_or(&[][..], |values| &values[row]);
            (0..self.samples[row].tokens).map(|t| known.get(t).copied().unwrap_or(0.0)).collect()
        };
        let values: Vec<Vec<f64>> = (0..self.samples.len()).map(of_row).collect();
        let advantages = self.tokens(|row, path, rewards| gae(rewards, &values[row][path], options.gamma, options.lam));
        let sum = |(row, own): (usize, &[f64])| own.iter().zip(&values[row]).map(|(a, v)| a + v).collect::<Vec<f64>>();
        let returns = advantages.rows().enumerate().map(sum).collect();
        (advantages, Some(returns))
    }

    fn penalty(&self, row: usize, t: usize) -> f64 {
        self.penalties.and_then(|penalties| penalties[row].get(t)).copied().unwrap_or(0.0)
    }

    /// Rewards of completions, less the sum of their penalties.
    fn lowered(&self) -> Vec<Option<f64>> {
        let sum = |row: usize| (0..self.samples[row].tokens).map(|t| self.penalty(row, t)).sum::<f64>();
        self.rewards.iter().enumerate().map(|(row, reward)| reward.map(|reward| reward - sum(row))).collect()
    }

    /// Rewards of a path's tokens: the score of the completion sits on the last one, the penalties on each.
    fn token_rewards(&self, row: usize, path: &Range<usize>) -> Option<Vec<f64>> {
        let score = self.rewards[row]?;
        let at = |t: usize| if t + 1 == path.end { score } else { 0.0 };
        Some(path.clone().map(|t| at(t) - self.penalty(row, t)).collect())
    }

    /// Applies `of` to the token rewards of each path of each completion: what one path does, the next one does not go
    /// on from. The tokens of a completion without a reward get 0.
    fn tokens(&self, of: impl Fn(usize, Range<usize>, &[f64]) -> Vec<f64>) -> Ragged<f64> {
        let path = |row: usize, path: Range<usize>| match self.token_rewards(row, &path) {
            Some(rewards) => of(row, path, &rewards),
            None => vec![0.0; path.len()],
        };
        let row = |row: usize| self.samples[row].path_spans().flat_map(|span| path(row, span)).collect::<Vec<f64>>();
        (0..self.samples.len()).map(row).collect()
    }

    /// Repeats each completion's value for each of its tokens.
    fn spread(&self, each: &[f64]) -> Ragged<f64> {
        self.samples.iter().zip(each).map(|(sample, &advantage)| vec![advantage; sample.tokens]).collect()
    }

    /// Whether a completion's tokens count in whitening.
    fn counts(&self) -> Vec<bool> {
        self.samples.iter().zip(&self.rewards).map(|(sample, reward)| sample.trained && reward.is_some()).collect()
    }

    /// Sets the advantages of completions without a reward back to 0, since whitening may have shifted them.
    fn clear_unrewarded(&self, advantages: &mut Ragged<f64>) {
        for (row, _) in self.rewards.iter().enumerate().filter(|(_, reward)| reward.is_none()) {
            advantages[row].fill(0.0);
        }
    }
}

/// TRL's advantages of whole completions, for either way to combine reward functions.
fn trl(options: &CreditOptions, samples: &[Sample<'_>], rewards: &[Option<f64>]) -> Normalised {
    let groups: Vec<usize> = samples.iter().map(|sample| sample.group).collect();
    match options.aggregation {
        MultiObjectiveAggregation::SumThenNormalize => grpo(rewards, &groups, options.scale, options.eps, options.lone),
        MultiObjectiveAggregation::NormalizeThenSum => {
            let scores: Vec<Vec<Option<f64>>> = samples.iter().map(|sample| sample.scores(options.failure)).collect();
            let weights = samples.first().map_or(&[][..], |sample| &sample.weights);
            normalize_then_sum(&scores, weights, &groups, options.eps)
        }
    }
}

fn functions(samples: &[Sample<'_>]) -> usize {
    samples.first().map_or(0, |sample| sample.weights.len())
}

fn groups_of(samples: &[Sample<'_>]) -> Vec<Vec<usize>> {
    members(&samples.iter().map(|sample| sample.group).collect::<Vec<_>>())
}

/// Weighted sum of the reward functions' process advantages.
fn process_advantages(options: &CreditOptions, samples: &[Sample<'_>]) -> Ragged<f64> {
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.tokens).collect();
    let mut sums = Ragged::filled(0.0, lengths.iter().copied());
    for rows in groups_of(samples) {
        for function in 0..functions(samples) {
            let steps: Vec<Vec<(usize, f64)>> =
                rows.iter().map(|&row| samples[row].steps(function, options.failure)).collect();
            let found = process(&steps, &pick(&lengths, &rows), options.deviation, options.eps);
            for (&row, advantages) in rows.iter().zip(found.advantages.rows()) {
                let weight = samples[row].weights[function];
                sums[row].iter_mut().zip(advantages).for_each(|(sum, advantage)| *sum += weight * advantage);
            }
        }
    }
    sums
}

/// Whether a completion's group teaches nothing: each function that scored steps of the group gave all of them one
/// reward.
fn process_zero_std(samples: &[Sample<'_>], failure: RewardFailure) -> Vec<bool> {
    let mut zero = vec![false; samples.len()];
    for rows in groups_of(samples) {
        let contrasts: Vec<bool> = (0..functions(samples))
            .filter_map(|function| {
                let steps = rows.iter().flat_map(|&row| samples[row].steps(function, failure));
                let rewards: Vec<Option<f64>> = steps.map(|(_, reward)| Some(reward)).collect();
                (!rewards.is_empty()).then(|| rewards.len() > 1 && !is_zero(Moments::of(&rewards).std))
            })
            .collect();
        let nothing = !contrasts.is_empty() && contrasts.iter().all(|contrast| !contrast);
        rows.iter().for_each(|&row| zero[row] = nothing);
    }
    zero
}

#[cfg(test)]
#[path = "credit_tests.rs"]
mod tests;
