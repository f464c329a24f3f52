//! The states of every sequence, in layers that have one in place of keys and values: arenas, cut into slots.
//!
//! An arena is `[states, slots, …]` and holds all states of one shape: the windows of short convolutions, the matrices
//! of a delta rule. Neighbouring slots are contiguous, as those of keys and values are, and ONNX Runtime's operators
//! read and write a slice in place. A state has no positions. It is copied whole, and is all zeros where a sequence
//! begins.

use exporters::onnx::GraphState;
use ort::value::TensorElementType;
use shared::config::Device;

use crate::engine::{EngineError, binding::TensorMemory, device::cuda::BoxCopy, storage::Storage};

/// States of one shape.
struct Arena {
    /// How many a sequence has.
    states: usize,
    slots: usize,
    /// Shape of one.
    shape: Vec<usize>,
    storage: Storage,
}

impl Arena {
    fn new(states: usize, shape: &[usize], slots: usize, device: Device) -> Result<Self, EngineError> {
        let storage = Storage::new(states * slots * bytes_of(shape), device)?;
        Ok(Self { states, slots, shape: shape.to_vec(), storage })
    }

    /// The slots `first..first + rows` of a state, `[rows, …]`.
    fn slice(&mut self, state: usize, first: usize, rows: usize) -> TensorMemory {
        assert!(first + rows <= self.slots, "slots {first}..{} of {}", first + rows, self.slots);
        let start = (state * self.slots + first) * bytes_of(&self.shape);
        let shape = [&[rows], &self.shape[..]].concat();
        TensorMemory::new(self.storage.at(start), &shape, TensorElementType::Float32, self.storage.on_device())
    }

    fn copy_slot(&mut self, from: usize, to: usize) -> Result<(), EngineError> {
        let bytes = bytes_of(&self.shape);
        self.storage.copy_rows(BoxCopy {
            row_bytes: bytes,
            rows: self.slots,
            from_row: from,
            to_row: to,
            width: bytes,
            height: 1,
            depth: self.states,
        })
    }

    fn clear_slot(&mut self, slot: usize) -> Result<(), EngineError> {
        let bytes = bytes_of(&self.shape);
        (0..self.states).try_for_each(|state| self.storage.clear((state * self.slots + slot) * bytes, bytes))
    }
}

fn bytes_of(shape: &[usize]) -> usize {
    shape.iter().product::<usize>() * size_of::<f32>()
}

/// The arenas of a model.
pub(in crate::engine) struct StateCache(Vec<Arena>);

impl StateCache {
    /// Zeros in the memory of the device that the graph runs on.
    pub fn new(states: &[GraphState], slots: usize, device: Device) -> Result<Self, EngineError> {
        let same = states.chunk_by(|one, next| one.shape == next.shape);
        let arenas: Result<_, _> = same.map(|same| Arena::new(same.len(), &same[0].shape, slots, device)).collect();
        Ok(Self(arenas?))
    }

    /// A slot of the first state, if there is one.
    pub fn first(&mut self, slot: usize) -> Option<TensorMemory> {
        self.0.first_mut().map(|arena| arena.slice(0, slot, 1))
    }

    /// The slots `first..first + rows` of every state, in the order of the graph's.
    pub fn slices(&mut self, first: usize, rows: usize) -> Vec<TensorMemory> {
        let all =
            |arena: &mut Arena| -> Vec<_> { (0..arena.states).map(|state| arena.slice(state, first, rows)).collect() };
        self.0.iter_mut().flat_map(all).collect()
    }

    /// Copies all states of one slot over those of another; on a device the copy is only started.
    pub fn copy_slot(&mut self, from: usize, to: usize) -> Result<(), EngineError> {
        if from == to {
            return Ok(());
        }
        self.0.iter_mut().try_for_each(|arena| arena.copy_slot(from, to))
    }

    /// Lets a sequence begin in a slot; on a device that is only started.
    pub fn clear_slot(&mut self, slot: usize) -> Result<(), EngineError> {
        self.0.iter_mut().try_for_each(|arena| arena.clear_slot(slot))
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.0.iter().map(|arena| arena.states * bytes_of(&arena.shape)).sum()
    }

    /// Waits for what was started.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        self.0.iter_mut().try_for_each(|arena| arena.storage.settle())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two windows and two matrices.
    fn cache(slots: usize) -> StateCache {
        let state = |name: &str, shape: &[usize]| GraphState {
            past: name.into(),
            present: format!("{name}.after"),
            shape: shape.to_vec(),
        };
        let states = [state("a", &[2, 3]), state("b", &[2, 3]), state("c", &[2, 4, 5]), state("d", &[2, 4, 5])];
        StateCache::new(&states, slots, Device::Cpu).unwrap()
    }

    fn floats(arena: &mut Arena) -> &mut [f32] {
        let Storage::Host(words) = &mut arena.storage else { panic!("states of the CPU are in main memory") };
        bytemuck::cast_slice_mut(words)
    }

    #[test]
    fn slices_cover_the_arenas_without_overlap() {
        let mut cache = cache(4);
        assert_eq!((cache.0.len(), cache.slot_bytes()), (2, 2 * (6 + 40) * 4));
        let all = cache.slices(0, 4);
        let shapes: Vec<_> = all.iter().map(|memory| memory.shape.clone()).collect();
        assert_eq!(shapes, [vec![4, 2, 3], vec![4, 2, 3], vec![4, 2, 4, 5], vec![4, 2, 4, 5]]);
        for pair in [0, 2] {
            assert_eq!(all[pair].data.addr() + all[pair].bytes(), all[pair + 1].data.addr());
        }
        let tail = cache.slices(1, 3);
        for (tail, all) in tail.iter().zip(&all) {
            assert_eq!((tail.data.addr(), tail.bytes()), (all.data.addr() + all.bytes() / 4, all.bytes() / 4 * 3));
        }
    }

    #[test]
    fn a_slot_is_copied_and_cleared_whole_and_no_other_is_touched() {
        let mut cache = cache(3);
        for arena in &mut cache.0 {
            floats(arena).iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 + 1.0);
        }
        cache.copy_slot(2, 0).unwrap();
        cache.clear_slot(1).unwrap();
        for arena in &mut cache.0 {
            let width = bytes_of(&arena.shape) / 4;
            for (i, &x) in floats(arena).iter().enumerate() {
                let before = i as f32 + 1.0;
                let expected = [before + 2.0 * width as f32, 0.0, before][i / width % 3];
                assert_eq!(x, expected, "number {i}");
            }
        }
    }
}
