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
    kv: KvCache,
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
        Ok(Self {
            kv: KvCache::new(KvShape::new(config, dtype, slots, positions), device)?,
            states: StateCache::new(&graph_states(config), slots, device)?,
        })
    }

    /// Where a slot begins: each has another address.
    pub fn address(&mut self, slot: usize) -> usize {
        let first = if self.kv.planes() > 0 { Some(self.kv.slice(0, slot, 1)) } else { self.states.first(slot) };
        first.map_or(0, |memory| memory.data.addr())
    }

    /// The slots `first..first + rows` of the planes of keys and values, and then of the states.
    pub fn slices(&mut self, first: usize, rows: usize) -> Vec<TensorMemory> {
        let planes = 0..self.kv.planes();
        let planes = planes.map(|plane| self.kv.slice(plane, first, rows));
        planes.chain(self.states.slices(first, rows)).collect()
    }

    /// Copies a sequence of so many positions from one slot over another; on a device the copy is only started.
    pub fn copy(&mut self, from: usize, to: usize, used: usize) -> Result<(), EngineError> {
        self.kv.copy_slot(from, to, used)?;
        self.states.copy_slot(from, to)
    }

    /// Lets sequences begin in the slots `first..first + rows`.
    pub fn begin(&mut self, first: usize, rows: usize) -> Result<(), EngineError> {
        (first..first + rows).try_for_each(|slot| self.states.clear_slot(slot))
    }

    /// Bytes in use by so many sequences with so many positions, all together.
    pub fn bytes_in_use(&self, sequences: usize, positions: u64) -> u64 {
        positions * self.kv.position_bytes() + (sequences * self.states.slot_bytes()) as u64
    }

    /// Waits for copies; to be called before the graph runs.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        self.kv.settle()?;
        self.states.settle()
    }
}
