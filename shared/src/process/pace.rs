//! How often a program tells a waiting user what it is doing: soon and often at first, less often later.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time between two messages in the first minutes: there is one within five seconds of silence.
const SOON: Duration = Duration::from_secs(4);
/// Length of the first minutes.
const FIRST: Duration = Duration::from_secs(120);
/// Time between two messages after that: work of hours must not fill a log.
const LATER: Duration = Duration::from_secs(20);

/// Tells when the next message is due.
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
    /// Whether a message is due; if so, it counts as sent.
    pub fn is_due(&mut self) -> bool {
        let due = self.said.elapsed() >= self.silence();
        if due {
            self.said();
        }
        due
    }

    /// Records that another message was sent.
    pub fn said(&mut self) {
        self.said = Instant::now();
    }

    /// Seconds since the beginning.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    /// The present time between two messages.
    fn silence(&self) -> Duration {
        if self.begun.elapsed() < FIRST { SOON } else { LATER }
    }
}

/// Reports what the program waits for, and for how long, until it is dropped: for work that shows no other progress.
/// Short waits are not reported.
#[derive(Debug)]
pub struct Waiting {
    /// Dropped first, to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Begins to wait for `what`, for instance `exporting the model`.
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
        // A line that is being written is finished before anything else is printed.
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
