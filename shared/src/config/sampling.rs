//! The sampling distribution of a run: parameters from its options, and the ranges of these options for parameters from
//! other places.

use super::{OptionValue, TrainConfig, option};
use crate::generation::sampling::SamplingParams;

/// The parameters of a run with default options.
impl Default for SamplingParams {
    fn default() -> Self {
        TrainConfig::default().sampling()
    }
}

impl TrainConfig {
    /// The sampling parameters of a run.
    #[must_use]
    pub fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            max_completion_length: self.max_completion_length,
            stop: self.stop.clone(),
            ignore_eos: false,
            seed: self.seed,
        }
    }
}

impl SamplingParams {
    /// Checks the ranges. They are those of a run's options, except that a temperature of 0 is allowed.
    ///
    /// # Errors
    /// The first value outside its range, as a message that begins with the name of the option.
    pub fn validate(&self) -> Result<(), String> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(format!("temperature must be 0 (greedy) or a positive number, got {}", self.temperature));
        }
        within("top_p", &self.top_p)?;
        within("min_p", &self.min_p)?;
        within("repetition_penalty", &self.repetition_penalty)?;
        within("max_completion_length", &self.max_completion_length)
    }
}

fn within<T: OptionValue>(key: &str, value: &T) -> Result<(), String> {
    let declared = option(key).expect("the key of an option");
    declared.check(value).map_err(|message| format!("{key} {message}"))
}
