//! Events of a coordinator that wait to be handled. Workers, and strangers, can make it happen as often as they like,
//! so everything here is bounded.

use std::{
    collections::VecDeque,
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use shared::channel::fleet::MOST_BYTES;
use zenoh::query::Query;

/// Most events that wait, and most bytes of calls among them.
const MOST_EVENTS: usize = 4096;
const MOST_WAITING: usize = 2 * MOST_BYTES;
/// Refusals that are told in each [`SPELL`]; the rest is counted.
const MOST_TOLD: usize = 16;
const SPELL: Duration = Duration::from_secs(10);

/// An event.
pub(crate) enum Event {
    /// A call, unread.
    Call(Query),
    /// A worker's connection is gone.
    Gone(u64),
    /// Somebody was refused.
    Refused { from: String, reason: String },
}

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// Bytes of the calls that wait.
    bytes: usize,
    refusals: Refusals,
}

/// Bytes of a call's frame.
pub(crate) fn length(call: &Query) -> usize {
    call.payload().map_or(0, zenoh::bytes::ZBytes::len)
}

impl Queue {
    /// Takes a call, or gives it back if too many wait.
    pub(crate) fn call(&self, call: Query) -> Option<Query> {
        let mut state = self.state();
        let bytes = length(&call);
        if state.events.len() >= MOST_EVENTS || state.bytes + bytes > MOST_WAITING {
            return Some(call);
        }
        state.bytes += bytes;
        self.push(state, Event::Call(call));
        None
    }

    /// Takes the end of a connection. An event that does not fit is forgotten: the worker's silence says the same,
    /// later.
    pub(crate) fn gone(&self, worker: u64) {
        let state = self.state();
        if state.events.len() < MOST_EVENTS {
            self.push(state, Event::Gone(worker));
        }
    }

    /// Takes a refusal, or counts it.
    pub(crate) fn refuse(&self, from: String, reason: String) {
        let mut state = self.state();
        if let Some(more) = state.refusals.admit(Instant::now()) {
            let from = if more == 0 { from } else { format!("{from}, and {more} before it,") };
            self.push(state, Event::Refused { from, reason });
        }
    }

    /// The next event, after a wait of at most `timeout`.
    pub(crate) fn next(&self, timeout: Duration) -> Option<Event> {
        let (mut state, _) = self
            .arrived
            .wait_timeout_while(self.state(), timeout, |state| state.events.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        let event = state.events.pop_front();
        if let Some(Event::Call(call)) = &event {
            state.bytes -= length(call);
        }
        event
    }

    fn push(&self, mut state: MutexGuard<'_, State>, event: Event) {
        state.events.push_back(event);
        self.arrived.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of refusals that were told lately.
#[derive(Default)]
struct Refusals {
    since: Option<Instant>,
    told: usize,
    left_out: u64,
}

impl Refusals {
    /// Whether a refusal is told, with the number of untold ones since the last.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now - since >= SPELL) {
            (self.since, self.told) = (Some(now), 0);
        }
        if self.told == MOST_TOLD {
            self.left_out += 1;
            return None;
        }
        self.told += 1;
        Some(mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted() {
        let mut refusals = Refusals::default();
        let start = Instant::now();
        let told = (0..1000).filter(|_| refusals.admit(start).is_some()).count();
        assert_eq!(told, MOST_TOLD);
        assert_eq!(refusals.admit(start + SPELL), Some(1000 - MOST_TOLD as u64));
        assert_eq!(refusals.admit(start + SPELL), Some(0));
    }

    #[test]
    fn what_waits_is_bounded() {
        let queue = Queue::default();
        (0..2 * MOST_EVENTS as u64).for_each(|worker| queue.gone(worker));
        (0..1000).for_each(|_| queue.refuse("somebody".into(), "no".into()));
        let mut waiting = 0;
        while queue.next(Duration::ZERO).is_some() {
            waiting += 1;
        }
        assert_eq!(waiting, MOST_EVENTS + MOST_TOLD);
    }
}
