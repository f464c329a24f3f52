//! A configuration of TRL, its dataset and its reward functions, trained as they stand with `tandem train trl.yaml`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use harness::{
    binary,
    cli::{self, Finished},
    skipped,
    tiny_model::{Qwen2, TINY},
    training::json_lines,
};
use serde_json::{Value, json};

/// As somebody wrote it for `trl grpo --config trl.yaml`.
const YAML: &str = "\
model_name_or_path: model
datasets:
  - path: parquet
    data_files: prompts.parquet
reward_funcs: [FUNCTIONS]
reward_weights: [1.0, 0.5]
output_dir: run
num_generations: 8
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
max_completion_length: 12
learning_rate: 1e-3
max_steps: 4
seed: 7
gradient_checkpointing: false
use_vllm: true
vllm_mode: colocate
report_to: none
save_strategy: steps
";

/// What [`YAML`]'s functions are to be equal to.
const RULES: &str = "think_format,repetition_penalty:ngram_size=2";

/// A folder with that configuration, a Parquet file with conversations, and a model that thinks by chance.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new(functions: &str) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        bench.write("trl.yaml", &YAML.replace("FUNCTIONS", functions));
        let rows = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/tests/fixtures/verl.snappy.parquet");
        fs::copy(rows, bench.path("prompts.parquet")).unwrap();
        let tokens = ["<eos>", "<unknown>", "<think>", "</think>", "1", "2"];
        let model = bench.path("model");
        Qwen2 { vocab_size: tokens.len(), ..TINY }.write(&model, 3);
        let vocab: serde_json::Map<String, Value> =
            tokens.iter().zip(0..).map(|(t, id)| ((*t).into(), json!(id))).collect();
        let special = |id: usize| {
            json!({"id": id, "content": tokens[id], "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        };
        let split = json!({"type": "Split", "pattern": {"Regex": "</?[a-z]+>|[\\s\\S]"}, "behavior": "Isolated",
            "invert": false});
        let tokenizer = json!({"version": "1.0", "added_tokens": [special(0), special(1)], "pre_tokenizer": split,
            "decoder": {"type": "Fuse"}, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": tokens[1]}});
        let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
        bench.write("model/tokenizer.json", &tokenizer.to_string());
        let config = json!({"eos_token": tokens[0], "chat_template": template});
        bench.write("model/tokenizer_config.json", &config.to_string());
        bench.write("model/generation_config.json", "{\"eos_token_id\": 0}");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn tandem(&self, words: &[&str]) -> Finished {
        let mut command = Command::new(binary("tandem"));
        command.args(words).current_dir(self.0.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        cli::finish(command)
    }

    /// Trains with the functions of the configuration and with [`RULES`], and compares what both say of each step.
    fn compare(&self, functions: [&str; 2], more: &[&str]) -> Finished {
        let own = self.tandem(&[&["train", "trl.yaml"], more].concat()).success();
        let _ = self.tandem(&["train", "trl.yaml", "--output_dir", "rules", "--reward_funcs", RULES]).success();
        let [ours, theirs] = ["run", "rules"].map(|run| json_lines(&self.path(run).join("metrics.jsonl")));
        assert_eq!((ours.len(), theirs.len()), (4, 4), "an update is a step");
        let number =
            |record: &Value, key: &str| record[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {record}"));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            for (function, rule) in functions.iter().zip(["think_format", "repetition_penalty"]) {
                for figure in ["mean", "std"] {
                    let [a, b] = [(ours, *function), (theirs, rule)]
                        .map(|(record, name)| number(record, &format!("rewards/{name}/{figure}")));
                    assert!((a - b).abs() < 1e-9, "{function}, {figure}: {a} and {b}");
                }
            }
            for key in ["reward", "reward_std", "loss", "grad_norm"] {
                let [a, b] = [ours, theirs].map(|record| number(record, key));
                assert!((a - b).abs() < 1e-6 * b.abs().max(1.0), "{key}: {a} and {b}");
            }
        }
        let thought: f64 = ours.iter().map(|record| number(record, &format!("rewards/{}/mean", functions[0]))).sum();
        assert!(thought > 0.0, "nothing was rewarded, so nothing was compared");
        own
    }
}

const REWARDS: &str = "
import re


def thinks(completions, **kwargs):
    texts = [completion[0]['content'] for completion in completions]
    return [1.0 if re.match(r'<think>(?!.*<think>).*</think>', text, re.DOTALL) else 0.0 for text in texts]


def repeats(completions, completion_ids, data_source, log_metric=None, **kwargs):
    assert all(source == 'gsm8k' for source in data_source) and completions[0][0]['role'] == 'assistant'
    scores = []
    for ids in completion_ids:
        pairs = list(zip(ids, ids[1:]))
        scores.append(len(set(pairs)) / len(pairs) - 1 if pairs else 0.0)
    return scores
";

#[test]
fn a_yaml_of_trl_with_functions_of_one_s_own_trains_as_it_stands() {
    let bench = Bench::new("my_lib.rewards.thinks, my_lib.rewards.repeats");
    fs::create_dir(bench.path("my_lib")).unwrap();
    bench.write("my_lib/rewards.py", REWARDS);
    let told = bench.compare(["thinks", "repeats"], &[]).stderr;
    for words in ["options taken over from TRL", "  model_name_or_path -> model", "use_vllm: the sampler is ONNX"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let kept = fs::read_to_string(bench.path("run/config.toml")).unwrap();
    assert!(kept.contains("reward_funcs = [\"my_lib.rewards.thinks\"") && kept.contains("seed = 7"), "{kept}");
}

/// With `TANDEM_TRL_PYTHON`, or the `python3` of the path, if it can import TRL.
#[test]
fn a_yaml_of_trl_with_functions_of_trl_s_own_trains_as_it_stands() {
    let named = env::var("TANDEM_TRL_PYTHON").ok();
    let python = named.clone().unwrap_or_else(|| "python3".into());
    let mut import = Command::new(&python);
    import.args(["-c", "import trl.rewards"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !import.status().is_ok_and(|status| status.success()) {
        assert!(named.is_none(), "TANDEM_TRL_PYTHON is {python}, which cannot import trl.rewards");
        return skipped("functions of TRL", "neither TANDEM_TRL_PYTHON nor python3 is a Python with TRL");
    }
    let bench = Bench::new("trl.rewards.think_format_reward, my_rewards.repetition");
    let factory = "from trl.rewards import get_repetition_penalty_reward\n\nrepetition = \
        get_repetition_penalty_reward(ngram_size=2)\n";
    bench.write("my_rewards.py", factory);
    let _ = bench.compare(["think_format_reward", "repetition"], &["--reward_python", &python]);
    accuracy_of_trl_and_of_tandem(&python);
}

/// TRL's own accuracy needs math_verify and latex2sympy besides.
fn accuracy_of_trl_and_of_tandem(python: &str) {
    let mut import = Command::new(python);
    import.args(["-c", "import math_verify, latex2sympy2_extended"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !import.status().is_ok_and(|status| status.success()) {
        return skipped("accuracy_reward of TRL", "the Python with TRL has no math_verify");
    }
    let bench = Bench::new("trl.rewards.accuracy_reward, accuracy");
    bench.write(
        "rows.jsonl",
        &["4", "\\\\frac{1}{2}", "x+1"]
            .map(|solution| {
                format!(
                    "{{\"prompt\": [{{\"role\": \"user\", \"content\": \"?\"}}], \"solution\": \"${solution}$\"}}\n"
                )
            })
            .concat(),
    );
    let words = ["check-rewards", "trl.yaml", "--json", "--dataset", "rows.jsonl", "--reward_python", python];
    let checked = bench.tandem(&words).success();
    let figures: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    for figure in figures.as_array().unwrap() {
        assert_eq!((figure["right"].as_f64(), figure["failed"].as_u64()), (Some(1.0), Some(0)), "{figures}");
    }
}

#[test]
fn options_and_dry_runs_are_as_with_a_run_toml() {
    let bench = Bench::new("think_format_reward, repetition_penalty");
    let dry = bench.tandem(&["train", "trl.yaml", "--learning_rate", "2e-5", "--dry-run"]).success();
    let config: toml::Table = dry.stdout.parse().unwrap();
    assert_eq!(config["learning_rate"].as_float(), Some(2e-5));
    assert_eq!(config["output_dir"].as_str(), bench.path("run").to_str(), "paths start from the working directory");
    assert!(!bench.path("run").exists());
    let script = "export STEPS=3\npython train.py --config trl.yaml --max_steps $STEPS \\\n  --loss_type dr_grpo\n";
    bench.write("train.sh", script);
    let dry = bench.tandem(&["train", "train.sh", "--dry-run"]).success();
    let config: toml::Table = dry.stdout.parse().unwrap();
    assert_eq!((config["max_steps"].as_integer(), config["loss_type"].as_str()), (Some(3), Some("dr_grpo")));
}

#[test]
fn what_would_train_something_else_is_refused() {
    let bench = Bench::new("think_format_reward, repetition_penalty");
    let yaml = fs::read_to_string(bench.path("trl.yaml")).unwrap();
    bench.write("trl.yaml", &format!("{yaml}loss_type: other\nmin_p: high\n"));
    let refused = bench.tandem(&["train", "trl.yaml", "--dry-run", "--min_p", "0.1"]);
    let words = refused.refusal();
    assert!(words.contains("trl.yaml: loss_type (--loss_type): `loss_type`") && !words.contains("min_p"), "{words}");
    let _ = bench.tandem(&["train", "trl.yaml", "--dry-run", "--min_p", "0.1", "--loss_type", "grpo"]).success();
    let nobodys = bench.tandem(&["train", "prompts.json"]);
    assert!(nobodys.refusal().contains("prompts.json: cannot be read"), "{}", nobodys.stderr);
}
