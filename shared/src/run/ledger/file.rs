//! `ledger.jsonl`, to which lines are only appended.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use super::{LedgerEvent, LedgerLine};
use crate::files::{
    atomic::{self, named},
    journal::{self, Entry, Found, Steps},
};

/// Appends to `ledger.jsonl`.
#[derive(Debug)]
pub struct LedgerFile {
    path: PathBuf,
    file: File,
}

impl Entry for LedgerLine {
    fn step(&self) -> Option<u64> {
        Some(Self::step(self))
    }
}

impl LedgerFile {
    /// Opens the file for a run that goes on after `completed_steps` steps, and returns what was found. It cuts off
    /// lines of later steps, damaged lines and a torn last line that a killed process left, since those steps are made
    /// again; it also removes lines of steps before `first`. The steps found are those of lines about groups.
    ///
    /// # Errors
    /// Any error of the file system, with the path.
    pub fn open_and_look(path: &Path, first: u64, completed_steps: u64) -> io::Result<(Self, Found)> {
        let mut steps = Steps::default();
        let skipped = journal::keep::<LedgerLine>(path, first, completed_steps, |line| {
            if let LedgerLine::Group(group) = line {
                steps.note(group.step);
            }
        })?;
        Ok((Self { path: path.to_owned(), file: atomic::append(path)? }, Found { skipped, steps }))
    }

    /// Adds lines.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn append<'a>(&mut self, lines: impl IntoIterator<Item = &'a LedgerLine>) -> io::Result<()> {
        self.file.write_all(lines.into_iter().map(text).collect::<String>().as_bytes()).map_err(named(&self.path))
    }

    /// Waits until everything is on disk, so that no checkpoint outlives its lines in a power loss.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data().map_err(named(&self.path))
    }
}

fn text(line: &LedgerLine) -> String {
    serde_json::to_string(line).expect("a line of the ledger is valid JSON") + "\n"
}

/// Every whole line; none where there is no file. [`journal::read`] says how many are left out.
///
/// # Errors
/// Any error of the file system, with the path.
pub fn read(path: &Path) -> io::Result<Vec<LedgerLine>> {
    journal::read(path).map(|(lines, _)| lines)
}

/// Shows every event, one at a time; none without a file. Groups, which are most of the lines, are not parsed.
///
/// # Errors
/// Any error of the file system.
pub fn events(path: &Path, mut show: impl FnMut(u64, LedgerEvent)) -> io::Result<()> {
    let file = match shared_bounds::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(named(path))?,
    };
    let mut lines = BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).map_err(named(path))? > 0 {
        if line.windows(EVENT.len()).any(|part| part == EVENT)
            && let Ok(LedgerLine::Event { step, event }) = serde_json::from_slice(&line)
        {
            show(step, event);
        }
        line.clear();
    }
    Ok(())
}

/// The key that every line about an event has.
const EVENT: &[u8] = b"\"event\"";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::run::ledger::LedgerEvent;

    #[test]
    fn a_restart_cuts_off_what_is_made_again_and_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.jsonl");
        let resumed = |step| LedgerLine::Event { step, event: LedgerEvent::Resumed };
        let (mut file, _) = LedgerFile::open_and_look(&path, 0, 0).unwrap();
        file.append(&[resumed(1), resumed(2), resumed(3)]).unwrap();
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"step\": 4, \"ev").unwrap();
        let (mut file, _) = LedgerFile::open_and_look(&path, 0, 2).unwrap();
        file.append(&[resumed(3)]).unwrap();
        assert_eq!(read(&path).unwrap(), [resumed(1), resumed(2), resumed(3)]);
        assert_eq!(read(&dir.path().join("none")).unwrap(), []);
    }
}
