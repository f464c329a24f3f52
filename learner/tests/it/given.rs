//! Tokens that were given to the policy: they have no gradient and no share in any normaliser.

use learner::{
    batch::{MicroBatch, Sequence},
    model::{LoadOptions, Span, load},
    step::{BatchRow, StepBatch, TrainedStep, Trainer, record},
};
use proptest::prelude::*;
use shared::{
    Episode, EpisodeEnd, Exchange, FinishReason, ModelDir, Placed, PolicyVersion, RewardOutcome, Segment, StepScore,
    TokenLogprob, Why,
    config::{
        AdvantageEstimator, Choice, ImportanceSamplingLevel, ImportanceSamplingMode,
        LossType::{self, Bnpo, Dapo, DrGrpo, Grpo},
        TrainConfig,
    },
    metrics,
};
use tch::{Device, Kind, Tensor};

use crate::support::{self, VOCABULARY};

/// The version of the step.
const VERSION: PolicyVersion = PolicyVersion(3);

/// One update on everything, not clipped and without a correction for the mismatch.
fn config() -> TrainConfig {
    TrainConfig {
        warmup_steps: 0,
        num_iterations: 1,
        per_device_train_batch_size: 12,
        gradient_accumulation_steps: 1,
        importance_sampling_correction: false,
        max_grad_norm: 0.0,
        ..support::config("unused.jsonl".into())
    }
}

/// Runs of tokens: whether they are sampled, and how many they are. Any of them may be empty.
type Shape = Vec<(bool, usize)>;

fn shape() -> impl Strategy<Value = Shape> {
    prop::collection::vec((any::<bool>(), 0..5usize), 0..6)
}

/// A shape for each completion of a step. One has given tokens only, one ends with given tokens, and one begins with
/// them.
fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    prop::collection::vec(shape(), 12).prop_map(|mut shapes| {
        shapes[1] = vec![(false, 3)];
        shapes[6].extend([(true, 2), (false, 4)]);
        shapes[7] = [vec![(false, 2), (true, 3)], shapes[7].clone()].concat();
        shapes
    })
}

/// An episode of this shape, ended by a turn that may be empty.
fn episode(shape: &[(bool, usize)], seed: usize) -> Episode {
    let mut episode = Episode::default();
    let id = |at: usize| ((seed * 131 + at * 37 + 5) as u64 % VOCABULARY) as u32;
    for &(sampled, length) in shape.iter().chain(&[(true, usize::from(shape.iter().all(|(_, length)| *length == 0)))]) {
        let begin = episode.token_ids().len();
        let ids: Vec<u32> = (begin..begin + length).map(id).collect();
        let logprob = TokenLogprob { logprob: -6.0, logprob_at_temperature: -6.0, ..TokenLogprob::default() };
        let (logprobs, versions, finish) = (vec![logprob; length], [(0, VERSION)], FinishReason::Stop);
        episode.push(if sampled {
            Segment::Sampled { ids: &ids, logprobs: &logprobs, versions: &versions, finish }
        } else {
            Segment::Given { ids: &ids, why: Why::Reply }
        });
    }
    episode
}

/// The tokens of an episode on so many paths, one run of tokens after another.
fn branched(shape: &[(bool, usize)], seed: usize, paths: usize) -> Episode {
    let whole = episode(shape, seed);
    let segments: Vec<Segment<'_>> = whole.segments().collect();
    Episode::of_paths(segments.chunks(segments.len().div_ceil(paths)).map(|segments| {
        let mut path = Episode::default();
        segments.iter().for_each(|segment| path.push(*segment));
        path
    }))
}

/// The groups of a step, with completions of these shapes and rewards that differ.
fn groups(config: &TrainConfig, shapes: &[Shape]) -> Vec<Placed> {
    let mut groups = support::groups(config, VERSION.0);
    let completions = groups.iter_mut().flat_map(|group| &mut group.scored.group.completions);
    for (seed, (completion, shape)) in completions.zip(shapes).enumerate() {
        completion.episode = episode(shape, seed);
        completion.rewards = vec![RewardOutcome::Score((seed * seed % 7) as f64), RewardOutcome::NotApplicable];
    }
    groups
}

/// A step in float64.
fn step(config: &TrainConfig, groups: &[Placed]) -> TrainedStep {
    tch::set_num_threads(1);
    let model = ModelDir::open(&config.model).unwrap();
    let options = LoadOptions { kind: Kind::Double, ..LoadOptions::default() };
    let reference = (config.beta != 0.0).then(|| load(&model, LoadOptions { trainable: false, ..options }).unwrap());
    let mut trainer = Trainer::new(config, load(&model, options).unwrap(), reference).unwrap();
    trainer.keep_first_gradient();
    trainer.step(&StepBatch::new(groups, config, VERSION), VERSION.0).unwrap()
}

/// `∑ coefficient · ∇ log-prob` over the sampled tokens, and the log-probs. Each run of sampled tokens is a completion
/// of its own here, and everything before it is its prompt, so no owner mask is needed.
fn by_hand(config: &TrainConfig, batch: &StepBatch<'_>, coefficient: impl Fn(usize) -> f64) -> (Tensor, Vec<Vec<f64>>) {
    let options = LoadOptions { kind: Kind::Double, ..LoadOptions::default() };
    let policy = load(&ModelDir::open(&config.model).unwrap(), options).unwrap();
    let mut gradients = policy.weights().trained().gradients();
    let mut logprobs = vec![Vec::new(); batch.rows.len()];
    for (at, (row, own)) in batch.rows.iter().zip(&mut logprobs).enumerate() {
        let ids = row.completion.token_ids();
        for span in row.completion.episode.sampled_spans().filter(|span| !span.is_empty()) {
            let mut paths = row.completion.episode.paths();
            let path = paths.find(|path| path.contains(&span.start)).expect("a span lies in a path");
            let prompt = [&row.group.prompt_ids, &ids[path.start..span.start]].concat();
            let sequence = [Sequence::new(&prompt, &ids[span])];
            let micro = MicroBatch::new(&sequence, &[0], Device::Cpu);
            policy.differentiate(
                &micro,
                f64::from(config.temperature),
                Span::Token,
                &mut gradients,
                &mut |_, stats| {
                    own.extend(Vec::<f64>::try_from(&stats.logprobs_N).unwrap());
                    stats.logprobs_N.full_like(coefficient(at)).into()
                },
            );
        }
    }
    (gradients.flat().copy(), logprobs)
}

fn relative_distance(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).norm().double_value(&[]) / b.norm().double_value(&[]).max(1e-12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// At the old policy every ratio is 1, so the derivative of the loss by a log-prob is -advantage / normaliser. That
    /// is written out here, with counts of sampled tokens. A sample whose tokens are split into branches is still one
    /// sample: it counts once, and each of its tokens once, on the path on which it was drawn.
    #[test]
    fn gradients_and_normalisers_are_of_sampled_tokens_alone(
        shapes in shapes(),
        loss_type in 0..4usize,
        tight in any::<bool>(),
        paths in prop::collection::vec(1..5usize, 12),
    ) {
        let loss_type = [Dapo, Grpo, Bnpo, DrGrpo][loss_type];
        let config = TrainConfig { loss_type, micro_batch_tokens: Some(if tight { 1 } else { 4096 }), ..config() };
        let mut groups = groups(&config, &shapes);
        let completions = groups.iter_mut().flat_map(|group| &mut group.scored.group.completions);
        for (seed, (completion, (shape, paths))) in completions.zip(shapes.iter().zip(paths)).enumerate() {
            completion.episode = branched(shape, seed, paths);
        }
        let batch = StepBatch::new(&groups, &config, VERSION);
        let owned = |row: &BatchRow<'_>| row.completion.episode.owner_mask().filter(|&sampled| sampled).count();
        let sampled: Vec<usize> = batch.rows.iter().map(owned).collect();
        let all: usize = sampled.iter().sum();
        prop_assert!(batch.rows.iter().all(|row| row.trained), "a row that is all given counts as a row");
        prop_assert_eq!(batch.trained_tokens(), all);
        let found = step(&config, &groups);
        let advantage = |row: &[f64]| row.first().copied().unwrap_or(0.0);
        let advantages: Vec<f64> = found.inputs.advantages.rows().map(advantage).collect();
        let normaliser = |row: usize| match loss_type {
            Dapo | Bnpo => all as f64,
            Grpo => 12.0 * sampled[row] as f64,
            _ => 12.0 * f64::from(config.max_completion_length),
        };
        let (expected, logprobs) = by_hand(&config, &batch, |row| -advantages[row] / normaliser(row));
        for (row, own) in logprobs.iter().enumerate() {
            prop_assert_eq!(found.inputs.old_logprobs[row].len(), sampled[row]);
            prop_assert!(own.iter().zip(&found.inputs.old_logprobs[row]).all(|(a, b)| (a - b).abs() < 1e-9));
        }
        let gradient = found.metrics.first_gradient.as_ref().unwrap();
        let distance = relative_distance(gradient, &expected);
        prop_assert!(distance < 1e-9, "{loss_type:?}: {distance}");
        let of_row = |row: usize| -advantages[row] * sampled[row] as f64 / normaliser(row);
        let loss: f64 = (0..12).filter(|&row| sampled[row] > 0).map(of_row).sum();
        prop_assert!((found.metrics.losses[0] - loss).abs() < 1e-9, "{} {loss}", found.metrics.losses[0]);
        let metrics = record(&batch, &found.inputs, &found.metrics);
        prop_assert_eq!(metrics.get(metrics::COMPLETIONS_NUM_TOKENS), Some(all as f64));
        prop_assert_eq!(metrics.get(metrics::COMPLETIONS_MIN_LENGTH), Some(0.0));
    }

    /// Whatever the method, nothing becomes NaN, and given tokens behind the last sampled one change no bit.
    #[test]
    fn no_method_looks_at_given_tokens(
        shapes in shapes(),
        loss_type in 0..<LossType as Choice>::ALL.len(),
        level in 0..<ImportanceSamplingLevel as Choice>::ALL.len(),
        mode in 0..<ImportanceSamplingMode as Choice>::ALL.len(),
        estimator in 0..<AdvantageEstimator as Choice>::ALL.len(),
        extra in 0..6usize,
    ) {
        let mut config = TrainConfig {
            loss_type: <LossType as Choice>::ALL[loss_type],
            importance_sampling_level: <ImportanceSamplingLevel as Choice>::ALL[level],
            importance_sampling_mode: <ImportanceSamplingMode as Choice>::ALL[mode],
            advantage_estimator: match <AdvantageEstimator as Choice>::ALL[estimator] {
                // gae needs a critic.
                AdvantageEstimator::Gae => AdvantageEstimator::Grpo,
                other => other,
            },
            dro_beta: Some(0.3),
            importance_sampling_correction: true,
            num_iterations: 2,
            token_records: 1,
            ..config()
        };
        match extra {
            0 => config.beta = 0.1,
            1 => config.entropy_coef = 0.01,
            2 => config.top_entropy_quantile = 0.5,
            3 => config.off_policy_mask_threshold = Some(0.1),
            4 => (config.beta, config.use_kl_in_reward) = (0.1, true),
            _ => config.top_k = 40,
        }
        let one = groups(&config, &shapes);
        let longer: Vec<Shape> = shapes.iter().map(|shape| [shape.clone(), vec![(false, 3)]].concat()).collect();
        let other = groups(&config, &longer);
        let [found, again] = [&one, &other].map(|groups| step(&config, groups));
        let gradient = found.metrics.first_gradient.unwrap();
        prop_assert_eq!(gradient.isfinite().all().int64_value(&[]), 1);
        prop_assert!(found.metrics.losses.iter().all(|loss| loss.is_finite()));
        // A row that was empty before now counts as a row.
        if shapes.iter().all(|shape| shape.iter().any(|(_, length)| *length > 0)) {
            prop_assert_eq!(gradient, again.metrics.first_gradient.unwrap());
        }
    }
}

#[test]
fn a_step_ends_where_the_reward_function_says_among_all_tokens() {
    let config = TrainConfig { advantage_estimator: AdvantageEstimator::Process, ..config() };
    let shapes = vec![vec![(false, 2), (true, 3), (false, 4), (true, 2)]; 12];
    let mut groups = groups(&config, &shapes);
    let steps = |ends: &[(u32, f64)]| {
        let steps = ends.iter().map(|&(end, score)| StepScore { end, score });
        vec![RewardOutcome::Steps(steps.collect()), RewardOutcome::NotApplicable]
    };
    // Before the first sampled token; with one; within the reply; and at the end.
    groups[0].scored.group.completions[0].rewards = steps(&[(1, 9.0), (3, 1.0), (7, 0.0), (10, 4.0)]);
    let one_turn = |groups: &[Placed]| {
        let mut groups = groups.to_vec();
        for (seed, completion) in groups.iter_mut().flat_map(|group| &mut group.scored.group.completions).enumerate() {
            completion.episode = episode(&[(true, 5)], seed);
        }
        groups[0].scored.group.completions[0].rewards = steps(&[(1, 1.0), (2, 0.0), (4, 4.0)]);
        groups
    };
    let plain = one_turn(&groups);
    let [found, wanted] = [&groups, &plain].map(|groups| step(&config, groups).inputs.advantages);
    assert_eq!(found, wanted);
    assert!(found[0][0] != found[0][2] && found[0][2] != found[0][3]);
}

#[test]
fn a_reward_of_a_turn_is_one_of_a_step_that_ends_with_it() {
    let config = TrainConfig { advantage_estimator: AdvantageEstimator::Process, ..config() };
    let shapes = vec![vec![(true, 3), (false, 4), (true, 2)]; 12];
    let mut by_step = groups(&config, &shapes);
    let mut by_turn = by_step.clone();
    let steps = |ends: [u32; 2]| {
        let [first, last] = ends;
        RewardOutcome::Steps(vec![StepScore { end: first, score: 1.0 }, StepScore { end: last, score: 0.5 }])
    };
    by_step[0].scored.group.completions[0].rewards = vec![steps([2, 8]), RewardOutcome::NotApplicable];
    let completion = &mut by_turn[0].scored.group.completions[0];
    completion.rewards = vec![RewardOutcome::Score(1.5), RewardOutcome::NotApplicable];
    completion.exchange = Some(Box::new(Exchange {
        rewards: vec![steps([0, 1]), RewardOutcome::NotApplicable],
        ..Exchange::new(&[], EpisodeEnd::Stop)
    }));
    let [found, wanted] = [&by_turn, &by_step].map(|groups| step(&config, groups).inputs.advantages);
    assert_eq!(found, wanted);
    assert!(found[0][0] == found[0][2] && found[0][2] != found[0][3], "a turn has one advantage");
}

#[test]
fn a_truncated_episode_leaves_the_loss_with_all_its_segments() {
    let config = TrainConfig { mask_truncated_completions: true, ..config() };
    let mut groups = groups(&config, &vec![vec![(true, 3), (false, 2)]; 12]);
    let cut = Segment::Sampled {
        ids: &[1],
        logprobs: &[TokenLogprob::default()],
        versions: &[(0, VERSION)],
        finish: FinishReason::Length,
    };
    groups[0].scored.group.completions[2].episode.push(cut);
    let batch = StepBatch::new(&groups, &config, VERSION);
    let trained = |row: &BatchRow<'_>| row.trained_tokens();
    let mut expected = [3; 12];
    expected[2] = 0;
    assert_eq!(batch.rows.iter().map(trained).collect::<Vec<_>>(), expected);
}

#[test]
fn a_step_without_a_sampled_token_adds_nothing() {
    for loss_type in [Dapo, Grpo, LossType::Vespo] {
        for beta in [0.0, 0.1] {
            let config = TrainConfig { loss_type, beta, top_entropy_quantile: 0.5, ..config() };
            let groups = groups(&config, &vec![vec![(false, 3)]; 12]);
            let found = step(&config, &groups).metrics;
            assert_eq!(found.losses, [0.0], "{loss_type:?}");
            assert_eq!(found.first_gradient.unwrap().abs().max().double_value(&[]), 0.0, "{loss_type:?}");
        }
    }
}
