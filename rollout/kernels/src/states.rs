//! Where the states of sequences lie, in layers that keep one: blocks of one size, handed out from one pool.
//!
//! A block is all that a sequence has, in every layer with a state, however long the sequence is. It is one stretch of
//! memory, so that a copy is one pass. A block is written in place and has one owner: whoever goes on from a state that
//! somebody else goes on from too has a copy.
//!
//! In a block, a layer has first the window of its convolution, `[blocks of channels][kernel - 1][16]`, the oldest
//! inputs first, then the matrix of its rule, `[heads][blocks of values][key_dim][16]`: sixteen channels, or sixteen
//! columns of a matrix, never meet the others, and lie together.

use super::{buffer::LargeBuffer, simd::LANES};

/// The state of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerState {
    /// Inputs of the convolution that are kept: one fewer than its kernel has taps.
    pub kept: usize,
    /// Channels of the convolution.
    pub channels: usize,
    /// Matrices of the rule; 0 where there is none.
    pub heads: usize,
    /// Rows of a matrix.
    pub key_dim: usize,
    /// Columns of a matrix.
    pub value_dim: usize,
}

impl LayerState {
    /// Channels in whole blocks.
    pub(super) fn padded_channels(&self) -> usize {
        self.channels.next_multiple_of(LANES)
    }

    /// Words of the window.
    pub(super) fn window_len(&self) -> usize {
        self.kept * self.padded_channels()
    }

    /// Words of one matrix.
    pub(super) fn matrix_len(&self) -> usize {
        self.key_dim * self.value_dim.next_multiple_of(LANES)
    }

    /// Words of the layer in a block.
    #[must_use]
    pub fn words(&self) -> usize {
        self.window_len() + self.heads * self.matrix_len()
    }
}

/// Sizes of a pool of states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateShape {
    /// The layers that keep a state, in their order.
    pub layers: Vec<LayerState>,
    /// Number of blocks.
    pub blocks: usize,
}

impl StateShape {
    /// Words of a block.
    #[must_use]
    pub fn words(&self) -> usize {
        self.layers.iter().map(LayerState::words).sum()
    }

    /// Bytes of the pool.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks * self.words() * size_of::<f32>()
    }
}

/// The memory of the states.
pub struct States {
    shape: StateShape,
    /// For each layer its first word in a block.
    offsets: Vec<usize>,
    data: LargeBuffer,
}

impl States {
    /// A pool whose blocks may hold anything: a sequence without tokens has no state, whatever its block holds.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub fn new(shape: StateShape) -> std::io::Result<Self> {
        let offsets = shape.layers.iter().scan(0, |end, layer| {
            let offset = *end;
            *end += layer.words();
            Some(offset)
        });
        Ok(Self { offsets: offsets.collect(), data: LargeBuffer::new(shape.bytes() / size_of::<f32>())?, shape })
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> &StateShape {
        &self.shape
    }

    /// First word of a layer in block 0, and the distance to that of the next block.
    pub(super) fn place(&self, layer: usize) -> (usize, usize) {
        (self.offsets[layer], self.shape.words())
    }

    pub(super) fn data(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Copies one block over another one.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn copy(&mut self, from: u32, to: u32) {
        let (words, from, to) = (self.shape.words(), from as usize, to as usize);
        assert!(from < self.shape.blocks && to < self.shape.blocks, "a block outside the pool");
        self.data.copy_within(from * words..(from + 1) * words, to * words);
    }
}

/// Which blocks are free.
#[derive(Debug)]
pub struct FreeStates {
    taken: Vec<bool>,
    /// The last of them was given back last, so it is most likely in a cache.
    free: Vec<u32>,
}

impl FreeStates {
    /// All of `blocks` blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self { taken: vec![false; blocks], free: (0..blocks as u32).rev().collect() }
    }

    /// A block, if one is free.
    #[must_use]
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.taken[block as usize] = true;
        Some(block)
    }

    /// Gives a block back.
    ///
    /// # Panics
    /// When it is free already.
    pub fn give_back(&mut self, block: u32) {
        let taken = &mut self.taken[block as usize];
        assert!(std::mem::replace(taken, false), "state {block} is given back twice: two sequences would be given it");
        self.free.push(block);
    }

    /// How many are free.
    #[must_use]
    pub fn count(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_block_is_lost_or_given_twice(
            blocks in 1_usize..20,
            events in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 1..100),
        ) {
            let (mut free, mut owned) = (FreeStates::new(blocks), Vec::new());
            for event in events {
                match event {
                    Some(which) if !owned.is_empty() => free.give_back(owned.swap_remove(which.index(owned.len()))),
                    _ => {
                        let left = free.count();
                        let taken = free.take();
                        prop_assert_eq!(taken.is_some(), left > 0);
                        owned.extend(taken);
                    }
                }
                let distinct: BTreeSet<u32> = owned.iter().copied().collect();
                prop_assert_eq!(distinct.len(), owned.len(), "a block has two owners");
                prop_assert_eq!(owned.len() + free.count(), blocks);
            }
        }
    }

    #[test]
    #[should_panic(expected = "state 1 is given back twice")]
    fn a_block_is_given_back_once() {
        let mut free = FreeStates::new(2);
        assert_eq!((free.take(), free.take(), free.take()), (Some(0), Some(1), None));
        free.give_back(1);
        free.give_back(1);
    }

    #[test]
    fn a_copy_of_a_block_is_that_block_in_every_layer_and_changes_no_other() {
        let window = LayerState { kept: 2, channels: 5, heads: 0, key_dim: 0, value_dim: 0 };
        let rule = LayerState { kept: 3, channels: 20, heads: 2, key_dim: 3, value_dim: 17 };
        // Channels and columns in whole blocks.
        assert_eq!((window.words(), rule.words()), (2 * 16, 3 * 32 + 2 * 3 * 32));
        let mut states = States::new(StateShape { layers: vec![window, rule, window], blocks: 3 }).unwrap();
        let words = states.shape().words();
        assert_eq!(((0..3).map(|i| states.place(i).0).collect::<Vec<_>>(), words), (vec![0, 32, 320], 352));
        (0..).zip(states.data().iter_mut()).for_each(|(i, word)| *word = i as f32);
        let before = states.data().to_vec();
        states.copy(2, 0);
        let expected = [&before[2 * words..], &before[words..]].concat();
        assert!(states.data() == expected);
    }
}
