//! The state of a run beside its models.

use std::path::Path;

use serde::{Deserialize, Serialize};
use shared::config::TrainConfig;

use super::{Origin, STATE_FILE};
use crate::{error::LearnerError, guard::GuardState, step::Carried};

/// Most bytes of a state: a configuration and some counters.
const MOST_BYTES: u64 = 64 << 20;
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
    /// Tokens of prompts and sampled tokens seen. TRL `num_tokens`.
    pub num_tokens: u64,
    /// What the trainer carries from step to step.
    #[serde(flatten)]
    pub carried: Carried,
    /// The configuration of the run.
    pub config: serde_json::Value,
    /// What the guard carries from step to step.
    #[serde(default)]
    pub guard: GuardState,
    /// Hashes of the files that the run is made of.
    #[serde(default)]
    pub origin: Origin,
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
            guard: GuardState::default(),
            config,
            origin: Origin::default(),
        }
    }

    /// Reads the state of a checkpoint.
    ///
    /// # Errors
    /// A missing or damaged file, by name.
    pub fn read(checkpoint: &Path) -> Result<Self, LearnerError> {
        let path = checkpoint.join(STATE_FILE);
        let text = shared_bounds::read(&path, MOST_BYTES)
            .map_err(|e| LearnerError::content(&path, format!("cannot be read: {e}")))?;
        let state: Self = serde_json::from_slice(&text)
            .map_err(|e| LearnerError::content(&path, format!("is no trainer state: {e}")))?;
        if state.format != STATE_FORMAT {
            let message = format!("has format {}, this program reads format {STATE_FORMAT}", state.format);
            return Err(LearnerError::content(&path, message));
        }
        Ok(state)
    }
}
