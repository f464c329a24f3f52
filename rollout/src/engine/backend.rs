//! What computes logits: the trait that every way of running a model implements. [`open`](super::open) chooses one.

use std::time::Duration;

use ndarray::ArrayViewMut2;
use shared::{ModelConfig, Routing, WeightManifest};

use super::{
    EngineError, WeightSource,
    device::lever::Levers,
    draft::Drafts,
    packed::{AdapterLoader, LoadedAdapter},
    sequence::DecodeRow,
    swap::LoadJob,
    types::Kernels,
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
}

/// What one call of [`Backend::prefill`] takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefillLimits {
    /// Most prompts.
    pub prompts: usize,
    /// Most tokens of more than one prompt.
    pub together: usize,
    /// Whether all take as many tokens as the longest.
    pub padded: bool,
}

/// A prompt of one call of [`Backend::prefill`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefill<'a> {
    /// All its tokens.
    pub tokens: &'a [u32],
    /// How many of them were the prompt that it began with: fewer where it goes on from a state.
    pub prompt: usize,
    /// Where the keys and values of that state are held: those of all its tokens but the newest.
    pub held: Option<u64>,
    /// What it is computed with beside the weights in use.
    pub adapter: Option<&'a LoadedAdapter>,
    /// How many tokens [`Paged::prefill_piece`] has computed, beside those that are held.
    pub computed: usize,
}

impl<'a> Prefill<'a> {
    /// A whole prompt from its first token on.
    pub fn whole(tokens: &'a [u32]) -> Self {
        Self { tokens, prompt: tokens.len(), held: None, adapter: None, computed: 0 }
    }
}

/// What a call took, as far as the backend knows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    /// The linear layers without the language-model head.
    pub linear: Duration,
    /// The language-model head.
    pub head: Duration,
    /// Attention, and what layers with a state have in its place.
    pub attention: Duration,
    /// Bytes of keys, values and states that were read.
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

    /// Puts prompts where samples start from. `logits` (`[prompts, vocab]`) receives what follows them.
    fn prefill(&mut self, prompts: &[Prefill<'_>], logits: ArrayViewMut2<'_, f32>) -> Result<Cost, EngineError>;

    /// Starts a sequence in a slot, after one of the prompts of the last [`Backend::prefill`]. Samples start prompt by
    /// prompt: none will start from an earlier one.
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

    /// The experts that were chosen at the first `used` positions of the sequence of a slot, where they are kept.
    fn routing(&self, _slot: usize, _used: usize) -> Option<Routing> {
        None
    }

    /// The sequence of a slot has ended.
    fn release(&mut self, slot: usize);

    /// Bytes of keys, values and states in use.
    fn kv_bytes_in_use(&self) -> u64;

    /// Gives `each` the logits (`[vocab]`) of the positions before each of the last `scored` of some tokens, in their
    /// order, beside the sequences that run.
    fn score(
        &mut self,
        config: &ModelConfig,
        tokens: &[u32],
        scored: usize,
        adapter: Option<&LoadedAdapter>,
        each: EachRow<'_>,
    ) -> Result<(), EngineError>;

    /// What loads adapters for the weights in use, where sequences may have some.
    fn adapter_loader(&self, _: &ModelConfig) -> Option<AdapterLoader> {
        None
    }

    /// Whether sequences may have this adapter: it was loaded for the weights in use.
    fn takes(&self, _: &LoadedAdapter) -> bool {
        false
    }

    /// What loads and probes another version, to be run on a side thread.
    fn load(&mut self, source: WeightSource, config: ModelConfig, manifest: WeightManifest) -> LoadJob;

    /// Takes into use what the last [`Backend::load`] has loaded. Prompts are to be computed anew, and nothing is held.
    fn install(&mut self);

    /// What it can do where keys and values lie in pages.
    fn paged(&mut self) -> Option<&mut dyn Paged> {
        None
    }

    /// What decode steps do in another way, on devices and on request.
    fn levers(&mut self) -> Option<&mut Levers> {
        None
    }
}

/// A backend whose keys and values lie in pages, which prompts, sequences and states share.
pub(super) trait Paged {
    /// Computes so many further tokens of the first prompt of the next [`Backend::prefill`], which is longer. Where
    /// none was computed before, the prompts of the last call are given up.
    fn prefill_piece(&mut self, prompt: Prefill<'_>, tokens: usize) -> Result<Cost, EngineError>;

    /// All samples of a prompt of the last [`Backend::prefill`] have started. An adapter that nobody else wants goes
    /// with the last of them.
    fn all_started(&mut self, prompt: usize);

    /// Nothing will start from a prompt of the last [`Backend::prefill`] any more, or from the first of the next one,
    /// of which a piece was computed.
    fn give_up(&mut self, prompt: usize);

    /// The sequence of a slot has ended, and its first `used` positions are held under a number.
    fn hold(&mut self, slot: usize, used: usize, number: u64);

    /// What is held under a number is not wanted any more.
    fn drop_held(&mut self, number: u64);
}

/// What is done with a row of logits.
pub(super) type EachRow<'a> = &'a mut dyn FnMut(&[f32]);
