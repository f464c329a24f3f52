//! How long a run will take, estimated from its size before the first step.

use std::{fmt, ops::Range};

use shared::{
    ModelConfig,
    config::{Device, TrainConfig},
};

/// Operations per second of a core in matrix products, by its instruction set: low in small or narrow products, high in
/// large ones.
const CORE_WIDE: Range<f64> = 20e9..50e9;
const CORE_NARROW: Range<f64> = 4e9..12e9;
/// The same of a GPU.
const GPU: Range<f64> = 4e13..3e14;
/// Decoding reads all weights for a few tokens each: it reaches this share of the rate of large products.
const DECODING: Range<f64> = 0.2..0.5;
/// Share of `max_completion_length` that completions have on average.
const LENGTH: Range<f64> = 0.3..1.0;
/// Tokens of a prompt, where `max_prompt_length` does not bound them.
const PROMPT: Range<f64> = 10.0..128.0;
/// Seconds outside of products, for a step and for each of the sampler's decode steps.
const STEP: Range<f64> = 5e-3..0.05;
const TURN: Range<f64> = 2e-4..2e-3;

/// Seconds that a run takes, as a lower and an upper estimate. Reward functions and evaluations are not counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    steps: u64,
    seconds: (f64, f64),
}

impl Estimate {
    /// The estimate for the steps of a run after `done`, on this machine.
    pub fn new(config: &TrainConfig, model: &ModelConfig, done: u64) -> Self {
        #[cfg(target_arch = "x86_64")]
        let wide = std::arch::is_x86_feature_detected!("avx2");
        #[cfg(not(target_arch = "x86_64"))]
        let wide = true;
        Self::with(config, model, done, if wide { CORE_WIDE } else { CORE_NARROW })
    }

    fn with(config: &TrainConfig, model: &ModelConfig, done: u64, core: Range<f64>) -> Self {
        let steps = config.max_steps.unwrap_or(0).saturating_sub(done);
        let quick =
            step(config, model, [LENGTH.start, PROMPT.start, core.end, GPU.end, DECODING.end, STEP.start, TURN.start]);
        let slow =
            step(config, model, [LENGTH.end, PROMPT.end, core.start, GPU.start, DECODING.start, STEP.end, TURN.end]);
        Self { steps, seconds: (quick * steps as f64, slow * steps as f64) }
    }
}

/// Seconds of a step under these assumptions.
fn step(
    config: &TrainConfig,
    model: &ModelConfig,
    [length, prompt, core, gpu, decoding, overhead, turn]: [f64; 7],
) -> f64 {
    let limit = config.max_model_len.unwrap_or(model.max_position_embeddings) as f64;
    let completion = (length * f64::from(config.max_completion_length)).min(limit).max(1.0);
    let prompt = prompt.min(config.max_prompt_length.map_or(limit, f64::from)).min(limit - completion).max(1.0);
    let sequences = f64::from(config.completions_per_step());
    // A prompt is computed once for its group.
    let sampled = sequences * completion + f64::from(config.groups_per_step()) * prompt;
    let trained = sequences * (completion + prompt);
    let parameters = (model.parameter_count() - model.idle_parameters()) as f64;
    let rate = |device: Device, threads: Option<usize>| match device {
        Device::Cpu => core * threads.unwrap_or(1) as f64,
        _ => gpu,
    };
    let sampling = 2.0 * parameters * sampled / (decoding * rate(config.rollout_device, config.rollout_threads));
    // Forward and backward passes over each update's rows, and forward passes for the reference log-probs.
    let updates = f64::from(config.num_iterations);
    let passes = 6.0 * updates + if config.beta == 0.0 { 0.0 } else { 2.0 };
    let learning = passes * parameters * trained / rate(config.learner_device, config.learner_threads);
    let beside = overhead + turn * completion;
    // With groups of older versions, both halves work at the same time.
    if config.max_staleness > 0 { sampling.max(learning) + beside } else { sampling + learning + beside }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (quick, slow) = self.seconds;
        let steps = super::steps_in_words(self.steps);
        write!(
            f,
            "time {} to {} for {steps}: a rough estimate from the sizes, without rewards and evaluations; the first \
             steps say it better",
            words(quick),
            words(slow)
        )
    }
}

/// `20 s`, `5 min`, `3 h` or `2 days`.
fn words(seconds: f64) -> String {
    let (value, unit) = match seconds {
        ..90.0 => (seconds, "s"),
        ..5400.0 => (seconds / 60.0, "min"),
        ..172_800.0 => (seconds / 3600.0, "h"),
        _ => (seconds / 86_400.0, "days"),
    };
    format!("{:.0} {unit}", value.ceil().max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(changes: &str) -> ModelConfig {
        let text = format!(
            r#"{{"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "max_position_embeddings": 32768, "tie_word_embeddings": true{changes}}}"#
        );
        ModelConfig::from_json(&text).unwrap()
    }

    fn config() -> TrainConfig {
        TrainConfig {
            max_steps: Some(100),
            rollout_threads: Some(4),
            learner_threads: Some(4),
            max_completion_length: 256,
            ..TrainConfig::default()
        }
    }

    #[test]
    fn the_range_grows_with_steps_model_and_completions_and_shrinks_with_threads() {
        let of =
            |config: &TrainConfig, model: &ModelConfig, done| Estimate::with(config, model, done, CORE_WIDE).seconds;
        let (low, high) = of(&config(), &model(""), 0);
        assert!(0.0 < low && low < high);
        let half = of(&config(), &model(""), 50);
        assert!((half.1 - high / 2.0).abs() < 1e-9 * high, "what is done does not count");
        for (name, other) in [
            ("longer", of(&TrainConfig { max_completion_length: 1024, ..config() }, &model(""), 0)),
            ("deeper", of(&config(), &model(r#", "num_hidden_layers": 48"#), 0)),
            ("often", of(&TrainConfig { num_iterations: 4, ..config() }, &model(""), 0)),
            (
                "one thread",
                of(&TrainConfig { rollout_threads: Some(1), learner_threads: Some(1), ..config() }, &model(""), 0),
            ),
        ] {
            assert!(other.0 > low && other.1 > high, "{name}: {other:?}");
        }
    }

    /// Eight completions of a model of half a billion weights, on a few cores: minutes a step, not seconds or hours.
    #[test]
    fn the_range_holds_what_such_runs_take() {
        let (low, high) = Estimate::with(&config(), &model(""), 0, CORE_WIDE).seconds;
        assert!((1.0..20.0).contains(&(low / 100.0)) && (30.0..300.0).contains(&(high / 100.0)), "{low} {high}");
    }

    #[test]
    fn an_estimate_says_that_it_is_one() {
        let text = Estimate { steps: 1, seconds: (0.2, 4000.0) }.to_string();
        assert!(text.starts_with("time 1 s to 67 min for 1 step: a rough estimate"), "{text}");
        assert_eq!([89.0, 100.0, 6000.0, 200_000.0].map(words), ["89 s", "2 min", "2 h", "3 days"]);
    }
}
