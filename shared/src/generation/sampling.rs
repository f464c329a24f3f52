//! How tokens are drawn. Names and order of application are those of transformers and TRL's `GRPOConfig`. Defaults and
//! ranges are those of the options of a run ([`crate::config`]).

use serde::{Deserialize, Serialize};

/// Parameters of the sampling distribution.
///
/// Applied in transformers' order: repetition penalty, temperature, top-k, top-p, min-p. OpenAI's penalties come after
/// the repetition penalty, as in vLLM.
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
    /// Taken once off the logit of each token of the completion. 0 = off. OpenAI `presence_penalty`. No run has it, so
    /// no frame does.
    #[serde(skip)]
    pub presence_penalty: f32,
    /// Taken off the logit of each token of the completion, as often as the token is there. 0 = off. OpenAI
    /// `frequency_penalty`. No run has it, so no frame does.
    #[serde(skip)]
    pub frequency_penalty: f32,
    /// Most tokens that are generated. TRL `max_completion_length`.
    pub max_completion_length: u32,
    /// Generation stops when the decoded completion contains one of these texts; the text is kept.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Generation goes on past end-of-sequence tokens (for benchmarks).
    #[serde(default)]
    pub ignore_eos: bool,
    /// Seed of the counter-based randomness; see [`crate::generation::rng`].
    pub seed: u64,
}

impl SamplingParams {
    /// Whether tokens are chosen by arg-max.
    #[must_use]
    pub fn greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether earlier tokens change the logits.
    #[must_use]
    pub fn penalised(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether the distribution is truncated (top-k, top-p or min-p), so that kept mass and kept count carry
    /// information.
    #[must_use]
    pub fn truncated(&self) -> bool {
        !self.greedy() && (self.top_k > 0 || self.top_p < 1.0 || self.min_p.is_some_and(|p| p > 0.0))
    }
}
