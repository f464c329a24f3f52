//! `tandem new`: the file that it writes is a run, and what it cannot use it names before it writes.

use std::{fs, path::Path, process::Command};

use harness::{
    binary,
    cli::{self, Finished},
    json_schema, tiny_model,
};
use shared::config::schema;

/// A folder with a model, its tokenizer, rows of a known shape and a reward function.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::SMALL.write(&dir.path().join("model"), 1);
    tiny_model::write_tokenizer(&dir.path().join("model"));
    let row = |n: usize| format!("{{\"question\": \"{n}+1=\", \"answer\": \"#### {}\"}}\n", n + 1);
    fs::write(dir.path().join("sums.jsonl"), (0..8).map(row).collect::<String>()).unwrap();
    let rewards = "def digits(completions, **kwargs):\n    return [float(len(text) % 3) for text in completions]\n";
    fs::write(dir.path().join("mine.py"), rewards).unwrap();
    dir
}

fn tandem(dir: &Path, line: &str) -> Finished {
    let mut command = Command::new(binary("tandem"));
    command.args(line.split(' ')).current_dir(dir).env("TANDEM_CACHE_DIR", dir.join("cache"));
    cli::finish(command)
}

#[test]
fn a_new_file_is_a_run_that_is_accepted() {
    let dir = folder();
    let more = "--reward mine.py -- --max_completion_length 8 --generation_batch_size 16";
    let made = tandem(dir.path(), &format!("new --model model --dataset sums.jsonl --reward gsm8k {more}")).success();
    assert!(made.stdout.starts_with("wrote run.toml; `tandem train run.toml --dry-run`"), "{}", made.stdout);
    let text = fs::read_to_string(dir.path().join("run.toml")).unwrap();
    for line in [
        "model = \"model\"",
        "dataset = \"sums.jsonl\"",
        "reward_funcs = [\"gsm8k\", \"mine.py:digits\"]",
        "max_completion_length = 8",
        "# sums.jsonl: JSON lines, 8 rows; questions in GSM8K's shape (`question`, `answer`).",
        "# Columns of its first row: `question`, `answer`.",
        "#learning_rate = 1e-6",
        "## Generation",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}: {text}");
    }
    let values: toml::Table = text.parse().unwrap();
    json_schema::check(&schema::schema(), &serde_json::to_value(values).unwrap()).unwrap();
    let run = tandem(dir.path(), "train run.toml --dry-run").success();
    assert!(run.stdout.contains("max_completion_length = 8\n"), "{}", run.stdout);
}

#[test]
fn paths_lead_to_the_same_files_from_the_folder_of_the_file() {
    let dir = folder();
    fs::create_dir(dir.path().join("runs")).unwrap();
    let line = "new --model model --dataset sums.jsonl --reward mine.py:digits -o runs/first.toml";
    let _ = tandem(dir.path(), line).success();
    // From another working directory.
    let mut command = Command::new(binary("tandem"));
    command.args(["train", "first.toml", "--dry-run"]).current_dir(dir.path().join("runs"));
    let run = cli::finish(command).success();
    let sums = fs::canonicalize(dir.path()).unwrap().join("sums.jsonl");
    assert!(run.stdout.contains(&format!("dataset = {:?}\n", sums.display().to_string())), "{}", run.stdout);
}

/// That of the environment may be another one when the run begins.
#[test]
fn an_interpreter_is_in_the_file_only_if_it_was_typed() {
    let dir = folder();
    for (more, expected) in
        [("", None), (" -- --reward_python python3-typed", Some("reward_python = \"python3-typed\""))]
    {
        let line = format!("new --model model --dataset sums.jsonl --reward gsm8k --force{more}");
        let mut command = Command::new(binary("tandem"));
        command.args(line.split(' ')).current_dir(dir.path()).env("TANDEM_REWARD_PYTHON", "python3-of-environment");
        let _ = cli::finish(command).success();
        let text = fs::read_to_string(dir.path().join("run.toml")).unwrap();
        assert_eq!(text.lines().find(|line| line.starts_with("reward_python")), expected, "{text}");
    }
}

#[test]
fn what_cannot_be_used_is_named_and_nothing_is_written() {
    let dir = folder();
    fs::write(dir.path().join("texts.jsonl"), "{\"text\": \"1+1=\"}\n").unwrap();
    for (model, dataset, reward, words) in [
        ("model", "sums.jsonl", "gsm9k", "did you mean `gsm8k`?"),
        ("model", "sums.jsonl", "mine.py:letters", "letters"),
        ("model", "none.jsonl", "gsm8k", "none.jsonl"),
        ("model", "texts.jsonl", "format", "`prompt_column`"),
        ("other", "sums.jsonl", "gsm8k", "`model`"),
        // A name on the Hub is not looked up, and all else is.
        ("owner/model", "sums.jsonl", "gsm9k", "did you mean `gsm8k`?"),
    ] {
        let found = tandem(dir.path(), &format!("new --model {model} --dataset {dataset} --reward {reward}"));
        assert!(found.refusal().contains(words), "{model} {dataset} {reward}: {}", found.stderr);
        assert!(!dir.path().join("run.toml").exists(), "{model} {dataset} {reward}");
    }
    let line = "new --model model --dataset texts.jsonl --reward format -- --prompt_column text";
    let _ = tandem(dir.path(), line).success();
    let several = tandem(dir.path(), "new --model other --dataset none.jsonl --reward gsm9k -o second.toml");
    assert!(several.refusal().contains("3 problems"), "{}", several.stderr);
}

#[test]
fn a_file_that_is_there_stays_unless_it_may_be_replaced() {
    let dir = folder();
    let file = dir.path().join("run.toml");
    fs::write(&file, "seed = 1\n").unwrap();
    let line = "new --model owner/model --dataset owner/data --reward format";
    let found = tandem(dir.path(), line);
    assert!(found.refusal().contains("run.toml: there is such a file"), "{}", found.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), "seed = 1\n");
    let _ = tandem(dir.path(), &format!("{line} --force")).success();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\nmodel = \"owner/model\"\n") && text.contains("# owner/data is on the Hub: "), "{text}");
}
