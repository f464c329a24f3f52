//! The gradient of the KL penalty against that of the divergence, as exact expectations over a small vocabulary.

use learner::{
    kl,
    loss::{LossGradient, Objective, Rows, Tokens},
};
use serde_json::Value;
use shared::{
    config::{Choice, ImportanceSamplingLevel, KlEstimator, LossType, TrainConfig},
    methods::{KlCorrection, Ratio},
};
use tch::{Device, Kind, Tensor};

use crate::support::figures::{assert_close, matrix, number, numbers};

const TOLERANCE: f64 = 1e-9;

fn cases() -> Vec<Value> {
    let inputs = [
        "logits?",
        "ref_logits?",
        "old_logits?",
        "logits_first?",
        "logits_second?",
        "ref_logits_first?",
        "ref_logits_second?",
        "old_logits_first?",
        "old_logits_second?",
    ];
    harness::golden::cases(
        "kl_bias_correction.json",
        "kl_bias_correction",
        &["estimator", "policy", "level"],
        &inputs,
        &["variants", "kl?", "true_grad_logits?", "true_grad_sequence?", "true_grad_states_of_old?"],
    )
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = logits.iter().map(|x| (x - largest).exp()).sum::<f64>().ln() + largest;
    logits.iter().map(|x| x - sum).collect()
}

/// Derivatives with respect to logits, given those with respect to the log-probs that they make.
fn through_softmax(gradients: &[f64], logprobs: &[f64]) -> Vec<f64> {
    let sum: f64 = gradients.iter().sum();
    gradients.iter().zip(logprobs).map(|(gradient, logprob)| gradient - logprob.exp() * sum).collect()
}

/// Every possible token, or every sequence of two tokens, with its log-probs under policy, reference and sampler.
/// Sequences are the rows of a grid, by their first token.
struct World {
    level: ImportanceSamplingLevel,
    /// Tokens of a row.
    width: usize,
    policy: Vec<f64>,
    reference: Vec<f64>,
    sampler: Vec<f64>,
    /// The sampler's probability of each row.
    shares: Vec<f64>,
    on_policy: bool,
}

impl World {
    fn new(case: &Value) -> Self {
        let (params, inputs) = (&case["params"], &case["inputs"]);
        let level: ImportanceSamplingLevel = serde_json::from_value(params["level"].clone()).unwrap();
        let of = |who: &str| -> Vec<f64> {
            if level == ImportanceSamplingLevel::Token {
                return log_softmax(&numbers(&inputs[format!("{who}logits")]));
            }
            let first = log_softmax(&numbers(&inputs[format!("{who}logits_first")]));
            let second = matrix(&inputs[format!("{who}logits_second")]);
            let of_first = |(first, second): (&f64, &Vec<f64>)| -> Vec<f64> {
                log_softmax(second).into_iter().flat_map(|second| [*first, second]).collect()
            };
            first.iter().zip(&second).flat_map(of_first).collect()
        };
        let width = if level == ImportanceSamplingLevel::Token { 1 } else { 2 };
        let sampler = of("old_");
        Self {
            level,
            width,
            policy: of(""),
            reference: of("ref_"),
            shares: sampler.chunks(width).map(|row| row.iter().sum::<f64>().exp()).collect(),
            on_policy: params["policy"] == "on",
            sampler,
        }
    }

    /// The expected loss over what the sampler draws, with the penalty at weight 1 or, in place of it, an advantage of
    /// minus the penalty; and the loss of each token.
    fn differentiate(&self, config: &TrainConfig, old: bool, penalties: Option<&[f64]>) -> (LossGradient, Vec<f64>) {
        let column = Tensor::from_slice::<f64>;
        let advantages: Vec<f64> =
            penalties.map_or(vec![0.0; self.policy.len()], |all| all.iter().map(|p| -p).collect());
        let weights: Vec<f64> = self.shares.iter().flat_map(|&share| vec![share; self.width]).collect();
        let tokens = Tokens {
            rows: Rows::new(&vec![self.width; self.shares.len()], Device::Cpu),
            old_logprobs_N: old.then(|| column(&self.sampler)),
            sampling_logprobs_N: None,
            ref_logprobs_N: Some(column(&self.reference)),
            advantages_N: column(&advantages),
            importance: None,
            lots_N: Some(column(&weights)),
            weights_N: column(&weights),
            entropy_weights_N: column(&weights),
        };
        let (objective, policy_N) = (Objective::from_config(config), column(&self.policy));
        let parts = objective.per_token(&policy_N, &policy_N.zeros_like(), &tokens);
        let found = objective.differentiate(&policy_N, &policy_N.zeros_like(), &tokens).unwrap();
        (found, Vec::try_from(parts.loss_N.to_kind(Kind::Double)).unwrap())
    }

    /// Derivatives with respect to the logits.
    fn of_logits(&self, found: &LossGradient) -> Vec<f64> {
        let gradients = Vec::<f64>::try_from(&found.gradients.logprobs_N).unwrap();
        if self.width == 1 {
            return through_softmax(&gradients, &self.policy);
        }
        let vocabulary = self.shares.len().isqrt();
        let every_second =
            |values: &[f64], from: usize| -> Vec<f64> { values.iter().skip(from).step_by(2).copied().collect() };
        let rows = || gradients.chunks(2 * vocabulary).zip(self.policy.chunks(2 * vocabulary));
        let first: Vec<f64> = rows().map(|(gradients, _)| every_second(gradients, 0).iter().sum()).collect();
        let first_logprobs: Vec<f64> = rows().map(|(_, policy)| policy[0]).collect();
        let second = rows().flat_map(|(g, policy)| through_softmax(&every_second(g, 1), &every_second(policy, 1)));
        through_softmax(&first, &first_logprobs).into_iter().chain(second).collect()
    }
}

/// The configuration that a loss needs for the level of a case, if the loss leaves a choice.
fn config(loss_type: LossType, estimator: KlEstimator, level: ImportanceSamplingLevel) -> TrainConfig {
    let chosen = loss_type.spec().ratio == Ratio::Chosen;
    TrainConfig {
        loss_type,
        beta: 1.0,
        kl_estimator: Some(estimator),
        importance_sampling_level: if chosen { level } else { ImportanceSamplingLevel::Token },
        ..TrainConfig::default()
    }
}

/// The form of an estimate that `use_bias_correction_kl` asks for, by its name in the file.
fn form(estimator: KlEstimator, correction: Option<bool>) -> &'static str {
    match (correction, estimator.spec().correction) {
        (Some(false), _) | (None, KlCorrection::Nothing) => "plain",
        (None, KlCorrection::Ratio { .. }) => "ratio",
        (None, KlCorrection::DetachedRatio { .. }) => "detached_ratio",
        (Some(true), _) => unreachable!("a form of TRL's"),
    }
}

fn check(case: &Value, world: &World, config: &TrainConfig, form: &str, old: bool) -> Vec<f64> {
    let variant = &case["expected"]["variants"][form];
    let (found, per_token) = world.differentiate(config, old, None);
    let gradient = world.of_logits(&found);
    let name = format!("{}, {}, {form}", case["name"], config.loss_type);
    assert_close(&name, &[found.value], &[number(&variant["expected_value"])], TOLERANCE);
    assert_close(&name, &gradient, &numbers(&variant["expected_grad_logits"]), TOLERANCE);
    if let Some(values) = variant.get("value") {
        assert_close(&name, &per_token, &numbers(values), TOLERANCE);
    }
    gradient
}

/// Without an advantage, the policy terms of nearly all losses vanish: what is left is the penalty.
#[test]
fn golden_kl_bias_correction() {
    for case in cases() {
        let estimator: KlEstimator = serde_json::from_value(case["params"]["estimator"].clone()).unwrap();
        let (world, expected) = (World::new(&case), &case["expected"]);
        let of_states = if world.width == 1 { "true_grad_logits" } else { "true_grad_states_of_old" };
        let truth = numbers(&expected[of_states]);
        for &loss_type in LossType::ALL.iter().filter(|loss_type| !loss_type.spec().moves_without_advantage) {
            let plain =
                TrainConfig { use_bias_correction_kl: Some(false), ..config(loss_type, estimator, world.level) };
            check(&case, &world, &plain, form(estimator, Some(false)), true);
            let unset = TrainConfig { use_bias_correction_kl: None, ..plain };
            // On policy, the learner may leave out the old log-probs.
            for old in if world.on_policy { &[true, false][..] } else { &[true] } {
                let gradient = check(&case, &world, &unset, form(estimator, None), *old);
                let has_truth = estimator.spec().correction != KlCorrection::Nothing;
                let name = format!("{}, {loss_type}: the gradient of the divergence", case["name"]);
                if has_truth {
                    assert_close(&name, &gradient, &truth, TOLERANCE);
                } else {
                    assert!(gradient.iter().zip(&truth).any(|(found, truth)| (found - truth).abs() > 1e-6), "{name}");
                    assert!(unset.warnings().iter().any(|said| said.contains("no form of it")), "{name} is not told");
                }
            }
        }
    }
}

/// TRL multiplies by the ratio of the policy term, which at the level of the sequence is that of the sequence.
#[test]
fn golden_kl_bias_correction_of_trl() {
    for case in cases() {
        let estimator: KlEstimator = serde_json::from_value(case["params"]["estimator"].clone()).unwrap();
        let world = World::new(&case);
        for loss_type in [LossType::Grpo, LossType::Dapo] {
            let config = TrainConfig {
                use_bias_correction_kl: Some(true),
                model: "model".into(),
                dataset: "train.jsonl".into(),
                reward_funcs: vec!["format".into()],
                ..config(loss_type, estimator, world.level)
            };
            if let Err(refused) = config.validate() {
                assert!(!matches!(estimator.spec().correction, KlCorrection::Ratio { .. }), "{refused}");
                continue;
            }
            check(&case, &world, &config, if world.width == 1 { "ratio" } else { "sequence_ratio" }, true);
            assert_eq!(config.warnings().len(), world.width - 1, "{:?}", config.warnings());
        }
    }
}

/// In the reward the estimate is an advantage of the opposite sign, and the ratio that of the policy term. A
/// configuration is warned of an estimator whose gradient is then not that of the divergence.
#[test]
fn golden_kl_in_the_reward() {
    for case in cases().iter().filter(|case| case["params"]["level"] == "token") {
        let estimator: KlEstimator = serde_json::from_value(case["params"]["estimator"].clone()).unwrap();
        let (world, variant) = (World::new(case), &case["expected"]["variants"]["as_reward"]);
        // Nothing is clipped.
        let config = TrainConfig {
            use_kl_in_reward: true,
            epsilon: 1.0 - 1e-12,
            epsilon_high: Some(1e12),
            ..config(LossType::Grpo, estimator, world.level)
        };
        let pairs = world.policy.iter().zip(&world.reference);
        let penalties: Vec<f64> = pairs.map(|(own, reference)| kl::value(estimator, *own, *reference)).collect();
        let (found, _) = world.differentiate(&config, true, Some(&penalties));
        let (name, gradient) = (case["name"].as_str().unwrap(), world.of_logits(&found));
        assert_close(name, &[found.value], &[number(&variant["expected_value"])], TOLERANCE);
        assert_close(name, &gradient, &numbers(&variant["expected_grad_logits"]), TOLERANCE);
        assert_eq!(variant["grad_unbiased"], estimator.spec().right_in_reward, "{name}");
        assert_eq!(config.warnings().is_empty(), estimator.spec().right_in_reward, "{name}: {:?}", config.warnings());
    }
}
