//! On a real pretrained model: the sampler reproduces its reference, sampler and learner agree, and a run of the pair
//! raises its reward.

use std::{fs, path::Path, process::Command};

use harness::{
    binary, cli, data_dir,
    training::{Training, json_lines, train},
};
use serde_json::{Value, json};

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number")).collect()
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn write_lines(path: &Path, rows: impl IntoIterator<Item = Value>) {
    fs::write(path, rows.into_iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
}

#[test]
fn greedy_completions_equal_the_reference_and_the_learner_agrees() {
    let Some(data) = data_dir("greedy_completions_equal_the_reference_and_the_learner_agrees") else { return };
    let model = data.join("stories260K");
    let text = fs::read_to_string(model.join("reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&text).unwrap();
    let cases = reference["cases"].as_array().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [prompts, completions, logprobs] = ["prompts", "completions", "logprobs"].map(|n| dir.path().join(n));
    write_lines(&prompts, cases.iter().map(|case| json!({"prompt": case["prompt"]})));

    let mut generate: Vec<_> =
        ["generate", "--temperature", "0", "--max-completion-length", "200"].map(Path::new).into();
    generate.extend([Path::new("--num-generations"), Path::new("1"), Path::new("--model"), &model]);
    generate.extend([Path::new("--prompts"), &prompts, Path::new("--output"), &completions]);
    let _ = cli::run("rollout", generate).success();
    let score = [Path::new("logprobs"), "--model".as_ref(), &model, "--input".as_ref(), &completions];
    let _ = cli::run("learner", score.into_iter().chain(["--output".as_ref(), logprobs.as_path()])).success();

    let (sampled, scored) = (json_lines(&completions), json_lines(&logprobs));
    assert_eq!((sampled.len(), scored.len()), (cases.len(), cases.len()));
    for ((case, sampled), scored) in cases.iter().zip(&sampled).zip(&scored) {
        assert_eq!(sampled["prompt_ids"], case["prompt_ids"]);
        let expected = numbers(&case["continuation_ids"]);
        assert_eq!(numbers(&sampled["token_ids"])[..expected.len()], expected, "{}", case["prompt"]);
        let (engine, learner) = (numbers(&sampled["logprobs"]), numbers(&scored["logprobs"]));
        let to_reference = largest_difference(&engine[..expected.len()], &numbers(&case["logprobs"]));
        assert!(to_reference < 1e-4, "{}: {to_reference}", case["prompt"]);
        let to_learner = largest_difference(&engine, &learner);
        assert!(to_learner < 1e-4, "{}: {to_learner}", case["prompt"]);
    }
}

/// Thirty steps on the pretrained model with more `options`, a learning rate among them, in which the reward must rise.
fn thirty_steps(data: &Path, options: &str) -> Training {
    let dir = tempfile::tempdir().unwrap();
    let openings = ["Once upon a time", "One day", "Tom and Lily", "The little dog", "In the park", "A boy named Tim"];
    let dataset = dir.path().join("openings.jsonl");
    write_lines(&dataset, openings.map(|opening| json!({"prompt": opening})));
    let config = format!(
        "model = {:?}\ndataset = {dataset:?}\nreward_funcs = [\"sentence_share:word=she\"]\nmax_steps = 30\n\
         num_generations = 8\ngeneration_batch_size = 32\nper_device_train_batch_size = 32\n\
         max_completion_length = 64\nlr_scheduler_type = \"constant\"\nseed = 7\n\
         {options}",
        data.join("stories260K")
    );
    let training = train(dir.path(), "run", &config);
    assert_eq!(training.metrics.len(), 30);

    let reward = training.curve("reward");
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&reward[..5]), mean(&reward[25..]));
    assert!(last > first + 0.2, "reward {first:.3} before, {last:.3} after: {reward:?}");

    let mut compare = Command::new(binary("tandem"));
    compare.arg("compare").arg(data.join("stories260K")).arg(&training.run).arg("--dataset").arg(&dataset);
    compare.args(["--reward-funcs", "sentence_share:word=she", "--num-generations", "16"]);
    compare.args(["--max-completion-length", "64", "--seed", "8"]).env("TANDEM_CACHE_DIR", dir.path().join("cache"));
    let answer = cli::finish(compare).success().stdout;
    let kept = json_lines(&training.run.join("comparisons.jsonl"));
    assert!(kept[0]["sentences"][0].as_str().is_some_and(|said| said.starts_with("accuracy: ")), "{kept:?}");
    let answer: Value = serde_json::from_str(answer.lines().last().unwrap()).unwrap();
    assert_eq!(answer["reward"]["verdict"], "better", "{answer}");
    training
}

fn largest(training: &Training, metric: &str) -> f64 {
    training.curve(metric).into_iter().fold(0.0, f64::max)
}

#[test]
fn thirty_steps_raise_the_reward() {
    let Some(data) = data_dir("thirty_steps_raise_the_reward") else { return };
    let training = thirty_steps(&data, "learning_rate = 1e-3\n");
    let mismatch = largest(&training, "mismatch_kl");
    assert!(mismatch < 1e-9, "mismatch_kl {mismatch:e}");
    let difference = largest(&training, "sampling/sampling_logp_difference/max");
    assert!(difference < 1e-4, "largest log-prob difference {difference:e}");
}

/// Completions of the rounded model teach as well, and the rounding shows as a mismatch instead of going unnoticed.
#[test]
fn thirty_steps_with_bytes_raise_the_reward() {
    let Some(data) = data_dir("thirty_steps_with_bytes_raise_the_reward") else { return };
    let training = thirty_steps(&data, "learning_rate = 1e-3\nrollout_dtype = \"int8\"\n");
    let mismatch = training.curve("mismatch_kl");
    assert!(mismatch.iter().all(|&kl| kl > 0.0 && kl < 0.02), "mismatch_kl {mismatch:?}");
    let entropy = training.curve("entropy");
    // Where the policy hardly draws any more, there is nothing left to round.
    let draws = mismatch.iter().zip(&entropy).filter(|(_, entropy)| **entropy > 0.02);
    assert!(draws.clone().count() >= 15 && draws.into_iter().all(|(&kl, _)| kl > 1e-6), "{mismatch:?} {entropy:?}");
}

/// An adapter learns at a higher rate, and the sampler, which merges it, agrees with the learner, which does not.
#[test]
fn thirty_steps_of_an_adapter_raise_the_reward() {
    let Some(data) = data_dir("thirty_steps_of_an_adapter_raise_the_reward") else { return };
    let training = thirty_steps(&data, "learning_rate = 1e-2\nuse_peft = true\n");
    let mismatch = largest(&training, "mismatch_kl");
    assert!(mismatch < 1e-9, "mismatch_kl {mismatch:e}");
}

/// Layers in bfloat16 on one side alone: the sampler has the rounded weights, and what it rounds less shows as a
/// mismatch.
#[test]
fn thirty_steps_in_bfloat16_raise_the_reward() {
    let Some(data) = data_dir("thirty_steps_in_bfloat16_raise_the_reward") else { return };
    let training = thirty_steps(&data, "learning_rate = 1e-3\nbf16 = true\n");
    let mismatch = largest(&training, "mismatch_kl");
    assert!((1e-9..1e-2).contains(&mismatch), "mismatch_kl {mismatch:e}");
}
