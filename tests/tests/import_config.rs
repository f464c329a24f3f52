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
