//! PPO's critic: value loss against verl, what a step does with it, and resumption to the bit.

use std::{fs, sync::atomic::AtomicBool};

use harness::{golden::cases, memory};
use learner::{
    critic::{Critic, clip_fraction, value_loss},
    loss::reduction::Aggregation,
    model::{LoadOptions, load, load_scorer},
    pair::{Outcome, run},
    step::{Fate, StepBatch, TrainedStep, Trainer},
    trained::Among,
};
use serde_json::Value;
use shared::{
    Head, ModelDir, Placed, PolicyVersion, RewardOutcome, RunDir,
    channel::RunId,
    config::{AdvantageEstimator, KlController, KlEstimator, LossAggregation, TrainConfig},
    generation::testing,
    metrics,
};
use tch::{Device, Kind, Tensor};

use crate::support::{self, figures::matrix};

#[test]
fn golden_value_loss() {
    let inputs = ["vpreds", "returns", "values", "mask", "lengths"];
    let params = ["mode", "cliprange_value"];
    for case in cases("value_loss.json", "value_loss", &params, &inputs, &["loss", "clipfrac", "grad_vpreds"]) {
        let (name, inputs, expected) = (&case["name"], &case["inputs"], &case["expected"]);
        let mode: LossAggregation = serde_json::from_value(case["params"]["mode"].clone()).unwrap();
        let range = case["params"]["cliprange_value"].as_f64().unwrap();
        let mask = matrix(&inputs["mask"]);
        let width = mask[0].len() as f64;
        let kept = |key: &str| -> Vec<f64> {
            let rows = matrix(&inputs[key]);
            let tokens = rows.iter().flatten().zip(mask.iter().flatten());
            tokens.filter(|(_, mask)| **mask > 0.0).map(|(value, _)| *value).collect()
        };
        let lengths: Vec<usize> = mask.iter().map(|row| row.iter().filter(|&&m| m > 0.0).count()).collect();
        let weights: Vec<f64> = Aggregation::new(mode, width)
            .weights(&lengths)
            .into_iter()
            .zip(&lengths)
            .flat_map(|(weight, &length)| vec![weight; length])
            .collect();
        let found = value_loss(&kept("vpreds"), &kept("values"), &kept("returns"), &weights, range);
        let close = |found: f64, expected: f64| (found - expected).abs() <= 1e-9 * (1.0 + expected.abs());
        let loss = expected["loss"].as_f64().unwrap();
        assert!(close(found.value, loss), "{name}: loss {} instead of {loss}", found.value);
        let (share, wanted) = (clip_fraction(found.clipped, weights.len()), expected["clipfrac"].as_f64().unwrap());
        assert!(close(share, wanted), "{name}: clip fraction {share} instead of {wanted}");
        let mut gradients = found.gradients.iter();
        for (expected, mask) in matrix(&expected["grad_vpreds"]).iter().flatten().zip(mask.iter().flatten()) {
            let found = if *mask > 0.0 { *gradients.next().unwrap() } else { 0.0 };
            assert!(close(found, *expected), "{name}: gradient {found} instead of {expected}");
        }
    }
}

fn config() -> TrainConfig {
    TrainConfig {
        advantage_estimator: AdvantageEstimator::Gae,
        critic_learning_rate: 1e-3,
        warmup_steps: 0,
        ..support::config("unused.jsonl".into())
    }
}

fn trainer(config: &TrainConfig, kind: Kind) -> Trainer {
    tch::set_num_threads(1);
    let model = ModelDir::open(&config.model).unwrap();
    let options = LoadOptions { kind, ..LoadOptions::default() };
    let reference = (config.beta != 0.0).then(|| load(&model, LoadOptions { trainable: false, ..options }).unwrap());
    let mut trainer = Trainer::new(config, load(&model, options).unwrap(), reference).unwrap();
    if config.advantage_estimator == AdvantageEstimator::Gae {
        let critic = Critic::open(config, None, model.config().vocab_size, options, Among::default()).unwrap();
        trainer.credit_mut().set_critic(critic);
    }
    trainer
}

fn step(trainer: &mut Trainer, config: &TrainConfig, groups: &[Placed], number: u64) -> TrainedStep {
    trainer.step(&StepBatch::new(groups, config, groups[0].policy_version), number).unwrap()
}

fn critic_weights(trainer: &Trainer) -> Tensor {
    trainer.credit().critic().unwrap().trained().parameters().flat().copy()
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).abs().max().double_value(&[])
}

#[test]
fn critic_and_policy_do_not_depend_on_the_memory_split() {
    for aggregation in [None, Some(LossAggregation::SeqMeanTokenMean), Some(LossAggregation::SeqMeanTokenSumNorm)] {
        let whole = TrainConfig { micro_batch_tokens: Some(1 << 20), loss_aggregation: aggregation, ..config() };
        let groups = support::groups(&whole, 3);
        let found = [1, 50, 1 << 20].map(|budget| {
            let config = TrainConfig { micro_batch_tokens: Some(budget), ..whole.clone() };
            let mut trainer = trainer(&config, Kind::Double);
            step(&mut trainer, &config, &groups, 0);
            (critic_weights(&trainer), trainer.policy().parameters().flat().copy())
        });
        for (critic, policy) in &found[..2] {
            assert!(largest_difference(critic, &found[2].0) < 1e-9);
            assert!(largest_difference(policy, &found[2].1) < 1e-9);
        }
    }
}

#[test]
fn the_critic_learns_the_rewards_of_a_batch() {
    let config = TrainConfig { max_steps: Some(40), critic_learning_rate: 3e-3, learning_rate: 0.0, ..config() };
    let mut trainer = trainer(&config, Kind::Float);
    let groups = support::groups(&config, 3);
    let curve: Vec<(f64, f64)> = (0..40)
        .map(|number| {
            let record = step(&mut trainer, &config, &groups, number).metrics.credit;
            (record.get(metrics::LOSS_VALUE_AVG).unwrap(), record.get(metrics::CRITIC_VF_EXPLAINED_VAR).unwrap())
        })
        .collect();
    assert!(curve[39].0 < 0.2 * curve[0].0, "{curve:?}");
    assert!(
        curve[0].1.abs() < 0.01 && curve[39].1 > 0.7,
        "values start at 0 and explain the returns in the end: {curve:?}"
    );
}

#[test]
fn in_the_warm_up_only_the_critic_learns() {
    let config = TrainConfig { critic_warmup_steps: 2, ..config() };
    let mut trainer = trainer(&config, Kind::Float);
    let groups = support::groups(&config, 3);
    let start = trainer.policy().parameters().flat().copy();
    for number in 0..3 {
        let (policy, critic) = (trainer.policy().parameters().flat().copy(), critic_weights(&trainer));
        let stats = step(&mut trainer, &config, &groups, number);
        assert!(largest_difference(&critic, &critic_weights(&trainer)) > 0.0);
        let moved = largest_difference(&policy, trainer.policy().parameters().flat());
        assert_eq!(moved > 0.0, number >= 2, "step {number}");
        assert_eq!(stats.metrics.losses.is_empty(), number < 2);
        let only_the_critic = |row| stats.metrics.fates.of(row) == Some(Fate::CriticWarmup);
        assert!((0..groups.len() * 4).all(|row| only_the_critic(row) == (number < 2)), "step {number}");
        assert!(stats.inputs.old_logprobs.rows().all(|tokens| !tokens.is_empty()));
        assert_eq!(trainer.carried().updates, (number + 1) * config.updates_per_step());
    }
    assert!(largest_difference(&start, trainer.policy().parameters().flat()) > 0.0);
}

#[test]
fn a_completion_without_a_reward_teaches_the_critic_nothing() {
    let config = config();
    let mut groups = support::groups(&config, 3);
    groups[0].scored.group.completions[1].rewards = vec![RewardOutcome::Failed("no".into()); 2];
    let mut other = groups.clone();
    testing::change(&mut other[0].scored.group.completions[1], |turn| {
        turn.token_ids.iter_mut().for_each(|token| *token = (*token + 1) % 512);
    });
    let after = [groups, other].map(|groups| {
        let mut trainer = trainer(&config, Kind::Double);
        step(&mut trainer, &config, &groups, 0);
        (critic_weights(&trainer), trainer.policy().parameters().flat().copy())
    });
    assert!(largest_difference(&after[0].0, &after[1].0) < 1e-12);
    assert!(largest_difference(&after[0].1, &after[1].1) < 1e-12);
}

#[test]
fn the_penalty_reaches_the_advantages_once_the_policy_has_moved() {
    let config = TrainConfig {
        advantage_estimator: AdvantageEstimator::Grpo,
        use_kl_in_reward: true,
        beta: 0.5,
        kl_estimator: Some(KlEstimator::K1),
        kl_controller: KlController::Adaptive,
        kl_target: 1e-4,
        kl_horizon: 100.0,
        ..config()
    };
    let mut trainer = trainer(&config, Kind::Float);
    let groups = support::groups(&config, 3);
    let first = step(&mut trainer, &config, &groups, 0);
    assert!(
        first.metrics.credit.get(metrics::ACTOR_REWARD_KL_PENALTY).unwrap().abs() < 1e-5,
        "policy and reference are the same"
    );
    assert_eq!(first.metrics.credit.get(metrics::ACTOR_REWARD_KL_PENALTY_COEFF), Some(0.5));
    let second = step(&mut trainer, &config, &groups, 1);
    assert_ne!(first.inputs.advantages, second.inputs.advantages);
    // 12 completions, an error beyond the limit of 0.2, a horizon of 100: down first, then by the sign of the error.
    let coef = second.metrics.credit.get(metrics::ACTOR_REWARD_KL_PENALTY_COEFF).unwrap();
    assert!((coef - 0.5 * (1.0 - 0.2 * 12.0 / 100.0)).abs() < 1e-12, "{coef}");
    let kl = second.metrics.credit.get(metrics::ACTOR_REWARD_KL_PENALTY).unwrap();
    let expected = coef * (1.0 + (kl / 1e-4 - 1.0).clamp(-0.2, 0.2) * 12.0 / 100.0);
    assert!((trainer.credit().kl_coef().unwrap() - expected).abs() < 1e-12);
}

#[test]
fn gae_without_a_critic_and_a_critic_with_another_vocabulary_are_refused() {
    let config = config();
    let model = ModelDir::open(&config.model).unwrap();
    let mut trainer = Trainer::new(&config, load(&model, LoadOptions::default()).unwrap(), None).unwrap();
    let groups = support::groups(&config, 3);
    let failed = trainer.step(&StepBatch::new(&groups, &config, PolicyVersion(0)), 0).unwrap_err();
    assert!(failed.to_string().contains("critic"), "{failed}");
    let failed = Critic::open(&config, None, 513, LoadOptions::default(), Among::default()).unwrap_err();
    assert!(failed.to_string().contains("critic_model"), "{failed}");
}

fn train(run_dir: &RunDir, config: &TrainConfig) {
    let (sampler, learner) = memory::pair(4);
    let sampler = support::sampler(sampler, config.clone(), support::Manners::default());
    let outcome = run((run_dir, RunId::NONE), config, Device::Cpu, learner, &AtomicBool::new(false)).unwrap();
    assert_eq!(outcome, Outcome::Finished);
    sampler.join().unwrap();
}

#[test]
fn a_run_with_critic_and_adaptive_penalty_goes_on_to_the_same_bytes() {
    tch::set_num_threads(1);
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("prompts.jsonl"), "{\"prompt\": \"x\"}\n".repeat(10)).unwrap();
    let config = TrainConfig {
        dataset: root.path().join("prompts.jsonl").into(),
        use_kl_in_reward: true,
        beta: 0.2,
        kl_estimator: Some(KlEstimator::K1),
        kl_controller: KlController::Adaptive,
        critic_warmup_steps: 1,
        save_steps: 3,
        ..config()
    };
    let (whole, parts) = (RunDir::new(root.path().join("whole")), RunDir::new(root.path().join("parts")));
    train(&whole, &config);
    // The second half once more, from the checkpoint in the middle.
    let middle = whole.checkpoint(3);
    train(&parts, &TrainConfig { resume_from_checkpoint: Some(middle.to_str().unwrap().into()), ..config.clone() });
    for file in [
        "model.safetensors",
        "optimizer.safetensors",
        "critic/model.safetensors",
        "critic/optimizer.safetensors",
        "critic/config.json",
    ] {
        let bytes = |run: &RunDir| fs::read(run.checkpoint(6).join(file)).unwrap();
        assert!(bytes(&whole) == bytes(&parts), "{file} differs");
        assert!(!file.ends_with("tensors") || bytes(&whole) != fs::read(middle.join(file)).unwrap(), "{file} moved");
    }
    let state = |run: &RunDir| -> Value {
        serde_json::from_slice(&fs::read(run.checkpoint(6).join("trainer_state.json")).unwrap()).unwrap()
    };
    assert_eq!(state(&whole)["kl_coef"], state(&parts)["kl_coef"]);
    assert_ne!(state(&whole)["kl_coef"], 0.2);

    // The critic's folder is a model of its own.
    let critic = ModelDir::open(whole.checkpoint(6).join("critic")).unwrap();
    assert_eq!(critic.config().head, Head::Score { labels: 1 });
    load_scorer(&critic, LoadOptions::default()).unwrap();
    let records = metrics::read(&whole.metrics()).unwrap();
    for key in [
        "loss/value_avg",
        "val/clipfrac_avg",
        "critic/vf_explained_var",
        "critic/vpred_mean",
        "critic/lr",
        "critic/returns/mean",
        "critic/values/max",
        "critic/advantages/min",
        "actor/reward_kl_penalty",
        "actor/reward_kl_penalty_coeff",
    ] {
        assert!(records.iter().all(|record| record.values()[key].is_number()), "{key}");
    }
}
