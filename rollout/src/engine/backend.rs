//! What computes logits: the trait that every way of running a model implements. [`open`](super::open) chooses one.

use std::time::Duration;

use ndarray::ArrayViewMut2;
use shared::{ModelConfig, WeightManifest};

use super::{
    EngineError, WeightSource, device::lever::Levers, draft::Drafts, scheduler::PrefillLimits, sequence::DecodeRow,
    swap::LoadJob, types::Kernels,
};

/// What a backend is and what it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Abilities {
    /// The kernels in use.
    pub kernels: Kernels,
    /// What multiplies in the linear layers.
    pub instruction_set: &'static str,
    /// What one call of [`Backend::prefill`] takes.
    pub prefill: PrefillLimits,
    /// Whether a prompt can be computed in pieces.
    pub pieces: bool,
    /// Whether it can hold keys and values of sequences that have ended: [`Backend::hold`].
    pub keeps: bool,
}

/// Prompts of one call of [`Backend::prefill`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompts<'a> {
    /// All their tokens, prompt by prompt.
    pub tokens: &'a [&'a [u32]],
    /// How many tokens of the first prompt the calls before have computed. At 0, whatever they left is given up.
    pub computed: usize,
    /// Most further tokens of each prompt.
    pub most: usize,
}

impl<'a> Prompts<'a> {
    /// Whole prompts from their first token on.
    #[cfg(test)]
    pub fn whole(tokens: &'a [&'a [u32]]) -> Self {
        Self { tokens, computed: 0, most: usize::MAX }
    }
}

/// A prompt that goes on from a state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Continued<'a> {
    /// All its tokens.
    pub tokens: &'a [u32],
    /// How many of them were the prompt that it began with.
    pub prompt: usize,
    /// Where the keys and values of the state are held: those of all its tokens but the newest.
    pub held: Option<u64>,
    /// How many tokens the calls before have computed, beside those that are held.
    pub computed: usize,
    /// Most further tokens.
    pub most: usize,
}

/// What a call took, as far as the backend knows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    /// The linear layers without the language-model head.
    pub linear: Duration,
    /// The language-model head.
    pub head: Duration,
    /// Attention.
    pub attention: Duration,
    /// Bytes of keys and values that were read.
    pub kv_bytes_read: u64,
}

impl Cost {
    /// That of two calls.
    pub fn with(self, other: Self) -> Self {
        Self {
            linear: self.linear + other.linear,
            head: self.head + other.head,
            attention: self.attention + other.attention,
            kv_bytes_read: self.kv_bytes_read + other.kv_bytes_read,
        }
    }
}

/// A loaded model with the keys and values of its sequences. Sequences sit in slots, and a decode step runs on the
/// slots from 0 on, without holes.
pub(super) trait Backend {
    /// What it is and what it takes; the same for its whole life.
    fn abilities(&self) -> Abilities;

    /// Puts prompts where samples start from. `logits` (`[prompts that are complete then, vocab]`) receives what
    /// follows those.
    fn prefill(&mut self, prompts: Prompts<'_>, logits: ArrayViewMut2<'_, f32>) -> Result<Cost, EngineError>;

    /// Starts a sequence in a slot, after one of the prompts that the last [`Backend::prefill`] completed. Samples
    /// start prompt by prompt: none will start from an earlier one.
    fn start(&mut self, slot: usize, prompt: usize) -> Result<(), EngineError>;

    /// The sequence of one slot, with `used` positions in the cache, is in another one now.
    fn moved(&mut self, from: usize, to: usize, used: usize) -> Result<(), EngineError>;

    /// One more token for each of the slots `0..rows.len()`, and its drafts; `logits` is `[rows + drafts, vocab]`, slot
    /// by slot. A draft counts once a later step names a position behind it.
    fn decode(
        &mut self,
        rows: &[DecodeRow],
        drafts: &Drafts,
        logits: ArrayViewMut2<'_, f32>,
    ) -> Result<Cost, EngineError>;

    /// The sequence of a slot has ended.
    fn release(&mut self, slot: usize);

    /// Nothing will start from a prompt of the last [`Backend::prefill`] or [`Backend::go_on`] any more, or from the
    /// first one, of which a part was computed.
    fn give_up(&mut self, _prompt: usize) {}

    /// The sequence of a slot has ended, and its first `used` positions are held under a number.
    fn hold(&mut self, _slot: usize, _used: usize, _number: u64) {
        unreachable!("a backend that keeps nothing is not asked to");
    }

    /// What is held under a number is not wanted any more.
    fn drop_held(&mut self, _number: u64) {}

    /// As [`Backend::prefill`] of one prompt, of which the beginning may be held. What it began with is computed by
    /// itself, and the rest after it, as it was when the state came to be: so the same bits come of it, held or not.
    fn go_on(&mut self, of: Continued<'_>, _logits: ArrayViewMut2<'_, f32>) -> Result<Cost, EngineError> {
        unreachable!("a backend that keeps nothing computes all {} tokens as a prompt", of.tokens.len());
    }

    /// Bytes of keys and values in use.
    fn kv_bytes_in_use(&self) -> u64;

    /// Gives `each` the logits (`[vocab]`) of the positions before each of the last `scored` of some tokens, in their
    /// order, beside the sequences that run.
    fn score(
        &mut self,
        config: &ModelConfig,
        tokens: &[u32],
        scored: usize,
        each: EachRow<'_>,
    ) -> Result<(), EngineError>;

    /// What loads and probes another version, to be run on a side thread.
    fn load(&mut self, source: WeightSource, config: ModelConfig, manifest: WeightManifest) -> LoadJob;

    /// Takes into use what the last [`Backend::load`] has loaded. Prompts are to be computed anew, and nothing is held.
    fn install(&mut self);

    /// What decode steps do in another way, on devices and on request.
    fn levers(&mut self) -> Option<&mut Levers> {
        None
    }
}

/// What is done with a row of logits.
pub(super) type EachRow<'a> = &'a mut dyn FnMut(&[f32]);
