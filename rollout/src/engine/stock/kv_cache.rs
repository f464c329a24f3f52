//! The keys and values of every sequence: one arena, cut into slots.
//!
//! The arena is `[planes, slots, kv_heads, positions, head_dim]`. Plane `2 * layer` holds the keys of a layer, and
//! plane `2 * layer + 1` its values; layers without keys and values of their own do not count. Layers with wider heads
//! have an arena of their own. Neighbouring slots of a plane are
//! contiguous, so the rows of a batch are bound to ONNX Runtime as a slice of the arena, and GroupQueryAttention
//! appends to it in place.

use ort::value::TensorElementType;
use shared::{Dtype, ModelConfig, config::Device};

use crate::engine::{EngineError, binding::TensorMemory, device::cuda::BoxCopy, storage::Storage};

/// Sizes of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers with keys and values of their own, and with heads of this width.
    pub layers: usize,
    /// Number of slots.
    pub slots: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Longest sequence.
    pub positions: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Bytes of one element.
    pub element_size: usize,
}

impl KvShape {
    /// An arena for the layers of a model that have heads of this width.
    #[must_use]
    pub fn new(config: &ModelConfig, head_dim: usize, dtype: Dtype, slots: usize, positions: usize) -> Self {
        Self {
            layers: config.caching_layers().filter(|(layer, _)| config.head_dim_of(*layer) == head_dim).count(),
            slots,
            kv_heads: config.num_key_value_heads,
            positions,
            head_dim,
            element_size: dtype.size(),
        }
    }

    /// Bytes of one slot in one plane.
    fn slot_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Bytes of one head of one slot.
    fn head_bytes(&self) -> usize {
        self.positions * self.head_dim * self.element_size
    }

    fn plane_bytes(&self) -> usize {
        self.slots * self.slot_bytes()
    }

    /// Bytes of the whole arena.
    #[must_use]
    pub fn bytes(&self) -> usize {
        2 * self.layers * self.plane_bytes()
    }

    fn element(&self) -> TensorElementType {
        if self.element_size == 2 { TensorElementType::Float16 } else { TensorElementType::Float32 }
    }
}

/// The arena.
pub(in crate::engine) struct KvCache {
    shape: KvShape,
    storage: Storage,
}

impl KvCache {
    /// An arena in the memory of the device that the graph runs on.
    pub fn new(shape: KvShape, device: Device) -> Result<Self, EngineError> {
        Ok(Self { shape, storage: Storage::new(shape.bytes(), device)? })
    }

    /// The slots `first..first + rows` of a plane, `[rows, kv_heads, positions, head_dim]`.
    pub fn slice(&mut self, plane: usize, first: usize, rows: usize) -> TensorMemory {
        let KvShape { slots, kv_heads, positions, head_dim, .. } = self.shape;
        assert!(first + rows <= slots, "slots {first}..{} of {slots}", first + rows);
        let start = plane * self.shape.plane_bytes() + first * self.shape.slot_bytes();
        let shape = [rows, kv_heads, positions, head_dim];
        TensorMemory::new(self.storage.at(start), &shape, self.shape.element(), self.storage.on_device())
    }

    /// Copies the first `used` positions of one slot over another; on a device the copy is only started.
    pub fn copy_slot(&mut self, from: usize, to: usize, used: usize) -> Result<(), EngineError> {
        assert!(from < self.shape.slots && to < self.shape.slots && used <= self.shape.positions);
        if from == to {
            return Ok(());
        }
        let KvShape { layers, slots, kv_heads, head_dim, element_size, .. } = self.shape;
        // Each head of each slot is a row; the rows of a slot follow one another, and so do the slots of a plane.
        self.storage.copy_rows(BoxCopy {
            row_bytes: self.shape.head_bytes(),
            rows: slots * kv_heads,
            from_row: from * kv_heads,
            to_row: to * kv_heads,
            width: used * head_dim * element_size,
            height: kv_heads,
            depth: 2 * layers,
        })
    }

    /// Bytes of one position of one sequence, all layers together.
    pub fn position_bytes(&self) -> u64 {
        let KvShape { slots, positions, .. } = self.shape;
        (self.shape.bytes() / (slots * positions)) as u64
    }

    /// Waits for the copies; to be called before the graph runs.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        self.storage.settle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { layers: 2, slots: 3, kv_heads: 2, positions: 4, head_dim: 8, element_size: 4 };

    #[test]
    fn slices_do_not_overlap_and_cover_the_arena() {
        let mut cache = KvCache::new(SHAPE, Device::Cpu).unwrap();
        let base = cache.slice(0, 0, 1).data as usize;
        let mut next = base;
        for plane in 0..4 {
            let all = cache.slice(plane, 0, 3);
            assert_eq!((all.data as usize, &all.shape[..]), (next, &[3, 2, 4, 8][..]));
            let tail = cache.slice(plane, 1, 2);
            assert_eq!((tail.data as usize, tail.bytes()), (next + all.bytes() / 3, all.bytes() / 3 * 2));
            next += all.bytes();
        }
        assert_eq!(next - base, SHAPE.bytes());
    }

    #[test]
    fn a_copy_takes_the_used_positions_of_every_head_and_nothing_else() {
        let mut cache = KvCache::new(SHAPE, Device::Cpu).unwrap();
        let elements = SHAPE.bytes() / 4;
        let before: Vec<f32> = (0..elements).map(|i| i as f32).collect();
        cache.storage = Storage::Host(before.chunks(2).map(|pair| bytemuck::cast([pair[0], pair[1]])).collect());
        cache.copy_slot(2, 0, 3).unwrap();
        let Storage::Host(words) = &cache.storage else { panic!("a cache of the CPU is in main memory") };
        let after: &[f32] = bytemuck::cast_slice(words);
        let (head, slot, plane) = (4 * 8, 2 * 4 * 8, 3 * 2 * 4 * 8);
        for (i, &f) in after.iter().enumerate() {
            let copied = (i % plane) / slot == 0 && i % head < 3 * 8;
            assert_eq!(f, if copied { before[i + 2 * slot] } else { before[i] }, "element {i}");
        }
    }
}
