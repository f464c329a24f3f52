//! Tries the reward functions on sample completions, before anything else is started.

use anyhow::Result;
use serde_json::Value;
use shared::config::TrainConfig;

use super::ask::ask;

/// Has `rollout check-rewards` try the functions of a run: oddities are reported, and functions that cannot work are
/// refused. An entry that names only the file of a Python function gets the function's name, which metrics use. Without
/// `rehearse_rewards`, the functions are loaded and not tried.
///
/// # Errors
/// A function that cannot work, a dataset or tokenizer that cannot be used, or a signal.
pub fn rehearse(config: &mut TrainConfig) -> Result<()> {
    let purpose = match config.rehearse_rewards {
        true => "trying the reward functions on sample completions (`rehearse_rewards`)",
        false => "loading the reward functions",
    };
    let answer: Value = ask(&["check-rewards", "--json", "--before-run", "/dev/stdin"], config, Some(purpose))?;
    let entries = answer.as_array().into_iter().flatten().filter_map(|function| function["entry"].as_str());
    config.reward_funcs = entries.map(str::to_owned).collect();
    Ok(())
}
