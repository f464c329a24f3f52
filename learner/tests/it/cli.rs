//! The binary: it starts by itself, warm-starts a model made on the spot, and says clearly what is wrong.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

fn learner(args: &[&str]) -> Output {
    Command::new(harness::binary("learner")).env_clear().args(args).output().unwrap()
}

fn failure(args: &[&str]) -> String {
    let run = learner(args);
    let text = String::from_utf8(run.stderr).unwrap();
    assert!(!run.status.success(), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

fn write_model(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let config = json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "eos_token_id": 1, "hidden_act": "silu"
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn a_warm_start_from_random_weights_learns() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data, out) = (folder.path().join("model"), folder.path().join("data.jsonl"), folder.path().join("out"));
    write_model(&model);
    let rows: Vec<String> =
        (2..40).map(|token| json!({"prompt_ids": [token], "completion_ids": [41 - token, 1]}).to_string()).collect();
    fs::write(&data, rows.join("\n")).unwrap();
    let (model, data, out) = (model.to_str().unwrap(), data.to_str().unwrap(), out.to_str().unwrap());
    let start = ["sft", "--model", model, "--data", data, "--output", out, "--threads", "1"];

    assert!(failure(&start).contains("safetensors"));
    let run = learner(
        &[&start[..], &["--init-seed", "3", "--learning-rate", "0.01", "--max-steps", "150", "--warmup-steps", "0.02"]]
            .concat(),
    );
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let summary: Value = serde_json::from_str(String::from_utf8(run.stdout).unwrap().lines().last().unwrap()).unwrap();
    assert_eq!(summary["steps"], 150);
    assert!(summary["loss"].as_f64().unwrap() < 0.3, "{summary}");

    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("scored.jsonl"));
    fs::write(&input, rows[..3].join("\n")).unwrap();
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let run = learner(&["logprobs", "--model", out, "--input", input, "--output", output, "--threads", "1"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for line in fs::read_to_string(output).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let logprobs: Vec<f64> = row["logprobs"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert!(logprobs.iter().all(|&l| l > -1.0), "{logprobs:?}");
    }
}

#[test]
fn random_weights_depend_on_the_seed_alone() {
    let folder = tempfile::tempdir().unwrap();
    let weights = |name: &str, seed: &str| {
        let dir = folder.path().join(name);
        write_model(&dir);
        let path = dir.to_str().unwrap();
        assert!(learner(&["init", "--model", path, "--seed", seed]).status.success());
        assert!(failure(&["init", "--model", path, "--seed", seed]).contains("has weights already"));
        fs::read(dir.join("model.safetensors")).unwrap()
    };
    let (a, b, c) = (weights("a", "1"), weights("b", "1"), weights("c", "2"));
    assert!(a == b && a != c);
}

/// The tokens come from no sampler; the steps have a gradient all the same.
#[test]
fn the_benchmark_measures_steps_that_train() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let model = folder.path().to_str().unwrap();
    let lengths = [
        "--num-prompts",
        "1",
        "--num-generations",
        "4",
        "--prompt-length",
        "3",
        "--completion-length",
        "40",
        "--steps",
        "1",
    ];
    let run = learner(&[&["bench", "--model", model, "--threads", "1"][..], &lengths].concat());
    let result: Value = serde_json::from_str(String::from_utf8(run.stdout).unwrap().lines().last().unwrap()).unwrap();
    assert!(result["grad_norm"].as_f64().unwrap() > 1e-3, "{result}");
}

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    write_model(&model);
    let model = model.to_str().unwrap();
    assert!(learner(&["init", "--model", model]).status.success());
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let out = folder.path().join("out").to_str().unwrap().to_owned();

    let bad = path("bad.jsonl", "{\"prompt_ids\": [2], \"completion_ids\": [3]}\n{\"prompt_ids\": [2]}\n");
    let message = failure(&["sft", "--model", model, "--data", &bad, "--output", &out]);
    assert!(message.contains("bad.jsonl") && message.contains("line 2"), "{message}");

    let foreign = path("foreign.jsonl", "{\"prompt_ids\": [2], \"completion_ids\": [99]}\n");
    for command in [["sft", "--data"], ["logprobs", "--input"]] {
        let message = failure(&[command[0], "--model", model, command[1], &foreign, "--output", &out]);
        assert!(message.contains("99") && message.contains("vocabulary"), "{message}");
    }
    let good = path("good.jsonl", "{\"prompt_ids\": [2], \"completion_ids\": [3]}\n");
    let sft = |flags: &[&str]| failure(&[&["sft", "--model", model, "--data", good.as_str()][..], flags].concat());
    for (flag, value) in [
        ("--epochs", "nan"),
        ("--epochs", "-3"),
        ("--learning-rate", "-1"),
        ("--weight-decay", "-0.1"),
        ("--adam-beta2", "1"),
        ("--max-grad-norm", "inf"),
        ("--max-steps", "0"),
        ("--warmup-steps", "1.5"),
    ] {
        let message = sft(&["--output", &out, &format!("{flag}={value}")]);
        assert!(message.contains(flag), "{flag} {value}: {message}");
    }
    assert!(sft(&["--output", model]).contains("--output is the --model directory"));
    let absent = folder.path().join("absent").to_str().unwrap().to_owned();
    for command in [["sft", "--data"], ["reward-model", "--pairs"]] {
        let message = failure(&[command[0], "--model", &absent, command[1], &good, "--output", &out]);
        assert!(message.contains("absent"), "{message}");
        // Before anything is read.
        let full = path("full", "");
        fs::remove_file(&full).unwrap();
        fs::create_dir(&full).unwrap();
        let notes = path("full/notes.txt", "of the user");
        for (output, problem) in
            [(&full, "--output: FULL: the folder is not empty (it has `notes.txt`)"), (&good, "Not a directory")]
        {
            let message = failure(&[command[0], "--model", model, command[1], &bad, "--output", output]);
            assert!(message.contains(&problem.replace("FULL", &full)), "{message}");
        }
        assert_eq!(fs::read_to_string(&notes).unwrap(), "of the user");
        fs::remove_dir_all(&full).unwrap();
    }
    let message = failure(&["run", "--run-dir", folder.path().to_str().unwrap()]);
    assert!(message.contains("config.toml"), "{message}");
    let message = failure(&["bench", "--model", model, "--device", "cuda"]);
    assert!(message.contains("libtorch"), "{message}");
}
