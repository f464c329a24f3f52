//! Where a run is, beside its models.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};
use shared::config::{self, TrainConfig};

use super::STATE_FILE;
use crate::{error::LearnerError, step::Carried};

/// Version of the format of [`STATE_FILE`].
const STATE_FORMAT: u32 = 1;

/// How far a run has come. There is no generator state: all randomness is a function of the seed and these counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Version of this format.
    pub format: u32,
    /// Completed steps, which is also the policy version.
    pub step: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// Dataset positions used up.
    pub cursor: u64,
    /// Prompt and completion tokens seen. TRL `num_tokens`.
    pub num_tokens: u64,
    /// What the trainer carries from step to step.
    #[serde(flatten)]
    pub carried: Carried,
    /// The configuration of the run.
    pub config: serde_json::Value,
}

impl TrainerState {
    /// The state of a run before its first step.
    #[must_use]
    pub fn start(config: &TrainConfig, total_steps: u64) -> Self {
        let config = serde_json::to_value(config).expect("a configuration is serialisable");
        Self {
            format: STATE_FORMAT,
            step: 0,
            total_steps,
            cursor: 0,
            num_tokens: 0,
            carried: Carried::default(),
            config,
        }
    }

    /// Reads the state of a checkpoint.
    ///
    /// # Errors
    /// A missing or damaged file, by name.
    pub fn read(checkpoint: &Path) -> Result<Self, LearnerError> {
        let path = checkpoint.join(STATE_FILE);
        let text = fs::read(&path).map_err(|e| LearnerError::content(&path, format!("cannot be read: {e}")))?;
        let state: Self = serde_json::from_slice(&text)
            .map_err(|e| LearnerError::content(&path, format!("is no trainer state: {e}")))?;
        if state.format != STATE_FORMAT {
            let message = format!("has format {}, this program reads format {STATE_FORMAT}", state.format);
            return Err(LearnerError::content(&path, message));
        }
        Ok(state)
    }

    /// Options that differ from those of `config` and change what is computed. One that the checkpoint does not know yet had
    /// its default.
    #[must_use]
    pub fn changed_options(&self, config: &TrainConfig) -> Vec<String> {
        let value = |config| serde_json::to_value(config).expect("a configuration is serialisable");
        let (now, defaults) = (value(config), value(&TrainConfig::default()));
        let Some(options) = now.as_object() else {
            return Vec::new();
        };
        let before = |key: &str| self.config.get(key).or_else(|| defaults.get(key));
        let differs = |key: &str, value: &serde_json::Value| before(key) != Some(value);
        let harmless = |key: &str| config::option(key).is_some_and(|option| !option.changes_results);
        let changed = options.iter().filter(|(key, value)| !harmless(key) && differs(key, value));
        changed.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_a_checkpoint_does_not_know_had_its_default() {
        let config = TrainConfig::default();
        let mut state = TrainerState::start(&config, 1);
        state.config.as_object_mut().unwrap().remove("beta");
        assert_eq!(state.changed_options(&config), Vec::<String>::new());
        let other = TrainConfig { beta: 0.5, seed: 7, ..config };
        assert_eq!(state.changed_options(&other), ["beta", "seed"]);
    }
}
