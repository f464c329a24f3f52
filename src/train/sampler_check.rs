//! What only the sampler can check before a run: tokenizer, chat template, rows, reward functions, weights.

use anyhow::{Result, anyhow};
use shared::config::TrainConfig;

use super::ask::ask;

/// Asks the sampler what it will refuse of a resolved configuration.
///
/// # Errors
/// When the sampler cannot be asked, or a wish to end.
pub fn problems(config: &TrainConfig) -> Result<Vec<anyhow::Error>> {
    let found: Vec<String> = ask(&["check"], config, "looking at what the sampler will need")?;
    Ok(found.into_iter().map(|problem| anyhow!(problem)).collect())
}
