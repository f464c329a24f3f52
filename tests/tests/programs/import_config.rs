//! `tandem import-config` on its command line.

use std::{fs, path::Path};

use harness::cli::{self, Finished};

fn import(dir: &Path, text: &str, more: &[&str]) -> Finished {
    let file = dir.join("theirs");
    fs::write(&file, text).unwrap();
    let words = ["import-config", file.to_str().unwrap()];
    cli::run("tandem", words.iter().chain(more))
}

#[test]
fn what_is_written_is_a_run_toml_and_every_key_is_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("run.toml");
    let more = ["--output", target.to_str().unwrap()];
    let text = "num_generations: 4\nloss_type: grpo\nbeta: 0.04\nuse_vllm: true\nstrange: 1\n";
    let found = import(dir.path(), text, &more).success();
    assert_eq!(found.stdout, "");
    for words in [
        "3 options taken over from TRL",
        "use_vllm: the sampler is ONNX",
        "strange: not known",
        "before training: `model` is missing",
    ] {
        assert!(found.stderr.contains(words), "{words}: {}", found.stderr);
    }
    let written = fs::read_to_string(&target).unwrap();
    assert!(written.ends_with("num_generations = 4\nloss_type = \"grpo\"\nbeta = 0.04\n"), "{written}");
    let again = import(dir.path(), text, &more);
    assert!(again.refusal().contains("run.toml: there is such a file"), "{}", again.stderr);

    let printed = import(dir.path(), text, &["--from", "trl"]).success().stdout;
    assert_eq!(printed, written);
    let other = import(dir.path(), text, &["--from", "verl"]).success();
    assert!(other.stderr.contains("5 keys without a counterpart"), "{}", other.stderr);
}

/// `tandem import-config trl.yaml --output run.toml && tandem train run.toml` would otherwise train something else.
#[test]
fn a_file_without_a_key_that_changes_the_training_is_written_and_the_command_fails() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("run.toml");
    let text = "reward_funcs: [cosine]\nlearning_rate: 1e-6\n";
    let found = import(dir.path(), text, &["--from", "trl", "--output", target.to_str().unwrap()]);
    assert_eq!(found.status.code(), Some(1), "{}", found.stderr);
    assert!(found.stderr.contains("1 key refused by `tandem train`"), "{}", found.stderr);
    let written = fs::read_to_string(&target).unwrap();
    assert!(written.contains("# Not taken over, and changes the training: reward_funcs.\n"), "{written}");
    let for_programs = import(dir.path(), text, &["--from", "trl", "--json"]).success();
    assert!(for_programs.stdout.contains("\"refused\""), "{}", for_programs.stdout);
}

#[test]
fn wrong_input_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for (text, words) in [
        ("- a\n- b\n", "must hold a mapping"),
        ("a: [1\nb: 2\n", "no valid YAML"),
        ("a: 1\n", "say so with `tandem import-config --from`"),
        ("", "must hold a mapping"),
    ] {
        let found = import(dir.path(), text, &[]);
        assert!(found.refusal().contains(words) && found.stdout.is_empty(), "{text:?}: {}", found.stderr);
    }
    let missing = cli::run("tandem", ["import-config", "/nowhere/config.yaml"]);
    assert!(missing.refusal().contains("/nowhere/config.yaml: cannot be read"), "{}", missing.stderr);
    let unknown = import(dir.path(), "seed: 1", &["--from", "other"]);
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn what_stands_in_a_file_is_refused_by_the_file_s_name() {
    let dir = tempfile::tempdir().unwrap();
    let train = |name: &str, text: &str| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        cli::run("tandem", ["train", file.to_str().unwrap(), "--dry-run"]).refusal().to_owned()
    };
    let message = train("trl.yaml", "save_steps: 1.5\nlearning_rate: 1e-6\n");
    assert!(
        message.contains("trl.yaml: save_steps (--save_steps): ") && !message.contains("command line"),
        "{message}"
    );
    assert!(message.contains("a share of all steps below 1"), "{message}");
    let message = train("recipe.yaml", "reward_funcs: [cosine]\nlearning_rate: 1e-6\n");
    assert!(message.contains("reward_funcs (--reward_funcs): `cosine` has no rule of the same meaning"), "{message}");
    let message = train("rl.toml", "max_steps = 3\n[orchestrator]\nbatch_size = 8\n");
    assert!(message.contains("rl.toml: is prime-rl's, which is not read"), "{message}");
    let message = train("train.py", "from trl import SFTTrainer\n");
    assert!(message.contains("train.py: is a Python script without a call of trl's GRPOTrainer"), "{message}");
    let message = train("run.toml", "lr = 1e-6\n");
    assert!(message.contains("did you mean `learning_rate`?"), "{message}");
}
