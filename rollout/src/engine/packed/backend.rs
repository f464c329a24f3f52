//! Sequences in slots, over shared pages.

use std::sync::Arc;

use rollout_kernels::pages::{FreePages, PageShape};
use shared::{ModelConfig, WeightManifest};

use super::{
    super::{
        EngineError, WeightSource,
        batch::{DecodeRow, Drafts},
    },
    operators::Times,
    session::{PackedOptions, PackedSession},
    weights::{PackedWeights, PanelMemory},
};

/// A prompt in the cache.
struct Prefix {
    pages: Vec<u32>,
    /// Its positions that are there.
    len: usize,
}

/// A running sequence: a prompt and pages of its own.
struct Slot {
    prefix: Arc<Prefix>,
    own: Vec<u32>,
    own_len: usize,
}

/// The packed engine.
pub(in super::super) struct PackedBackend {
    session: PackedSession,
    slots: Vec<Option<Slot>>,
    /// The prompts that samples are started from; those that have started all of theirs are gone.
    prefixes: Vec<Option<Arc<Prefix>>>,
    /// The prompt that will be next, of which a part has been computed.
    coming: Option<Prefix>,
    free: FreePages,
    shape: PageShape,
    ids: Vec<i64>,
    /// Slots in the order of the call.
    order: Vec<usize>,
    /// Memory of the version before.
    spare: Option<PanelMemory>,
}

impl PackedBackend {
    pub fn open(
        source: &WeightSource,
        config: &ModelConfig,
        manifest: &WeightManifest,
        options: PackedOptions,
    ) -> Result<Self, EngineError> {
        let PackedOptions { session, format, .. } = options;
        let weights = PackedWeights::load(source, config, manifest, format, None, session.threads)?;
        Ok(Self {
            session: PackedSession::new(Arc::new(weights), config, options)?,
            slots: Vec::new(),
            prefixes: Vec::new(),
            coming: None,
            free: FreePages::new(options.pages.pages),
            shape: options.pages,
            ids: Vec::new(),
            order: Vec::new(),
            spare: None,
        })
    }

    /// Puts prompts into the cache, of each up to `most` more tokens; `logits` (`[complete prompts, vocab]`) receives what
    /// follows those that are complete then. Unless the call before completed all of its prompts, or they were
    /// [forgotten](Self::forget_prefixes), the first prompt must be the one that it left.
    pub fn prefill<'a>(
        &mut self,
        prompts: impl Iterator<Item = &'a [u32]>,
        most: usize,
        logits: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut coming = self.coming.take();
        if coming.is_none() {
            self.forget_prefixes();
        }
        self.ids.clear();
        let mut pieces = Vec::new();
        for prompt in prompts {
            let prefix = coming.take().unwrap_or_else(|| {
                let mut pages = Vec::new();
                extend(&mut self.free, &mut pages, PageShape::pages_for(prompt.len()));
                Prefix { pages, len: 0 }
            });
            let piece = &prompt[prefix.len..prompt.len().min(prefix.len.saturating_add(most))];
            self.ids.extend(piece.iter().map(|&t| i64::from(t)));
            let complete = prefix.len + piece.len() == prompt.len();
            pieces.push((prefix, piece.len(), complete));
        }
        let result = self.session.run(&self.ids, logits, |plan, last| {
            for (prefix, tokens, complete) in &pieces {
                plan.push(&[], 0, &prefix.pages, prefix.len, *tokens);
                // Nobody asks what follows a piece: the head of the model is not computed.
                last.extend(complete.then(|| plan.tokens() - 1));
            }
        });
        for (mut prefix, tokens, complete) in pieces {
            prefix.len += tokens;
            if complete {
                self.prefixes.push(Some(Arc::new(prefix)));
            } else {
                self.coming = Some(prefix);
            }
        }
        result
    }

    /// Gives the prompts up, complete or not; sequences that were started from them keep them.
    pub fn forget_prefixes(&mut self) {
        for prefix in self.prefixes.drain(..).flatten() {
            give_back_prefix(&mut self.free, prefix);
        }
        if let Some(coming) = self.coming.take() {
            self.free.give_back(&coming.pages);
        }
    }

    /// Starts a sequence after one of the prompts that the last [`PackedBackend::prefill`] completed. The prompts before it
    /// will start no others: the pool has room for one prompt beyond those of the sequences.
    pub fn start(&mut self, slot: usize, prompt: usize) {
        for prefix in self.prefixes[..prompt].iter_mut().filter_map(Option::take) {
            give_back_prefix(&mut self.free, prefix);
        }
        let prefix = Arc::clone(self.prefixes[prompt].as_ref().expect("samples start prompt by prompt"));
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Slot { prefix, own: Vec::new(), own_len: 0 });
    }

    /// Ends the sequence of a slot.
    pub fn release(&mut self, slot: usize) {
        let Slot { prefix, own, .. } = self.slots[slot].take().expect("the slot is occupied");
        self.free.give_back(&own);
        give_back_prefix(&mut self.free, prefix);
    }

    /// Ends all.
    pub fn release_all(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                self.release(slot);
            }
        }
        self.forget_prefixes();
    }

    /// The sequence of one slot is in another one now.
    pub fn moved(&mut self, from: usize, to: usize) {
        debug_assert!(self.slots[to].is_none(), "slot {to} is taken");
        self.slots.swap(from, to);
    }

    /// One more token for the slots `0..rows.len()`, and the drafts that may follow it: `logits` has a row for each, slot
    /// by slot. The keys and values of a draft count once it is kept ([`PackedBackend::keep_draft`]).
    pub fn decode(&mut self, rows: &[DecodeRow], drafts: &Drafts, logits: &mut [f32]) -> Result<(), EngineError> {
        let Self { session, slots, free, ids, order, .. } = self;
        for (index, (slot, row)) in slots.iter_mut().zip(rows).enumerate() {
            let slot = slot.as_mut().expect("decoding runs on slots without holes");
            assert_eq!(row.position, slot.prefix.len + slot.own_len, "the cache and the sequence have one length");
            extend(free, &mut slot.own, PageShape::pages_for(slot.own_len + 1 + drafts.of(index).len()));
        }
        let at = |slot: usize| slots[slot].as_ref().expect("decoding runs on slots without holes");
        // Neighbours with one prompt read it together.
        order.clear();
        order.extend(0..rows.len());
        order.sort_unstable_by_key(|&slot| (at(slot).prefix.pages[0], slot));
        ids.clear();
        for &slot in order.iter() {
            ids.push(i64::from(rows[slot].token));
            ids.extend(drafts.of(slot).iter().map(|&token| i64::from(token)));
        }
        session.run(ids, logits, |plan, last| {
            last.resize(ids.len(), 0);
            for &slot in order.iter() {
                let Slot { prefix, own, own_len } = at(slot);
                let tokens = 1 + drafts.of(slot).len();
                let (first, row) = (plan.tokens(), drafts.first_row(slot));
                plan.push(&prefix.pages, prefix.len, own, *own_len, tokens);
                (0..tokens).for_each(|i| last[row + i] = first + i);
            }
        })?;
        for slot in slots.iter_mut().take(rows.len()).flatten() {
            slot.own_len += 1;
        }
        Ok(())
    }

    /// The next draft of a slot turned out to be right.
    pub fn keep_draft(&mut self, slot: usize) {
        self.slots[slot].as_mut().expect("the slot is occupied").own_len += 1;
    }

    /// Bytes of the pages that are taken.
    pub fn kv_bytes_in_use(&self) -> u64 {
        self.bytes_of(self.shape.pages - self.free.len())
    }

    /// Bytes of the pages that the last call looked at, those of a shared prompt once.
    pub fn kv_bytes_read(&self) -> u64 {
        self.bytes_of(self.session.pages_read())
    }

    fn bytes_of(&self, pages: usize) -> u64 {
        (pages * (self.shape.bytes() / self.shape.pages)) as u64
    }

    /// Time of the operators since the last call.
    pub fn take_times(&mut self) -> Times {
        self.session.take_times()
    }

    /// Memory for packing the next version into.
    pub fn take_spare(&mut self) -> Option<PanelMemory> {
        self.spare.take()
    }

    /// Takes a packed version into use.
    pub fn exchange(&mut self, weights: PackedWeights) {
        let before = self.session.exchange(Arc::new(weights));
        self.spare = Arc::into_inner(before).map(PackedWeights::into_memory);
    }
}

/// Gives a sequence of the pool `count` pages.
fn extend(free: &mut FreePages, pages: &mut Vec<u32>, count: usize) {
    free.extend(pages, count).expect("the pool holds every slot at full length");
}

fn give_back_prefix(free: &mut FreePages, prefix: Arc<Prefix>) {
    if let Some(prefix) = Arc::into_inner(prefix) {
        free.give_back(&prefix.pages);
    }
}

#[cfg(test)]
mod tests {
    use exporters::{ExportOptions, export};
    use rollout_kernels::{element::KvFormat, pages::PAGE};
    use shared::{ModelDir, PolicyVersion, config::Device};

    use super::*;
    use crate::engine::{
        packed::page_shape,
        session::{SessionOptions, read_manifest},
    };

    #[test]
    fn a_prompt_is_held_once_for_its_completions_and_every_page_comes_back() {
        let model = ModelDir::open(::tests::golden_dir().join("models/llama")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let source = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
        export(&model, &source.dir, &ExportOptions::default()).unwrap();
        let manifest = read_manifest(&source, model.config()).unwrap();
        let options = PackedOptions {
            session: SessionOptions {
                device: Device::Cpu,
                threads: 1,
                spinning: false,
                hot_swap: false,
                cuda_graphs: false,
            },
            pages: page_shape(model.config(), 17, 64, KvFormat::Fp32),
            format: rollout_kernels::packed::Format::Fp32,
        };
        let mut backend = PackedBackend::open(&source, model.config(), &manifest, options).unwrap();
        let all = backend.free.len();
        let mut logits = vec![0.0; 16 * model.config().vocab_size];
        let vocab = model.config().vocab_size;
        // The second one comes with it, in pages of its own, and goes with the next call.
        backend.prefill([&[7; 40][..], &[5; 9]].into_iter(), usize::MAX, &mut logits[..2 * vocab]).unwrap();
        assert_eq!(all - backend.free.len(), 3 + 1, "40 positions in pages of 16, and 9");
        let first = logits[..vocab].to_vec();
        backend.start(0, 1);
        assert_eq!(all - backend.free.len(), 1, "nothing will start from the first prompt any more");
        backend.release(0);
        backend.prefill([&[7; 40][..]].into_iter(), usize::MAX, &mut logits[..vocab]).unwrap();
        assert!(first == logits[..vocab], "a prompt beside it changes no bit");
        (0..16).for_each(|slot| backend.start(slot, 0));
        assert_eq!(all - backend.free.len(), 3);
        let position = 2 * model.config().num_hidden_layers * model.config().num_key_value_heads * 4;
        assert_eq!(backend.kv_bytes_in_use(), (3 * PAGE * position * model.config().head_dim) as u64);
        for step in 0..17 {
            let rows = [DecodeRow { token: 9, position: 40 + step }; 16];
            backend.decode(&rows, &Drafts::default(), &mut logits).unwrap();
            assert_eq!(all - backend.free.len(), 3 + 16 * (1 + step / PAGE));
            assert_eq!(backend.kv_bytes_read(), backend.kv_bytes_in_use(), "every page is read once");
        }
        // The group's rows are equal, since they hold the same tokens.
        assert!(logits.chunks(vocab).all(|row| row == &logits[..vocab] && row.iter().all(|x| x.is_finite())));

        backend.prefill([&[8; 16][..]].into_iter(), 10, &mut []).unwrap();
        assert_eq!(all - backend.free.len(), 3 + 32 + 1, "sequences keep the prompt they were started from");
        backend.decode(&[DecodeRow { token: 9, position: 57 }; 16], &Drafts::default(), &mut logits).unwrap();
        assert_eq!(backend.kv_bytes_in_use() - backend.kv_bytes_read(), backend.bytes_of(1), "nobody reads a piece");
        backend.prefill([&[8; 16][..]].into_iter(), 10, &mut logits[..vocab]).unwrap();
        backend.release(3);
        backend.moved(15, 3);
        (0..15).for_each(|slot| backend.release(slot));
        assert_eq!(all - backend.free.len(), 1);
        backend.release_all();
        assert_eq!(backend.free.len(), all);
    }
}
