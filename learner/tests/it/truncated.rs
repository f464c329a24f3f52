//! Truncated sampling end to end: what the sampler drew, at the log-probs that the learner gives it.

use std::path::Path;

use learner::{
    model::{LoadOptions, load},
    step::{StepBatch, TrainedStep, Trainer, record},
};
use serde_json::{Value, json};
use shared::{
    Episode, FinishReason, ModelDir, Placed, PolicyVersion, RewardOutcome, TokenLogprob,
    config::{ScaleRewards, TrainConfig},
};

use crate::support;

const PROMPTS: u32 = 6;

/// Completions of stories260K, as `rollout generate` writes them.
fn generate(model: &Path, folder: &Path, config: &TrainConfig) -> Vec<Value> {
    let (prompts, output) = (folder.join("prompts.jsonl"), folder.join("completions.jsonl"));
    let lines: Vec<String> = (0..PROMPTS).map(|i| json!({"prompt_ids": [1, 403 + i]}).to_string()).collect();
    std::fs::write(&prompts, lines.join("\n")).unwrap();
    let mut args: Vec<String> = ["generate", "--threads", "1"].map(String::from).into();
    let mut flag = |name: &str, value: String| args.extend([format!("--{name}"), value]);
    flag("model", model.display().to_string());
    flag("prompts", prompts.display().to_string());
    flag("output", output.display().to_string());
    flag("num-generations", config.num_generations.to_string());
    flag("temperature", config.temperature.to_string());
    flag("top-p", config.top_p.to_string());
    flag("top-k", config.top_k.to_string());
    if let Some(min_p) = config.min_p {
        flag("min-p", min_p.to_string());
    }
    flag("max-completion-length", config.max_completion_length.to_string());
    let _ = harness::cli::run("rollout", args).success();
    let text = std::fs::read_to_string(output).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The groups that would have crossed the channel; the reward is a completion's number.
fn groups(rows: &[Value], config: &TrainConfig) -> Vec<Placed> {
    let list = |row: &Value, key: &str| -> Vec<f64> {
        row[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let ids = |row: &Value, key: &str| -> Vec<u32> { list(row, key).iter().map(|&id| id as u32).collect() };
    let mut groups = support::groups(config, 0);
    for (group, rows) in groups.iter_mut().zip(rows.chunks(config.num_generations as usize)) {
        group.scored.group.prompt_ids = ids(&rows[0], "prompt_ids");
        for (i, (completion, row)) in group.scored.group.completions.iter_mut().zip(rows).enumerate() {
            let counts = ids(row, "kept_counts");
            let token = |(logprob, kept_count): (f64, u32)| TokenLogprob {
                logprob_at_temperature: logprob as f32,
                kept_count,
                ..TokenLogprob::default()
            };
            let logprobs = list(row, "sampling_logprobs").into_iter().zip(counts).map(token).collect();
            let versions = vec![(0, PolicyVersion(0))];
            completion.episode = Episode::of_one_turn(ids(row, "token_ids"), logprobs, versions, FinishReason::Stop);
            completion.rewards = vec![RewardOutcome::Score(i as f64), RewardOutcome::NotApplicable];
        }
    }
    groups
}

fn step(config: &TrainConfig, groups: &[Placed]) -> TrainedStep {
    tch::set_num_threads(1);
    let model = ModelDir::open(&config.model).unwrap();
    let mut trainer = Trainer::new(config, load(&model, LoadOptions::default()).unwrap(), None).unwrap();
    trainer.step(&StepBatch::new(groups, config, PolicyVersion(0)), 0).unwrap()
}

/// On tokens whose supports have the same size on both sides, the ratio to the sampler is 1 up to the rounding of two
/// runtimes in single precision (each alone is up to 1e-5 from double precision on this model); the others are counted.
#[test]
fn ratios_to_a_truncating_sampler_are_one() {
    let Some(data) = harness::data_dir("ratios_to_a_truncating_sampler_are_one") else { return };
    let base = TrainConfig {
        model: data.join("stories260K"),
        num_generations: 4,
        generation_batch_size: Some(PROMPTS * 4),
        per_device_train_batch_size: 8,
        gradient_accumulation_steps: 3,
        max_completion_length: 60,
        micro_batch_tokens: Some(300),
        scale_rewards: ScaleRewards::None,
        warmup_steps: 0,
        ..support::config("unused.jsonl".into())
    };
    for (temperature, top_k, top_p, min_p) in [(0.7, 0, 0.9, None), (0.7, 20, 0.95, Some(0.02)), (1.0, 0, 0.9, None)] {
        let config = TrainConfig { temperature, top_k, top_p, min_p, ..base.clone() };
        let folder = tempfile::tempdir().unwrap();
        let groups = groups(&generate(&config.model, folder.path(), &config), &config);
        let stats = step(&config, &groups);
        let (mut differing, mut distances) = (0u32, Vec::new());
        for (row, completion) in groups.iter().flat_map(|group| &group.completions).enumerate() {
            let sizes = &stats.metrics.support_sizes.as_ref().unwrap()[row];
            assert_eq!(sizes.len(), completion.token_ids().len());
            for (t, token) in completion.episode.logprobs().enumerate() {
                if sizes[t] == token.kept_count {
                    distances.push((stats.inputs.old_logprobs[row][t] - f64::from(token.sampling_logprob())).abs());
                } else {
                    differing += 1;
                }
            }
        }
        distances.sort_by(f64::total_cmp);
        let (tokens, largest) = (distances.len(), distances[distances.len() - 1]);
        eprintln!(
            "T {temperature}, top_p {top_p}: {tokens} tokens agree, {differing} do not, largest distance {largest:.2e}"
        );
        assert!(tokens > 500 && differing as usize * 100 < tokens, "{differing} of {tokens} supports differ");
        assert!(distances[tokens * 99 / 100] < 1e-5, "{}", distances[tokens * 99 / 100]);
        assert!(largest < 2e-5, "a log-prob differs by {largest}");
        let metrics = record(&StepBatch::new(&groups, &config, PolicyVersion(0)), &stats.inputs, &stats.metrics);
        assert_eq!(metrics.get(shared::metrics::SAMPLING_SUPPORT_MISMATCH), Some(f64::from(differing)));
        assert!(metrics.get(shared::metrics::MISMATCH_KL).unwrap() < 1e-4);
        // Without the supports the learner's log-probs would be of another distribution.
        let full = step(&TrainConfig { top_k: 0, top_p: 1.0, min_p: None, ..config }, &groups);
        let apart = (full.inputs.old_logprobs[0][0] - stats.inputs.old_logprobs[0][0]).abs();
        assert!(full.metrics.support_sizes.is_none() && apart > 1e-3, "{apart}");
    }
}

/// The learner's own ratios, from log-probs of three passes over the same supports, are 1 while the policy stands
/// still.
#[test]
fn ratios_over_fixed_supports_are_one() {
    let config = TrainConfig {
        top_p: 0.9,
        temperature: 0.7,
        learning_rate: 0.0,
        num_iterations: 3,
        importance_sampling_correction: false,
        warmup_steps: 0,
        ..support::config("unused.jsonl".into())
    };
    let groups = support::groups(&config, 3);
    let stats = step(&config, &groups);
    assert!(stats.metrics.support_sizes.as_ref().unwrap().values().iter().all(|&count| count < 512));
    let (least, most) = stats.metrics.measures.range(shared::methods::metric::RATIO).unwrap();
    assert!((least - 1.0).abs() < 1e-5 && (most - 1.0).abs() < 1e-5, "{least} {most}");
}
