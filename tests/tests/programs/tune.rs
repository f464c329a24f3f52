//! `tandem tune` with both halves: the sampler searches, the learner's own program measures.

use std::{fs, process::Command, thread};

use harness::{
    cli::{self, Finished},
    tiny_model::{self, SMALL},
};
use serde_json::Value;
use shared::config::layers;

fn tune(folder: &tempfile::TempDir, words: &str) -> Finished {
    let model = folder.path().join("model");
    if !model.exists() {
        SMALL.write(&model, 3);
        tiny_model::write_tokenizer(&model);
    }
    let usual = "tune --model model --completion-length 8 --num-prompts 2 --time-budget 1 --output tune.toml";
    let mut command = Command::new(harness::binary("tandem"));
    command.args(usual.split(' ')).args(words.split_whitespace()).current_dir(folder.path());
    command.env("TANDEM_CACHE_DIR", folder.path().join("cache"));
    cli::finish(command)
}

#[test]
fn the_cores_are_split_between_the_halves_and_bf16_is_judged() {
    let folder = tempfile::tempdir().unwrap();
    let finished = tune(&folder, "--num-generations 2 --with-learner --max-staleness 1 --kernels packed").success();
    let record: Value = serde_json::from_str(finished.stdout.trim_end().lines().last().unwrap()).unwrap();
    let seconds = |name: &str| record[name].as_f64().unwrap_or_else(|| panic!("{name}: {record}"));
    assert!(seconds("learner_step_s") > 0.0 && seconds("learner_bf16_step_s") > 0.0);
    assert!(finished.stderr.contains("bf16"), "{}", finished.stderr);
    let proposal = fs::read_to_string(folder.path().join("tune.toml")).unwrap();
    assert!(proposal.contains("the learner takes"), "{proposal}");
    let cores = thread::available_parallelism().unwrap().get();
    if cores > 1 {
        let config = layers::load(Some(&folder.path().join("tune.toml")), &Vec::new()).unwrap();
        let (rollout, learner) = (config.rollout_threads.unwrap(), config.learner_threads.unwrap());
        assert!(rollout > 0 && learner > 0 && rollout + learner == cores, "{rollout} and {learner} of {cores}");
        assert!(seconds("step_s") > 0.0);
        assert!(finished.stderr.contains(&format!(" --threads {rollout} ")), "{}", finished.stderr);
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (words, part) in [
        ("--num-generations 1 --with-learner", "--num-generations"),
        ("--num-generations 2 --max-staleness 1", "--with-learner"),
        ("--num-generations 2 --with-learner --max-staleness 1 --threads 1", "--threads"),
    ] {
        let finished = tune(&folder, words);
        assert!(!finished.status.success() && finished.stderr.contains(part), "{words}: {}", finished.stderr);
    }
}
