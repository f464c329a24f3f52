//! The state of a run beside its models.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::config::{OPTIONS, TrainConfig};

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

    /// This state, to go on from with `config`. The place in the learning-rate schedule is a number of updates, and a
    /// step may have had another number of them: the place is then that of the same step.
    #[must_use]
    pub fn with_updates_of(mut self, config: &TrainConfig) -> Self {
        let now = config.updates_per_step();
        if let Some(before) = updates_per_step(&self.config).filter(|&before| before > 0 && before != now) {
            let updates = u128::from(self.carried.updates) * u128::from(now) / u128::from(before);
            self.carried.updates = updates.try_into().unwrap_or(u64::MAX);
        }
        self
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

/// [`TrainConfig::updates_per_step`] of a configuration in a checkpoint, which may be of an earlier version with other
/// options.
fn updates_per_step(config: &Value) -> Option<u64> {
    let mut known = config.as_object()?.clone();
    known.retain(|key, _| OPTIONS.iter().any(|option| option.key == key));
    serde_json::from_value(known.into()).ok().map(|config: TrainConfig| config.updates_per_step())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_in_the_schedule_is_that_of_the_step_whatever_the_updates_of_a_step() {
        let of = |num_iterations, per_device_train_batch_size| TrainConfig {
            num_iterations,
            per_device_train_batch_size,
            steps_per_generation: Some(4),
            ..TrainConfig::default()
        };
        let begun = of(2, 8);
        assert_eq!(begun.updates_per_step(), 8);
        // No multiple of a step's updates.
        let carried = Carried { updates: 15, ..Carried::default() };
        let mut state = TrainerState { step: 2, carried, ..TrainerState::start(&begun, 4) };
        let place = |state: &TrainerState, config: &TrainConfig| state.clone().with_updates_of(config).carried.updates;
        assert_eq!(place(&state, &begun), 15);
        assert_eq!(place(&state, &of(1, 8)), 7);
        assert_eq!(place(&state, &of(6, 8)), 45);
        let whole = TrainConfig { gradient_accumulation_steps: 4, ..of(2, 8) };
        assert_eq!(place(&state, &whole), 3);
        state.config["an_option_of_an_earlier_version"] = true.into();
        assert_eq!(place(&state, &of(1, 8)), 7);
        state.config = Value::Null;
        assert_eq!(place(&state, &of(1, 8)), 15, "of a checkpoint without options, nothing is known");
    }
}
