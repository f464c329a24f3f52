//! Credit of small batches, worked out by hand.

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
            paths: Vec::new(),
            valid: true,
            trained: true,
            outcomes: outcomes.into(),
            weights: vec![1.0],
            turns: Vec::new(),
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
    assert_eq!(found.advantages.rows().collect::<Vec<_>>(), [&[0.0][..], &[-1.0; 2], &[1.0; 3]]);
    let scaled = credit(&options(Estimator::Grpo), &samples(&outcomes), None, None).advantages;
    assert!((scaled[2][0] - 1.0 / 1.0001).abs() < 1e-12 && scaled[0][0] == 0.0);
}

#[test]
fn the_lead_of_the_best_may_stay_undivided() {
    let outcomes = scores(&[1.0, 0.0, 3.0]);
    let best = |scale| {
        let options = CreditOptions { scale, ..options(Estimator::GrpoPassk) };
        credit(&options, &samples(&outcomes), None, None).advantages[2][0]
    };
    assert_eq!(best(ScaleRewards::None), 2.0);
    assert!((best(ScaleRewards::Group) - 2.0 / ((7.0f64 / 3.0).sqrt() + 1e-6)).abs() < 1e-12);
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
            Estimator::MaxRl,
            Estimator::GrpoPassk,
            Estimator::Process,
            Estimator::ReinforcePlusPlusBaseline,
        ] {
            let found = credit(&options(estimator), &samples(&outcomes), None, None);
            assert!(found.advantages.values().iter().all(|&a| a == 0.0), "{estimator:?}: {found:?}");
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
        Estimator::MaxRl,
        Estimator::GrpoPassk,
        Estimator::Process,
        Estimator::Gae,
    ];
    let clean = scores(&SCORES);
    let failed = [RewardOutcome::Failed("no".into())];
    for estimator in all {
        let without = samples(&clean);
        let mut with = samples(&clean);
        with.push(Sample { group: 0, tokens: 2, outcomes: (&failed).into(), ..without[0].clone() });
        with.push(Sample { group: 0, tokens: 2, valid: false, trained: false, ..without[2].clone() });
        let (a, b) =
            (credit(&options(estimator), &without, None, None), credit(&options(estimator), &with, None, None));
        let (alone, joined): (Vec<_>, Vec<_>) = (a.advantages.rows().collect(), b.advantages.rows().collect());
        assert_eq!(alone, joined[..4], "{estimator:?}");
        assert_eq!(joined[4..], [[0.0; 2]; 2], "{estimator:?}");
        assert!(a.advantages.values().iter().any(|&a| a != 0.0), "{estimator:?}");
    }
}

/// When the first function times out, the second one's score alone is misleading: a right and well formed answer would
/// count as a wrong one.
#[test]
fn a_completion_with_a_failed_function_is_as_if_it_had_not_been_sampled() {
    use RewardOutcome::{Failed, NotApplicable, Score};
    let outcomes = [
        [Score(1.0), Score(0.2)],
        [Score(0.0), Score(0.2)],
        [Score(1.0), Score(0.1)],
        [Failed("no result within 10 s".into()), Score(0.2)],
    ];
    fn sample(outcomes: &[RewardOutcome; 2]) -> Sample<'_> {
        Sample {
            group: 0,
            tokens: 2,
            paths: Vec::new(),
            valid: true,
            trained: true,
            outcomes: outcomes.into(),
            weights: vec![1.0, 0.5],
            turns: Vec::new(),
        }
    }
    let all: Vec<Sample<'_>> = outcomes.iter().map(sample).collect();
    for (estimator, aggregation) in [
        (Estimator::Grpo, MultiObjectiveAggregation::SumThenNormalize),
        (Estimator::Grpo, MultiObjectiveAggregation::NormalizeThenSum),
        (Estimator::Process, MultiObjectiveAggregation::SumThenNormalize),
        (Estimator::Rloo, MultiObjectiveAggregation::SumThenNormalize),
        (Estimator::Gae, MultiObjectiveAggregation::SumThenNormalize),
        (Estimator::ReinforcePlusPlus, MultiObjectiveAggregation::SumThenNormalize),
    ] {
        let exclude = CreditOptions { aggregation, ..options(estimator) };
        let of = |failure, samples: &[Sample<'_>]| {
            credit(&CreditOptions { failure, ..exclude }, samples, None, None).advantages
        };
        assert_eq!(exclude.failure, RewardFailure::Exclude, "the default");
        let found = of(RewardFailure::Exclude, &all);
        assert_eq!(found.values()[..6], *of(RewardFailure::Exclude, &all[..3]).values(), "{estimator:?}");
        assert_eq!(found[3], [0.0; 2], "{estimator:?}");
        let summary = RewardSummary::new(&exclude, &all);
        assert_eq!((summary.rewards[3], summary.zero_std[3]), (None, false), "{estimator:?}");
        // As 0, and as an abstention.
        for (failure, outcome) in [(RewardFailure::Zero, Score(0.0)), (RewardFailure::SkipFunction, NotApplicable)] {
            let mut plain = outcomes.clone();
            plain[3][0] = outcome;
            let plain: Vec<Sample<'_>> = plain.iter().map(sample).collect();
            assert_eq!(of(failure, &all), of(RewardFailure::Exclude, &plain), "{estimator:?} {failure:?}");
        }
        assert_ne!(of(RewardFailure::SkipFunction, &all), found, "{estimator:?}");
    }
}

#[test]
fn the_penalty_lowers_the_reward_of_a_sequence_by_its_sum() {
    let outcomes = scores(&SCORES);
    let samples = samples(&outcomes);
    let penalties: Ragged<f64> = samples.iter().map(|s| (0..s.tokens).map(|t| 0.1 * (t as f64 + 1.0) - 0.15)).collect();
    let lowered: Vec<[RewardOutcome; 1]> = SCORES
        .iter()
        .zip(penalties.rows())
        .map(|(score, penalties)| [RewardOutcome::Score(score - penalties.iter().sum::<f64>())])
        .collect();
    let replaced: Vec<Sample<'_>> =
        samples.iter().zip(&lowered).map(|(s, outcomes)| Sample { outcomes: outcomes.into(), ..s.clone() }).collect();
    for estimator in [Estimator::Grpo, Estimator::Rloo, Estimator::Opo, Estimator::Gpg, Estimator::GrpoPassk] {
        let found = credit(&options(estimator), &samples, Some(&penalties), None);
        assert_eq!(found, credit(&options(estimator), &replaced, None, None), "{estimator:?}");
    }
    // Undiscounted, the first token's return is the total reward of the sequence: score minus the sum.
    let found = credit(&options(Estimator::ReinforcePlusPlus), &samples, Some(&penalties), None);
    let mut gae = options(Estimator::Gae);
    gae.lam = 1.0;
    let values = Ragged::filled(0.3, samples.iter().map(|s| s.tokens));
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
fn turns_are_steps_of_a_reward_that_is_their_sum() {
    let step = |end, score| StepScore { end, score };
    let by_steps = [[RewardOutcome::Steps(vec![step(1, 1.0), step(3, 0.0)])], [RewardOutcome::Score(1.0)]];
    let by_turns = scores(&[1.0, 1.0]);
    let (mut steps, mut turns) = (samples(&by_steps), samples(&by_turns));
    (steps[0].tokens, turns[0].tokens) = (4, 4);
    turns[0].turns = vec![vec![(1, 1.0), (3, 0.0)]];
    let advantages = |samples: &[Sample<'_>]| credit(&options(Estimator::Process), samples, None, None).advantages;
    assert_eq!(advantages(&turns), advantages(&steps));
    let summary = |samples: &[Sample<'_>]| RewardSummary::new(&options(Estimator::Process), samples);
    assert_eq!(summary(&turns).rewards, [Some(1.0), Some(1.0)], "the reward is the sum");
    assert_eq!(summary(&turns).zero_std, [false, false], "equal sums of unequal turns teach");
    let plain = credit(&options(Estimator::Grpo), &turns, None, None).advantages;
    assert!(plain[0].iter().all(|&token| token == 0.0), "other estimators know the sum alone");
    turns[0].valid = false;
    assert!(advantages(&turns)[0].iter().all(|&token| token == 0.0));
}

#[test]
fn normalised_advantages_have_mean_0_and_std_1_over_trained_tokens() {
    let outcomes = scores(&SCORES);
    let mut samples = samples(&outcomes);
    samples[1].trained = false;
    let found = credit(&CreditOptions { normalize: true, ..options(Estimator::Grpo) }, &samples, None, None);
    let trained: Vec<Option<f64>> =
        [0, 2, 3].iter().flat_map(|&row: &usize| found.advantages[row].iter().map(|&a| Some(a))).collect();
    let (moments, n) = (Moments::of(&trained), trained.len() as f64);
    assert!(moments.mean.abs() < 1e-7 && (moments.std * ((n - 1.0) / n).sqrt() - 1.0).abs() < 1e-4, "{moments:?}");
}

/// A completion of two paths is rewarded at the end of each, and neither path's tokens hear of the other's.
#[test]
fn each_path_of_a_completion_is_discounted_by_itself() {
    let scores = scores(&[1.0, 0.25]);
    let one = samples(&scores)[1].clone();
    let whole = Sample { tokens: 5, ..one };
    let split = Sample { paths: vec![2, 5], ..whole.clone() };
    let options = CreditOptions { gamma: 0.5, lam: 0.5, ..options(Estimator::Gae) };
    let values: Ragged<f64> = [vec![0.1, 0.2, 0.3, 0.4, 0.5]].into_iter().collect();
    let found = credit(&options, std::slice::from_ref(&split), None, Some(&values)).returns;
    let alone = |tokens: usize, values: &[f64]| {
        let values: Ragged<f64> = [values.to_vec()].into_iter().collect();
        credit(&options, &[Sample { tokens, ..whole.clone() }], None, Some(&values)).returns[0].to_vec()
    };
    assert_eq!(found[0], [alone(2, &[0.1, 0.2]), alone(3, &[0.3, 0.4, 0.5])].concat());
    assert_ne!(found[0], alone(5, &[0.1, 0.2, 0.3, 0.4, 0.5])[..]);
    let options = CreditOptions { estimator: Estimator::ReinforcePlusPlus, ..options };
    let found = credit(&options, &[split], None, None).returns;
    assert_eq!(found[0], [0.125, 0.25, 0.0625, 0.125, 0.25]);
}
