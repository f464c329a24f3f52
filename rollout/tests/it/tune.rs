//! `rollout tune` from the outside.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{
    cli::{self, Finished},
    tiny_model::{self, SMALL},
};
use serde_json::Value;
use shared::config::{KvDtype, RolloutDtype, TrainConfig, layers};

/// A small model with its tokenizer, prompts and lengths.
struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        SMALL.write(&place.path("model"), 3);
        tiny_model::write_tokenizer(&place.path("model"));
        let rows = (0..9).map(|i| format!("{{\"prompt\": \"{}\"}}\n", "x".repeat(4 * (i + 1))));
        fs::write(place.path("prompts.jsonl"), rows.collect::<String>()).unwrap();
        fs::write(place.path("lengths"), "3\n30\n4\n5\n").unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tune(&self, words: &str) -> Finished {
        let mut command = Command::new(harness::binary("rollout"));
        command.args(["tune", "--model", "model"]).args(words.split_whitespace());
        if !words.contains("--output") {
            command.args(["--output", "tune.toml"]);
        }
        command.current_dir(self.dir.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        cli::finish(command)
    }
}

fn load(path: &Path) -> TrainConfig {
    layers::load(Some(path), &Vec::new()).unwrap()
}

#[test]
fn the_proposal_is_a_configuration_that_training_takes() {
    let place = Folder::new();
    let work = "--dataset prompts.jsonl --lengths-file lengths --num-prompts 4 --num-generations 3 --time-budget 4";
    let finished = place.tune(&format!("{work} --max-completion-length 40"));
    let finished = finished.success();
    let record: Value = serde_json::from_str(finished.stdout.trim_end().lines().last().unwrap()).unwrap();
    let proposal = load(&place.path("tune.toml"));
    let number = |name: &str| record[name].as_u64().unwrap() as usize;
    assert_eq!(proposal.max_num_seqs, Some(number("max_num_seqs")));
    assert_eq!(proposal.rollout_threads, Some(number("rollout_threads")));
    assert_eq!(proposal.max_num_batched_tokens, number("max_num_batched_tokens"));
    assert!((1..=12).contains(&number("max_num_seqs")), "{record}");
    assert_eq!(proposal.max_model_len, Some(36 + 40), "the longest prompt of the dataset and the longest completion");
    assert!(record["tokens_per_s"].as_f64().unwrap() > 0.0);
    for shown in ["kernels and threads:", "sequences at once:", "tokens/s"] {
        assert!(finished.stderr.contains(shown), "{}", finished.stderr);
        let file = fs::read_to_string(place.path("tune.toml")).unwrap();
        assert!(file.contains(shown), "{file}");
    }
    // Both kernels were tried, and every size down to one.
    for tried in ["packed kernels", "stock kernels", " 1 sequences", " 12 sequences"] {
        assert!(finished.stderr.contains(tried), "{tried}: {}", finished.stderr);
    }

    // Appended to a configuration it is a part of it.
    let run = format!(
        "model = {:?}\ndataset = {:?}\nreward_funcs = [\"format\"]\n{}",
        place.path("model"),
        place.path("prompts.jsonl"),
        fs::read_to_string(place.path("tune.toml")).unwrap()
    );
    fs::write(place.path("run.toml"), run).unwrap();
    let config = load(&place.path("run.toml"));
    config.validate().unwrap();
    assert_eq!(config.max_num_seqs, proposal.max_num_seqs);
}

#[test]
fn what_is_given_stays_and_little_time_is_enough() {
    let place = Folder::new();
    let words = "--completion-length 100 --num-prompts 4 --num-generations 4 --time-budget 0.5 --threads 1 --kernels \
                 packed --max-num-seqs 3 --max-num-batched-tokens 100 --rollout-dtype int8 --kv-dtype int8 \
                 --speculative-tokens 2";
    let finished = place.tune(words);
    let finished = finished.success();
    let proposal = load(&place.path("tune.toml"));
    assert_eq!((proposal.rollout_threads, proposal.max_num_seqs), (Some(1), Some(3)));
    // A run has other prompts than the random ones here.
    assert_eq!((proposal.max_num_batched_tokens, proposal.max_model_len), (100, None));
    let types = (proposal.rollout_dtype, proposal.kv_dtype, proposal.speculative_tokens);
    assert_eq!(types, (RolloutDtype::Int8, KvDtype::Int8, 2));
    for flags in ["--threads 1 ", "--rollout-dtype int8 --kv-dtype int8 --speculative-tokens 2"] {
        assert!(finished.stderr.contains(flags), "{}", finished.stderr);
    }
    let record: Value = serde_json::from_str(finished.stdout.trim_end().lines().last().unwrap()).unwrap();
    assert_eq!(record["trials"], 1, "nothing is left to try");
}

/// The stock kernels take no drafts, so they are no alternative.
#[test]
fn speculation_is_tuned_without_naming_the_kernels() {
    let place = Folder::new();
    let words = "--completion-length 20 --num-prompts 2 --num-generations 2 --time-budget 0.5 --speculative-tokens 2";
    let finished = place.tune(words);
    let finished = finished.success();
    assert_eq!(load(&place.path("tune.toml")).speculative_tokens, 2);
    assert!(!finished.stderr.contains("stock kernels"), "{}", finished.stderr);
}

/// Options that a run takes as well are proposed with the kernels that they were measured with.
#[test]
fn levers_of_devices_are_proposed_as_they_were_given() {
    let place = Folder::new();
    let words = "--completion-length 5 --num-prompts 2 --num-generations 2 --time-budget 0.5 --threads 1 \
                 --kernels stock --prefill-batch 2 --candidates 16";
    let finished = place.tune(words).success();
    let proposal = load(&place.path("tune.toml"));
    assert_eq!((proposal.rollout_prefill_batch, proposal.rollout_candidates), (2, 16));
    assert!(finished.stderr.contains(" --prefill-batch 2 --candidates 16"), "{}", finished.stderr);
}

#[test]
fn what_cannot_be_done_is_one_clear_line() {
    let place = Folder::new();
    fs::write(place.path("bad"), "3\n-1\n").unwrap();
    fs::write(place.path("run.toml"), "model = \"mine\"\n").unwrap();
    for (words, parts) in [
        ("", &["--completion-length", "--lengths-file"][..]),
        ("--lengths-file bad", &["--lengths-file", "line 2"]),
        ("--lengths-file none", &["--lengths-file", "none"]),
        ("--completion-length 5 --time-budget 0", &["--time-budget", "above 0"]),
        ("--completion-length 5 --dataset none.jsonl", &["--dataset", "none.jsonl"]),
        ("--completion-length 5 --max-completion-length 4", &["--max-completion-length 4", "5"]),
        ("--completion-length 5000", &["limit", "2048"]),
        ("--completion-length 5 --max-num-seqs 0", &["--max-num-seqs"]),
        ("--completion-length 5 --output nowhere/tune.toml", &["--output", "nowhere"]),
        ("--completion-length 5 --output run.toml", &["--output", "run.toml", "append"]),
    ] {
        let finished = place.tune(words);
        let line = finished.refusal();
        assert!(parts.iter().all(|part| line.contains(part)), "{words}: {line}");
    }
    assert!(!place.path("tune.toml").exists());
    assert_eq!(fs::read_to_string(place.path("run.toml")).unwrap(), "model = \"mine\"\n");
}
