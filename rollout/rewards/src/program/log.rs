//! The lines that a process writes to standard error.

use std::{
    io::{BufRead, BufReader, Read},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use super::{containment, words::LastWords};
use crate::contain::{ACTIVE, ENDED, MARK};

/// Longest line, in bytes; a longer one is shown in pieces.
const MAX_LINE: u64 = 4 << 10;

/// Bytes that a process may write to the log at once, after it has been silent for a while.
const AT_ONCE: f64 = 256.0 * 1024.0;

/// Bytes that it may write to the log in a second, for long.
const PER_SECOND: f64 = 8.0 * 1024.0;

/// How often the log says that something is left out.
const REMARK: Duration = Duration::from_secs(10);

/// After each so many bytes that are left out, the reading pauses for [`PAUSE`]: a program that writes without end must
/// not take a core.
const PIECE: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(2);

/// Writes what a process says to the log, text or not, as far as there is room. The reason why the process was ended,
/// if it was, goes to `verdict`.
pub(super) fn follow(stderr: impl Read, label: &str, words: &LastWords, verdict: &Arc<OnceLock<String>>) {
    let mut reader = BufReader::new(stderr);
    let mut room = Room::new(Instant::now());
    let (mut line, mut unread) = (Vec::new(), 0);
    while matches!(reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line), Ok(1..)) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if let Some(own) = text.strip_prefix(MARK) {
            take(own, verdict);
        } else if !text.is_empty() {
            words.push(text);
            if room.has(line.len(), Instant::now()) {
                tracing::info!("`{label}`: {text}");
            } else {
                unread += line.len();
            }
        }
        if let Some(remark) = room.remark(Instant::now()) {
            tracing::warn!("`{label}`: {remark}");
        }
        if unread > PIECE {
            unread = 0;
            thread::sleep(PAUSE);
        }
        line.clear();
    }
    if let Some(remark) = room.left_out() {
        tracing::warn!("`{label}`: {remark}");
    }
}

/// Takes a line of the containment.
fn take(own: &str, verdict: &OnceLock<String>) {
    if let Some(words) = own.strip_prefix(ACTIVE) {
        containment::is_active(words);
    } else if let Some(reason) = own.strip_prefix(ENDED) {
        let _ = verdict.set(reason.to_owned());
    }
}

/// The room that a process has in the log. Writing uses it up, and it grows with time.
#[derive(Debug)]
struct Room {
    bytes: f64,
    since: Instant,
    left_out: usize,
    /// When the log last said that something is left out.
    said: Option<Instant>,
}

impl Room {
    fn new(now: Instant) -> Self {
        Self { bytes: AT_ONCE, since: now, left_out: 0, said: None }
    }

    /// Whether there is room for so many bytes. They are then used up, else counted as left out.
    fn has(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes = (self.bytes + now.duration_since(self.since).as_secs_f64() * PER_SECOND).min(AT_ONCE);
        self.since = now;
        let fits = bytes as f64 <= self.bytes;
        if fits {
            self.bytes -= bytes as f64;
        } else {
            self.left_out += bytes;
        }
        fits
    }

    /// A remark on what was left out: the first one at once, then from time to time.
    fn remark(&mut self, now: Instant) -> Option<String> {
        let is_time = self.said.is_none_or(|said| now.duration_since(said) >= REMARK);
        let remark = is_time.then(|| self.left_out())??;
        self.said = Some(now);
        Some(remark)
    }

    /// What was left out since the last remark, in words.
    fn left_out(&mut self) -> Option<String> {
        let bytes = std::mem::take(&mut self.left_out);
        (bytes > 0).then(|| format!("{bytes} bytes of what it wrote to standard error are left out here"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_takes_a_burst_and_then_a_little_in_each_second() {
        let begin = Instant::now();
        let mut room = Room::new(begin);
        let burst = (0..1000).filter(|_| room.has(1024, begin)).count();
        assert_eq!(burst, 256);
        let remark = room.remark(begin).unwrap();
        assert!(remark.starts_with(&format!("{} bytes", 744 * 1024)), "{remark}");
        let later = begin + Duration::from_secs(10);
        assert_eq!((0..1000).filter(|_| room.has(1024, later)).count(), 80);
        assert_eq!(room.remark(begin + Duration::from_secs(9)), None, "not yet");
        let remark = room.remark(later).unwrap();
        assert!(remark.starts_with(&format!("{} bytes", 920 * 1024)), "{remark}");
        assert_eq!(room.left_out(), None);
    }
}
