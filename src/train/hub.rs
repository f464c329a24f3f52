//! Names on the Hugging Face Hub in a configuration.

use anyhow::Result;
use shared::config::TrainConfig;
use shared_hub::{Hub, Settings};

use crate::terminal::{output, signals};

/// Downloads the names of a configuration, replaces them by folders, and reports each in a line. Commits in the
/// resolved configuration `before` are kept. Nothing is asked of the Hub while the options are wrong.
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
