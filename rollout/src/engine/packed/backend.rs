//! Sequences in slots, over shared pages.

use std::{
    collections::HashMap,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use ndarray::ArrayViewMut2;
use rollout_kernels::{
    buffer::LargeBuffer,
    element::Format,
    pages::{FreePages, PAGE, PageShape},
    simd::{Isa, MAX_BYTE_PRODUCTS},
};
use shared::{ModelConfig, WeightManifest, config::KvDtype, memory_plan::PACKED_PREFILL};

use super::{
    super::{
        EngineError, EngineOptions, WeightSource,
        backend::{Abilities, Backend, Cost, EachRow, Paged, Prefill},
        draft::Drafts,
        gate::{Examined, Gate, Rounding},
        scheduler::PrefillLimits,
        sequence::DecodeRow,
        session::{SessionOptions, dtype_of},
        swap::{LoadJob, Shelf},
        types::Kernels,
    },
    page_shape,
    session::{PackedOptions, PackedSession},
    supports,
    weights::{PackedWeights, Provided},
};

/// Short prompts are computed together: products of few rows are slow, and the weights are read once for all. From some
/// hundred rows on there is nothing to gain, and activations would leave the caches. Nothing is padded.
const PREFILL: PrefillLimits = PrefillLimits { prompts: PACKED_PREFILL.0, together: PACKED_PREFILL.1, padded: false };

/// A prompt in the cache.
struct Prefix {
    pages: Vec<u32>,
    /// Its positions that are there.
    len: usize,
}

/// What samples start from: a prefix, and what comes after it where they go on from a state.
struct Prompt {
    prefix: Arc<Prefix>,
    own: Vec<u32>,
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
    own: Vec<u32>,
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
    free: FreePages,
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
        remark_on_speed(Isa::detect(), engine);
        let options = PackedOptions {
            session: SessionOptions::of(engine),
            pages: page_shape(
                config,
                engine.slots().saturating_add(engine.kept_states),
                engine.max_model_len,
                engine.kv_format(),
            ),
            format: engine.format(),
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
            free: FreePages::new(options.pages.pages),
            options,
            loaded: Shelf::default(),
            spare,
            gate,
        })
    }

    /// Gives the prompts up, complete or not; sequences that were started from them keep them.
    fn forget_prompts(&mut self) {
        for prompt in self.prompts.drain(..).flatten().chain(self.coming.take()) {
            give_back(&mut self.free, prompt);
        }
    }

    /// The pages of a prompt's own for somebody else who goes on from there: full ones are shared, the last one is
    /// copied.
    fn fork(&mut self, own: &[u32], own_len: usize) -> Vec<u32> {
        let full = own_len / PAGE;
        let mut pages = own[..full].to_vec();
        self.free.share(&pages);
        if !own_len.is_multiple_of(PAGE) {
            extend(&mut self.free, &mut pages, full + 1);
            self.session.copy_page(own[full], pages[full]);
        }
        pages
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
                let own = self.fork(&held.own, own_len);
                self.held.insert(number, held);
                Prompt { prefix, own, own_len }
            }
            None => {
                let mut pages = Vec::new();
                extend(&mut self.free, &mut pages, PageShape::pages_for(of.prompt));
                Prompt { prefix: Arc::new(Prefix { pages, len: 0 }), own: Vec::new(), own_len: 0 }
            }
        };
        extend(&mut self.free, &mut prompt.own, PageShape::pages_for(of.tokens.len() - of.prompt));
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
        let none = no_logits(self.session.vocab);
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
        let mut ids = Vec::new();
        for begun in &*prompts {
            let piece = &begun.of.tokens[begun.prompt.len()..][..tokens(begun)];
            ids.extend(piece.iter().map(|&token| i64::from(token)));
        }
        if ids.is_empty() {
            return Ok(Cost::default());
        }
        self.session.run(&ids, logits, |spans, last| {
            for begun in prompts.iter().filter(|&begun| tokens(begun) > 0) {
                let (Begun { of, prompt, .. }, tokens) = (begun, tokens(begun));
                let Prompt { prefix, own, own_len } = prompt;
                if prefix.len < of.prompt {
                    spans.push(&[], 0, &prefix.pages, prefix.len, tokens);
                } else {
                    spans.push(&prefix.pages, prefix.len, own, *own_len, tokens);
                }
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
        let kv_bytes_read = self.bytes_of(self.session.pages_read());
        Cost { kv_bytes_read, ..self.session.take_cost() }
    }

    fn bytes_of(&self, pages: usize) -> u64 {
        (pages * (self.options.pages.bytes() / self.options.pages.pages)) as u64
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
            give_back(&mut self.free, before);
        }
        let of = self.prompts[prompt].take().expect("samples start prompt by prompt");
        let (prefix, computed) = (Arc::clone(&of.prefix), of.len());
        let own = self.fork(&of.own, of.own_len);
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
        let Self { session, slots, free, .. } = self;
        for (index, (slot, row)) in slots.iter_mut().zip(rows).enumerate() {
            let slot = slot.as_mut().expect("decoding runs on slots without holes");
            let tokens = 1 + drafts.of(index).len();
            let own_len = slot.own_len(row.position);
            extend(free, &mut slot.own, PageShape::pages_for(own_len + tokens));
        }
        let at = |slot: usize| slots[slot].as_ref().expect("decoding runs on slots without holes");
        // Neighbours with one prompt read it together.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|&slot| (at(slot).prefix.pages[0], slot));
        let mut ids = Vec::with_capacity(rows.len() + drafts.len());
        for &slot in &order {
            ids.push(i64::from(rows[slot].token));
            ids.extend(drafts.of(slot).iter().map(|&token| i64::from(token)));
        }
        session.run(&ids, logits, |spans, last| {
            last.resize(ids.len(), 0);
            for &slot in &order {
                let Slot { prefix, own, .. } = at(slot);
                let tokens = 1 + drafts.of(slot).len();
                let (first, row) = (spans.tokens(), drafts.first_row(slot));
                spans.push(&prefix.pages, prefix.len, own, at(slot).own_len(rows[slot].position), tokens);
                (0..tokens).for_each(|i| last[row + i] = first + i);
            }
        })?;
        for (index, (slot, row)) in slots.iter_mut().flatten().zip(rows).enumerate() {
            slot.computed = row.position + 1 + drafts.of(index).len();
        }
        Ok(self.cost())
    }

    fn release(&mut self, slot: usize) {
        let Slot { prefix, own, .. } = self.slots[slot].take().expect("the slot is occupied");
        give_back(&mut self.free, Prompt { prefix, own, own_len: 0 });
    }

    /// Those of the pages that are taken.
    fn kv_bytes_in_use(&self) -> u64 {
        self.bytes_of(self.options.pages.pages - self.free.count())
    }

    fn score(
        &mut self,
        config: &ModelConfig,
        tokens: &[u32],
        scored: usize,
        each: EachRow<'_>,
    ) -> Result<(), EngineError> {
        let pages = page_shape(config, 1, tokens.len(), self.options.pages.format);
        let options = PackedOptions { pages, ..self.options };
        PackedSession::new(self.session.weights(), config, options)?.score(tokens, scored, each)
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
            give_back(&mut self.free, held);
        }
    }

    fn paged(&mut self) -> Option<&mut dyn Paged> {
        Some(self)
    }
}

impl Paged for PackedBackend {
    fn prefill_piece(&mut self, prompt: Prefill<'_>, tokens: usize) -> Result<Cost, EngineError> {
        let (prompts, cost) = self.compute(&[prompt], tokens, no_logits(self.session.vocab))?;
        self.coming = prompts.into_iter().next();
        Ok(cost)
    }

    fn give_up(&mut self, prompt: usize) {
        let coming = self.coming.take_if(|_| prompt == 0);
        let complete = self.prompts.get_mut(prompt).and_then(Option::take);
        for prompt in coming.into_iter().chain(complete) {
            give_back(&mut self.free, prompt);
        }
    }

    fn hold(&mut self, slot: usize, used: usize, number: u64) {
        let slot = self.slots[slot].take().expect("the slot is occupied");
        let own_len = slot.own_len(used);
        let Slot { prefix, mut own, .. } = slot;
        // Drafts may have taken more.
        self.free.give_back(&own.split_off(PageShape::pages_for(own_len)));
        self.held.insert(number, Prompt { prefix, own, own_len });
    }

    fn drop_held(&mut self, number: u64) {
        if let Some(held) = self.held.remove(&number) {
            give_back(&mut self.free, held);
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
    let provided = Provided { data: examined.take_data(), ..provided };
    if gate.is_on() && !supports(source, config, manifest)? {
        let (version, reason) = (source.version, "its graph is not the one that the packed kernels stand for".into());
        return Err(EngineError::Refused { version, reason });
    }
    let threads = options.session.threads;
    let weights = Arc::new(PackedWeights::load(source, config, manifest, options.format, provided, threads)?);
    let time = pass(examined, Arc::clone(&weights), config, manifest, options)?;
    Ok((Arc::into_inner(weights).expect("the session that scored has ended"), time))
}

/// Has packed weights score the canaries in a session of their own.
fn pass(
    examined: Examined,
    weights: Arc<PackedWeights>,
    config: &ModelConfig,
    manifest: &WeightManifest,
    options: PackedOptions,
) -> Result<Duration, EngineError> {
    let kv = options.pages.format;
    let pages = page_shape(config, 1, examined.positions(), kv);
    let mut session = PackedSession::new(weights, config, PackedOptions { pages, ..options })?;
    let rounding = Rounding { stored: dtype_of(manifest), weights: options.format, kv };
    examined.pass(config.vocab_size, rounding, |tokens, scored, each| session.score(tokens, scored, each))
}

/// The packed kernels batch prompts by themselves, and their logits are in main memory.
fn check(options: &EngineOptions) -> Result<(), EngineError> {
    let refused = [
        ("candidates", options.candidates > 0),
        ("prefill_batch above 1", options.prefill_batch > 1),
        ("cuda_graphs", options.cuda_graphs),
    ];
    if let Some((name, _)) = refused.iter().find(|(_, on)| *on) {
        return Err(EngineError::Options(format!("{name} needs the stock kernels (--kernels stock)")));
    }
    if options.kv_dtype == KvDtype::Int8 && options.max_model_len > MAX_BYTE_PRODUCTS {
        let message = format!("kv_dtype int8 takes a max_model_len of at most {MAX_BYTE_PRODUCTS}; auto takes more");
        return Err(EngineError::Options(message));
    }
    Ok(())
}

/// Logs which choices may be slower than others on this processor.
fn remark_on_speed(isa: Isa, options: &EngineOptions) {
    if isa.is_plain() {
        tracing::warn!(
            "this processor has none of the instruction sets of the packed kernels (AVX2 with FMA, AVX-512): --kernels \
             stock (`rollout_kernels`) should be faster"
        );
        return;
    }
    let format = options.format();
    if (format == Format::Int8 || options.kv_dtype == KvDtype::Int8) && !isa.has_byte_products() {
        tracing::warn!("this processor has no VNNI: int8 saves memory, and may not be faster than fp32");
    }
    if matches!(format, Format::Bf16 | Format::Bf16x3) && !isa.has_tiles() {
        tracing::warn!(
            "this processor has no AMX: bf16 saves memory, and neither it nor bf16x3 need be faster than fp32"
        );
    }
}

/// Where logits go of which there are none.
fn no_logits(vocab: usize) -> ArrayViewMut2<'static, f32> {
    ArrayViewMut2::from_shape((0, vocab), &mut []).expect("no rows take no memory")
}

/// Gives a sequence of the pool `count` pages.
fn extend(free: &mut FreePages, pages: &mut Vec<u32>, count: usize) {
    free.extend(pages, count).expect("the pool holds every slot at full length");
}

/// Gives back what a prompt or a sequence holds; a prefix when nobody else has it.
fn give_back(free: &mut FreePages, Prompt { prefix, own, .. }: Prompt) {
    free.give_back(&own);
    if let Some(prefix) = Arc::into_inner(prefix) {
        free.give_back(&prefix.pages);
    }
}

#[cfg(test)]
mod tests {
    use exporters::{ExportOptions, VersionDir, export, norm};
    use ndarray::{Array2, s};
    use rollout_kernels::pages::PAGE;
    use shared::{Canaries, Dtype, ModelDir, PolicyVersion, config::RolloutDtype};

    use super::*;
    use crate::engine::session::read_manifest;

    /// Places for 17 sequences of up to 64 tokens.
    fn options() -> EngineOptions {
        EngineOptions { max_num_batched_tokens: 64, ..EngineOptions::new(16, 64) }
    }

    /// A tiny model with its export, in a folder that goes with it.
    fn exported() -> (tempfile::TempDir, ModelDir, WeightSource, WeightManifest) {
        let model = ModelDir::open(harness::golden_dir().join("models/llama")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let source = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
        export(&model, &source.dir, &ExportOptions::default()).unwrap();
        let manifest = read_manifest(&source, model.config()).unwrap();
        (folder, model, source, manifest)
    }

    /// Nothing on disk is wrong, so nothing but log-probs can show it.
    #[test]
    fn a_wrong_scale_of_int8_is_refused() {
        let (_folder, model, source, manifest) = exported();
        let engine = EngineOptions { rollout_dtype: RolloutDtype::Int8, ..options() };
        let golden = &harness::golden("model_numerics.json")["cases"][0];
        assert_eq!(golden["name"], "llama");
        let row = |value: &serde_json::Value| value[2].as_array().unwrap().clone();
        let ids = |key: &str| row(&golden["inputs"][key]).into_iter().map(|id| id.as_u64().unwrap() as u32);
        let stored = VersionDir::open(&source.dir).unwrap();
        let norm_of = |name: String| (name.clone(), norm(&stored.read_f32(&name).unwrap()));
        let canaries = Canaries {
            version: PolicyVersion(0),
            dtype: Dtype::Fp32,
            token_ids: ids("prompt_ids").chain(ids("completion_ids")).collect(),
            logprobs: row(&golden["expected"]["completion_logps"]).iter().map(|l| l.as_f64().unwrap()).collect(),
            norms: manifest.parameters().map(|(name, _)| norm_of(name)).collect(),
        };
        canaries.write(&source.dir).unwrap();
        let options = PackedOptions {
            session: SessionOptions::of(&engine),
            pages: page_shape(model.config(), 1, PAGE, engine.kv_format()),
            format: engine.format(),
        };
        let gate = Gate::of(&engine);
        let passes = |spoil: &dyn Fn(&mut PackedWeights)| {
            let mut weights =
                PackedWeights::load(&source, model.config(), &manifest, Format::Int8, Provided::default(), 1).unwrap();
            spoil(&mut weights);
            let examined = gate.examine(&source, &manifest).unwrap();
            pass(examined, Arc::new(weights), model.config(), &manifest, options)
        };
        passes(&|_| ()).unwrap();
        for product in [0, 3, 8] {
            let error = passes(&|weights| weights.scale_for_test(product, 4.0)).expect_err(&product.to_string());
            assert!(error.refusal().is_some_and(|reason| reason.contains("packing")), "{product}: {error}");
        }
    }

    /// Versions of another size would be packed into new memory.
    #[test]
    fn the_first_swap_finds_the_memory_that_it_needs() {
        let (_folder, model, source, manifest) = exported();
        let open = |hot_swap| {
            let options = EngineOptions { hot_swap, ..options() };
            PackedBackend::open(&source, model.config(), &manifest, &options).unwrap()
        };
        assert!(open(false).spare.is_none(), "without swaps, none is kept");
        let mut swapping = open(true);
        let spare = swapping.spare.take().and_then(Spare::get).unwrap();
        let place = spare.as_ptr();
        swapping.spare = Some(Spare::Old(spare));
        swapping.load(source.clone(), model.config().clone(), manifest.clone())().unwrap();
        let loaded = swapping.loaded.take();
        assert_eq!(loaded.into_memory().as_ptr(), place);
    }

    #[test]
    fn a_prompt_is_held_once_for_its_completions_and_every_page_comes_back() {
        let (_folder, model, source, manifest) = exported();
        let mut backend = PackedBackend::open(&source, model.config(), &manifest, &options()).unwrap();
        let all = backend.free.count();
        let vocab = model.config().vocab_size;
        let mut logits = Array2::zeros((16, vocab));
        // The second one comes with it, in pages of its own, and goes with the next call.
        let prompts = [Prefill::whole(&[7; 40]), Prefill::whole(&[5; 9])];
        backend.prefill(&prompts, logits.slice_mut(s![..2, ..])).unwrap();
        assert_eq!(all - backend.free.count(), 3 + 1, "40 positions in pages of 16, and 9");
        let first = logits.row(0).to_owned();
        backend.start(0, 1).unwrap();
        assert_eq!(all - backend.free.count(), 1, "nothing will start from the first prompt any more");
        backend.release(0);
        backend.prefill(&prompts[..1], logits.slice_mut(s![..1, ..])).unwrap();
        assert_eq!(first, logits.row(0), "a prompt beside it changes no bit");
        (0..16).for_each(|slot| backend.start(slot, 0).unwrap());
        assert_eq!(all - backend.free.count(), 3);
        let position = 2 * model.config().num_hidden_layers * model.config().num_key_value_heads * 4;
        assert_eq!(backend.kv_bytes_in_use(), (3 * PAGE * position * model.config().head_dim) as u64);
        for step in 0..17 {
            let rows = [DecodeRow { token: 9, position: 40 + step }; 16];
            let cost = backend.decode(&rows, &Drafts::default(), logits.view_mut()).unwrap();
            assert_eq!(all - backend.free.count(), 3 + 16 * (1 + step / PAGE));
            assert_eq!(cost.kv_bytes_read, backend.kv_bytes_in_use(), "every page is read once");
        }
        // The group's rows are equal, since they hold the same tokens.
        assert!(logits.rows().into_iter().all(|row| row == logits.row(0) && row.iter().all(|x| x.is_finite())));

        let prompt = Prefill::whole(&[8; 16]);
        backend.prefill_piece(prompt, 10).unwrap();
        assert_eq!(all - backend.free.count(), 3 + 32 + 1, "sequences keep the prompt they were started from");
        let rows = [DecodeRow { token: 9, position: 57 }; 16];
        let cost = backend.decode(&rows, &Drafts::default(), logits.view_mut()).unwrap();
        assert_eq!(backend.kv_bytes_in_use() - cost.kv_bytes_read, backend.bytes_of(1), "nobody reads a piece");
        backend.prefill(&[Prefill { computed: 10, ..prompt }], logits.slice_mut(s![..1, ..])).unwrap();
        backend.release(3);
        backend.moved(15, 3, 58).unwrap();
        (0..15).for_each(|slot| backend.release(slot));
        assert_eq!(all - backend.free.count(), 1);
        // A piece that nobody goes on with is given up by the next call, and so is a prompt that has no samples left.
        backend.prefill_piece(prompt, 10).unwrap();
        backend.prefill_piece(prompt, 10).unwrap();
        assert_eq!(all - backend.free.count(), 1);
    }

    #[test]
    fn prompts_that_go_on_are_computed_together_as_each_is_by_itself() {
        let (_folder, model, source, manifest) = exported();
        let options = EngineOptions { kept_states: 2, ..options() };
        let mut backend = PackedBackend::open(&source, model.config(), &manifest, &options).unwrap();
        let all = backend.free.count();
        let mut logits = Array2::zeros((4, model.config().vocab_size));
        // Two states after one prompt, each with a further token whose keys and values are held.
        backend.prefill(&[Prefill::whole(&[7; 20])], logits.slice_mut(s![..1, ..])).unwrap();
        (0..2).for_each(|slot| backend.start(slot, 0).unwrap());
        let rows = [3, 4].map(|token| DecodeRow { token, position: 20 });
        backend.decode(&rows, &Drafts::default(), logits.slice_mut(s![..2, ..])).unwrap();
        (0..2).for_each(|slot| backend.hold(slot, 21, slot as u64));
        // The newest token of each, and a reply.
        let tokens = [3, 4].map(|token| [&[7; 20][..], &[token, 9], &[5; 6]].concat());
        let after = |state: usize, held| Prefill { prompt: 20, held, ..Prefill::whole(&tokens[state]) };
        let prompts = [after(0, Some(0)), Prefill::whole(&[8; 5]), after(1, Some(1)), after(0, None)];
        backend.prefill(&prompts, logits.view_mut()).unwrap();
        let together = logits.clone();
        assert_eq!(together.row(0), together.row(3), "held or not");
        for (prompt, together) in prompts.iter().zip(together.rows()) {
            backend.prefill(&[*prompt], logits.slice_mut(s![..1, ..])).unwrap();
            assert_eq!(logits.row(0), together);
        }
        (0..2).for_each(|number| backend.drop_held(number));
        backend.prefill(&[Prefill::whole(&[8; 5])], logits.slice_mut(s![..1, ..])).unwrap();
        assert_eq!(all - backend.free.count(), 1);
    }
}
