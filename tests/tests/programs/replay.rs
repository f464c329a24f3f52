//! The loss lab: a kept step comes out as it did in the run, to the last bit, and otherwise with other methods.

use std::{fs, path::Path};

use harness::{
    cli,
    tiny_model::{self, SMALL},
    training::train,
};
use serde_json::Value;

/// What `learner replay` answers on its last line.
fn replay(run: &Path, options: &[&str]) -> Value {
    let words = ["replay", "--run-dir", run.to_str().unwrap()].into_iter().chain(options.iter().copied());
    let text = cli::run("learner", words).success().stdout;
    serde_json::from_str(text.trim_end().lines().last().unwrap()).unwrap()
}

#[test]
fn a_kept_step_is_trained_again_as_it_was_and_with_other_methods() {
    let dir = tempfile::tempdir().unwrap();
    SMALL.write(&dir.path().join("model"), 5);
    tiny_model::write_tokenizer(&dir.path().join("model"));
    let rows: String = (1..=6).map(|n| format!("{{\"prompt\": \"{n}=\"}}\n")).collect();
    fs::write(dir.path().join("prompts.jsonl"), rows).unwrap();
    let config = "model = \"model\"\ndataset = \"prompts.jsonl\"\nreward_funcs = [\"length:target=12\"]\n\
                  max_steps = 3\nnum_generations = 4\ngeneration_batch_size = 16\nper_device_train_batch_size = 8\n\
                  num_iterations = 2\nmax_completion_length = 16\nlearning_rate = 1e-2\nsave_step_batches = true\n";
    let training = train(dir.path(), "run", config);
    let run = training.run.as_path();

    // The second step goes on from the optimiser's state after the first.
    let same = replay(run, &["--step", "2"]);
    for key in ["loss", "grad_norm", "entropy", "ratio", "clip_ratio/region_mean"] {
        assert_eq!(same["original"][key], training.metrics[1][key], "{key}");
        assert_eq!(same["changed"][key], training.metrics[1][key], "{key}");
    }
    assert_eq!(same["original"]["gradient"], same["changed"]["gradient"]);
    assert_eq!((&same["gradient_cosine"], &same["change_cosine"]), (&1.0.into(), &1.0.into()));

    let sequence = ["--step", "2", "--loss-type", "grpo", "--importance-sampling-level", "sequence"];
    let other = replay(run, &sequence);
    assert_eq!(other, replay(run, &sequence), "the same options give the same bits");
    assert_eq!(other["original"], same["original"]);
    assert_ne!(other["changed"]["gradient"], same["original"]["gradient"]);
    let cosine = other["gradient_cosine"].as_f64().unwrap();
    assert!(cosine > 0.0 && cosine < 1.0, "{cosine}");

    let penalty = replay(run, &["--step", "2", "--beta", "0.5"]);
    assert!(penalty["changed"]["kl"].as_f64().unwrap() > 0.0 && penalty["original"]["kl"].is_null());
    let critic = replay(run, &["--advantage-estimator", "gae"]);
    assert_eq!(critic["step"], 3);

    let run = run.to_str().unwrap();
    let refused = cli::run("learner", ["replay", "--run-dir", run, "--step", "9"]);
    assert!(refused.refusal().contains("there are 1, 2, 3"), "{}", refused.refusal());
    fs::write(training.run.join("batches/step-1/groups.frames"), "short").unwrap();
    let damaged = cli::run("learner", ["replay", "--run-dir", run, "--step", "1"]);
    assert!(damaged.refusal().contains("groups.frames"), "{}", damaged.refusal());
}
