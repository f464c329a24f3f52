//! How the completions of a group went on after their last few tokens.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// What the completions of a group have in common.
pub(super) type SharedHistory = Arc<Mutex<History>>;

/// Tokens of the longest context that is looked up.
pub(super) const LONGEST: usize = 4;
/// Votes beyond which counts of a context are no longer kept.
const MOST_VOTES: u16 = 1000;

/// What is likely to come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guess {
    /// The token.
    pub token: u32,
    /// Length of the context that it followed before, the longest that is known.
    pub context: usize,
    /// How often it came there, less how often another one did.
    pub votes: u16,
    /// How often the context was seen.
    pub seen: u16,
}

/// What followed a context: the token with a majority, if there is one (Boyer and Moore's vote).
#[derive(Debug, Clone, Copy, PartialEq)]
struct Next {
    token: u32,
    votes: u16,
    seen: u16,
}

/// The contexts of a prompt and its completions so far.
#[derive(Debug, Default, PartialEq)]
pub(super) struct History(HashMap<u64, Next>);

impl History {
    /// That of a prompt, for all its completions. Where `known` says so, a history has its first tokens already: the
    /// next turn of a conversation adds what is new and does not begin again. Forks of a conversation have one history.
    pub fn shared(prompt: &[u32], known: Option<(SharedHistory, usize)>) -> SharedHistory {
        let (shared, known) = known.unwrap_or_default();
        let mut history = shared.lock().unwrap_or_else(PoisonError::into_inner);
        for end in known.max(1)..prompt.len() {
            history.add(&prompt[end.saturating_sub(LONGEST)..end], prompt[end]);
        }
        drop(history);
        shared
    }

    /// `token` came after `context` (of which the last [`LONGEST`] tokens count).
    pub fn add(&mut self, context: &[u32], token: u32) {
        for key in keys(context) {
            let next = self.0.entry(key).or_insert(Next { token, votes: 0, seen: 0 });
            if next.seen == MOST_VOTES {
                continue;
            }
            next.seen += 1;
            if next.token == token {
                next.votes += 1;
            } else if next.votes == 0 {
                (next.token, next.votes) = (token, 1);
            } else {
                next.votes -= 1;
            }
        }
    }

    /// What followed the longest known end of `context`.
    pub fn guess(&self, context: &[u32]) -> Option<Guess> {
        // A context is known only if all shorter ones are.
        let known = keys(context).map_while(|key| self.0.get(&key)).enumerate().last();
        known.map(|(n, next)| Guess { token: next.token, context: n + 1, votes: next.votes, seen: next.seen })
    }
}

/// A key for each end of a context, the shortest first. Two contexts with one key cost a bad guess, and no more.
fn keys(context: &[u32]) -> impl Iterator<Item = u64> {
    context.iter().rev().take(LONGEST).scan(0_u64, |key, &token| {
        *key = (key.rotate_left(23) ^ u64::from(token).wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(*key ^ (*key >> 32))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_known_context_decides_and_the_majority_within_it() {
        let history = History::shared(&[1, 2, 3, 7, 2, 3, 8, 1, 2, 3], None);
        let mut history = Arc::into_inner(history).unwrap().into_inner().unwrap();
        let guess = |history: &History, context: &[u32]| history.guess(context).map(|g| (g.token, g.context));
        assert_eq!(guess(&history, &[1, 2, 3]), Some((7, 3)));
        assert_eq!(guess(&history, &[7, 2, 3]), Some((8, 3)), "a longer context tells them apart");
        assert_eq!(guess(&history, &[9, 9, 3, 8]), Some((1, 2)), "what lies before is unknown");
        assert_eq!((guess(&history, &[9]), guess(&history, &[])), (None, None));
        let tie = history.guess(&[5, 2, 3]).unwrap();
        assert_eq!((tie.votes, tie.seen), (0, 2), "7 once and 8 once");
        for _ in 0..3 {
            history.add(&[5, 2, 3], 8);
        }
        let settled = history.guess(&[6, 2, 3]).unwrap();
        assert_eq!(settled, Guess { token: 8, context: 2, votes: 3, seen: 5 });
    }

    #[test]
    fn the_next_turn_adds_what_is_new_alone() {
        let all: Vec<u32> = (0..40).map(|i| i * i % 7).collect();
        for turns in [[1, 2], [5, 5], [0, 40], [17, 31]] {
            let mut history = None;
            for end in turns.into_iter().chain([40]) {
                let before = history.take();
                let same = before.as_ref().map(|(before, _)| Arc::clone(before));
                let turn = History::shared(&all[..end], before);
                assert!(same.is_none_or(|same| Arc::ptr_eq(&same, &turn)), "a turn goes on with the history it has");
                history = Some((turn, end));
            }
            let (turns, _) = history.unwrap();
            assert_eq!(*turns.lock().unwrap(), *History::shared(&all, None).lock().unwrap());
        }
    }
}
