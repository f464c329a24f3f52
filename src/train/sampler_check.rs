//! Checks before a run that only the sampler can make: tokenizer, chat template, rows, reward functions, weights.

use anyhow::{Result, anyhow};
use shared::config::TrainConfig;

use super::ask::ask;

/// Asks the sampler for its objections to a resolved configuration.
///
/// # Errors
/// When the sampler cannot be asked, or on a signal.
pub fn problems(config: &TrainConfig) -> Result<Vec<anyhow::Error>> {
    let found: Vec<String> = ask(&["check"], config, Some("looking at what the sampler will need"))?;
    Ok(found.into_iter().map(|problem| anyhow!(problem)).collect())
}
