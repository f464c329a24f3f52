//! From what a generation batch earned to the advantage of every token.

use shared::{
    RewardOutcome,
    config::{AdvantageEstimator as Estimator, MultiObjectiveAggregation, ScaleRewards, TrainConfig},
};

use super::{
    estimators,
    gae::{gae, rewards_to_go, whiten},
    moments::{Moments, is_zero, members, pick},
    outcome::{Lone, Normalised, grpo, normalize_then_sum, weighted_reward},
    process::{Deviation, process},
};
use crate::error::LearnerError;

/// TRL's addition to standard deviations.
const TRL_EPSILON: f64 = 1e-4;

/// verl's.
const VERL_EPSILON: f64 = 1e-6;

/// A completion as the estimators see it.
#[derive(Debug, Clone)]
pub struct Sample<'a> {
    /// Names its group.
    pub group: usize,
    /// Completion tokens.
    pub tokens: usize,
    /// Whether it counts at all; a completion that does not is in no baseline and has advantage 0.
    pub valid: bool,
    /// Whether its tokens are part of the loss, and so of whitening.
    pub trained: bool,
    /// What each reward function said.
    pub outcomes: &'a [RewardOutcome],
    /// Weight of each reward function.
    pub weights: Vec<f64>,
}

impl Sample<'_> {
    fn scores(&self) -> Vec<Option<f64>> {
        self.outcomes.iter().map(|outcome| if self.valid { outcome.score() } else { None }).collect()
    }

    fn reward(&self) -> Option<f64> {
        weighted_reward(&self.scores(), &self.weights)
    }

    /// Steps of one reward function as (last token, reward); a score of the whole completion is one step that ends with
    /// it.
    fn steps(&self, function: usize) -> Vec<(usize, f64)> {
        match self.outcomes.get(function) {
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
    /// Divisor of grpo.
    pub scale: ScaleRewards,
    /// How several reward functions are combined.
    pub aggregation: MultiObjectiveAggregation,
    /// Added to standard deviations.
    pub eps: f64,
    /// The rule for a completion without company, of grpo.
    pub lone: Lone,
    /// γ of gae and reinforce_plus_plus.
    pub gamma: f64,
    /// λ of gae.
    pub lam: f64,
    /// Whiten whatever comes out over the trained tokens. RLinf `normalize_advantages`.
    pub normalize: bool,
}

impl CreditOptions {
    /// The options of a configuration. grpo and process have TRL's ε and rules, the other estimators verl's.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Self {
        let trl = matches!(config.advantage_estimator, Estimator::Grpo | Estimator::Process);
        Self {
            estimator: config.advantage_estimator,
            scale: config.scale_rewards,
            aggregation: config.multi_objective_aggregation,
            eps: if trl { TRL_EPSILON } else { VERL_EPSILON },
            lone: Lone::Itself,
            gamma: config.gamma,
            lam: config.lam,
            normalize: config.normalize_advantages,
        }
    }
}

/// Refuses combinations of credit options that have no meaning.
///
/// # Errors
/// [`LearnerError::Config`] with the options and the way out.
pub fn check(config: &TrainConfig) -> Result<(), LearnerError> {
    let refuse = |message: &str| Err(LearnerError::Config(message.to_owned()));
    let estimator = config.advantage_estimator;
    let separate = config.multi_objective_aggregation == MultiObjectiveAggregation::NormalizeThenSum;
    if separate && estimator != Estimator::Grpo {
        return refuse("`multi_objective_aggregation` normalize_then_sum needs `advantage_estimator` grpo");
    }
    if config.use_kl_in_reward && (separate || estimator == Estimator::Process) {
        return refuse(
            "`use_kl_in_reward` needs one reward per completion, but each function is normalised on its own with \
             `advantage_estimator` process and `multi_objective_aggregation` normalize_then_sum; leave the penalty in \
             the loss",
        );
    }
    if config.use_kl_in_reward && config.beta == 0.0 {
        return refuse("`use_kl_in_reward` needs `beta` above 0, the weight of the penalty");
    }
    Ok(())
}

/// What a generation batch earned, before the step looks at it.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardSummary {
    /// Weighted reward of each completion; `None` when every function abstained.
    pub rewards: Vec<Option<f64>>,
    /// Standard deviation that goes with each completion: the one it is scaled by, else that of its group. NaN where
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
        let rewards: Vec<Option<f64>> = samples.iter().map(Sample::reward).collect();
        let all = Moments::of(&rewards);
        let stds = match options.estimator {
            Estimator::Process => vec![f64::NAN; samples.len()],
            Estimator::Grpo => trl(options, samples, &rewards).stds,
            // The others scale by no standard deviation, or only by the group's: its contrast is what teaches.
            _ => {
                let groups: Vec<usize> = samples.iter().map(|sample| sample.group).collect();
                grpo(&rewards, &groups, ScaleRewards::Group, options.eps, Lone::Itself).stds
            }
        };
        let zero_std = match options.estimator {
            Estimator::Process => process_zero_std(samples),
            _ => stds.iter().map(|&std| is_zero(std)).collect(),
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
    /// One list per completion, one entry per token.
    pub advantages: Vec<Vec<f64>>,
    /// What a value model should have said, laid out alike: for gae advantage plus value, for reinforce_plus_plus the
    /// discounted reward to come, else the advantage.
    pub returns: Vec<Vec<f64>>,
}

/// Advantages of every token. `penalties` are taken off the tokens' rewards: token by token for gae and
/// reinforce_plus_plus, summed up for estimators that know only completions. `values` are those of the critic, which gae
/// needs. Either may have no entry for a completion.
#[must_use]
pub fn credit(
    options: &CreditOptions,
    samples: &[Sample<'_>],
    penalties: Option<&[Vec<f64>]>,
    values: Option<&[Vec<f64>]>,
) -> Credit {
    let rewards: Vec<Option<f64>> = samples.iter().map(Sample::reward).collect();
    let groups: Vec<usize> = samples.iter().map(|sample| sample.group).collect();
    let counts: Vec<bool> = samples.iter().zip(&rewards).map(|(s, reward)| s.trained && reward.is_some()).collect();
    let penalty = |row: usize, t: usize| penalties.and_then(|all| all[row].get(t)).copied().unwrap_or(0.0);
    let lowered: Vec<Option<f64>> = rewards
        .iter()
        .enumerate()
        .map(|(row, reward)| reward.map(|r| r - (0..samples[row].tokens).map(|t| penalty(row, t)).sum::<f64>()))
        .collect();
    // The score sits on the last token.
    let token_rewards = |row: usize| -> Option<Vec<f64>> {
        let last = samples[row].tokens.checked_sub(1)?;
        let score = rewards[row]?;
        Some((0..=last).map(|t| if t == last { score } else { 0.0 } - penalty(row, t)).collect())
    };
    let tokens = |of: &dyn Fn(usize, &[f64]) -> Vec<f64>| -> Vec<Vec<f64>> {
        let row = |row| token_rewards(row).map_or(vec![0.0; samples[row].tokens], |rewards| of(row, &rewards));
        (0..samples.len()).map(row).collect()
    };
    let spread = |each: Vec<f64>| -> Vec<Vec<f64>> {
        samples.iter().zip(each).map(|(sample, advantage)| vec![advantage; sample.tokens]).collect()
    };
    let mut returns = None;
    let mut whitened = options.normalize;
    let mut advantages = match options.estimator {
        Estimator::Grpo => spread(trl(options, samples, &lowered).advantages),
        Estimator::Rloo => spread(estimators::rloo(&lowered, &groups)),
        Estimator::ReinforcePlusPlusBaseline => {
            whitened = true;
            spread(estimators::centred(&lowered, &groups))
        }
        Estimator::Opo => {
            let lengths: Vec<usize> = samples.iter().map(|sample| sample.tokens).collect();
            spread(estimators::opo(&lowered, &lengths, &groups))
        }
        Estimator::Gpg => spread(estimators::gpg(&lowered, &groups)),
        Estimator::GrpoPassk => spread(estimators::grpo_passk(&lowered, &groups, options.eps)),
        Estimator::Process => process_advantages(options, samples),
        Estimator::ReinforcePlusPlus => {
            whitened = true;
            let found = tokens(&|_, rewards| rewards_to_go(rewards, options.gamma));
            returns.insert(found).clone()
        }
        Estimator::Gae => {
            whitened = true;
            let value = |row: usize, t: usize| values.and_then(|all| all[row].get(t)).copied().unwrap_or(0.0);
            let own = |row: usize| (0..samples[row].tokens).map(|t| value(row, t)).collect::<Vec<f64>>();
            let found = tokens(&|row, rewards| gae(rewards, &own(row), options.gamma, options.lam));
            let sums = found.iter().enumerate().map(|(row, a)| a.iter().zip(own(row)).map(|(a, v)| a + v).collect());
            returns = Some(sums.collect());
            found
        }
    };
    if whitened {
        whiten(&mut advantages, &counts);
        for (row, advantages) in advantages.iter_mut().enumerate().filter(|(row, _)| rewards[*row].is_none()) {
            advantages.clear();
            advantages.resize(samples[row].tokens, 0.0);
        }
    }
    let returns = returns.unwrap_or_else(|| advantages.clone());
    Credit { advantages, returns }
}

/// TRL's advantages of whole completions, for either way to combine reward functions.
fn trl(options: &CreditOptions, samples: &[Sample<'_>], rewards: &[Option<f64>]) -> Normalised {
    let groups: Vec<usize> = samples.iter().map(|sample| sample.group).collect();
    match options.aggregation {
        MultiObjectiveAggregation::SumThenNormalize => grpo(rewards, &groups, options.scale, options.eps, options.lone),
        MultiObjectiveAggregation::NormalizeThenSum => {
            let scores: Vec<Vec<Option<f64>>> = samples.iter().map(Sample::scores).collect();
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
fn process_advantages(options: &CreditOptions, samples: &[Sample<'_>]) -> Vec<Vec<f64>> {
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.tokens).collect();
    let mut sums: Vec<Vec<f64>> = lengths.iter().map(|&length| vec![0.0; length]).collect();
    for rows in groups_of(samples) {
        for function in 0..functions(samples) {
            let steps: Vec<Vec<(usize, f64)>> = rows.iter().map(|&row| samples[row].steps(function)).collect();
            let found = process(&steps, &pick(&lengths, &rows), Deviation::Unbiased, options.eps);
            for (&row, advantages) in rows.iter().zip(found.advantages) {
                let weight = samples[row].weights[function];
                sums[row].iter_mut().zip(advantages).for_each(|(sum, advantage)| *sum += weight * advantage);
            }
        }
    }
    sums
}

/// A group teaches nothing when the steps of every function that scored any are all rewarded alike.
fn process_zero_std(samples: &[Sample<'_>]) -> Vec<bool> {
    let mut zero = vec![false; samples.len()];
    for rows in groups_of(samples) {
        let contrasts: Vec<bool> = (0..functions(samples))
            .filter_map(|function| {
                let steps = rows.iter().flat_map(|&row| samples[row].steps(function));
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
mod tests {
    use shared::StepScore;

    use super::*;

    const SCORES: [f64; 4] = [1.0, 0.0, 2.0, 2.0];

    fn options(estimator: Estimator) -> CreditOptions {
        CreditOptions::from_config(&TrainConfig { advantage_estimator: estimator, ..TrainConfig::default() })
    }

    fn samples(outcomes: &[[RewardOutcome; 1]]) -> Vec<Sample<'_>> {
        outcomes
            .iter()
            .enumerate()
            .map(|(i, outcomes)| Sample {
                group: i / 3,
                tokens: 1 + i,
                valid: true,
                trained: true,
                outcomes,
                weights: vec![1.0],
            })
            .collect()
    }

    fn scores(scores: &[f64]) -> Vec<[RewardOutcome; 1]> {
        scores.iter().map(|&score| [RewardOutcome::Score(score)]).collect()
    }

    #[test]
    fn the_worked_example() {
        let outcomes = scores(&SCORES[..3]);
        let plain = CreditOptions { scale: ScaleRewards::None, ..options(Estimator::Grpo) };
        let found = credit(&plain, &samples(&outcomes), None, None);
        assert_eq!(found.advantages, [vec![0.0], vec![-1.0; 2], vec![1.0; 3]]);
        let scaled = credit(&options(Estimator::Grpo), &samples(&outcomes), None, None).advantages;
        assert!((scaled[2][0] - 1.0 / 1.0001).abs() < 1e-12 && scaled[0][0] == 0.0);
    }

    #[test]
    fn equal_rewards_give_exactly_zero_with_every_group_baseline() {
        for reward in [0.1, 1.0 / 3.0, 0.7] {
            let outcomes = scores(&[reward; 3]);
            for estimator in [
                Estimator::Grpo,
                Estimator::Rloo,
                Estimator::Opo,
                Estimator::Gpg,
                Estimator::GrpoPassk,
                Estimator::Process,
                Estimator::ReinforcePlusPlusBaseline,
            ] {
                let found = credit(&options(estimator), &samples(&outcomes), None, None);
                assert!(found.advantages.iter().flatten().all(|&a| a == 0.0), "{estimator:?}: {found:?}");
                let summary = RewardSummary::new(&options(estimator), &samples(&outcomes));
                assert_eq!(summary.frac_zero_std(), 1.0, "{estimator:?}");
            }
        }
    }

    #[test]
    fn a_completion_without_a_reward_changes_nothing_for_the_others() {
        let all = [
            Estimator::Grpo,
            Estimator::Rloo,
            Estimator::ReinforcePlusPlus,
            Estimator::ReinforcePlusPlusBaseline,
            Estimator::Opo,
            Estimator::Gpg,
            Estimator::GrpoPassk,
            Estimator::Process,
            Estimator::Gae,
        ];
        let clean = scores(&SCORES);
        let failed = [RewardOutcome::Failed("no".into())];
        for estimator in all {
            let without = samples(&clean);
            let mut with = samples(&clean);
            with.push(Sample { group: 0, tokens: 2, outcomes: &failed, ..without[0].clone() });
            with.push(Sample { group: 0, tokens: 2, valid: false, trained: false, ..without[2].clone() });
            let (a, b) =
                (credit(&options(estimator), &without, None, None), credit(&options(estimator), &with, None, None));
            assert_eq!(a.advantages, b.advantages[..4], "{estimator:?}");
            assert_eq!(b.advantages[4..], [vec![0.0; 2], vec![0.0; 2]], "{estimator:?}");
            assert!(a.advantages.iter().flatten().any(|&a| a != 0.0), "{estimator:?}");
        }
    }

    #[test]
    fn the_penalty_lowers_the_reward_of_a_sequence_by_its_sum() {
        let outcomes = scores(&SCORES);
        let samples = samples(&outcomes);
        let penalties: Vec<Vec<f64>> =
            samples.iter().map(|s| (0..s.tokens).map(|t| 0.1 * (t as f64 + 1.0) - 0.15).collect()).collect();
        let lowered: Vec<[RewardOutcome; 1]> = SCORES
            .iter()
            .zip(&penalties)
            .map(|(score, penalties)| [RewardOutcome::Score(score - penalties.iter().sum::<f64>())])
            .collect();
        let replaced: Vec<Sample<'_>> =
            samples.iter().zip(&lowered).map(|(s, outcomes)| Sample { outcomes, ..s.clone() }).collect();
        for estimator in [Estimator::Grpo, Estimator::Rloo, Estimator::Opo, Estimator::Gpg, Estimator::GrpoPassk] {
            let found = credit(&options(estimator), &samples, Some(&penalties), None);
            assert_eq!(found, credit(&options(estimator), &replaced, None, None), "{estimator:?}");
        }
        // Undiscounted, the first token's return is the total reward of the sequence: score minus the sum.
        let found = credit(&options(Estimator::ReinforcePlusPlus), &samples, Some(&penalties), None);
        let mut gae = options(Estimator::Gae);
        gae.lam = 1.0;
        let values: Vec<Vec<f64>> = samples.iter().map(|s| vec![0.3; s.tokens]).collect();
        let returns = credit(&gae, &samples, Some(&penalties), Some(&values)).returns;
        for (row, score) in SCORES.iter().enumerate() {
            let total = score - penalties[row].iter().sum::<f64>();
            assert!((found.returns[row][0] - total).abs() < 1e-12);
            assert!((returns[row][0] - total).abs() < 1e-12);
        }
    }

    #[test]
    fn rewards_of_steps_and_of_completions_stand_side_by_side() {
        let step = |end, score| StepScore { end, score };
        let outcomes = [
            [RewardOutcome::Steps(vec![step(1, 1.0), step(3, 0.0)])],
            [RewardOutcome::Score(1.0)],
            [RewardOutcome::NotApplicable],
        ];
        let mut samples = samples(&outcomes);
        samples[0].tokens = 4;
        let found = credit(&options(Estimator::Process), &samples, None, None).advantages;
        // DeepSeekMath: (r - 2/3) / 0.57735, summed over the steps to come.
        let (high, low) = (1.0 / 3.0 / (1.0 / 3.0f64.sqrt() + 1e-4), -2.0 / 3.0 / (1.0 / 3.0f64.sqrt() + 1e-4));
        for (token, expected) in found[0].iter().zip([high + low, high + low, low, low]) {
            assert!((token - expected).abs() < 1e-12);
        }
        assert!(found[1].iter().all(|token| (token - high).abs() < 1e-12) && found[2] == [0.0; 3]);
        let mut twice = samples.clone();
        twice.iter_mut().for_each(|sample| sample.weights = vec![2.0]);
        let doubled = credit(&options(Estimator::Process), &twice, None, None).advantages;
        assert!((doubled[0][3] - 2.0 * low).abs() < 1e-12);
    }

    #[test]
    fn normalised_advantages_have_mean_0_and_std_1_over_trained_tokens() {
        let outcomes = scores(&SCORES);
        let mut samples = samples(&outcomes);
        samples[1].trained = false;
        let found = credit(&CreditOptions { normalize: true, ..options(Estimator::Grpo) }, &samples, None, None);
        let trained: Vec<Option<f64>> =
            [0, 2, 3].iter().flat_map(|&row: &usize| found.advantages[row].iter().map(|&a| Some(a))).collect();
        let moments = Moments::of(&trained);
        assert!(moments.mean.abs() < 1e-7 && (moments.std - 1.0).abs() < 1e-6, "{moments:?}");
    }

    #[test]
    fn combinations_without_a_meaning_are_refused() {
        let kl = TrainConfig { use_kl_in_reward: true, beta: 0.1, ..TrainConfig::default() };
        check(&kl).unwrap();
        let separate = MultiObjectiveAggregation::NormalizeThenSum;
        for (config, word) in [
            (TrainConfig { beta: 0.0, ..kl.clone() }, "beta"),
            (TrainConfig { advantage_estimator: Estimator::Process, ..kl.clone() }, "process"),
            (TrainConfig { multi_objective_aggregation: separate, ..kl.clone() }, "normalize_then_sum"),
            (
                TrainConfig {
                    multi_objective_aggregation: separate,
                    advantage_estimator: Estimator::Rloo,
                    ..TrainConfig::default()
                },
                "grpo",
            ),
        ] {
            let message = check(&config).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }
}
