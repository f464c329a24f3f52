//! Where the time of an engine goes.

use std::time::{Duration, Instant};

use super::backend::Cost;
use crate::trace::{self, Event};

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
    /// Of prefill and decode: attention, and what layers with a state have in its place.
    pub attention: Duration,
    /// Copies within the KV cache: from prefix to slots, and of sequences that moved.
    pub kv_copy: Duration,
    /// Drawing tokens.
    pub sampling: Duration,
    /// Everything else inside [`Engine::advance`](super::Engine::advance): bookkeeping, stop checks.
    pub scheduling: Duration,
    /// Prompt tokens prefilled.
    pub prefill_tokens: u64,
    /// Prompts prefilled.
    pub prefills: u64,
    /// Tokens sampled from decode steps (the first token of a completion comes from the prefill).
    pub decode_tokens: u64,
    /// Decode steps.
    pub decode_steps: u64,
    /// Of these, the ones that were recorded as CUDA graphs or replayed.
    pub graph_steps: u64,
    /// Positions that the rows of decode steps attended to, each row's own counted.
    pub decode_positions: u64,
    /// Bytes of keys, values and recurrent states that decode steps read, summed over the steps. With packed kernels a
    /// shared prompt counts once a step.
    pub kv_bytes_read: u64,
    /// Most bytes of keys, values and recurrent states in use.
    pub kv_bytes_peak: u64,
    /// Tokens computed on trial beside those of decode steps.
    pub drafted_tokens: u64,
    /// Of these, the ones that were drawn; they count among `decode_tokens`, which a step then has more of than
    /// sequences.
    pub accepted_tokens: u64,
    /// Of the decode tokens, those that were drawn from a whole row of logits; the others came of a few candidates.
    pub whole_rows: u64,
}

impl Profile {
    /// All time inside the engine.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.prefill + self.decode + self.kv_copy + self.sampling + self.scheduling
    }

    /// Adds the time of the parts of a call, where it is known.
    pub(super) fn add_nodes(&mut self, cost: Cost) {
        self.linear += cost.linear;
        self.head += cost.head;
        self.attention += cost.attention;
    }

    /// A decode step has attended to `positions` and read `read` of the `in_use` bytes.
    pub(super) fn add_kv(&mut self, positions: u64, read: u64, in_use: u64) {
        self.decode_positions += positions;
        self.kv_bytes_read += read;
        self.kv_bytes_peak = self.kv_bytes_peak.max(in_use);
    }

    /// Rows that decode steps computed: of every sequence its newest token, and drafts.
    #[must_use]
    pub fn decode_rows(&self) -> u64 {
        self.decode_tokens - self.accepted_tokens + self.drafted_tokens
    }

    /// Mean number of sequences per decode step.
    #[must_use]
    pub fn mean_batch(&self) -> f64 {
        let newest = self.decode_tokens - self.accepted_tokens;
        if self.decode_steps == 0 { 0.0 } else { newest as f64 / self.decode_steps as f64 }
    }
}

/// Cuts the running time into laps.
pub(super) struct Stopwatch {
    begun: Instant,
    last: Instant,
}

impl Stopwatch {
    pub fn start() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now }
    }

    /// Time since the start or the last lap.
    pub fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.last, now))
    }

    /// As [`Stopwatch::lap`]; the lap is shown in the trace.
    pub fn lap_of(&mut self, event: Event) -> Duration {
        let begin = self.last;
        let lap = self.lap();
        trace::span(begin, self.last, event);
        lap
    }

    /// Shows all laps together in the trace.
    pub fn all_laps(&self, event: Event) {
        trace::span(self.begun, self.last, event);
    }
}
