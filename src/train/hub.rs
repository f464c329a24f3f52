//! Names on the Hugging Face Hub in a configuration.

use anyhow::Result;
use shared::config::TrainConfig;
use shared_hub::{Hub, Settings};

use crate::terminal::{output, signals};

/// Downloads what a configuration names, puts the folders in the place of the names, and says so in a line for each.
/// Commits stay as the resolved configuration `before` has them. Nothing is asked for while the options are wrong.
///
/// # Errors
/// A name that cannot be used, with its option.
pub fn locate(config: &mut TrainConfig, before: Option<&TrainConfig>) -> Result<Vec<String>> {
    if !config.problems().is_empty() {
        return Ok(Vec::new());
    }
    let hub = Hub::new(Settings::from_env(), || signals::check().is_err(), |line| output::tell(line));
    let located = shared_hub::locate(config, before, &hub);
    signals::check()?;
    located.map_err(|(option, error)| anyhow::Error::from(error).context(format!("`{option}`")))
}
