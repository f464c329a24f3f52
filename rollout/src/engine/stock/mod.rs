//! The published graph, run by ONNX Runtime as it is: on any device, in any precision, and as the oracle of the tests.
//!
//! [`graph`] is a version in a session, [`slots`] the keys, values and states that its calls write in place, and
//! [`batch`] the small inputs of a call.
//!
//! The keys, values and states of a prompt are copied to the slots of its completions. With `--prefill-batch`, one call
//! computes several prompts, padded on the right. A state would take in the padding, so the prompts of a model with
//! states are computed one by one. Of a version that is an adapter, the session gets merged tensors in place of those
//! in the file, with the bits of the merged model.
//!
//! On devices, [`Levers`] may do something else with decode steps.
//!
//! Calls keep to the shapes for which ONNX Runtime's results were measured to be the same to the last bit in any batch:
//! weights are prepacked, a decode step has one position for each sequence, and no sequence is prefilled again in the
//! middle.

pub(super) mod batch;
pub(super) mod graph;
pub(super) mod kv_cache;
pub(super) mod slots;
mod state_cache;

use std::time::Duration;

use ndarray::ArrayViewMut2;
use rollout_kernels::element::{Format, KvFormat};
use shared::{ModelConfig, WeightManifest};

use self::{batch::Batch, graph::GraphSession, slots::Slots};
use super::{
    EngineError, EngineOptions, WeightSource,
    backend::{Abilities, Backend, Cost, EachRow, Prefill, PrefillLimits},
    device::lever::{DecodeStep, Levers},
    draft::Drafts,
    gate::{Gate, Rounding},
    packed::LoadedAdapter,
    sequence::DecodeRow,
    session::{SessionOptions, dtype_of},
    storage::FloatMemory,
    swap::{LoadJob, Retired, Shelf},
    types::Kernels,
};

/// A session with what its sequences keep. Slots `0..max_num_seqs` run; those after them hold the prompts that samples
/// start from.
pub(super) struct StockBackend {
    session: GraphSession,
    slots: Slots,
    batch: Batch,
    levers: Option<Levers>,
    options: SessionOptions,
    first_prefix_slot: usize,
    prefill_batch: usize,
    prefix_lens: Vec<usize>,
    config: ModelConfig,
    /// For each slot that runs, the row of the rotary tables with its first position.
    begins: Vec<usize>,
    coming: Shelf<GraphSession>,
    retired: Retired,
    gate: Gate,
}

/// Loads a version that passes the gate; returns how long that took as well.
fn load(
    gate: &Gate,
    source: &WeightSource,
    config: &ModelConfig,
    manifest: &WeightManifest,
    options: SessionOptions,
) -> Result<(GraphSession, Duration), EngineError> {
    let examined = gate.examine(source, manifest)?;
    let mut session = GraphSession::open(source, config, options)?;
    let rounding = Rounding { stored: dtype_of(manifest), weights: Format::Fp32, kv: KvFormat::Fp32 };
    let time = examined
        .pass(config.vocab_size, rounding, |tokens, scored, each| session.score(config, tokens, scored, each))?;
    Ok((session, time))
}

impl StockBackend {
    pub fn open(
        source: &WeightSource,
        config: &ModelConfig,
        manifest: &WeightManifest,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let (session, gate) = (SessionOptions::of(options), Gate::of(options));
        Ok(Self {
            session: load(&gate, source, config, manifest, session)?.0,
            slots: Slots::new(config, dtype_of(manifest), options.slots(), options.max_model_len, options.device)?,
            batch: Batch::default(),
            levers: Levers::wanted(config, options)?,
            options: session,
            first_prefix_slot: options.max_num_seqs,
            prefill_batch: options.prefill_batch,
            prefix_lens: Vec::with_capacity(options.prefill_batch),
            config: config.clone(),
            begins: vec![0; options.max_num_seqs],
            coming: Shelf::default(),
            retired: Retired::default(),
            gate,
        })
    }

    /// What the last call took. Nothing is shared, so it read all that is in use.
    fn cost(&self) -> Cost {
        Cost { kv_bytes_read: self.kv_bytes_in_use(), ..Cost::default() }
    }
}

impl Backend for StockBackend {
    fn abilities(&self) -> Abilities {
        Abilities {
            kernels: Kernels::Stock,
            instruction_set: "onnxruntime",
            prefill: PrefillLimits { prompts: self.prefill_batch, together: usize::MAX, padded: true },
        }
    }

    fn prefill(&mut self, prompts: &[Prefill<'_>], logits: ArrayViewMut2<'_, f32>) -> Result<Cost, EngineError> {
        let tokens = prompts.iter().map(|prompt| prompt.tokens);
        self.batch.set_prefill(tokens.clone());
        self.prefix_lens.clear();
        self.prefix_lens.extend(tokens.map(<[u32]>::len));
        self.batch.turn_from(self.prefix_lens.iter().map(|&length| self.config.rotary_begin(length)));
        self.slots.begin(self.first_prefix_slot, prompts.len())?;
        let inputs = self.batch.inputs();
        self.session.run(&inputs, &mut self.slots, self.first_prefix_slot, FloatMemory::of(logits), None)?;
        Ok(self.cost())
    }

    fn start(&mut self, slot: usize, prompt: usize) -> Result<(), EngineError> {
        self.begins[slot] = self.config.rotary_begin(self.prefix_lens[prompt]);
        self.slots.copy(self.first_prefix_slot + prompt, slot, self.prefix_lens[prompt])
    }

    fn moved(&mut self, from: usize, to: usize, used: usize) -> Result<(), EngineError> {
        self.begins[to] = self.begins[from];
        self.slots.copy(from, to, used)
    }

    fn decode(
        &mut self,
        rows: &[DecodeRow],
        drafts: &Drafts,
        logits: ArrayViewMut2<'_, f32>,
    ) -> Result<Cost, EngineError> {
        debug_assert_eq!(drafts.len(), 0, "the published graph gives logits of last tokens only");
        let is_loading = self.coming.is_awaited();
        let Self { session, slots, batch, levers, begins, .. } = self;
        batch.set_decode(rows.iter().copied());
        batch.turn_from(begins.iter().copied());
        match levers {
            None => session.run(&batch.inputs(), slots, 0, FloatMemory::of(logits), None)?,
            Some(levers) => levers.run(DecodeStep { session, batch, slots, is_loading }, logits)?,
        }
        Ok(self.cost())
    }

    fn release(&mut self, _: usize) {}

    /// Those of the sequences of the last call.
    fn kv_bytes_in_use(&self) -> u64 {
        self.slots.bytes_in_use(self.batch.rows, self.batch.positions)
    }

    fn score(
        &mut self,
        config: &ModelConfig,
        tokens: &[u32],
        scored: usize,
        _: Option<&LoadedAdapter>,
        each: EachRow<'_>,
    ) -> Result<(), EngineError> {
        self.session.score(config, tokens, scored, each)
    }

    fn load(&mut self, source: WeightSource, config: ModelConfig, manifest: WeightManifest) -> LoadJob {
        let (gate, options) = (self.gate.clone(), self.options);
        self.coming.to_fill(move || load(&gate, &source, &config, &manifest, options))
    }

    fn install(&mut self) {
        let before = std::mem::replace(&mut self.session, self.coming.take());
        if self.levers.as_mut().is_some_and(Levers::weights_changed) {
            drop(before);
        } else {
            self.retired.push(before);
        }
    }

    fn levers(&mut self) -> Option<&mut Levers> {
        self.levers.as_mut()
    }
}
