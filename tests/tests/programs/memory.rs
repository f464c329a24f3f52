//! What a run is said to take of the memory, against what it takes.

use std::{ffi::OsStr, fs};

use harness::{
    cli,
    tiny_model::{self, ModelFolder, Qwen2},
};
use serde_json::Value;
use shared::{ModelConfig, run::memory_plan::LearnerSizes};

/// 35 million parameters: enough for the weights and activations to outweigh libtorch itself.
const MODEL: Qwen2 = Qwen2 {
    vocab_size: 16_384,
    hidden_size: 512,
    intermediate_size: 1536,
    num_hidden_layers: 8,
    num_attention_heads: 8,
    num_key_value_heads: 4,
};

#[test]
fn the_plan_agrees_with_what_a_learner_takes() {
    let dir = tempfile::tempdir().unwrap();
    let config = MODEL.config().to_string();
    fs::write(dir.path().join("config.json"), &config).unwrap();
    let model = ModelConfig::from_json(&config).unwrap();
    // A group of 64 + 8 × 128 tokens in one pass, of which the last of each completion predicts nothing.
    let tokens = 64 + 8 * 127;
    for flags in [&[][..], &["--gradient-checkpointing"], &["--bf16"]] {
        let bench = ["bench", "--num-prompts=1", "--steps=1", "--micro-batch-tokens=1088", "--model"].map(OsStr::new);
        let args = bench.into_iter().chain([dir.path().as_os_str()]).chain(flags.iter().map(OsStr::new));
        let line = cli::run("learner", args).success().stdout.lines().last().unwrap().to_owned();
        let peak = serde_json::from_str::<Value>(&line).unwrap()["peak_rss_bytes"].as_f64().unwrap();
        let has = |flag: &str| flags.contains(&flag);
        let sizes = LearnerSizes {
            trained: true,
            bf16: has("--bf16"),
            gradient_checkpointing: has("--gradient-checkpointing"),
            ..LearnerSizes::evaluated(&model)
        };
        let planned = sizes.plan(tokens).total() as f64;
        assert!((planned / peak - 1.0).abs() < 0.1, "{flags:?}: planned {planned:e}, taken {peak:e}");
    }
}

#[test]
fn the_plan_is_shown_before_anything_runs() {
    let place = ModelFolder::new();
    tiny_model::write_tokenizer(&place.path("model"));
    fs::write(place.path("prompts.jsonl"), "{\"prompt\": \"1+1=\"}\n").unwrap();
    let run = format!(
        "model = {:?}\ndataset = {:?}\noutput_dir = {:?}\nreward_funcs = [\"format\"]\nmax_completion_length = 8\n",
        place.path("model"),
        place.path("prompts.jsonl"),
        place.path("run")
    );
    fs::write(place.path("run.toml"), run).unwrap();
    let args = ["train".into(), place.path("run.toml").into_os_string(), "--dry-run".into()];
    let shown = cli::run("tandem", args).success().stdout.clone();
    let (config, plan) = shown.split_once("\n# memory ").expect("the plan stands behind the configuration");
    let config: toml::Table = config.parse().unwrap();
    let budget = config["micro_batch_tokens"].as_integer().unwrap();
    assert!(plan.contains(&format!("activations of {budget} tokens")) && plan.contains("# sampler"), "{plan}");
    assert!(!place.path("run").exists());
}
