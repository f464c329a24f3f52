//! The same seed gives the same bytes: completions whatever the batching, weights whatever the run.

use std::{fs, path::Path};

use harness::{
    cli,
    tiny_model::{self, SMALL},
    training::train,
};

/// A model, and prompts of different lengths.
fn prepare(dir: &Path) {
    SMALL.write(&dir.join("model"), 5);
    tiny_model::write_tokenizer(&dir.join("model"));
    let rows = (1..=12).map(|n| format!("{{\"prompt\": \"{}=\"}}\n", vec![n.to_string(); n].join("+")));
    fs::write(dir.join("prompts.jsonl"), rows.collect::<String>()).unwrap();
}

fn completions(dir: &Path, max_num_seqs: &str, threads: &str, sampling: &[&str]) -> String {
    let output = dir.join("out.jsonl");
    let (model, prompts) = (dir.join("model"), dir.join("prompts.jsonl"));
    let mut args = vec!["generate", "--num-generations", "5", "--max-completion-length", "24"];
    args.extend(["--max-num-seqs", max_num_seqs, "--threads", threads]);
    args.extend(sampling);
    args.extend(["--model", model.to_str().unwrap(), "--prompts", prompts.to_str().unwrap()]);
    args.extend(["--output", output.to_str().unwrap()]);
    let _ = cli::run("rollout", args).success();
    fs::read_to_string(output).unwrap()
}

#[test]
fn completions_do_not_depend_on_batch_size_or_threads() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let truncated: &[&str] =
        &["--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--repetition-penalty", "1.1"];
    for sampling in [&["--seed", "11"][..], truncated] {
        let expected = completions(dir.path(), "1", "1", sampling);
        assert_eq!(expected.lines().count(), 60);
        for (max_num_seqs, threads) in [("8", "1"), ("64", "1"), ("1", "2"), ("8", "2"), ("64", "2")] {
            let found = completions(dir.path(), max_num_seqs, threads, sampling);
            assert!(
                found == expected,
                "{max_num_seqs} sequences, {threads} threads, {sampling:?}:\n{found}\n{expected}"
            );
        }
    }
}

#[test]
fn completions_depend_on_the_seed() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let [one, other] = ["1", "2"].map(|seed| completions(dir.path(), "8", "2", &["--seed", seed]));
    assert_ne!(one, other);
}

#[test]
fn a_synchronous_run_repeated_gives_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let config = format!(
        "model = {:?}\ndataset = {:?}\nreward_funcs = [\"length:target=6\"]\nmax_steps = 4\nnum_generations = 4\n\
         generation_batch_size = 16\nper_device_train_batch_size = 8\nsteps_per_generation = 2\nnum_iterations = 2\n\
         max_completion_length = 16\nlearning_rate = 1e-3\n",
        dir.path().join("model"),
        dir.path().join("prompts.jsonl")
    );
    let [one, two] = ["one", "two"].map(|name| train(dir.path(), name, &config));
    assert_eq!(one.metrics.len(), 4);
    assert_eq!(one.curve("reward"), two.curve("reward"));
    assert_eq!(one.curve("loss"), two.curve("loss"));
    for file in ["weights.data", "model.safetensors", "optimizer.safetensors"] {
        assert!(one.checkpoint(file) == two.checkpoint(file), "{file} differs");
    }
    let other = train(dir.path(), "other", &format!("{config}seed = 9\n"));
    assert!(one.checkpoint("weights.data") != other.checkpoint("weights.data"), "another seed must give other weights");
}
