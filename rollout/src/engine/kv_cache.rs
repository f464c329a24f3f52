//! The keys and values of every sequence: one arena, cut into slots.
//!
//! The arena is `[planes, slots, kv_heads, positions, head_dim]` with one plane for the keys and one for the values of
//! each layer. Neighbouring slots of a plane are contiguous, so the rows of a batch are bound to ONNX Runtime as a
//! slice of the arena, and GroupQueryAttention appends to it in place.

use std::ffi::c_void;

use ort::value::TensorElementType;
use shared::{Dtype, ModelConfig};

use super::EngineError;

/// Sizes of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
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
    /// An arena for a model.
    #[must_use]
    pub fn new(config: &ModelConfig, dtype: Dtype, slots: usize, positions: usize) -> Self {
        Self {
            layers: config.num_hidden_layers,
            slots,
            kv_heads: config.num_key_value_heads,
            positions,
            head_dim: config.head_dim,
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

/// One of a layer's two planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plane {
    Key(usize),
    Value(usize),
}

impl Plane {
    fn index(self) -> usize {
        match self {
            Self::Key(layer) => 2 * layer,
            Self::Value(layer) => 2 * layer + 1,
        }
    }
}

/// The arena.
pub(super) struct KvCache {
    shape: KvShape,
    /// Whole words, so that the allocation is aligned for any element; zeroed pages cost nothing until they are used.
    words: Vec<u64>,
}

/// A run of neighbouring slots of one plane.
pub(super) struct KvSlice {
    pub data: *mut c_void,
    pub bytes: usize,
    /// `[slots, kv_heads, positions, head_dim]`.
    pub shape: [i64; 4],
    pub element: TensorElementType,
    pub on_device: bool,
}

impl KvCache {
    pub fn new(shape: KvShape) -> Result<Self, EngineError> {
        let length = shape.bytes().div_ceil(8);
        let mut words: Vec<u64> = Vec::new();
        words
            .try_reserve_exact(length)
            .map_err(|_| EngineError::Memory(format!("no memory for a KV cache of {} bytes", shape.bytes())))?;
        drop(words);
        Ok(Self { shape, words: vec![0; length] })
    }

    /// The slots `first..first + rows` of a plane.
    pub fn slice(&mut self, plane: Plane, first: usize, rows: usize) -> KvSlice {
        let KvShape { slots, kv_heads, positions, head_dim, .. } = self.shape;
        assert!(first + rows <= slots, "slots {first}..{} of {slots}", first + rows);
        let start = plane.index() * self.shape.plane_bytes() + first * self.shape.slot_bytes();
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        KvSlice {
            data: bytes[start..].as_mut_ptr().cast(),
            bytes: rows * self.shape.slot_bytes(),
            shape: [rows, kv_heads, positions, head_dim].map(|n| n as i64),
            element: self.shape.element(),
            on_device: false,
        }
    }

    /// Copies the first `used` positions of one slot over another.
    pub fn copy_slot(&mut self, from: usize, to: usize, used: usize) {
        assert!(from < self.shape.slots && to < self.shape.slots && used <= self.shape.positions);
        if from == to {
            return;
        }
        let length = used * self.shape.head_dim * self.shape.element_size;
        let (plane_bytes, slot_bytes, head_bytes) =
            (self.shape.plane_bytes(), self.shape.slot_bytes(), self.shape.head_bytes());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        for plane in 0..2 * self.shape.layers {
            for head in 0..self.shape.kv_heads {
                let at = |slot: usize| plane * plane_bytes + slot * slot_bytes + head * head_bytes;
                bytes.copy_within(at(from)..at(from) + length, at(to));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { layers: 2, slots: 3, kv_heads: 2, positions: 4, head_dim: 8, element_size: 4 };

    #[test]
    fn slices_do_not_overlap_and_cover_the_arena() {
        let mut cache = KvCache::new(SHAPE).unwrap();
        let base = cache.slice(Plane::Key(0), 0, 1).data as usize;
        let mut next = base;
        for layer in 0..2 {
            for plane in [Plane::Key(layer), Plane::Value(layer)] {
                let all = cache.slice(plane, 0, 3);
                assert_eq!((all.data as usize, all.shape), (next, [3, 2, 4, 8]));
                let tail = cache.slice(plane, 1, 2);
                assert_eq!((tail.data as usize, tail.bytes), (next + all.bytes / 3, all.bytes / 3 * 2));
                next += all.bytes;
            }
        }
        assert_eq!(next - base, SHAPE.bytes());
    }

    #[test]
    fn a_copy_takes_the_used_positions_of_every_head_and_nothing_else() {
        let mut cache = KvCache::new(SHAPE).unwrap();
        let floats: &mut [f32] = bytemuck::cast_slice_mut(&mut cache.words);
        for (i, f) in floats.iter_mut().enumerate() {
            *f = i as f32;
        }
        let before: Vec<f32> = floats.to_vec();
        cache.copy_slot(2, 0, 3);
        let after: &[f32] = bytemuck::cast_slice(&cache.words);
        let (head, slot, plane) = (4 * 8, 2 * 4 * 8, 3 * 2 * 4 * 8);
        for (i, &f) in after.iter().enumerate() {
            let copied = (i % plane) / slot == 0 && i % head < 3 * 8;
            assert_eq!(f, if copied { before[i + 2 * slot] } else { before[i] }, "element {i}");
        }
    }
}
