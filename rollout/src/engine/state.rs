//! What a sequence leaves to go on from.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{history::SharedHistory, types::GroupRequest};

/// How a context came to be; further tokens are computed and drawn accordingly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Past {
    /// Tokens of the prompt that it began with.
    pub prompt: usize,
    /// Tokens of it that were drawn.
    pub drawn: u64,
}

impl Past {
    /// That of a prompt.
    pub fn of(group: &GroupRequest) -> Self {
        Self { prompt: group.prompt_ids.len(), drawn: 0 }
    }
}

/// A context to go on from: all ids of a sequence that has ended, and its keys and values as long as the engine holds
/// them. Whether it does changes no bit of what comes next.
///
/// A clone is a fork. When the last one is dropped, the engine frees the memory with its next step.
#[derive(Debug, Clone)]
pub struct State {
    ids: Arc<[u32]>,
    past: Past,
    held: Option<Held>,
    /// With speculative decoding, what its group has written, which holds all of `ids`. It lives as long as one of its
    /// states and has up to four entries a token, which no plan of memory counts.
    history: Option<SharedHistory>,
}

/// Keys and values that an engine holds; the number is theirs alone, in all engines of the process.
type Held = Arc<u64>;

impl State {
    /// After `group`, whose prompt has this past, was completed with `token_ids`.
    pub(crate) fn after(group: &GroupRequest, past: Past, token_ids: &[u32]) -> Self {
        let ids = [&group.prompt_ids, token_ids].concat().into();
        Self { ids, past: Past { drawn: past.drawn + token_ids.len() as u64, ..past }, held: None, history: None }
    }

    /// With keys and values that are held.
    pub(super) fn with(self, held: Option<Held>) -> Self {
        Self { held, ..self }
    }

    /// With what its group has written.
    pub(super) fn with_history(self, history: Option<SharedHistory>) -> Self {
        Self { history, ..self }
    }

    /// What its group has written, and how many ids of a context that begins with this state that knows already.
    pub(super) fn history(&self) -> Option<(SharedHistory, usize)> {
        Some((self.history.clone()?, self.ids.len()))
    }

    /// Everything so far, the prompt included.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Whether its keys and values were held when its sequence ended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// How it came to be.
    pub(crate) fn past(&self) -> Past {
        self.past
    }

    /// What is held of it.
    pub(super) fn held(&self) -> Option<u64> {
        self.held.as_deref().copied()
    }

    /// What is held of it is of no use any more.
    pub(super) fn let_go(&mut self) {
        self.held = None;
    }
}

/// What an engine holds for states.
#[derive(Debug, Default)]
pub(super) struct HeldStates(HashMap<u64, Weak<u64>>);

impl HeldStates {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tokens of a state whose keys and values are held: all but the newest, or none.
    pub fn tokens_of(&self, state: &State) -> usize {
        let held = state.held().filter(|number| self.0.contains_key(number));
        held.map_or(0, |_| state.ids.len() - 1)
    }

    /// A number for further ones.
    pub fn add(&mut self) -> Held {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let held = Arc::new(NEXT.fetch_add(1, Ordering::Relaxed));
        self.0.insert(*held, Arc::downgrade(&held));
        held
    }

    /// Forgets those whose states are gone; `freed` is told of each.
    pub fn sweep(&mut self, mut freed: impl FnMut(u64)) {
        self.0.retain(|number, held| {
            let is_wanted = held.strong_count() > 0;
            if !is_wanted {
                freed(*number);
            }
            is_wanted
        });
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::group, *};

    #[test]
    fn what_is_held_goes_with_the_last_fork() {
        let mut held = HeldStates::default();
        let state = State::after(&group(0, 1), Past { prompt: 1, drawn: 4 }, &[7, 8, 9]);
        assert_eq!((state.ids(), state.past()), (&[1, 2, 7, 8, 9][..], Past { prompt: 1, drawn: 7 }));
        let state = state.with(Some(held.add()));
        let (number, fork) = (state.held().unwrap(), state.clone());
        drop(state);
        held.sweep(|_| panic!("a fork is left"));
        assert_eq!(held.tokens_of(&fork), 4);
        drop(fork);
        let mut freed = Vec::new();
        held.sweep(|number| freed.push(number));
        assert_eq!((freed, held.len()), (vec![number], 0));
    }
}
