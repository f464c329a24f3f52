//! Gradients do not depend on how completions are spread over forward passes, for any method.

use learner::{
    critic::Critic,
    model::{LoadOptions, Parameters, adapter_config, load, load_adapter},
    replay::cosine,
    step::{StepBatch, TrainedStep, Trainer},
    trained::Among,
};
use proptest::prelude::*;
use shared::{
    ModelDir, Placed, PolicyVersion,
    config::{
        Choice,
        ImportanceSamplingLevel::{self, Sequence, Token},
        ImportanceSamplingMode, KlEstimator, LossAggregation,
        LossType::{self, Bnpo},
        TrainConfig,
    },
    generation::testing,
    methods::Scope,
};
use tch::{Kind, Tensor};

use crate::support;

pub fn config() -> TrainConfig {
    // Not clipped: gradients are compared at the size that they have.
    let config = support::config("unused.jsonl".into());
    TrainConfig { warmup_steps: 0, epsilon_high: Some(1.5), dro_beta: Some(0.3), max_grad_norm: 0.0, ..config }
}

/// A trainer after one step, with the figures of the step.
pub fn step(config: &TrainConfig, groups: &[Placed], kind: Kind) -> (Trainer, TrainedStep) {
    let mut trainer = trainer(config, kind);
    let stats = trainer.step(&StepBatch::new(groups, config, PolicyVersion(3)), 3).unwrap();
    (trainer, stats)
}

/// A trainer before its first step.
pub fn trainer(config: &TrainConfig, kind: Kind) -> Trainer {
    trainer_among(config, kind, &Among::default())
}

/// A trainer before its first step, as one of several ranks; with an adapter or a critic, where the configuration has
/// one.
pub fn trainer_among(config: &TrainConfig, kind: Kind, among: &Among) -> Trainer {
    tch::set_num_threads(1);
    let model = ModelDir::open(&config.model).unwrap();
    let gradient_checkpointing = config.gradient_checkpointing;
    let options = LoadOptions { kind, gradient_checkpointing, ..LoadOptions::default() };
    let frozen = LoadOptions { trainable: false, ..options };
    // Another model of the same shape would do; this one is the policy after a few steps.
    let reference = (config.beta != 0.0).then(|| {
        let reference = load(&model, frozen).unwrap();
        let _ = reference.weights().trained().flat().shallow_clone().g_mul_scalar_(0.98);
        reference
    });
    let policy = match adapter_config(config, &model).unwrap() {
        None => load(&model, options).unwrap(),
        Some(adapter) => {
            let parameters = load_adapter(&adapter, &model, None, config.seed, options).unwrap();
            load(&model, frozen).unwrap().with_adapter(Some((adapter, parameters)))
        }
    };
    let mut trainer = Trainer::among(config, policy, reference, among.clone()).unwrap();
    if config.advantage_estimator.spec().critic {
        let critic = Critic::open(config, None, model.config().vocab_size, options, among.clone()).unwrap();
        trainer.credit_mut().set_critic(critic);
    }
    trainer
}

/// Largest relative L2 distance of a tensor's gradient. Norms below the floor count as the floor.
pub fn distance(a: &Trainer, b: &Trainer, floor: f64) -> f64 {
    let [a_flat, b_flat] = [a, b].map(|trainer| trainer.policy().gradients().flat());
    distance_of(a.policy().parameters(), a_flat, b_flat, floor)
}

/// As [`distance`], of flat gradients.
pub fn distance_of(parameters: &Parameters, a_flat: &Tensor, b_flat: &Tensor, floor: f64) -> f64 {
    let norm = |x: &Tensor| x.norm().double_value(&[]);
    let of = |name: &str| {
        let (a, b) = (parameters.slice_of(a_flat, name).unwrap(), parameters.slice_of(b_flat, name).unwrap());
        norm(&(&a - &b)) / norm(&b).max(1e-6 * norm(b_flat)).max(floor)
    };
    parameters.named().map(|(name, _)| of(name)).fold(0.0, f64::max)
}

/// Groups whose sampling log-probs lie around those of the model, so that ratios to them are of a usual size.
pub fn groups(config: &TrainConfig, seed: u64) -> Vec<Placed> {
    let mut groups = support::groups(config, seed);
    let sequences: Vec<_> = groups
        .iter()
        .flat_map(|g| g.completions.iter().map(|c| (g.prompt_ids.clone(), c.token_ids().to_vec())))
        .collect();
    let model = load(&ModelDir::open(&config.model).unwrap(), LoadOptions::default()).unwrap();
    let sequences: Vec<_> =
        sequences.iter().map(|(prompt, completion)| learner::batch::Sequence::new(prompt, completion)).collect();
    let rows: Vec<usize> = (0..sequences.len()).collect();
    let found = learner::step::evaluate(&model, &sequences, &rows, 1.0, 4096, tch::Device::Cpu).unwrap();
    for (i, completion) in groups.iter_mut().flat_map(|g| &mut g.scored.group.completions).enumerate() {
        testing::change(completion, |turn| {
            for (t, (token, own)) in turn.logprobs.iter_mut().zip(&found.logprobs[i]).enumerate() {
                token.logprob_at_temperature = *own as f32 + 0.3 * ((i * 7 + t * 3) as f32).sin();
            }
        });
    }
    groups
}

#[derive(Debug, Clone)]
pub struct Options(pub TrainConfig);

pub fn options() -> impl Strategy<Value = Options> {
    let method = (
        prop::sample::select(LossType::ALL.to_vec()),
        prop::sample::select(vec![Token, Sequence]),
        prop::option::weighted(0.3, 1.2f64..2.0),
        prop::option::weighted(0.3, 0.0f64..0.2),
        prop::sample::select(vec![1.0, 1.0, 0.4]),
        prop::option::weighted(0.2, 0.9f64..1.1),
        prop::sample::select(vec![0.0, 0.05]),
        prop::option::weighted(
            0.3,
            prop::sample::select(vec![
                LossAggregation::TokenMean,
                LossAggregation::TokenSum,
                LossAggregation::SeqMeanTokenSum,
                LossAggregation::SeqMeanTokenMean,
                LossAggregation::SeqMeanTokenSumNorm,
            ]),
        ),
    );
    let rest = (
        prop::sample::select(vec![0.0, 0.05]),
        prop::sample::select(vec![KlEstimator::K1, KlEstimator::K2, KlEstimator::K3, KlEstimator::K3Plus]),
        any::<(bool, bool, bool, bool, bool)>(),
        prop::sample::select(vec![
            ImportanceSamplingMode::TokenTruncate,
            ImportanceSamplingMode::TokenMask,
            ImportanceSamplingMode::SequenceTruncate,
            ImportanceSamplingMode::SequenceMask,
        ]),
        prop::sample::select(vec![1.0f32, 1.0, 0.9]),
        (1u32..8, 1u32..4),
        0u64..1000,
    );
    (method, rest).prop_map(|(method, rest)| {
        let (loss_type, level, delta, off_policy, quantile, early_stop, entropy_coef, aggregation) = method;
        let (beta, kl_estimator, flags, mode, top_p, (per_device, accumulation), seed) = rest;
        let (scale, normalise, correct, decoupled, mask) = flags;
        Options(TrainConfig {
            loss_type,
            importance_sampling_level: level,
            delta,
            off_policy_mask_threshold: off_policy,
            top_entropy_quantile: quantile,
            early_stop_imp_ratio: early_stop,
            entropy_coef,
            loss_aggregation: aggregation,
            beta,
            kl_estimator: Some(kl_estimator),
            use_valid_token_scale: scale,
            normalize_advantages: normalise,
            importance_sampling_correction: correct,
            importance_sampling_batch_normalize: scale,
            decoupled_objective: decoupled,
            mask_truncated_completions: mask,
            importance_sampling_mode: mode,
            top_p,
            per_device_train_batch_size: per_device,
            gradient_accumulation_steps: accumulation,
            seed,
            ..config()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// In float64 losses, gradients and weights after a step are the same for every memory split.
    #[test]
    fn the_memory_split_changes_nothing(Options(config) in options(), budget in 1u32..120, num_iterations in 1u32..3) {
        let split = TrainConfig { micro_batch_tokens: Some(budget), num_iterations, ..config };
        let whole = TrainConfig { micro_batch_tokens: Some(1 << 20), ..split.clone() };
        let groups = groups(&split, split.seed);
        let ((a, a_stats), (b, b_stats)) =
            (step(&split, &groups, Kind::Double), step(&whole, &groups, Kind::Double));
        let found = distance(&a, &b, f64::MIN_POSITIVE);
        prop_assert!(found < 1e-9, "gradients differ by {}", found);
        let weights = a.policy().parameters().flat() - b.policy().parameters().flat();
        prop_assert!(weights.abs().max().double_value(&[]) < 1e-9);
        prop_assert_eq!(a_stats.metrics.losses.len() as u64, split.updates_per_step());
        prop_assert_eq!(a_stats.metrics.early_stopped, b_stats.metrics.early_stopped);
        let (a, b) = (&a_stats.metrics, &b_stats.metrics);
        for (a, b) in [(&a.losses, &b.losses), (&a.grad_norms, &b.grad_norms)] {
            for (x, y) in a.iter().zip(b) {
                prop_assert!((x - y).abs() <= 1e-9 * y.abs().max(1.0), "{} is not {}", x, y);
            }
        }
    }

    /// In float32 the gradient of every tensor is the same up to rounding.
    #[test]
    fn the_memory_split_changes_nothing_in_single_precision(Options(config) in options(), budget in 1u32..120) {
        // One update: a second would begin with weights that rounding has moved apart. A threshold that a whole batch
        // or completion crosses can lie within a rounding error of the figure that is compared with it; the test in
        // double precision covers such options.
        let split = TrainConfig {
            top_entropy_quantile: 1.0,
            early_stop_imp_ratio: None,
            off_policy_mask_threshold: None,
            top_p: 1.0,
            micro_batch_tokens: Some(budget),
            num_iterations: 1,
            gradient_accumulation_steps: 12,
            ..config
        };
        let whole = TrainConfig { micro_batch_tokens: Some(1 << 20), ..split.clone() };
        let groups = groups(&split, split.seed);
        let ((a, _), (b, _)) = (step(&split, &groups, Kind::Float), step(&whole, &groups, Kind::Float));
        // Gradients that all but cancel are no more precise than the log-probs that they are made of.
        let found = distance(&a, &b, 1e-3);
        prop_assert!(found < 1e-5, "gradients differ by {}", found);
    }
}

/// Reductions that are not defined by the minibatch give the same gradient however an update is accumulated.
#[test]
fn accumulation_changes_nothing() {
    let of = |loss_type: LossType, level: ImportanceSamplingLevel, per_device: u32| {
        let config = TrainConfig {
            loss_type,
            importance_sampling_level: level,
            per_device_train_batch_size: per_device,
            gradient_accumulation_steps: 12 / per_device,
            decoupled_objective: false,
            num_iterations: 1,
            ..config()
        };
        step(&config, &groups(&config, 3), Kind::Double).0
    };
    let by_minibatch = |loss_type: LossType| loss_type == Bnpo || loss_type.spec().scope == Scope::Minibatch;
    for loss_type in LossType::ALL.iter().copied().filter(|&loss_type| !by_minibatch(loss_type)) {
        for level in [Token, Sequence] {
            let whole = of(loss_type, level, 12);
            for per_device in [4, 1] {
                let found = distance(&of(loss_type, level, per_device), &whole, f64::MIN_POSITIVE);
                assert!(found < 1e-9, "{loss_type:?} {level:?} {per_device}: gradients differ by {found}");
            }
        }
    }
    assert!(
        distance(&of(Bnpo, Token, 1), &of(Bnpo, Token, 12), f64::MIN_POSITIVE) > 1e-3,
        "bnpo is defined by the minibatch"
    );
}

#[test]
fn gradient_checkpointing_changes_no_bit() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let kept = TrainConfig { beta: 0.05, ..config() };
        let again = TrainConfig { gradient_checkpointing: true, ..kept.clone() };
        let groups = groups(&kept, 5);
        let [a, b] = [kept, again].map(|config| step(&config, &groups, kind));
        assert_eq!(a.1.metrics.losses, b.1.metrics.losses);
        assert!(a.0.policy().parameters().flat().equal(b.0.policy().parameters().flat()), "{kind:?}");
    }
}

/// Layers in bfloat16: the gradient is that of float32 but for rounding, and the passes read the rounded float32 copy.
#[test]
fn in_bfloat16_a_float32_copy_is_trained() {
    let config = TrainConfig { num_iterations: 1, gradient_accumulation_steps: 4, ..config() };
    let groups = groups(&config, 5);
    let [(wide, _), (narrow, _)] = [Kind::Float, Kind::BFloat16].map(|kind| step(&config, &groups, kind));
    let angle = cosine(wide.policy().gradients().flat(), narrow.policy().gradients().flat()).unwrap();
    assert!((0.998..0.999_999).contains(&angle), "{angle}");
    let weights = narrow.policy().model().weights();
    let (read, trained) = (weights.base().flat(), weights.trained().flat());
    assert_eq!((read.kind(), trained.kind()), (Kind::BFloat16, Kind::Float));
    assert!(read.equal(&trained.to_kind(Kind::BFloat16)));
    let moved = trained - wide.policy().parameters().flat();
    assert!(
        moved.abs().max().double_value(&[]) < 2.5 * config.learning_rate,
        "AdamW moves a weight by its rate at most"
    );
}
