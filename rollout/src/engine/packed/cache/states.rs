//! Recurrent states, in blocks.

use rollout_kernels::states::{FreeStates, LayerState, StateShape};
use shared::ModelConfig;

use super::Kind;

/// Sizes of a pool of so many states.
pub(in super::super::super) fn state_shape(config: &ModelConfig, blocks: usize) -> StateShape {
    let parts = (0..config.num_hidden_layers).map(|layer| config.state_parts(layer));
    let layers = parts.filter(|parts| parts.numbers() > 0).map(|parts| {
        let ([channels, kept], [heads, key_dim, value_dim]) = (parts.window, parts.matrix);
        LayerState { kept, channels, heads, key_dim, value_dim }
    });
    StateShape { layers: layers.collect(), blocks }
}

/// Blocks of recurrent states; none in a model without them.
pub(in super::super) struct StateBlocks {
    pub free: FreeStates,
    blocks: usize,
    bytes: u64,
}

impl StateBlocks {
    pub fn new(shape: &StateShape) -> Self {
        Self {
            free: FreeStates::new(shape.blocks),
            blocks: shape.blocks,
            bytes: (shape.words() * size_of::<f32>()) as u64,
        }
    }

    /// Bytes of so many states.
    pub fn bytes_of(&self, states: usize) -> u64 {
        states as u64 * self.bytes
    }

    fn take(&mut self) -> u32 {
        self.free.take().expect("the pool holds a state for every slot")
    }
}

impl Kind for StateBlocks {
    type Own = Option<u32>;

    /// A state has room for all positions.
    fn extend(&mut self, own: &mut Option<u32>, _: usize) {
        if self.bytes > 0 && own.is_none() {
            *own = Some(self.take());
        }
    }

    fn fork(&mut self, own: &Option<u32>, _: usize, copy: &mut dyn FnMut(u32, u32)) -> Option<u32> {
        let from = (*own)?;
        let to = self.take();
        copy(from, to);
        Some(to)
    }

    fn keep(&mut self, own: &mut Option<u32>, positions: usize, computed: usize) {
        let message = "a state is the one behind the last token, and that of an earlier one is gone";
        assert!(own.is_none() || positions == computed, "{message}");
    }

    fn give_back(&mut self, own: Option<u32>) {
        own.into_iter().for_each(|block| self.free.give_back(block));
    }

    fn bytes_in_use(&self) -> u64 {
        self.bytes_of(self.blocks - self.free.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(layers: usize) -> StateBlocks {
        let layer = LayerState { kept: 2, channels: 16, heads: 0, key_dim: 0, value_dim: 0 };
        StateBlocks::new(&StateShape { layers: vec![layer; layers], blocks: 3 })
    }

    #[test]
    fn a_fork_has_a_copy_and_both_come_back() {
        let mut states = blocks(2);
        let (mut own, mut copied) = (None, Vec::new());
        states.extend(&mut own, 0);
        states.extend(&mut own, 40);
        assert_eq!((own, states.bytes_in_use()), (Some(0), 2 * 2 * 16 * 4), "one for all positions");
        let fork = states.fork(&own, 40, &mut |from, to| copied.push((from, to)));
        assert_eq!((fork, copied), (Some(1), vec![(0, 1)]));
        states.keep(&mut own, 40, 40);
        [own, fork].into_iter().for_each(|own| states.give_back(own));
        assert_eq!((states.free.count(), states.bytes_in_use()), (3, 0));
    }

    #[test]
    fn a_model_without_states_has_none() {
        let (mut states, mut own) = (blocks(0), None);
        states.extend(&mut own, 5);
        states.keep(&mut own, 3, 5);
        let fork = states.fork(&own, 5, &mut |_, _| panic!("there is nothing to copy"));
        assert_eq!((own, fork, states.bytes_in_use()), (None, None, 0));
    }

    #[test]
    #[should_panic(expected = "that of an earlier one is gone")]
    fn a_state_cannot_be_cut() {
        let (mut states, mut own) = (blocks(1), None);
        states.extend(&mut own, 5);
        states.keep(&mut own, 4, 5);
    }
}
