//! Progress and end of a transfer.

use std::time::{Duration, Instant};

/// How long clean-up may take.
const BRIEFLY: Duration = Duration::from_secs(5);

/// Follows a transfer. `()` ignores it.
pub trait Watch: Sync {
    /// `done` bytes of `total` are there. Called from several threads, so a call may report less than the one before.
    fn progress(&self, done: u64, total: u64) {
        let _ = (done, total);
    }

    /// Whether the transfer should end, because a signal came or nobody wants it any more. Asked many times a second.
    fn give_up(&self) -> bool {
        false
    }
}

impl Watch for () {}

/// Gives up soon: for clean-up behind an error, which somebody waits to hear of.
pub struct Briefly(Instant);

impl Briefly {
    /// A watch that begins now.
    pub fn begin() -> Self {
        Self(Instant::now())
    }
}

impl Watch for Briefly {
    fn give_up(&self) -> bool {
        self.0.elapsed() > BRIEFLY
    }
}
