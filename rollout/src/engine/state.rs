//! What a sequence leaves to go on from.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
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

/// Keys and values that an engine holds.
pub(super) type Held = Arc<Mark>;

/// What states and the engine know of keys and values that are held.
#[derive(Debug)]
pub(super) struct Mark {
    /// Theirs alone, in all engines of the process. Those that were held later have larger ones.
    number: u64,
    /// The engine has dropped them, although somebody has a state of them.
    is_dropped: AtomicBool,
}

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

    /// Whether its keys and values are held. An engine drops those that have waited longest where there is no room for
    /// newer ones, and all of them when other weights come into use.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.is_dropped.load(Ordering::Relaxed))
    }

    /// How it came to be.
    pub(crate) fn past(&self) -> Past {
        self.past
    }

    /// What is held of it.
    pub(super) fn held(&self) -> Option<u64> {
        self.held.as_ref().map(|held| held.number)
    }

    /// What is held of it is of no use any more.
    pub(super) fn let_go(&mut self) {
        self.held = None;
    }
}

/// What an engine holds for states.
#[derive(Debug, Default)]
pub(super) struct HeldStates(BTreeMap<u64, Weak<Mark>>);

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
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let held = Arc::new(Mark { number, is_dropped: AtomicBool::new(false) });
        self.0.insert(number, Arc::downgrade(&held));
        held
    }

    /// Drops those that have waited longest, except for what is in use; returns their number.
    pub fn drop_longest_waiting(&mut self, is_in_use: impl Fn(u64) -> bool) -> Option<u64> {
        let number = self.0.keys().copied().find(|&number| !is_in_use(number))?;
        drop_one(&self.0.remove(&number)?);
        Some(number)
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
        std::mem::take(&mut self.0).values().for_each(drop_one);
    }
}

/// Tells the states that are left of it.
fn drop_one(held: &Weak<Mark>) {
    if let Some(held) = held.upgrade() {
        held.is_dropped.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::testing::group, *};

    /// What happens to states.
    #[derive(Debug, Clone)]
    enum Happens {
        /// A turn ends, and room is made for its state.
        Ends,
        /// Nobody wants one any more.
        Dropped(usize),
        /// A request goes on from one, or has gone on.
        Asked(usize),
    }

    fn happens() -> impl Strategy<Value = Happens> {
        prop_oneof![
            3 => Just(Happens::Ends),
            1 => any::<usize>().prop_map(Happens::Dropped),
            2 => any::<usize>().prop_map(Happens::Asked),
        ]
    }

    proptest! {
        /// Against a list of states in the order of their turns: within the bound, those are held that came last,
        /// besides those that are in use.
        #[test]
        fn beyond_the_bound_the_longest_waiting_goes(
            bound in 1_usize..5,
            all in prop::collection::vec(happens(), 1..60),
        ) {
            let (mut held, mut states) = (HeldStates::default(), Vec::<(State, bool)>::new());
            for what in all {
                let known = states.len();
                match what {
                    Happens::Ends => {
                        let waiting = states.iter().find(|(state, in_use)| state.is_held() && !in_use);
                        let expected = waiting.and_then(|(state, _)| state.held());
                        let in_use = |number| states.iter().any(|(state, used)| *used && state.held() == Some(number));
                        let has_room = held.len() < bound || {
                            let dropped = held.drop_longest_waiting(in_use);
                            prop_assert_eq!(dropped, expected);
                            dropped.is_some()
                        };
                        let state = State::after(&group(0, 1), Past { prompt: 1, drawn: 0 }, &[7]);
                        states.push((state.with(has_room.then(|| held.add())), false));
                    }
                    Happens::Dropped(which) if known > 0 => {
                        states.remove(which % known);
                        held.sweep(|_| {});
                    }
                    Happens::Asked(which) if known > 0 => states[which % known].1 ^= true,
                    Happens::Dropped(_) | Happens::Asked(_) => {}
                }
                let count = states.iter().filter(|(state, _)| state.is_held()).count();
                prop_assert!(count == held.len() && count <= bound, "{} held, {} known", count, held.len());
                let is_known = |state: &State| held.tokens_of(state) > 0;
                prop_assert!(states.iter().all(|(state, _)| state.is_held() == is_known(state)));
            }
        }
    }

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

    #[test]
    fn the_longest_waiting_is_dropped_unless_it_is_in_use_and_its_states_know() {
        let mut held = HeldStates::default();
        let after = || State::after(&group(0, 1), Past { prompt: 1, drawn: 0 }, &[7]);
        let states = [(); 3].map(|()| after().with(Some(held.add())));
        let numbers = states.each_ref().map(|state| state.held().unwrap());
        assert_eq!(held.drop_longest_waiting(|number| number == numbers[0]), Some(numbers[1]));
        assert_eq!(states.each_ref().map(State::is_held), [true, false, true]);
        assert_eq!(states.each_ref().map(|state| held.tokens_of(state)), [2, 0, 2]);
        assert_eq!(held.drop_longest_waiting(|_| true), None);
        held.clear();
        assert_eq!((states.each_ref().map(State::is_held), held.len()), ([false; 3], 0));
    }
}
