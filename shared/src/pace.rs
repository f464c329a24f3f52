//! How often somebody who waits is told what for: soon and often at first, more seldom after a while.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time without a word in the first minutes: within five seconds of silence something is said.
const SOON: Duration = Duration::from_secs(4);
/// How long these first minutes are.
const FIRST: Duration = Duration::from_secs(120);
/// Time without a word after that: what takes hours is to fill no log.
const LATER: Duration = Duration::from_secs(20);

/// Says when something is to be said again.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    begun: Instant,
    said: Instant,
}

impl Default for Pace {
    fn default() -> Self {
        Self { begun: Instant::now(), said: Instant::now() }
    }
}

impl Pace {
    /// Whether it is time; if so, from now on it counts as said.
    pub fn is_due(&mut self) -> bool {
        let due = self.said.elapsed() >= self.silence();
        if due {
            self.said();
        }
        due
    }

    /// Something else has been said.
    pub fn said(&mut self) {
        self.said = Instant::now();
    }

    /// Seconds since the beginning.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    /// How long nothing is said.
    fn silence(&self) -> Duration {
        if self.begun.elapsed() < FIRST { SOON } else { LATER }
    }
}

/// Tells what is waited for, and for how long by now, until it is dropped: for work of which nothing else is heard.
/// What is short is not told of.
#[derive(Debug)]
pub struct Waiting {
    /// Dropped first, which ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Begins to wait for `what`, as in `exporting the model`.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        let what = what.into();
        Self::with(move |seconds| crate::tell!("{what}: {seconds} s"))
    }

    fn with(mut tell: impl FnMut(u64) + Send + 'static) -> Self {
        let (end, ended) = mpsc::channel::<()>();
        let mut pace = Pace::default();
        let thread = thread::spawn(move || {
            while ended.recv_timeout(pace.silence()) == Err(RecvTimeoutError::Timeout) {
                pace.said();
                tell(pace.seconds());
            }
        });
        Self { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.end.take());
        // A line that is being written is finished before anything else is said.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn silence_is_broken_within_five_seconds_at_first_and_seldom_later() {
        let at = |begun: u64, said: u64| {
            let before = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            Pace { begun: before(begun), said: before(said) }
        };
        assert!(!at(3, 3).is_due() && at(5, 5).is_due() && at(100, 5).is_due());
        assert!(!at(600, 5).is_due() && at(600, 21).is_due());
        let mut pace = at(5, 5);
        assert!(pace.is_due() && !pace.is_due(), "it has been said");
    }

    #[test]
    fn what_takes_long_is_told_and_what_is_short_is_not() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let wait = |time| {
            let lines = lines.clone();
            let waiting = Waiting::with(move |seconds| lines.lock().unwrap().push(seconds));
            thread::sleep(time);
            drop(waiting);
        };
        wait(Duration::from_millis(20));
        assert!(lines.lock().unwrap().is_empty());
        wait(SOON + Duration::from_millis(700));
        assert_eq!(*lines.lock().unwrap(), [SOON.as_secs()]);
    }
}
