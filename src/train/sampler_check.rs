//! Checks before a run that only the sampler can make: tokenizer, chat template, rows, reward functions, weights, and
//! the files by which a run with workers guards its door.

use anyhow::{Result, anyhow};
use shared::config::TrainConfig;

use super::ask::{ask, ask_program};
use crate::programs::binaries;

/// Asks the sampler for its objections to a resolved configuration.
///
/// # Errors
/// When the sampler cannot be asked, or on a signal.
pub fn problems(config: &TrainConfig) -> Result<Vec<anyhow::Error>> {
    let mut found: Vec<String> = ask(&["check"], config, Some("looking at what the sampler will need"))?;
    if config.listen.is_some() {
        // Only the program of the fleet knows certificates and stores.
        found.extend(ask_program::<Vec<String>>(binaries::FLEET, &["check"], config, None)?);
    }
    Ok(found.into_iter().map(|problem| anyhow!(problem)).collect())
}
