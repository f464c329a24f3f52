//! A timeline of the process, for `--trace`: Chrome's trace event format, which <https://ui.perfetto.dev> opens.
//!
//! There is one recording per process, as there is one log. While none was started, a span costs one look at a flag.
//! Memory is bounded: of more than [`CAPACITY`] events the newest are kept, and the file says how many are missing.
//!
//! | file | subject |
//! |---|---|
//! | `event` | what is recorded, and the track and arguments that it is shown with |
//! | `recording` | the ring of events |
//! | `json` | the file |

mod event;
mod json;
mod recording;

use std::{
    io,
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
    time::Instant,
};

pub use event::Event;
use recording::Recording;

/// Events that are kept: some 20 MB in memory and on disk, tens of thousands of decode steps.
pub const CAPACITY: usize = 1 << 17;

static RECORDING: OnceLock<Mutex<Recording>> = OnceLock::new();

/// Records from now on. Starting again changes nothing.
pub fn start() {
    RECORDING.get_or_init(|| Mutex::new(Recording::new(Instant::now(), CAPACITY)));
}

/// Whether something is recorded.
#[must_use]
pub fn on() -> bool {
    RECORDING.get().is_some()
}

/// Records that something took from `begin` to `end`. An event that began before the recording is cut off at its start.
pub fn span(begin: Instant, end: Instant, event: Event) {
    if let Some(recording) = RECORDING.get() {
        recording.lock().unwrap_or_else(PoisonError::into_inner).push(begin, end, event);
    }
}

/// Writes the recording, which becomes visible in one step; nothing without a recording. Returns the number of events
/// that were dropped.
///
/// # Errors
/// When the file cannot be written, with its path.
pub fn write(path: &Path) -> io::Result<u64> {
    let Some(recording) = RECORDING.get() else {
        return Ok(0);
    };
    let recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
    shared::files::atomic::write_with(path, |file| json::write(&recording, file))?;
    Ok(recording.dropped())
}
