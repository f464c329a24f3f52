//! Progress of a process of the pair, for the launcher: the phase of its main loop, a count of its moves, and the part
//! of the phase that is done.
//!
//! Only the loop itself moves the count, when something is done: a micro-batch, a decode step, a file. A thread that
//! merely lives shows no progress. The progress lies in memory of the launcher, as three lines of text, so that neither
//! a full nor a slow disk can hold it up. A process that nobody watches (its own tests, a command beside a run) shows
//! nothing.

use std::{
    env, fmt,
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::config::TrainConfig;

/// Environment variable with the path of the file to which a process writes its progress.
pub const VARIABLE: &str = "TANDEM_HEARTBEAT";

/// Bytes of each of the lines.
pub const LINE: usize = 48;
/// Lines of the progress: its main loop, its channel, its part.
pub const LINES: usize = 3;

/// Phase of a main loop. Each phase has a deadline of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Reads and exports a model, reads data, builds a session.
    Load,
    /// Generates, scores or trains.
    Step,
    /// Publishes a version, writes records or a checkpoint.
    Save,
    /// Waits for the other process.
    Wait,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Load, Self::Step, Self::Save, Self::Wait];

    /// `step 3 8`.
    fn part(text: &str) -> Option<(Self, u64, u64)> {
        let mut words = text.split(' ');
        let phase = words.next().and_then(|name| Self::ALL.into_iter().find(|phase| phase.name() == name))?;
        Some((phase, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    }

    fn name(self) -> &'static str {
        ["load", "step", "save", "wait"][self as usize]
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Load as u8);
static COUNT: AtomicU64 = AtomicU64::new(0);
static SHOWN: OnceLock<File> = OnceLock::new();

/// Begins to write progress, if the launcher asks for it.
///
/// # Errors
/// When the launcher's file cannot be opened.
pub fn start() -> io::Result<()> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let file = File::options().write(true).open(&path);
        let _ = SHOWN.set(file.map_err(|e| io::Error::new(e.kind(), format!("{VARIABLE}: {e}")))?);
    }
    beat(Phase::Load);
    Ok(())
}

/// Whether a launcher watches this process, and would end its peer if the peer falls silent.
#[must_use]
pub fn is_watched() -> bool {
    SHOWN.get().is_some()
}

/// Records that the main loop has done something.
pub fn beat(phase: Phase) {
    PHASE.store(phase as u8, Ordering::Relaxed);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    show(0, format_args!("{phase} {count}"));
}

/// The main loop enters a phase; if the phase is the same, this does not count as a move.
pub fn enter(phase: Phase) {
    if PHASE.load(Ordering::Relaxed) != phase as u8 {
        beat(phase);
    }
}

/// Records that the main loop has done a part of its present phase.
pub fn go_on() {
    beat(Phase::ALL[usize::from(PHASE.load(Ordering::Relaxed))]);
}

/// Records that `done` of `of` parts of a phase are done: groups of a step while the loop waits, completions of a pass
/// over them while it trains.
pub fn part(phase: Phase, done: usize, of: usize) {
    show(2 * LINE as u64, format_args!("part {phase} {done} {of}"));
}

/// Records that the channel's thread has looked at the channel; `count` moves with every look.
pub fn beat_of_channel(count: u64) {
    show(LINE as u64, format_args!("channel {count}"));
}

/// The phase of this process's main loop, and its count of moves.
#[must_use]
pub fn progress() -> Beat {
    let phase = Phase::ALL[usize::from(PHASE.load(Ordering::Relaxed))];
    Beat { main: Some((phase, COUNT.load(Ordering::Relaxed))), ..Beat::default() }
}

fn show(offset: u64, text: fmt::Arguments<'_>) {
    let Some(file) = SHOWN.get() else { return };
    let mut line = [b' '; LINE];
    let _ = write!(&mut line[..LINE - 1], "{text}");
    line[LINE - 1] = b'\n';
    // If writing to an existing page fails, there is no other way to report it.
    let _ = file.write_all_at(&line, offset);
}

/// The last progress that a process showed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Beat {
    /// Phase and count of the main loop.
    pub main: Option<(Phase, u64)>,
    /// Count of the thread that owns the channel, once there is one.
    pub channel: Option<u64>,
    /// How many parts of a phase are done, of how many.
    pub part: Option<(Phase, u64, u64)>,
}

impl Beat {
    /// Reads a process's progress; a line that is just being written may be missing.
    #[must_use]
    pub fn read(file: &File) -> Self {
        let mut bytes = [0; LINES * LINE];
        let length = file.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..length]);
        let mut beat = Self::default();
        for (name, count) in text.lines().filter_map(|line| line.trim_end().split_once(' ')) {
            if name == "part" {
                beat.part = Phase::part(count);
                continue;
            }
            let Ok(count) = count.parse() else { continue };
            match Phase::ALL.iter().find(|phase| phase.name() == name) {
                Some(&phase) => beat.main = Some((phase, count)),
                None => beat.channel = (name == "channel").then_some(count).or(beat.channel),
            }
        }
        beat
    }
}

/// How long a main loop may stay in a phase without moving, and how long a process may be silent altogether.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// `load_timeout`.
    pub load: Duration,
    /// `step_timeout`.
    pub step: Duration,
    /// `save_timeout`.
    pub save: Duration,
    /// `peer_timeout`.
    pub peer: Duration,
}

impl Deadlines {
    /// The deadlines of a run.
    #[must_use]
    pub fn of(config: &TrainConfig) -> Self {
        let [load, step, save, peer] =
            [config.load_timeout, config.step_timeout, config.save_timeout, config.peer_timeout]
                .map(Duration::from_secs_f64);
        Self { load, step, save, peer }
    }

    /// The deadline of a phase and the option that sets it. A waiting process has the deadline of a step: it looks up
    /// again and again, as if it worked.
    #[must_use]
    pub fn phase(&self, phase: Phase) -> (Duration, &'static str) {
        match phase {
            Phase::Load => (self.load, "load_timeout"),
            Phase::Step | Phase::Wait => (self.step, "step_timeout"),
            Phase::Save => (self.save, "save_timeout"),
        }
    }

    /// Silence after which a process gives up its peer. With a launcher, this is the last resort: the launcher ends the
    /// silent process, and not the one that noticed, so it must be first.
    #[must_use]
    pub fn silence_of_peer(&self) -> Duration {
        if is_watched() { self.peer + self.load + self.step + self.save } else { self.peer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only test that writes progress: a process has one heartbeat.
    #[test]
    fn what_is_shown_is_what_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("beat");
        std::fs::write(&path, "").unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(Beat::read(&file), Beat::default());
        assert!(!is_watched());
        let _ = SHOWN.set(File::options().write(true).open(&path).unwrap());
        assert!(is_watched());
        beat(Phase::Save);
        let first = Beat::read(&file);
        assert_eq!(first.main.map(|(phase, _)| phase), Some(Phase::Save));
        assert_eq!(first.channel, None);
        beat_of_channel(u64::MAX);
        beat(Phase::Step);
        let second = Beat::read(&file);
        assert_eq!(second.channel, Some(u64::MAX));
        let (phase, count) = second.main.unwrap();
        assert!(phase == Phase::Step && count > first.main.unwrap().1);
        assert_eq!(second.part, None);
        part(Phase::Wait, 3, usize::MAX / 8);
        assert_eq!(Beat::read(&file), Beat { part: Some((Phase::Wait, 3, u64::MAX / 8)), ..second });
        // A script writes shorter lines.
        std::fs::write(&path, "save 7\n").unwrap();
        assert_eq!(Beat::read(&file), Beat { main: Some((Phase::Save, 7)), ..Beat::default() });
    }
}
