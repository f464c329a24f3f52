//! How somebody follows a transfer, and ends it.

use std::time::{Duration, Instant};

/// How long tidying up may take.
const BRIEFLY: Duration = Duration::from_secs(5);

/// Follows a transfer. `()` does nothing.
pub trait Watch: Sync {
    /// So many bytes of all are there. Called from several threads, so a call may tell less than the one before.
    fn progress(&self, done: u64, total: u64) {
        let _ = (done, total);
    }

    /// Whether the transfer is to end, because a signal came or the thing is no longer wanted. Asked many times a
    /// second.
    fn give_up(&self) -> bool {
        false
    }
}

impl Watch for () {}

/// Gives up soon: for tidying up behind an error, which somebody waits to hear of.
pub struct Briefly(Instant);

impl Briefly {
    /// From now on.
    pub fn begin() -> Self {
        Self(Instant::now())
    }
}

impl Watch for Briefly {
    fn give_up(&self) -> bool {
        self.0.elapsed() > BRIEFLY
    }
}
