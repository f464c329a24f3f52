//! How long the peer has been silent.

use std::time::{Duration, Instant};

/// Longest time between two looks that counts as time spent listening.
const ATTENTION: Duration = Duration::from_secs(1);

/// Time without a sign of life from the peer. Only time in which this process listened counts: a process that was
/// stopped itself, or a machine that was suspended, has heard nothing either and must not take that for the end of its
/// peer.
#[derive(Debug)]
pub struct Silence {
    length: Duration,
    looked: Instant,
}

impl Default for Silence {
    fn default() -> Self {
        Self { length: Duration::ZERO, looked: Instant::now() }
    }
}

impl Silence {
    /// The silence so far.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Records one look at the channel, and whether there was a sign of life.
    pub fn note(&mut self, heard: bool) {
        let now = Instant::now();
        let listened = (now - self.looked).min(ATTENTION);
        self.length = if heard { Duration::ZERO } else { self.length + listened };
        self.looked = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_grows_while_somebody_listens_and_ends_with_a_sign_of_life() {
        let mut silence = Silence::default();
        silence.looked -= Duration::from_millis(300);
        silence.note(false);
        silence.looked -= Duration::from_millis(300);
        silence.note(false);
        assert!(silence.length() >= Duration::from_millis(600), "{silence:?}");
        silence.note(true);
        assert_eq!(silence.length(), Duration::ZERO);
    }

    #[test]
    fn the_time_in_which_a_process_was_stopped_is_no_silence_of_its_peer() {
        let mut silence = Silence::default();
        silence.looked -= Duration::from_secs(1000);
        silence.note(false);
        assert_eq!(silence.length(), ATTENTION);
    }
}
