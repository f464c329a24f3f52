//! How tokens are drawn. Names, defaults and order of application are those of transformers and TRL's `GRPOConfig`.

use serde::{Deserialize, Serialize};

use crate::config::{self, OptionValue, TrainConfig};

/// Parameters of the sampling distribution.
///
/// Applied in transformers' order: repetition penalty, temperature, top-k, top-p, min-p.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Divides the logits. 0 means greedy: the arg-max, with no truncation and no randomness. TRL `temperature`.
    pub temperature: f32,
    /// Keep the `top_k` largest logits (ties with the k-th are kept). 0 = off. TRL `top_k`.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches `top_p`. 1 = off. TRL `top_p`.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the likeliest. `None` = off. TRL `min_p`.
    pub min_p: Option<f32>,
    /// Divide positive (multiply negative) logits of tokens already in prompt or completion. 1 = off.
    /// TRL `repetition_penalty`.
    pub repetition_penalty: f32,
    /// At most this many tokens are generated. TRL `max_completion_length`.
    pub max_completion_length: u32,
    /// Generation stops when the decoded completion contains one of these texts; the text is kept.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens (for benchmarks).
    #[serde(default)]
    pub ignore_eos: bool,
    /// Seed of the counter-based randomness; see [`crate::rng`].
    pub seed: u64,
}

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
            max_completion_length: self.max_completion_length,
            stop: self.stop.clone(),
            ignore_eos: false,
            seed: self.seed,
        }
    }
}

impl SamplingParams {
    /// Whether tokens are chosen by arg-max.
    #[must_use]
    pub fn greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether the distribution is cut (top-k, top-p or min-p), so that kept mass and kept count carry information.
    #[must_use]
    pub fn truncated(&self) -> bool {
        !self.greedy() && (self.top_k > 0 || self.top_p < 1.0 || self.min_p.is_some_and(|p| p > 0.0))
    }

    /// Checks the ranges, which are those of the options of a run, but for a temperature of 0.
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
    let option = config::option(key).expect("the key of an option");
    option.check(value).map_err(|message| format!("{key} {message}"))
}
