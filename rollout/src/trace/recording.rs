//! The ring of events.

use std::{collections::VecDeque, time::Instant};

use super::event::Event;

/// An event with its times in nanoseconds since the start of the recording.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Recorded {
    pub begin: u64,
    pub end: u64,
    pub event: Event,
}

/// The newest events, in the order of their ends.
pub(super) struct Recording {
    started: Instant,
    capacity: usize,
    events: VecDeque<Recorded>,
    dropped: u64,
}

impl Recording {
    pub fn new(started: Instant, capacity: usize) -> Self {
        Self { started, capacity, events: VecDeque::new(), dropped: 0 }
    }

    pub fn push(&mut self, begin: Instant, end: Instant, event: Event) {
        if self.events.len() == self.capacity {
            self.events.pop_front();
            self.dropped += 1;
        }
        let since = |at: Instant| at.saturating_duration_since(self.started).as_nanos() as u64;
        self.events.push_back(Recorded { begin: since(begin), end: since(end), event });
    }

    /// The events in the order of their beginnings, those that contain others first.
    pub fn events(&self) -> Vec<Recorded> {
        let mut events: Vec<Recorded> = self.events.iter().copied().collect();
        events.sort_by_cached_key(|e| (e.begin, std::cmp::Reverse(e.end), e.event.shown().track));
        events
    }

    /// Events that made room for newer ones.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn of_too_many_events_the_newest_are_kept_and_the_others_counted() {
        let start = Instant::now();
        let mut recording = Recording::new(start, 3);
        for i in 0..5_u64 {
            let at = start + Duration::from_nanos(10 * i);
            recording.push(at, at + Duration::from_nanos(5), Event::Prefill { tokens: i as usize });
        }
        let kept: Vec<u64> = recording.events().iter().map(|e| e.begin).collect();
        assert_eq!((kept, recording.dropped()), (vec![20, 30, 40], 2));
    }

    #[test]
    fn a_step_comes_before_what_it_contains_and_nothing_before_the_start() {
        let start = Instant::now();
        let mut recording = Recording::new(start, 10);
        let at = |ns| start + Duration::from_nanos(ns);
        recording.push(at(5), at(8), Event::KvCopy);
        recording.push(at(5), at(9), Event::Step { running: 1, waiting: 0, kv_bytes: 0 });
        recording.push(start.checked_sub(Duration::from_secs(1)).unwrap_or(start), at(2), Event::Wait);
        let order: Vec<(u64, u64)> = recording.events().iter().map(|e| (e.begin, e.end)).collect();
        assert_eq!(order, [(0, 2), (5, 9), (5, 8)]);
    }
}
