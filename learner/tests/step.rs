//! The training step: what does and does not change a gradient.

mod support;

use learner::{
    model::{LoadOptions, load},
    step::{StepBatch, StepStats, Trainer},
};
use shared::{
    FinishReason, ModelDir, PolicyVersion, RewardOutcome, RolloutGroup,
    config::{LossType, TrainConfig},
};
use tch::{Kind, Tensor};

fn config() -> TrainConfig {
    support::config("unused.jsonl".into())
}

/// One step in float64; the weights afterwards, as one vector, and the figures.
fn step(config: &TrainConfig, groups: &[RolloutGroup]) -> (Tensor, StepStats) {
    tch::set_num_threads(1);
    let model = ModelDir::open(&config.model).unwrap();
    let options = LoadOptions { kind: Kind::Double, ..LoadOptions::default() };
    let reference = (config.beta != 0.0).then(|| load(&model, LoadOptions { trainable: false, ..options }).unwrap());
    let mut trainer = Trainer::new(config, load(&model, options).unwrap(), reference).unwrap();
    let batch = StepBatch::new(groups, config, PolicyVersion(3));
    let stats = trainer.step(&batch, 3).unwrap();
    (trainer.policy().parameters().flat().copy(), stats)
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).abs().max().double_value(&[])
}

#[test]
fn aborted_and_stale_completions_are_never_trained_on() {
    let config = TrainConfig { warmup_steps: 0, max_staleness: 1, ..config() };
    let groups = support::groups(&config, 3);
    let mut aborted = groups.clone();
    for completion in &mut aborted[0].completions {
        completion.finish_reason = FinishReason::Aborted;
    }
    let mut stale = groups.clone();
    stale[0].policy_version = PolicyVersion(1);
    // Whatever those completions say must not matter.
    let poison = |groups: &mut Vec<RolloutGroup>| {
        for completion in &mut groups[0].completions {
            completion.token_ids = vec![7; 3];
            completion.logprobs.truncate(3);
            completion.logprobs.resize(3, Default::default());
            completion.rewards = vec![RewardOutcome::Score(1e9), RewardOutcome::Score(-1e9)];
        }
    };
    for excluded in [aborted, stale] {
        let mut poisoned = excluded.clone();
        poison(&mut poisoned);
        let (clean, stats) = step(&config, &excluded);
        assert_eq!(largest_difference(&clean, &step(&config, &poisoned).0), 0.0);
        assert!(largest_difference(&clean, &step(&config, &groups).0) > 0.0);
        assert_eq!(stats.old_logprobs.iter().filter(|logprobs| logprobs.is_empty()).count(), 4);
    }
}

#[test]
fn truncated_completions_leave_the_loss_but_stay_in_the_baseline() {
    let mut config = TrainConfig { warmup_steps: 0, mask_truncated_completions: true, ..config() };
    let mut groups = support::groups(&config, 3);
    groups.truncate(1);
    config.generation_batch_size = Some(4);
    for (i, completion) in groups[0].completions.iter_mut().enumerate() {
        completion.finish_reason = if i == 0 { FinishReason::Length } else { FinishReason::Stop };
        completion.rewards = vec![RewardOutcome::Score(i as f64), RewardOutcome::NotApplicable];
    }
    let batch = StepBatch::new(&groups, &config, PolicyVersion(3));
    assert!(!batch.rows[0].trained && batch.rows[0].valid && batch.rows[1].trained);
    let mean = 1.5;
    assert!(batch.advantages.advantages.iter().enumerate().all(|(i, a)| a.signum() == (i as f64 - mean).signum()));

    let all = TrainConfig { mask_truncated_completions: false, ..config.clone() };
    assert!(largest_difference(&step(&config, &groups).0, &step(&all, &groups).0) > 0.0);
}

#[test]
fn the_first_pass_is_on_policy_and_clips_nothing() {
    let config =
        TrainConfig { warmup_steps: 0, per_device_train_batch_size: 12, gradient_accumulation_steps: 1, ..config() };
    let groups = support::groups(&config, 3);
    let once = TrainConfig {
        num_iterations: 1,
        loss_type: LossType::Grpo,
        importance_sampling_correction: false,
        ..config.clone()
    };
    let (_, stats) = step(&once, &groups);
    // Advantages of a group sum to 0, and every completion weighs the same: the loss vanishes, its gradient does not.
    assert!(stats.losses[0].abs() < 1e-12 && stats.grad_norms[0] > 1e-3, "{stats:?}");
    assert_eq!(stats.measures.clipped(), Some(0.0));
    let (_, stats) = step(&TrainConfig { num_iterations: 3, learning_rate: 1e-2, ..config }, &groups);
    assert!(stats.measures.clipped() > Some(0.0));
}

#[test]
fn a_loss_that_is_not_finite_skips_the_update() {
    let config = TrainConfig { warmup_steps: 0, ..config() };
    let model = ModelDir::open(&config.model).unwrap();
    let policy = load(&model, LoadOptions::default()).unwrap();
    let name = "model.norm.weight";
    let _ = policy.parameters().slice_of(policy.parameters().flat(), name).unwrap().fill_(f64::NAN);
    let mut trainer = Trainer::new(&config, policy, None).unwrap();
    let before = trainer.policy().parameters().read_f32("model.embed_tokens.weight").unwrap();
    let groups = support::groups(&config, 3);
    let stats = trainer.step(&StepBatch::new(&groups, &config, PolicyVersion(3)), 3).unwrap();
    assert_eq!(stats.skipped_updates, config.updates_per_step());
    assert_eq!(trainer.optimizer().step_count(), 0);
    assert_eq!(trainer.policy().parameters().read_f32("model.embed_tokens.weight").unwrap(), before);
}
