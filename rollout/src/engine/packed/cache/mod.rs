//! What a sequence keeps from call to call, beside its tokens.
//!
//! There are two kinds, each an implementation of [`Kind`]. [`pages`](KvPages) of keys and values grow with a sequence,
//! and those that nobody will write to are shared. A [state](StateBlocks) has one size at every length, is written in
//! place, and is copied for everybody who goes on from it. A model has one kind or both, and a further kind is a file
//! beside these two.

mod pages;
mod states;

use rollout_kernels::states::StateShape;

use super::session::PackedSession;
pub(in super::super) use pages::PoolShapes;
pub(super) use pages::{KvPages, place_of};
pub(super) use states::StateBlocks;
pub(in super::super) use states::state_shape;

/// One kind of memory, of which sequences are given some.
pub(super) trait Kind {
    /// What one sequence has of it.
    type Own;

    /// Gives a sequence room for `positions` positions of its own.
    fn extend(&mut self, own: &mut Self::Own, positions: usize);

    /// The same for somebody else who goes on behind its `positions` positions. What one of both may write to is to be
    /// copied: `copy` is told from where to where.
    fn fork(&mut self, own: &Self::Own, positions: usize, copy: &mut dyn FnMut(u32, u32)) -> Self::Own;

    /// Keeps `positions` of the `computed` positions of its own that a sequence has.
    ///
    /// # Panics
    /// Where a kind cannot be cut.
    fn keep(&mut self, own: &mut Self::Own, positions: usize, computed: usize);

    /// Takes back what a sequence has.
    fn give_back(&mut self, own: Self::Own);

    /// Bytes that sequences have.
    fn bytes_in_use(&self) -> u64;
}

/// What a sequence has of its own: of each kind its share.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub pages: Vec<u32>,
    pub state: Option<u32>,
}

/// The memory of all sequences.
pub(super) struct Cache {
    pub pages: KvPages,
    pub states: StateBlocks,
}

impl Cache {
    pub fn new(pages: PoolShapes, states: &StateShape) -> Self {
        Self { pages: KvPages::new(pages), states: StateBlocks::new(states) }
    }

    /// As [`Kind::extend`].
    pub fn extend(&mut self, own: &mut Own, positions: usize) {
        self.pages.extend(&mut own.pages, positions);
        self.states.extend(&mut own.state, positions);
    }

    /// As [`Kind::fork`].
    pub fn fork(&mut self, own: &Own, positions: usize, memory: &mut PackedSession) -> Own {
        Own {
            pages: self.pages.fork(&own.pages, positions, &mut |from, to| memory.copy_page(from, to)),
            state: self.states.fork(&own.state, positions, &mut |from, to| memory.copy_state(from, to)),
        }
    }

    /// As [`Kind::keep`].
    pub fn keep(&mut self, own: &mut Own, positions: usize, computed: usize) {
        self.pages.keep(&mut own.pages, positions, computed);
        self.states.keep(&mut own.state, positions, computed);
    }

    /// As [`Kind::give_back`].
    pub fn give_back(&mut self, own: Own) {
        self.pages.give_back(own.pages);
        self.states.give_back(own.state);
    }

    /// Bytes of all kinds that sequences have.
    pub fn bytes_in_use(&self) -> u64 {
        self.pages.bytes_in_use() + self.states.bytes_in_use()
    }
}
