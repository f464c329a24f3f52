//! LoRA adapters as models: `tandem merge`, and commands that take either form.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{
    cli::{self, Finished},
    tiny_model::{TINY, write_tokenizer},
};
use serde_json::{Value, json};

/// A copy of the golden adapter, with a tokenizer of its own, and the case it belongs to.
struct Adapter {
    dir: tempfile::TempDir,
    case: Value,
}

impl Adapter {
    fn new() -> Self {
        let (case, dir) = (harness::golden("adapter.json")["cases"][0].clone(), tempfile::tempdir().unwrap());
        let adapter = Self { dir, case };
        let copy = adapter.path("adapter");
        fs::create_dir(&copy).unwrap();
        for file in fs::read_dir(adapter.golden("adapter_dir")).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
        adapter.name_base(&adapter.golden("base_dir"));
        write_tokenizer(&copy);
        adapter
    }

    fn golden(&self, key: &str) -> PathBuf {
        harness::golden_dir_of("adapter.json").join(self.case["params"][key].as_str().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn name_base(&self, base: &Path) {
        let path = self.path("adapter/adapter_config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["base_model_name_or_path"] = json!(base);
        fs::write(&path, config.to_string()).unwrap();
    }

    fn run(&self, program: &str, words: &[&str]) -> Finished {
        let mut command = Command::new(harness::binary(program));
        command.args(words).current_dir(self.dir.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        cli::finish(command)
    }

    /// The rows that a command has written.
    fn rows(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn golden_adapter_and_what_it_is_merged_to_have_pefts_logprobs_and_the_same_completions() {
    let adapter = Adapter::new();
    // Process ids end at 2^22, so no process writes it.
    let left = adapter.path(".tmp-4194305-0-merged");
    fs::create_dir(&left).unwrap();
    let merged = adapter.run("tandem", &["merge", "adapter", "merged"]).success().stdout;
    assert!(!left.exists(), "what an interrupted merge has left");
    assert!(merged.starts_with("merged ") && merged.ends_with(" parameters into merged\n"), "{merged}");
    let ids = adapter.case["inputs"]["ids"].as_array().unwrap();
    let rows = ids.iter().map(|ids| {
        let ids = ids.as_array().unwrap();
        json!({"prompt_ids": ids[..1], "completion_ids": ids[1..]}).to_string() + "\n"
    });
    fs::write(adapter.path("rows.jsonl"), rows.collect::<String>()).unwrap();
    fs::write(adapter.path("prompts.jsonl"), "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"20\"}\n").unwrap();
    let expected = adapter.case["expected"]["logprobs"].as_array().unwrap();
    for model in ["adapter", "merged"] {
        let output = format!("{model}.logprobs");
        let words = ["logprobs", "--model", model, "--input", "rows.jsonl", "--output", &output];
        let _ = adapter.run("learner", &words).success();
        for (row, expected) in adapter.rows(&output).iter().zip(expected) {
            let pairs = row["logprobs"].as_array().unwrap().iter().zip(expected.as_array().unwrap());
            for (found, expected) in pairs.map(|(a, b)| (a.as_f64().unwrap(), b.as_f64().unwrap())) {
                assert!((found - expected).abs() < 1e-4, "{model}: {found} is not {expected}");
            }
        }
        let output = format!("{model}.jsonl");
        let words = ["generate", "--model", model, "--prompts", "prompts.jsonl", "--output", &output];
        let more = ["--num-generations=2", "--max-completion-length=12"];
        let _ = adapter.run("rollout", &[&words[..], &more].concat()).success();
    }
    let completions =
        |name: &str| adapter.rows(name).into_iter().map(|row| row["token_ids"].clone()).collect::<Vec<_>>();
    assert_eq!(completions("adapter.jsonl"), completions("merged.jsonl"));
    assert_eq!(adapter.rows("merged.jsonl").len(), 4);
}

#[test]
fn an_adapter_is_exported_as_what_it_is_merged_to() {
    let adapter = Adapter::new();
    let _ = adapter.run("tandem", &["merge", "adapter", "merged"]).success();
    let words = ["export", "--model", "adapter", "--format", "safetensors", "--out", "exported"];
    let told = adapter.run("tandem", &words).success().stdout;
    assert!(told.contains("compared on ") && told.contains("(bound 1e-4)"), "{told}");
    let weights = |dir: &str| fs::read(adapter.path(dir).join("model.safetensors")).unwrap();
    assert_eq!(weights("exported"), weights("merged"));
}

#[test]
fn what_cannot_be_merged_is_one_line_and_leaves_nothing() {
    let adapter = Adapter::new();
    let refusal = |words: &[&str]| {
        let finished = adapter.run("tandem", words);
        assert!(finished.stdout.is_empty() && finished.stderr.lines().count() == 1, "{finished:?}");
        assert!(!adapter.path("out").exists());
        finished.refusal().to_owned()
    };
    assert!(refusal(&["merge", "adapter", "adapter"]).contains("OUT: adapter: the folder is not empty"));
    let base = adapter.golden("base_dir");
    let error = refusal(&["merge", base.to_str().unwrap(), "out"]);
    assert!(error.contains("no adapter_config.json: nothing is to be merged"), "{error}");
    TINY.write(&adapter.path("other"), 1);
    let error = refusal(&["merge", "adapter", "out", "--base", "other"]);
    assert!(error.contains("adapter_model.safetensors: tensor ") && error.contains("has shape"), "{error}");
    adapter.name_base(Path::new("Qwen/Qwen2.5-0.5B"));
    let error = refusal(&["merge", "adapter", "out"]);
    assert!(error.contains("`base_model_name_or_path` = \"Qwen/Qwen2.5-0.5B\" is no model directory"), "{error}");
    let _ = adapter.run("tandem", &["merge", "adapter", "out", "--base", base.to_str().unwrap()]).success();
}
