//! Sequences in slots, over shared pages.

use std::{
    collections::HashMap,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ndarray::ArrayViewMut2;
use rollout_kernels::{
    buffer::LargeBuffer,
    element::Format,
    simd::{self, Isa},
    spans::Spans,
};
use shared::{ModelConfig, Routing, WeightManifest, run::memory_plan::PACKED_PREFILL};

use super::{
    super::{
        EngineError, EngineOptions, WeightSource,
        backend::{Abilities, Backend, Cost, EachRow, Paged, Prefill, PrefillLimits},
        draft::Drafts,
        gate::{Examined, Gate, Rounding},
        sequence::DecodeRow,
        session::{SessionOptions, dtype_of},
        swap::{LoadJob, Shelf},
        types::Kernels,
    },
    adapted::{AdapterLoader, LoadedAdapter, Share},
    cache::{Cache, Kind, Own, state_shape},
    check, page_shape, remark_on_speed,
    session::{PackedOptions, PackedSession},
    supports,
    weights::{PackedWeights, Provided},
};

/// Short prompts are computed together: products of few rows are slow, and the weights are read once for all. From some
/// hundred rows on there is nothing to gain, and activations would leave the caches. Nothing is padded.
const PREFILL: PrefillLimits = PrefillLimits { prompts: PACKED_PREFILL.0, together: PACKED_PREFILL.1, padded: false };

/// A prompt in the cache, without the state behind it.
struct Prefix {
    pages: Vec<u32>,
    /// Its positions that are there.
    len: usize,
    /// What it is computed with, and all that comes after it.
    adapter: Option<LoadedAdapter>,
    /// Row of the rotary tables with its first position, and of all that comes after it.
    rotary_begin: usize,
}

/// What samples start from: a prefix, and what comes after it where they go on from a state.
struct Prompt {
    prefix: Arc<Prefix>,
    /// Its pages behind the prefix, and the state behind all of it.
    own: Own,
    /// Positions in its own pages.
    own_len: usize,
}

impl Prompt {
    /// Positions that are there.
    fn len(&self) -> usize {
        self.prefix.len + self.own_len
    }
}

/// A prompt that a call computes.
struct Begun<'a> {
    of: Prefill<'a>,
    prompt: Prompt,
    /// How many of its tokens are there after the call.
    end: usize,
}

/// A running sequence: a prompt and pages of its own.
struct Slot {
    prefix: Arc<Prefix>,
    own: Own,
    /// Positions that were computed, drafts that did not come true among them.
    computed: usize,
}

impl Slot {
    /// Positions of its own before `position`, at which the next token stands.
    fn own_len(&self, position: usize) -> usize {
        assert!((self.prefix.len..=self.computed).contains(&position), "the cache has every position of the sequence");
        position - self.prefix.len
    }
}

/// The packed engine.
pub(in super::super) struct PackedBackend {
    session: PackedSession,
    slots: Vec<Option<Slot>>,
    /// The prompts that samples are started from; those that have started all of theirs are gone.
    prompts: Vec<Option<Prompt>>,
    /// The prompt that will be next, of which a part has been computed.
    coming: Option<Prompt>,
    /// What is held of sequences that have ended, by its number.
    held: HashMap<u64, Prompt>,
    cache: Cache,
    options: PackedOptions,
    /// The next version.
    loaded: Shelf<PackedWeights>,
    /// Memory for the version after.
    spare: Option<Spare>,
    gate: Gate,
}

/// Memory for a version: that of one that nobody needs any more, or new one that is being provided on a side thread.
enum Spare {
    Old(LargeBuffer),
    New(JoinHandle<Option<LargeBuffer>>),
}

impl Spare {
    /// As much as a version takes, if the system gives it; if not, loading will say so.
    fn new(words: usize) -> Option<Self> {
        let provide = move || LargeBuffer::provided(words).ok();
        thread::Builder::new().name("weight-memory".into()).spawn(provide).ok().map(Self::New)
    }

    /// Waits until it is there.
    fn get(self) -> Option<LargeBuffer> {
        match self {
            Self::Old(memory) => Some(memory),
            Self::New(thread) => thread.join().ok().flatten(),
        }
    }
}

impl PackedBackend {
    pub fn open(
        source: &WeightSource,
        config: &ModelConfig,
        manifest: &WeightManifest,
        engine: &EngineOptions,
    ) -> Result<Self, EngineError> {
        check(engine)?;
        let is_bounded = simd::is_bounded().map_err(|e| EngineError::Options(e.to_string()))?;
        remark_on_speed(Isa::detect(), is_bounded, engine);
        let sequences = engine.slots().saturating_add(engine.kept_states);
        let options = PackedOptions {
            session: SessionOptions::of(engine),
            pages: page_shape(config, sequences, engine.max_model_len, engine.kv_format()),
            states: sequences,
            format: engine.format(),
            keeps_choices: engine.keep_routing,
        };
        let gate = Gate::of(engine);
        let (weights, _) = load(&gate, source, config, manifest, options, Provided::default())?;
        let spare = if options.session.hot_swap { Spare::new(weights.own_words()) } else { None };
        Ok(Self {
            session: PackedSession::new(Arc::new(weights), config, options)?,
            slots: Vec::new(),
            prompts: Vec::new(),
            coming: None,
            held: HashMap::new(),
            cache: Cache::new(options.pages, &state_shape(config, options.states)),
            options,
            loaded: Shelf::default(),
            spare,
            gate,
        })
    }

    /// Gives the prompts up, complete or not; sequences that were started from them keep them.
    fn forget_prompts(&mut self) {
        for prompt in self.prompts.drain(..).flatten().chain(self.coming.take()) {
            give_back(&mut self.cache, prompt);
        }
    }

    /// What there is of a prompt before a call: what is held, and what was computed in pieces.
    fn begin(&mut self, of: Prefill<'_>) -> Prompt {
        if of.computed > 0 {
            let begun = self.coming.take().expect("a prompt of which a piece was computed");
            let held = of.held.and_then(|number| self.held.get(&number)).map_or(0, Prompt::len);
            assert_eq!(begun.len(), held + of.computed, "the first prompt is the one that was begun");
            return begun;
        }
        let mut prompt = match of.held.and_then(|number| self.held.remove_entry(&number)) {
            Some((number, held)) => {
                let (prefix, own_len) = (Arc::clone(&held.prefix), held.own_len);
                let own = self.cache.fork(&held.own, own_len, &mut self.session);
                self.held.insert(number, held);
                Prompt { prefix, own, own_len }
            }
            None => {
                let mut pages = Vec::new();
                self.cache.pages.extend(&mut pages, of.prompt);
                let rotary_begin = self.session.config.rotary_begin(of.tokens.len());
                let prefix = Arc::new(Prefix { pages, len: 0, adapter: of.adapter.cloned(), rotary_begin });
                Prompt { prefix, own: Own::default(), own_len: 0 }
            }
        };
        self.cache.extend(&mut prompt.own, of.tokens.len() - of.prompt);
        prompt
    }

    /// Computes at most `most` further tokens of each prompt. `logits` receives what follows those that are complete
    /// then.
    fn compute(
        &mut self,
        prompts: &[Prefill<'_>],
        most: usize,
        logits: ArrayViewMut2<'_, f32>,
    ) -> Result<(Vec<Prompt>, Cost), EngineError> {
        if prompts.iter().all(|of| of.computed == 0) {
            self.forget_prompts();
        }
        let mut begun = Vec::with_capacity(prompts.len());
        for &of in prompts {
            let prompt = self.begin(of);
            begun.push(Begun { of, end: of.tokens.len().min(prompt.len().saturating_add(most)), prompt });
        }
        // What a state began with is computed by itself, and the rest after it, as it was when the state came to be: so
        // the same bits come of it, held or not.
        let none = no_logits(self.session.config.vocab_size);
        let first = self.pass(
            &mut begun,
            |Begun { of, end, .. }| if of.prompt < of.tokens.len() { of.prompt.min(*end) } else { 0 },
            none,
        )?;
        let rest = self.pass(&mut begun, |begun| begun.end, logits)?;
        Ok((begun.into_iter().map(|begun| begun.prompt).collect(), first.with(rest)))
    }

    /// Computes prompts as far as `until` says, all of them in one pass.
    fn pass(
        &mut self,
        prompts: &mut [Begun<'_>],
        until: impl Fn(&Begun<'_>) -> usize,
        logits: ArrayViewMut2<'_, f32>,
    ) -> Result<Cost, EngineError> {
        let tokens = |begun: &Begun<'_>| until(begun).saturating_sub(begun.prompt.len());
        let (mut ids, mut shares) = (Vec::new(), Vec::new());
        for begun in &*prompts {
            let piece = &begun.of.tokens[begun.prompt.len()..][..tokens(begun)];
            ids.extend(piece.iter().map(|&token| i64::from(token)));
            shares.push(Share { adapter: begun.prompt.prefix.adapter.clone(), tokens: piece.len() });
        }
        if ids.is_empty() {
            return Ok(Cost::default());
        }
        self.session.run(&ids, shares, logits, |spans, last| {
            for begun in prompts.iter().filter(|&begun| tokens(begun) > 0) {
                let (Begun { of, prompt, .. }, tokens) = (begun, tokens(begun));
                let Prompt { prefix, own, own_len } = prompt;
                if prefix.len < of.prompt {
                    spans.push(&[], 0, &prefix.pages, prefix.len, tokens);
                } else {
                    spans.push(&prefix.pages, prefix.len, &own.pages, *own_len, tokens);
                }
                begin_and_state(spans, prefix, own);
                // Nobody asks what follows a piece: the head of the model is not computed.
                last.extend((prompt.len() + tokens == of.tokens.len()).then(|| spans.tokens() - 1));
            }
        })?;
        for begun in prompts.iter_mut() {
            let tokens = tokens(begun);
            let Begun { of, prompt: Prompt { prefix, own_len, .. }, .. } = begun;
            if prefix.len == of.prompt {
                *own_len += tokens;
            } else if tokens > 0 {
                Arc::get_mut(prefix).expect("nothing starts from a piece of a prompt").len += tokens;
            }
        }
        Ok(self.cost())
    }

    /// What the last call took: pages of a shared prompt were read once.
    fn cost(&mut self) -> Cost {
        let (pages, states) = (self.session.pages_read(), self.session.states_read());
        let kv_bytes_read = self.cache.pages.bytes_of(pages) + self.cache.states.bytes_of(states);
        Cost { kv_bytes_read, ..self.session.take_cost() }
    }
}

impl Backend for PackedBackend {
    fn abilities(&self) -> Abilities {
        Abilities {
            kernels: Kernels::Packed,
            instruction_set: Isa::detect().name(self.options.format),
            prefill: PREFILL,
        }
    }

    fn prefill(&mut self, prompts: &[Prefill<'_>], logits: ArrayViewMut2<'_, f32>) -> Result<Cost, EngineError> {
        let (prompts, cost) = self.compute(prompts, usize::MAX, logits)?;
        self.prompts.extend(prompts.into_iter().map(Some));
        Ok(cost)
    }

    /// Prompts before this one go: the pool has room for one prompt beyond those of the sequences.
    fn start(&mut self, slot: usize, prompt: usize) -> Result<(), EngineError> {
        for before in self.prompts[..prompt].iter_mut().filter_map(Option::take) {
            give_back(&mut self.cache, before);
        }
        let of = self.prompts[prompt].take().expect("samples start prompt by prompt");
        let (prefix, computed) = (Arc::clone(&of.prefix), of.len());
        let own = self.cache.fork(&of.own, of.own_len, &mut self.session);
        self.prompts[prompt] = Some(of);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Slot { prefix, own, computed });
        Ok(())
    }

    fn moved(&mut self, from: usize, to: usize, _: usize) -> Result<(), EngineError> {
        debug_assert!(self.slots[to].is_none(), "slot {to} is taken");
        self.slots.swap(from, to);
        Ok(())
    }

    fn decode(
        &mut self,
        rows: &[DecodeRow],
        drafts: &Drafts,
        logits: ArrayViewMut2<'_, f32>,
    ) -> Result<Cost, EngineError> {
        let Self { session, slots, cache, .. } = self;
        for (index, (slot, row)) in slots.iter_mut().zip(rows).enumerate() {
            let slot = slot.as_mut().expect("decoding runs on slots without holes");
            let tokens = 1 + drafts.of(index).len();
            let (own_len, computed) = (slot.own_len(row.position), slot.own_len(slot.computed));
            cache.states.keep(&mut slot.own.state, own_len, computed);
            cache.extend(&mut slot.own, own_len + tokens);
        }
        let at = |slot: usize| running(slots, slot);
        let order = in_order(slots, rows.len());
        let mut ids = Vec::with_capacity(rows.len() + drafts.len());
        let mut shares = Vec::with_capacity(rows.len());
        for &slot in &order {
            ids.push(i64::from(rows[slot].token));
            ids.extend(drafts.of(slot).iter().map(|&token| i64::from(token)));
            shares.push(Share { adapter: at(slot).prefix.adapter.clone(), tokens: 1 + drafts.of(slot).len() });
        }
        session.run(&ids, shares, logits, |spans, last| {
            last.resize(ids.len(), 0);
            for &slot in &order {
                let Slot { prefix, own, .. } = at(slot);
                let tokens = 1 + drafts.of(slot).len();
                let (first, row) = (spans.tokens(), drafts.first_row(slot));
                spans.push(&prefix.pages, prefix.len, &own.pages, at(slot).own_len(rows[slot].position), tokens);
                begin_and_state(spans, prefix, own);
                (0..tokens).for_each(|i| last[row + i] = first + i);
            }
        })?;
        for (index, (slot, row)) in slots.iter_mut().flatten().zip(rows).enumerate() {
            slot.computed = row.position + 1 + drafts.of(index).len();
        }
        Ok(self.cost())
    }

    fn routing(&self, slot: usize, used: usize) -> Option<Routing> {
        let Slot { prefix, own, .. } = running(&self.slots, slot);
        let own_len = used.checked_sub(prefix.len).expect("a sequence goes on behind its prefix");
        self.session.choices([(&prefix.pages[..], prefix.len), (&own.pages[..], own_len)])
    }

    fn release(&mut self, slot: usize) {
        let Slot { prefix, own, .. } = self.slots[slot].take().expect("the slot is occupied");
        give_back(&mut self.cache, Prompt { prefix, own, own_len: 0 });
    }

    /// Those of the pages and states that are taken.
    fn kv_bytes_in_use(&self) -> u64 {
        self.cache.bytes_in_use()
    }

    fn score(
        &mut self,
        config: &ModelConfig,
        tokens: &[u32],
        scored: usize,
        adapter: Option<&LoadedAdapter>,
        each: EachRow<'_>,
    ) -> Result<(), EngineError> {
        let options = self.options.to_score(config, tokens.len());
        PackedSession::new(self.session.weights(), config, options)?.score(tokens, scored, adapter, each)
    }

    fn adapter_loader(&self, config: &ModelConfig) -> Option<AdapterLoader> {
        let weights = self.session.weights();
        (!weights.is_adapter()).then(|| AdapterLoader::new(weights, config, self.options))
    }

    fn takes(&self, adapter: &LoadedAdapter) -> bool {
        adapter.is_of(&self.session.weights())
    }

    fn load(&mut self, source: WeightSource, config: ModelConfig, manifest: WeightManifest) -> LoadJob {
        let (spare, kept) = (self.spare.take(), self.session.kept());
        let (gate, options) = (self.gate.clone(), self.options);
        self.loaded.to_fill(move || {
            let provided = Provided { memory: spare.and_then(Spare::get), kept, data: None };
            load(&gate, &source, &config, &manifest, options, provided)
        })
    }

    fn install(&mut self) {
        let before = self.session.exchange(Arc::new(self.loaded.take()));
        self.spare = Arc::into_inner(before).map(|weights| Spare::Old(weights.into_memory()));
        self.forget_prompts();
        for (_, held) in self.held.drain() {
            give_back(&mut self.cache, held);
        }
    }

    fn paged(&mut self) -> Option<&mut dyn Paged> {
        Some(self)
    }
}

impl Paged for PackedBackend {
    fn prefill_piece(&mut self, prompt: Prefill<'_>, tokens: usize) -> Result<Cost, EngineError> {
        let (prompts, cost) = self.compute(&[prompt], tokens, no_logits(self.session.config.vocab_size))?;
        self.coming = prompts.into_iter().next();
        Ok(cost)
    }

    fn all_started(&mut self, prompt: usize) {
        let has_adapter = |of: &mut Prompt| of.prefix.adapter.is_some();
        if let Some(prompt) = self.prompts[prompt].take_if(has_adapter) {
            give_back(&mut self.cache, prompt);
        }
    }

    fn give_up(&mut self, prompt: usize) {
        let coming = self.coming.take_if(|_| prompt == 0);
        let complete = self.prompts.get_mut(prompt).and_then(Option::take);
        for prompt in coming.into_iter().chain(complete) {
            give_back(&mut self.cache, prompt);
        }
    }

    fn hold(&mut self, slot: usize, used: usize, number: u64) {
        let slot = self.slots[slot].take().expect("the slot is occupied");
        let (own_len, computed) = (slot.own_len(used), slot.own_len(slot.computed));
        let Slot { prefix, mut own, .. } = slot;
        self.cache.keep(&mut own, own_len, computed);
        self.held.insert(number, Prompt { prefix, own, own_len });
    }

    fn drop_held(&mut self, number: u64) {
        if let Some(held) = self.held.remove(&number) {
            give_back(&mut self.cache, held);
        }
    }
}

/// Packs a version that passes the gate; returns how long that took as well.
fn load(
    gate: &Gate,
    source: &WeightSource,
    config: &ModelConfig,
    manifest: &WeightManifest,
    options: PackedOptions,
    provided: Provided,
) -> Result<(PackedWeights, Duration), EngineError> {
    let mut examined = gate.examine(source, manifest)?;
    let mut provided = Provided { data: examined.take_data(), ..provided };
    if gate.is_on() && !supports(source, config, manifest)? {
        let (version, reason) = (source.version, "its graph is not the one that the packed kernels stand for".into());
        return Err(EngineError::Refused { version, reason });
    }
    let load = |format, provided| {
        PackedWeights::load(source, config, manifest, format, provided, options.session.threads).map(Arc::new)
    };
    let mut in_bytes = Duration::ZERO;
    if gate.is_on() && options.format == Format::Int4 && manifest.rounded.is_none() {
        // Beside the loss of four bits, most faults would not show: the version is scored in bytes first, of the same
        // numbers. Memory of four bits is too small for that, and would only be in the way.
        let begun = Instant::now();
        provided.memory = None;
        let options = PackedOptions { format: Format::Int8, ..options };
        let bytes = load(options.format, Provided { data: provided.data.take(), ..Provided::default() })?;
        let _ = pass(&examined, bytes, config, manifest, options)?;
        in_bytes = begun.elapsed();
    }
    let weights = load(options.format, provided)?;
    let time = pass(&examined, Arc::clone(&weights), config, manifest, options)?;
    Ok((Arc::into_inner(weights).expect("the session that scored has ended"), in_bytes + time))
}

/// Has packed weights score the canaries in a session of their own.
fn pass(
    examined: &Examined,
    weights: Arc<PackedWeights>,
    config: &ModelConfig,
    manifest: &WeightManifest,
    options: PackedOptions,
) -> Result<Duration, EngineError> {
    let kv = options.pages.format;
    let mut session = PackedSession::new(weights, config, options.to_score(config, examined.positions()))?;
    let rounding = Rounding { stored: dtype_of(manifest), weights: options.format, kv };
    examined.pass(config.vocab_size, rounding, |tokens, scored, each| session.score(tokens, scored, None, each))
}

fn running(slots: &[Option<Slot>], slot: usize) -> &Slot {
    slots[slot].as_ref().expect("decoding runs on slots without holes")
}

/// The first `count` slots in the order of a call. Neighbours with one adapter are computed together, and those with
/// one prompt read it together.
fn in_order(slots: &[Option<Slot>], count: usize) -> Vec<usize> {
    let key = |slot: usize| {
        let Slot { prefix, .. } = running(slots, slot);
        (Share::key(prefix.adapter.as_ref()), prefix.pages[0], slot)
    };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_unstable_by_key(|&slot| key(slot));
    order
}

/// Where logits go of which there are none.
fn no_logits(vocab: usize) -> ArrayViewMut2<'static, f32> {
    ArrayViewMut2::from_shape((0, vocab), &mut []).expect("no rows take no memory")
}

/// Tells the sequence that was added last where its positions begin, and where its state is.
fn begin_and_state(spans: &mut Spans, prefix: &Prefix, own: &Own) {
    spans.rotary_from(prefix.rotary_begin);
    if let Some(block) = own.state {
        spans.state_in(block);
    }
}

/// Gives back what a prompt or a sequence holds; a prefix when nobody else has it.
fn give_back(cache: &mut Cache, Prompt { prefix, own, .. }: Prompt) {
    cache.give_back(own);
    if let Some(prefix) = Arc::into_inner(prefix) {
        cache.pages.give_back(prefix.pages);
    }
}

#[cfg(test)]
mod tests;
