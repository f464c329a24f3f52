//! What the sequences of a graph keep from call to call, slot by slot.

use exporters::onnx::graph_states;
use shared::{Dtype, ModelConfig, config::Device};

use super::{
    kv_cache::{KvCache, KvShape},
    state_cache::StateCache,
};
use crate::engine::{EngineError, binding::TensorMemory};

/// Keys and values, which grow with a sequence, and states, which do not.
pub(in crate::engine) struct Slots {
    /// An arena for each width of heads.
    kv: Vec<KvCache>,
    /// For each layer with keys and values of its own its arena.
    arenas: Vec<usize>,
    states: StateCache,
}

impl Slots {
    /// So many slots for sequences of so many positions, in the memory of the device that the graph runs on.
    pub fn new(
        config: &ModelConfig,
        dtype: Dtype,
        slots: usize,
        positions: usize,
        device: Device,
    ) -> Result<Self, EngineError> {
        let widths: Vec<usize> = [config.head_dim].into_iter().chain(config.global_head_dim).collect();
        let arena = |&width: &usize| KvCache::new(KvShape::new(config, width, dtype, slots, positions), device);
        let of_layer = |(layer, _)| usize::from(config.head_dim_of(layer) != config.head_dim);
        Ok(Self {
            kv: widths.iter().map(arena).collect::<Result<_, _>>()?,
            arenas: config.caching_layers().map(of_layer).collect(),
            states: StateCache::new(&graph_states(config), slots, device)?,
        })
    }

    /// Where a slot begins: each has another address.
    pub fn address(&mut self, slot: usize) -> usize {
        let first = match self.arenas.first() {
            Some(&arena) => Some(self.kv[arena].slice(0, slot, 1)),
            None => self.states.first(slot),
        };
        first.map_or(0, |memory| memory.data.addr())
    }

    /// The slots `first..first + rows` of the planes of keys and values, and then of the states.
    pub fn slices(&mut self, first: usize, rows: usize) -> Vec<TensorMemory> {
        let mut next = vec![0; self.kv.len()];
        let mut slices = Vec::new();
        for &arena in &self.arenas {
            let plane = next[arena];
            slices.extend([plane, plane + 1].map(|plane| self.kv[arena].slice(plane, first, rows)));
            next[arena] += 2;
        }
        slices.extend(self.states.slices(first, rows));
        slices
    }

    /// Copies a sequence of so many positions from one slot over another; on a device the copy is only started.
    pub fn copy(&mut self, from: usize, to: usize, used: usize) -> Result<(), EngineError> {
        self.kv.iter_mut().try_for_each(|arena| arena.copy_slot(from, to, used))?;
        self.states.copy_slot(from, to)
    }

    /// Lets sequences begin in the slots `first..first + rows`.
    pub fn begin(&mut self, first: usize, rows: usize) -> Result<(), EngineError> {
        (first..first + rows).try_for_each(|slot| self.states.clear_slot(slot))
    }

    /// Bytes in use by so many sequences with so many positions, all together.
    pub fn bytes_in_use(&self, sequences: usize, positions: u64) -> u64 {
        let position: u64 = self.kv.iter().map(KvCache::position_bytes).sum();
        positions * position + (sequences * self.states.slot_bytes()) as u64
    }

    /// Waits for copies; to be called before the graph runs.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        self.kv.iter_mut().try_for_each(KvCache::settle)?;
        self.states.settle()
    }
}
