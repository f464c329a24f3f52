//! Where the time of an engine goes.

use std::time::{Duration, Instant};

/// Time and work since the last reset.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Profile {
    /// The graph on prompts.
    pub prefill: Duration,
    /// The graph on running sequences.
    pub decode: Duration,
    /// Of prefill and decode: the linear layers without the language-model head. Known with packed kernels only, as are
    /// the next two.
    pub linear: Duration,
    /// Of prefill and decode: the language-model head.
    pub head: Duration,
    /// Of prefill and decode: attention.
    pub attention: Duration,
    /// Copies within the KV cache: from prefix to slots, and of sequences that moved.
    pub kv_copy: Duration,
    /// Drawing tokens.
    pub sampling: Duration,
    /// Everything else inside [`Engine::step`](super::Engine::step): bookkeeping, stop checks.
    pub scheduling: Duration,
    /// Prompt tokens prefilled.
    pub prefill_tokens: u64,
    /// Prompts prefilled.
    pub prefills: u64,
    /// Tokens sampled from decode steps (the first token of a completion comes from the prefill).
    pub decode_tokens: u64,
    /// Decode steps.
    pub decode_steps: u64,
    /// Of the decode tokens, those for which the sampler took a whole row of logits; the others came of a few candidates.
    pub whole_rows: u64,
}

impl Profile {
    /// All time inside the engine.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.prefill + self.decode + self.kv_copy + self.sampling + self.scheduling
    }

    /// Mean number of sequences per decode step.
    #[must_use]
    pub fn mean_batch(&self) -> f64 {
        if self.decode_steps == 0 { 0.0 } else { self.decode_tokens as f64 / self.decode_steps as f64 }
    }
}

/// Cuts the running time into laps.
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start or the last lap.
    pub fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now))
    }
}
