//! Worked examples of the objective.

use shared::{
    config::{Choice, LossType, TrainConfig},
    methods::{
        Scope,
        metric::{PPO_KL, RATIO},
    },
};
use tch::{Device, Tensor};

use super::{LossGradient, Objective, Rows, Tokens};

/// One row of tokens that all weigh the same.
fn tokens(old: Option<&[f64]>, reference: Option<&[f64]>, advantages: &[f64]) -> Tokens {
    let n = advantages.len();
    let mean = vec![1.0 / n as f64; n];
    Tokens {
        rows: Rows::new(&[n], Device::Cpu),
        old_logprobs_N: old.map(Tensor::from_slice),
        sampling_logprobs_N: None,
        ref_logprobs_N: reference.map(Tensor::from_slice),
        advantages_N: Tensor::from_slice(advantages),
        importance: None,
        lots_N: Some(Tensor::from_slice(&(0..n).map(|n| 1.0 / (n + 2) as f64).collect::<Vec<f64>>())),
        weights_N: Tensor::from_slice(&mean),
        entropy_weights_N: Tensor::from_slice(&mean),
    }
}

fn run(config: &TrainConfig, logprobs: &[f64], tokens: &Tokens) -> (LossGradient, Vec<f64>) {
    let logprobs_N = Tensor::from_slice(logprobs);
    let found = Objective::from_config(config).differentiate(&logprobs_N, &logprobs_N.zeros_like(), tokens).unwrap();
    let gradients = Vec::try_from(&found.gradients.logprobs_N).unwrap();
    (found, gradients)
}

/// Loss of one token with the given ratio, and its derivative with respect to the log-prob.
fn of_ratio(config: &TrainConfig, ratio: f64, advantage: f64) -> (f64, f64) {
    let (found, gradients) = run(config, &[-1.0], &tokens(Some(&[-1.0 - ratio.ln()]), None, &[advantage]));
    (found.value, gradients[0])
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

/// On policy the ratio is 1, yet its gradient is that of the log-prob: value −mean A + βKL, gradient −A∇log π
/// (DeepSeekMath's form with the ratio to a policy without gradient).
#[test]
fn on_policy_the_value_is_minus_the_advantage_and_the_gradient_that_of_the_logprob() {
    let advantages = [1.0, -1.0, 0.5, 2.0];
    let (found, gradients) = run(&TrainConfig::default(), &[-0.3, -2.0, -7.5, -0.01], &tokens(None, None, &advantages));
    assert!(close(found.value, -2.5 / 4.0));
    assert!(gradients.iter().zip(advantages).all(|(gradient, advantage)| close(*gradient, -advantage / 4.0)));

    let config = TrainConfig { beta: 0.1, use_bias_correction_kl: Some(false), ..TrainConfig::default() };
    let (found, gradients) = run(&config, &[-1.0], &tokens(None, Some(&[-1.5]), &[2.0]));
    let kl = (-0.5f64).exp() + 0.5 - 1.0;
    assert!(close(found.value, -2.0 + 0.1 * kl));
    assert!(close(gradients[0], -2.0 + 0.1 * (1.0 - (-0.5f64).exp())));
}

/// Reading the old log-probs off the first pass, instead of computing them, must not change a bit.
#[test]
fn on_policy_without_old_logprobs_is_the_same_as_with_them() {
    let logprobs = [-0.3, -2.0, -7.5, -0.01];
    let config = TrainConfig { beta: 0.1, ..TrainConfig::default() };
    let of = |old| {
        let tokens = tokens(old, Some(&[-0.5, -1.0, -7.0, -0.02]), &[1.0, -1.0, 0.5, 0.0]);
        let (found, gradients) = run(&config, &logprobs, &tokens);
        (found.value, gradients)
    };
    assert_eq!(of(None), of(Some(&logprobs)));
}

/// A ratio is clipped in the direction of its advantage only, and clip-higher moves the upper bound alone.
#[test]
fn clipping_is_one_sided() {
    let symmetric = TrainConfig::default();
    let higher = TrainConfig { epsilon_high: Some(0.28), ..symmetric.clone() };
    let check = |config: &TrainConfig, ratio: f64, advantage: f64, value: f64, moves: bool| {
        let (found, gradient) = of_ratio(config, ratio, advantage);
        assert!(close(found, value), "{ratio} {advantage}: {found}");
        assert!(close(gradient, if moves { -advantage * ratio } else { 0.0 }), "{ratio} {advantage}: {gradient}");
    };
    check(&symmetric, 1.25, 1.0, -1.2, false);
    check(&higher, 1.25, 1.0, -1.25, true);
    for config in [&symmetric, &higher] {
        check(config, 1.25, -1.0, 1.25, true);
        check(config, 0.5, -1.0, 0.8, false);
        check(config, 0.5, 1.0, -0.5, true);
    }
}

/// δ caps the side that the clip leaves open; dual clip bounds the loss there.
#[test]
fn large_ratios_with_a_negative_advantage_are_bounded() {
    let capped = TrainConfig { delta: Some(2.0), ..TrainConfig::default() };
    assert_eq!(of_ratio(&TrainConfig::default(), 6.0, -1.0).0.round(), 6.0);
    let (value, gradient) = of_ratio(&capped, 6.0, -1.0);
    assert!(close(value, 2.0) && gradient == 0.0);
    let dual = TrainConfig { loss_type: LossType::Vanilla, clip_ratio_c: 3.0, ..TrainConfig::default() };
    let (value, gradient) = of_ratio(&dual, 6.0, -1.0);
    assert!(close(value, 3.0) && gradient == 0.0);
    assert!(close(of_ratio(&dual, 2.0, -1.0).0, 2.0));
}

/// A mean ratio of 6 is above 5: no loss, no gradient.
#[test]
fn early_stopping_leaves_everything_out() {
    let config = TrainConfig { early_stop_imp_ratio: Some(5.0), entropy_coef: 0.1, ..TrainConfig::default() };
    let of = |ratio: f64| {
        run(&config, &[-1.0, -2.0], &tokens(Some(&[-1.0 - ratio.ln(), -2.0 - ratio.ln()]), None, &[-1.0; 2]))
    };
    let (found, gradients) = of(6.0);
    assert!(found.stopped && found.value == 0.0 && found.gradients.entropies_N.is_none());
    assert_eq!(gradients, [0.0, 0.0]);
    let (found, gradients) = of(4.0);
    assert!(!found.stopped && found.value > 0.0 && gradients[0] != 0.0);
}

/// PPO eq. 8 of one token: the ratio times the advantage, minus β times an estimate of KL[π_old, π] from a sample of
/// π_old. The expectation of the estimate is the divergence, and its gradient vanishes where the two policies agree.
#[test]
fn the_penalty_on_the_distance_from_the_old_policy() {
    let config =
        TrainConfig { old_policy_kl_coef: 0.5, epsilon: 0.99, epsilon_high: Some(9.0), ..TrainConfig::default() };
    for ratio in [0.4f64, 1.0, 2.5] {
        let (value, gradient) = of_ratio(&config, ratio, 2.0);
        assert!(close(value, -2.0 * ratio + 0.5 * (ratio - 1.0 - ratio.ln())), "{ratio}: {value}");
        assert!(close(gradient, -2.0 * ratio + 0.5 * (ratio - 1.0)), "{ratio}: {gradient}");
    }
    let objective = Objective::from_config(&config);
    assert!(objective.trains(&[0.0]), "also a completion without an advantage is held back");
    // Over a vocabulary of three, the expectation under the old policy is the divergence.
    let (old, new) = ([0.5f64, 0.3, 0.2], [0.2f64, 0.3, 0.5]);
    let divergence: f64 = old.iter().zip(new).map(|(old, new)| old * (old / new).ln()).sum();
    let of_token = |(old, new): (&f64, f64)| old * (of_ratio(&config, new / old, 0.0).0 / 0.5);
    assert!(close(old.iter().zip(new).map(of_token).sum(), divergence));
}

/// The gradients of autograd are those of the loss: central differences, for methods that are differentiable where they
/// are not clipped.
#[test]
fn gradients_are_finite_differences() {
    use LossType::{Dapo, GeoMean, Sapo};
    let (old, logprobs, step) = ([-1.2, -0.4, -2.0], [-1.1, -0.5, -2.1], 1e-6);
    for loss_type in [Dapo, Sapo, GeoMean] {
        let config = TrainConfig { loss_type, beta: 0.2, ..TrainConfig::default() };
        let tokens = tokens(Some(&old), Some(&[-1.0, -0.6, -1.8]), &[1.0, 1.0, 1.0]);
        let (_, gradients) = run(&config, &logprobs, &tokens);
        for i in 0..3 {
            let at = |offset: f64| {
                let mut moved = logprobs;
                moved[i] += offset;
                run(&config, &moved, &tokens).0.value
            };
            let difference = (at(step) - at(-step)) / (2.0 * step);
            assert!((difference - gradients[i]).abs() < 1e-8, "{loss_type:?}: {} is not {difference}", gradients[i]);
        }
    }
}

/// A loss counts exactly the metrics of its description, and sees no further than its scope: the loss of a run of
/// tokens, or of completions, is the same alone as among others.
#[test]
fn every_loss_is_as_it_is_described() {
    for &loss_type in LossType::ALL {
        let config = TrainConfig { loss_type, epsilon_high: Some(0.3), dro_beta: Some(0.5), ..TrainConfig::default() };
        let objective = Objective::from_config(&config);
        let per_token = |logprobs: &[f64], old: &[f64], advantages: &[f64], lengths: &[usize]| {
            let rows = Rows::new(lengths, Device::Cpu);
            let logprobs_N = Tensor::from_slice(logprobs);
            let tokens = Tokens { rows, ..tokens(Some(old), None, advantages) };
            objective.per_token(&logprobs_N, &logprobs_N.zeros_like(), &tokens)
        };
        let (logprobs, old, advantages) = ([-1.1, -0.5, -2.1, -0.2], [-1.2, -0.4, -1.5, -0.9], [1.0, 1.0, -0.5, -0.5]);
        let whole = per_token(&logprobs, &old, &advantages, &[2, 2]);
        let counted: Vec<&str> = whole.metrics.iter().map(|(metric, _)| metric.mean.key).collect();
        let described = objective.spec.metrics.iter().map(|metric| metric.mean.key);
        assert_eq!(counted, described.chain([RATIO.mean.key, PPO_KL.mean.key]).collect::<Vec<_>>(), "{loss_type:?}");

        let values = |loss: &super::TokenLoss| Vec::<f64>::try_from(&loss.loss_N).unwrap();
        let piece = match objective.scope() {
            Scope::Token => 1,
            Scope::Completion => 2,
            Scope::Minibatch => 4,
        };
        let pieces = (0..4).step_by(piece).map(|from| {
            let run = from..from + piece;
            per_token(
                &logprobs[run.clone()],
                &old[run.clone()],
                &advantages[run],
                &vec![piece.min(2); piece.div_ceil(2)],
            )
        });
        let pieces: Vec<f64> = pieces.flat_map(|loss| values(&loss)).collect();
        assert_eq!(pieces, values(&whole), "{loss_type:?} looks further than {:?}", objective.scope());
    }
}
