//! `cargo xtask bench`: measures sampler and learner on a few models made on the spot.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    host::Host,
    model::Model,
    steps::{build, run},
};

const MODELS: [Model; 2] = [
    Model {
        name: "qwen2-3m",
        hidden_size: 192,
        intermediate_size: 512,
        num_hidden_layers: 6,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        vocab_size: 2048,
    },
    Model {
        name: "qwen2-30m",
        hidden_size: 512,
        intermediate_size: 1536,
        num_hidden_layers: 8,
        num_attention_heads: 8,
        num_key_value_heads: 2,
        vocab_size: 8192,
    },
];

/// Sequences decoded at once, for `rollout bench --sweep`.
const BATCH_SIZES: &str = "1,8,32";
/// Tokens of a prompt and of a completion, for both measurements.
const LENGTHS: [&str; 4] = ["--prompt-length", "64", "--completion-length", "64"];
/// Groups of a generation batch and their size.
const GROUPS: [&str; 4] = ["--num-prompts", "4", "--num-generations", "8"];

/// Builds the programs and prints the results of `rollout bench` and `learner bench` for one model or the built-in
/// ones.
///
/// # Errors
/// When set-up, build or a measurement fails.
pub fn run_matrix(host: &Host, model: Option<PathBuf>) -> Result<()> {
    build(host)?;
    match model {
        Some(model) => measure(host, &model),
        None => MODELS.iter().try_for_each(|model| measure(host, &prepare(host, model)?)),
    }
}

fn measure(host: &Host, model: &Path) -> Result<()> {
    println!("rollout bench, {}", model.display());
    let mut rollout = host.command(host.binary("rollout"));
    rollout.args(["bench", "--sweep", BATCH_SIZES]).args(LENGTHS).args(GROUPS).arg("--model").arg(model);
    run(rollout)?;
    println!("learner bench, {}", model.display());
    let mut learner = host.command(host.binary("learner"));
    learner.args(["bench", "--num-prompts", "4", "--num-generations", "8"]).args(LENGTHS).arg("--model").arg(model);
    run(learner)
}

/// The directory of a built-in model, created if it is missing.
fn prepare(host: &Host, model: &Model) -> Result<PathBuf> {
    let dir = host.target.join("bench").join(model.name);
    if !dir.join("model.safetensors").is_file() {
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        fs::write(dir.join("config.json"), model.config().to_string()).with_context(|| dir.display().to_string())?;
        let mut init = host.command(host.binary("learner"));
        init.args(["init", "--model"]).arg(&dir);
        run(init)?;
    }
    Ok(dir)
}
