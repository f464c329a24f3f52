//! The training step: what does and does not change a gradient.

use std::path::PathBuf;

use learner::{
    advantage::{CreditOptions, credit},
    model::{LoadOptions, Parameters, load},
    step::{Fate, StepBatch, TrainedStep, Trainer, record},
};
use shared::{
    FinishReason, ModelDir, Placed, PolicyVersion, RewardOutcome,
    config::{LossType, RewardFailure, TrainConfig},
    generation::testing,
    methods::{
        loss::{CLIP_HIGH, CLIP_REGION, PG_CLIP},
        metric::OFF_POLICY,
    },
    metrics,
};
use tch::{Kind, Tensor};
use tempfile::TempDir;

use crate::support;

fn config() -> TrainConfig {
    support::config("unused.jsonl".into())
}

/// One step in float64; the weights afterwards, as one vector, and the figures.
fn step(config: &TrainConfig, groups: &[Placed]) -> (Tensor, TrainedStep) {
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
    for completion in &mut aborted[0].scored.group.completions {
        testing::change(completion, |turn| turn.finish_reason = FinishReason::Aborted);
    }
    let mut stale = groups.clone();
    stale[0].scored.policy_version = PolicyVersion(1);
    // Whatever those completions say must not matter.
    let poison = |groups: &mut Vec<Placed>| {
        for completion in &mut groups[0].scored.group.completions {
            testing::change(completion, |turn| {
                turn.token_ids = vec![7; 3];
                turn.logprobs.resize(3, Default::default());
            });
            completion.rewards = vec![RewardOutcome::Score(1e9), RewardOutcome::Score(-1e9)];
        }
    };
    for excluded in [aborted, stale] {
        let mut poisoned = excluded.clone();
        poison(&mut poisoned);
        let (clean, stats) = step(&config, &excluded);
        assert_eq!(largest_difference(&clean, &step(&config, &poisoned).0), 0.0);
        assert!(largest_difference(&clean, &step(&config, &groups).0) > 0.0);
        assert_eq!(stats.inputs.old_logprobs.rows().filter(|logprobs| logprobs.is_empty()).count(), 4);
    }
}

/// Neither its other rewards nor its length matter: it is in no baseline, no loss and no divisor. With a critic or a KL
/// term, completions without an advantage have gradients too.
#[test]
fn a_completion_on_which_a_reward_failed_is_never_trained_on() {
    for loss_type in [LossType::Dapo, LossType::Grpo] {
        let config = TrainConfig { warmup_steps: 0, beta: 0.1, loss_type, ..config() };
        let mut groups = support::groups(&config, 3);
        groups[1].scored.group.completions[2].rewards =
            vec![RewardOutcome::Failed("no result within 10 s".into()), RewardOutcome::Score(0.7)];
        let (clean, _) = step(&config, &groups);
        let mut poisoned = groups.clone();
        let completion = &mut poisoned[1].scored.group.completions[2];
        testing::change(completion, |turn| {
            turn.token_ids = vec![7; 5];
            turn.logprobs = vec![turn.logprobs[0]; 5];
        });
        completion.rewards[1] = RewardOutcome::Score(-1e9);
        // The length of a row that is only looked at may change how others are packed, and so the last bits of a sum.
        assert!(largest_difference(&clean, &step(&config, &poisoned).0) < 1e-12, "{loss_type:?}");
        let batch = StepBatch::new(&poisoned, &config, PolicyVersion(3));
        assert!(batch.rows[6].valid && batch.rows[6].excluded && !batch.rows[6].trained);
        assert_eq!(batch.rewards.rewards[6], None);
        let mut aborted = groups.clone();
        testing::change(&mut aborted[1].scored.group.completions[2], |turn| turn.finish_reason = FinishReason::Aborted);
        assert!(largest_difference(&clean, &step(&config, &aborted).0) < 1e-12, "{loss_type:?}");
        // As if it had not been sampled.
        let one_update =
            TrainConfig { per_device_train_batch_size: 12, gradient_accumulation_steps: 1, ..config.clone() };
        let mut gone = groups.clone();
        gone[1].scored.group.completions.remove(2);
        let difference = largest_difference(&step(&one_update, &groups).0, &step(&one_update, &gone).0);
        assert!(difference < 1e-12, "{loss_type:?}: {difference}");
        let zero = TrainConfig { reward_failure: RewardFailure::Zero, ..config.clone() };
        assert!(largest_difference(&clean, &step(&zero, &groups).0) > 0.0, "{loss_type:?}");
        let (_, stats) = step(&config, &groups);
        assert_eq!(record(&batch, &stats.inputs, &stats.metrics).get(metrics::SAMPLE_REWARD_FAILED), Some(1.0));
    }
}

/// The first update of a step is at the old policy, where the penalty has no gradient; later ones are pulled back to
/// it.
#[test]
fn a_penalty_on_the_distance_from_the_old_policy_holds_a_step_back() {
    let plain = TrainConfig {
        warmup_steps: 0,
        learning_rate: 1e-2,
        num_iterations: 4,
        per_device_train_batch_size: 12,
        gradient_accumulation_steps: 1,
        ..config()
    };
    let of = |coef: f64, num_iterations: u32| {
        let config = TrainConfig { old_policy_kl_coef: coef, num_iterations, ..plain.clone() };
        let groups = support::groups(&config, 3);
        let (weights, step) = step(&config, &groups);
        let record = record(&StepBatch::new(&groups, &config, PolicyVersion(3)), &step.inputs, &step.metrics);
        (weights, record.get(metrics::ACTOR_OLD_POLICY_KL), record.get(metrics::ACTOR_OLD_POLICY_KL_COEFF))
    };
    assert!(largest_difference(&of(0.0, 1).0, &of(100.0, 1).0) < 1e-12);
    let (loose, tight) = (of(1e-9, 4), of(100.0, 4));
    assert_eq!((of(0.0, 4).1, tight.2), (None, Some(100.0)));
    assert!(tight.1.unwrap() > 0.0 && 2.0 * tight.1.unwrap() < loose.1.unwrap(), "{:?} and {:?}", tight.1, loose.1);
}

/// Two steps of one trainer: the weight of the second follows from the distance of the first, and a checkpoint holds
/// it.
#[test]
fn the_weight_of_the_penalty_is_carried_from_step_to_step() {
    let config =
        TrainConfig { warmup_steps: 0, old_policy_kl_coef: 0.5, old_policy_kl_target: Some(1e-12), ..config() };
    let trainer = || {
        let model = ModelDir::open(&config.model).unwrap();
        Trainer::new(&config, load(&model, LoadOptions::default()).unwrap(), None).unwrap()
    };
    let mut first = trainer();
    let groups = support::groups(&config, 3);
    let step = first.step(&StepBatch::new(&groups, &config, PolicyVersion(3)), 3).unwrap();
    assert!(step.metrics.old_policy.unwrap().0 > 1.5e-12);
    let carried = first.carried();
    assert_eq!(carried.old_policy_kl_coef, Some(1.0));
    let mut second = trainer();
    second.restore(&carried);
    assert_eq!(second.carried().old_policy_kl_coef, Some(1.0));
}

#[test]
fn truncated_completions_leave_the_loss_but_stay_in_the_baseline() {
    let mut config = TrainConfig { warmup_steps: 0, mask_truncated_completions: true, ..config() };
    let mut groups = support::groups(&config, 3);
    groups.truncate(1);
    config.generation_batch_size = Some(4);
    for (i, completion) in groups[0].scored.group.completions.iter_mut().enumerate() {
        let finish = if i == 0 { FinishReason::Length } else { FinishReason::Stop };
        testing::change(completion, |turn| turn.finish_reason = finish);
        completion.rewards = vec![RewardOutcome::Score(i as f64), RewardOutcome::NotApplicable];
    }
    let batch = StepBatch::new(&groups, &config, PolicyVersion(3));
    assert!(!batch.rows[0].trained && batch.rows[0].valid && batch.rows[1].trained);
    let advantages = credit(&CreditOptions::from_config(&config), &batch.samples(), None, None).advantages;
    // Mean and standard deviation of 0, 1, 2 and 3, the truncated one included.
    let expected = |i: usize| (i as f64 - 1.5) / ((5.0f64 / 3.0).sqrt() + 1e-4);
    assert!(advantages.rows().enumerate().all(|(i, a)| (a[0] - expected(i)).abs() < 1e-12), "{advantages:?}");

    let mut other = groups.clone();
    testing::change(&mut other[0].scored.group.completions[0], |turn| {
        turn.token_ids.iter_mut().for_each(|token| *token = (*token + 1) % 512);
    });
    assert_eq!(largest_difference(&step(&config, &groups).0, &step(&config, &other).0), 0.0);
    let all = TrainConfig { mask_truncated_completions: false, ..config.clone() };
    assert!(largest_difference(&step(&config, &groups).0, &step(&all, &groups).0) > 0.0);
}

/// One update on everything, without a correction for the mismatch: its loss and its gradient.
fn of_one_update(config: &TrainConfig, groups: &[Placed]) -> (f64, Tensor) {
    let config = TrainConfig {
        warmup_steps: 0,
        num_iterations: 1,
        per_device_train_batch_size: 12,
        gradient_accumulation_steps: 1,
        importance_sampling_correction: false,
        ..config.clone()
    };
    let model = ModelDir::open(&config.model).unwrap();
    let options = LoadOptions { kind: Kind::Double, ..LoadOptions::default() };
    let mut trainer = Trainer::new(&config, load(&model, options).unwrap(), None).unwrap();
    trainer.keep_first_gradient();
    let found = trainer.step(&StepBatch::new(groups, &config, PolicyVersion(3)), 3).unwrap().metrics;
    (found.losses[0], found.first_gradient.unwrap())
}

/// The mean over the tokens of the generation batch is over the tokens that the loss counts (TRL 1.16). So it is the
/// mean over a minibatch that is the whole batch, and the same as without the masked completions.
#[test]
fn masked_tokens_are_in_no_divisor() {
    let masking = TrainConfig { mask_truncated_completions: true, epsilon_high: Some(0.2), ..config() };
    let mut groups = support::groups(&masking, 3);
    for (i, completion) in groups.iter_mut().flat_map(|group| &mut group.scored.group.completions).enumerate() {
        let finish = if i % 3 == 0 { FinishReason::Length } else { FinishReason::Stop };
        testing::change(completion, |turn| turn.finish_reason = finish);
    }
    let of = |loss_type, mask_truncated_completions| {
        of_one_update(&TrainConfig { loss_type, mask_truncated_completions, ..masking.clone() }, &groups)
    };
    let (wanted, gradient) = of(LossType::Bnpo, true);
    let size = gradient.abs().max().double_value(&[]);
    let (found, own) = of(LossType::Dapo, true);
    assert!((found - wanted).abs() < 1e-12 && largest_difference(&own, &gradient) < 1e-12 * size, "{found} {wanted}");
    assert!((of(LossType::Dapo, false).0 - wanted).abs() > 1e-3, "nothing was masked");
    let tokens = |kept: &dyn Fn(usize) -> bool| -> usize {
        let all = groups.iter().flat_map(|group| &group.completions).enumerate();
        all.filter(|(i, _)| kept(*i)).map(|(_, completion)| completion.token_ids().len()).sum()
    };
    assert_eq!(StepBatch::new(&groups, &masking, PolicyVersion(3)).trained_tokens(), tokens(&|i| i % 3 != 0));
    let all = TrainConfig { mask_truncated_completions: false, ..masking };
    assert_eq!(StepBatch::new(&groups, &all, PolicyVersion(3)).trained_tokens(), tokens(&|_| true));
}

/// An incomplete last update has its rows' share of the batch: 9 and 3 of 12 rows weigh 3/4 and 1/4 in the mean over
/// the tokens of the batch (TRL), and together they make the loss of the batch.
#[test]
fn updates_of_different_sizes_have_the_shares_of_their_rows() {
    let uneven = TrainConfig {
        warmup_steps: 0,
        learning_rate: 0.0,
        num_iterations: 1,
        loss_type: LossType::Dapo,
        importance_sampling_correction: false,
        per_device_train_batch_size: 3,
        gradient_accumulation_steps: 3,
        ..config()
    };
    let groups = support::groups(&uneven, 3);
    let losses = step(&uneven, &groups).1.metrics.losses;
    let (whole, _) = of_one_update(&uneven, &groups);
    assert_eq!(losses.len(), 2);
    let together = 0.75 * losses[0] + 0.25 * losses[1];
    assert!((together - whole).abs() < 1e-12 && whole.abs() > 1e-6, "{losses:?} make {together}, not {whole}");
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
    assert!(stats.metrics.losses[0].abs() < 1e-12 && stats.metrics.grad_norms[0] > 1e-3, "{stats:?}");
    assert_eq!(stats.metrics.measures.mean(CLIP_REGION), Some(0.0));
    let (_, stats) = step(&TrainConfig { num_iterations: 3, learning_rate: 1e-2, ..config }, &groups);
    assert!(stats.metrics.measures.mean(CLIP_REGION) > Some(0.0));
}

#[test]
fn a_loss_that_is_not_finite_skips_the_update() {
    let config = TrainConfig { warmup_steps: 0, ..config() };
    let model = ModelDir::open(&config.model).unwrap();
    let policy = load(&model, LoadOptions::default()).unwrap();
    let name = "model.norm.weight";
    let _ = policy.weights().trained().slice_of(policy.weights().trained().flat(), name).unwrap().fill_(f64::NAN);
    let mut trainer = Trainer::new(&config, policy, None).unwrap();
    let before = trainer.policy().parameters().read_f32("model.embed_tokens.weight").unwrap();
    let groups = support::groups(&config, 3);
    let stats = trainer.step(&StepBatch::new(&groups, &config, PolicyVersion(3)), 3).unwrap();
    assert_eq!(stats.metrics.skipped_updates, config.updates_per_step());
    assert!((0..12).all(|row| stats.metrics.fates.of(row) == Some(Fate::UpdateSkipped)), "{:?}", stats.metrics.fates);
    let (_folder, file) = saved(&trainer);
    let state = Tensor::read_safetensors(file).unwrap();
    let (_, updates) = state.iter().find(|(name, _)| name == "step").unwrap();
    assert_eq!(updates.int64_value(&[0]), 0);
    assert_eq!(trainer.policy().parameters().read_f32("model.embed_tokens.weight").unwrap(), before);
}

/// A minibatch whose mean ratio is 6 contributes nothing, and is counted; the others are untouched.
#[test]
fn a_minibatch_with_a_large_ratio_is_left_out() {
    let config = TrainConfig {
        warmup_steps: 0,
        decoupled_objective: false,
        num_iterations: 1,
        per_device_train_batch_size: 6,
        gradient_accumulation_steps: 2,
        early_stop_imp_ratio: Some(5.0),
        ..config()
    };
    // Log-probs of the sampler that make every ratio of a row 1, or 6.
    let mut groups = support::groups(&config, 3);
    let (_, stats) = step(&config, &groups);
    let mut set_ratios = |ratio: &dyn Fn(usize) -> f64| {
        for (row, completion) in groups.iter_mut().flat_map(|group| &mut group.scored.group.completions).enumerate() {
            testing::change(completion, |turn| {
                for (token, old) in turn.logprobs.iter_mut().zip(&stats.inputs.old_logprobs[row]) {
                    token.logprob_at_temperature = (old - ratio(row).ln()) as f32;
                }
            });
        }
        step(&config, &groups).1.metrics
    };
    let usual = set_ratios(&|_| 1.0);
    assert!(usual.early_stopped == 0 && usual.grad_norms[0] > 1e-3);
    let stopped = set_ratios(&|_| 6.0);
    assert_eq!((stopped.early_stopped, stopped.grad_norms[0], stopped.losses[0]), (2, 0.0, 0.0));
    let one = set_ratios(&|row| if row == 0 { 1e4 } else { 1.0 });
    assert_eq!(one.early_stopped, 1, "only the minibatch of that row");
    assert!(one.grad_norms[0] > 1e-3 && one.grad_norms[0] < 1e2, "{}", one.grad_norms[0]);
}

/// A completion that the policy has moved away from since it was sampled is left out, also where each batch is passed
/// over once, so that the learner's own ratio is 1.
#[test]
fn completions_of_an_older_policy_are_masked_in_a_single_pass() {
    let config = TrainConfig {
        warmup_steps: 0,
        num_iterations: 1,
        per_device_train_batch_size: 12,
        gradient_accumulation_steps: 1,
        importance_sampling_correction: false,
        off_policy_mask_threshold: Some(0.5),
        ..config()
    };
    let mut groups = support::groups(&config, 3);
    let (_, known) = step(&config, &groups);
    let counted = || known.inputs.advantages.values().iter().filter(|&&advantage| advantage != 0.0);
    let negative = counted().filter(|&&advantage| advantage < 0.0).count() as f64 / counted().count() as f64;
    // `lost` is the log-prob that the tokens have lost since they were drawn; NaN = the sampler gave none.
    let mut masked = |lost: f64| {
        for (row, completion) in groups.iter_mut().flat_map(|group| &mut group.scored.group.completions).enumerate() {
            testing::change(completion, |turn| {
                for (token, old) in turn.logprobs.iter_mut().zip(&known.inputs.old_logprobs[row]) {
                    token.logprob_at_temperature = (old + lost) as f32;
                }
            });
        }
        let (weights, stats) = step(&config, &groups);
        (weights, stats.metrics.measures.mean(OFF_POLICY).unwrap())
    };
    let (usual, share) = masked(0.0);
    assert_eq!(share, 0.0);
    assert_eq!((masked(0.4).1, masked(-1.0).1, masked(f64::NAN).1), (0.0, 0.0, 0.0));
    let (stale, share) = masked(0.6);
    assert!((share - negative).abs() < 1e-12 && share > 0.0, "{share} of {negative}");
    assert!(largest_difference(&usual, &stale) > 0.0);
}

/// With `sync_ref_model`, every so many steps the reference becomes a mixture of itself and the policy.
#[test]
fn the_reference_follows_the_policy() {
    let config = TrainConfig {
        beta: 0.1,
        sync_ref_model: true,
        ref_model_mixup_alpha: 0.6,
        ref_model_sync_steps: 2,
        learning_rate: 1e-2,
        warmup_steps: 0,
        ..config()
    };
    let model = ModelDir::open(&config.model).unwrap();
    let options = LoadOptions { kind: Kind::Double, ..LoadOptions::default() };
    let reference = load(&model, LoadOptions { trainable: false, ..options }).unwrap();
    let mut trainer = Trainer::new(&config, load(&model, options).unwrap(), Some(reference)).unwrap();
    let flat = |parameters: &Parameters| parameters.flat().detach().copy();
    let start = flat(trainer.policy().parameters());
    let groups = support::groups(&config, 3);
    for step in 0..2 {
        let before = flat(trainer.moving_reference().unwrap().weights().trained());
        assert_eq!(largest_difference(&before, &start), 0.0);
        trainer.step(&StepBatch::new(&groups, &config, PolicyVersion(3)), step).unwrap();
    }
    let expected = &start * 0.4 + flat(trainer.policy().parameters()) * 0.6;
    assert!(largest_difference(&flat(trainer.moving_reference().unwrap().weights().trained()), &expected) < 1e-12);
    assert!(largest_difference(&expected, &start) > 1e-3);
}

/// The adaptive coefficient follows the entropy of all completions, with or without a gradient. So the bonus comes even
/// without any contrast, and the coefficient does not choose the entropies that are measured.
#[test]
fn the_adaptive_entropy_coefficient_is_led_by_every_completion() {
    let config = TrainConfig {
        warmup_steps: 0,
        learning_rate: 0.0,
        use_adaptive_entropy: true,
        entropy_coef: 0.0,
        entropy_coef_delta: 0.01,
        entropy_coef_max: 1.0,
        entropy_target: 100.0,
        ..config()
    };
    let run = |config: &TrainConfig, groups: &[Placed]| {
        let policy = load(&ModelDir::open(&config.model).unwrap(), LoadOptions::default()).unwrap();
        let mut trainer = Trainer::new(config, policy, None).unwrap();
        let stats = trainer.step(&StepBatch::new(groups, config, PolicyVersion(3)), 3).unwrap();
        let state = serde_json::to_value(trainer.carried().entropy.unwrap()).unwrap();
        (stats, state["last_entropy"].as_f64().unwrap())
    };
    let mut groups = support::groups(&config, 3);
    for completion in groups.iter_mut().skip(1).flat_map(|group| &mut group.scored.group.completions) {
        completion.rewards = vec![RewardOutcome::Score(1.0), RewardOutcome::NotApplicable];
    }
    let (with, entropy) = run(&config, &groups);
    let (without, unaided) = run(&TrainConfig { entropy_coef_max: 0.0, ..config.clone() }, &groups);
    assert_eq!((with.metrics.entropy_coef, without.metrics.entropy_coef), (Some(0.04), Some(0.0)));
    assert!((entropy - unaided).abs() < 1e-5, "{entropy} with the bonus, {unaided} without");
    assert!((with.metrics.entropy.get() - without.metrics.entropy.get()).abs() < 1e-5);

    groups[0].scored.group.completions = groups[1].completions.clone();
    assert_eq!(run(&config, &groups).0.metrics.entropy_coef, Some(0.04), "no contrast at all");
}

/// The optimiser's state in a file.
fn saved(trainer: &Trainer) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("optimizer.safetensors");
    trainer.policy().save_state(Some(&file)).unwrap();
    (folder, file)
}

#[test]
fn an_optimiser_state_is_restored_as_it_was() {
    let config = config();
    let trainer = || {
        let policy = load(&ModelDir::open(&config.model).unwrap(), LoadOptions::default()).unwrap();
        Trainer::new(&config, policy, None).unwrap()
    };
    let (mut first, mut second) = (trainer(), trainer());
    let groups = support::groups(&config, 3);
    first.step(&StepBatch::new(&groups, &config, PolicyVersion(3)), 3).unwrap();
    let (_folder, file) = saved(&first);
    second.policy_mut().restore(4, Some(&file)).unwrap();
    assert_eq!(second.policy().updates(), 4);
    let (_folder, again) = saved(&second);
    let [file, again] = [file, again].map(|path| std::fs::read(path).unwrap());
    assert!(file == again && file.len() > 8 * first.policy().parameters().flat().numel());
}

#[test]
fn a_damaged_optimiser_state_is_refused() {
    let config = config();
    let policy = load(&ModelDir::open(&config.model).unwrap(), LoadOptions::default()).unwrap();
    let mut trainer = Trainer::new(&config, policy, None).unwrap();
    let (_folder, file) = saved(&trainer);
    let state = Tensor::read_safetensors(&file).unwrap();
    let mut refusal = |change: &dyn Fn(&str, &Tensor) -> Option<Tensor>| {
        let state: Vec<_> = state.iter().filter_map(|(name, of)| Some((name, change(name, of)?))).collect();
        Tensor::write_safetensors(&state, &file).unwrap();
        trainer.policy_mut().restore(0, Some(&file)).map_err(|error| error.to_string())
    };
    for step in [Vec::new(), vec![-1i64]] {
        let step = Tensor::from_slice(&step);
        let error = refusal(&|name, of| Some(if name == "step" { step.shallow_clone() } else { of.shallow_clone() }));
        assert!(error.clone().unwrap_err().contains("`step`"), "{error:?}");
    }
    let norm = "exp_avg_sq.model.norm.weight";
    let error = refusal(&|name, of| (name != norm).then(|| of.shallow_clone())).unwrap_err();
    assert!(error.contains(norm), "{error}");
    let error = refusal(&|name, of| Some(if name == norm { of.narrow(0, 0, 3) } else { of.shallow_clone() }));
    assert!(error.clone().unwrap_err().contains(norm), "{error:?}");
    refusal(&|_, of| Some(of.shallow_clone())).unwrap();
    std::fs::write(&file, "no tensors").unwrap();
    let error = trainer.policy_mut().restore(0, Some(&file)).unwrap_err().to_string();
    assert!(error.contains("optimizer.safetensors"), "{error}");
}

/// A product beyond 32 bits is one update of everything.
#[test]
fn an_update_may_be_larger_than_any_batch() {
    let whole = TrainConfig { warmup_steps: 0, per_device_train_batch_size: 12, num_iterations: 1, ..config() };
    let huge = TrainConfig { per_device_train_batch_size: 1 << 16, gradient_accumulation_steps: 1 << 16, ..whole };
    let (_, stats) = step(&huge, &support::groups(&huge, 3));
    assert_eq!((stats.metrics.losses.len() as u64, huge.updates_per_step()), (1, 1));
}

/// Clipping is a share of all trained tokens, also of those whose advantage is 0.
#[test]
fn clip_fractions_count_completions_without_contrast() {
    for (loss_type, metric) in [(LossType::Dapo, CLIP_HIGH), (LossType::Vanilla, PG_CLIP)] {
        let config = TrainConfig {
            warmup_steps: 0,
            num_iterations: 1,
            decoupled_objective: false,
            loss_type,
            mask_truncated_completions: false,
            ..config()
        };
        let mut groups = support::groups(&config, 3);
        let (_, stats) = step(&config, &groups);
        for (row, completion) in groups.iter_mut().flat_map(|group| &mut group.scored.group.completions).enumerate() {
            let contrast = row < 4;
            let score = if contrast { row as f64 } else { 1.0 };
            completion.rewards = vec![RewardOutcome::Score(score), RewardOutcome::NotApplicable];
            // Ratios of 2 to the sampler: clipped where the advantage is above 0.
            testing::change(completion, |turn| {
                for (token, old) in turn.logprobs.iter_mut().zip(&stats.inputs.old_logprobs[row]) {
                    token.logprob_at_temperature = (old - 2f64.ln()) as f32;
                }
            });
        }
        let tokens = |rows: &[usize]| -> f64 {
            let all: Vec<_> = groups.iter().flat_map(|group| &group.completions).collect();
            rows.iter().map(|&row| all[row].token_ids().len() as f64).sum()
        };
        let expected = tokens(&[2, 3]) / tokens(&(0..12).collect::<Vec<_>>());
        let found =
            step(&TrainConfig { learning_rate: 0.0, ..config }, &groups).1.metrics.measures.mean(metric).unwrap();
        assert!((found - expected).abs() < 1e-12, "{loss_type:?}: {found} is not {expected}");
    }
}

/// The entropy bonus has a gradient: with nothing else in the loss, a step raises the entropy.
#[test]
fn the_entropy_bonus_raises_the_entropy() {
    let config = TrainConfig { warmup_steps: 0, num_iterations: 1, learning_rate: 1e-3, ..config() };
    let mut groups = support::groups(&config, 3);
    for completion in groups.iter_mut().flat_map(|group| &mut group.scored.group.completions) {
        completion.rewards = vec![RewardOutcome::Score(1.0), RewardOutcome::NotApplicable];
    }
    let entropies = |entropy_coef: f64| {
        let config = TrainConfig { entropy_coef, ..config.clone() };
        let model = ModelDir::open(&config.model).unwrap();
        let mut trainer = Trainer::new(&config, load(&model, LoadOptions::default()).unwrap(), None).unwrap();
        let batch = StepBatch::new(&groups, &config, PolicyVersion(3));
        let steps: Vec<f64> = (0..3).map(|step| trainer.step(&batch, step).unwrap().metrics.entropy.get()).collect();
        (steps[0], steps[2])
    };
    let (before, after) = entropies(0.0);
    assert!((before - after).abs() < 1e-5, "without contrast and bonus nothing moves");
    let (before, after) = entropies(0.5);
    assert!(after > before + 1e-3, "{before} {after}");
}
