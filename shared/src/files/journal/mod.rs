//! Journals: files of one JSON object per line, to which a run adds as it goes on. There is one reader for all of them:
//! a damaged line, or a line of an unknown kind, hides nothing else and is counted.

mod steps;

use std::{
    fmt,
    io::{self, BufRead, BufReader, Write},
    path::Path,
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::files::atomic::{self, named};

pub use steps::{Found, Steps};

/// Longest line that is read; a longer one counts as damage, and is not held in memory.
const MOST_LINE: usize = 256 << 20;

/// The content of a line of a journal.
pub trait Entry: DeserializeOwned {
    /// The step that it belongs to, counted in completed steps. A line without a step is damaged.
    fn step(&self) -> Option<u64>;
}

/// A line without a type, for journals that belong to one step each.
impl Entry for Map<String, Value> {
    fn step(&self) -> Option<u64> {
        self.get("step").map_or(Some(0), Value::as_u64)
    }
}

/// Lines of a journal that were left out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// Lines that are no entry of any kind.
    pub damaged: u64,
    /// Whole lines of unknown kinds.
    pub unknown: u64,
    /// Whether the last line is cut short: its writer was killed, or is writing at this moment.
    pub torn: bool,
}

impl Skipped {
    /// Whether no line was left out, except one that is being written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.damaged == 0 && self.unknown == 0
    }

    /// The entry of a line; other lines are counted; `whole` is false for a line without its end.
    fn entry<T: Entry>(&mut self, line: &[u8], whole: bool) -> Option<T> {
        match Line::of(line) {
            Line::Known(entry) => return Some(entry),
            Line::Blank => (),
            _ if !whole => self.torn = true,
            Line::Unknown(_) => self.unknown += 1,
            Line::Damaged => self.damaged += 1,
        }
        None
    }

    /// Counts a torn line as damage, for a journal that is always written as a whole.
    #[must_use]
    pub fn of_a_whole_file(self) -> Self {
        Self { damaged: self.damaged + u64::from(self.torn), torn: false, ..self }
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (damaged, unknown) = (self.damaged + other.damaged, self.unknown + other.unknown);
        Self { damaged, unknown, torn: self.torn || other.torn }
    }
}

/// `2 damaged lines, 1 line of a kind that this version does not know`.
impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = |count: u64| if count == 1 { "line" } else { "lines" };
        let damaged = (self.damaged > 0).then(|| format!("{} damaged {}", self.damaged, lines(self.damaged)));
        let unknown = (self.unknown > 0)
            .then(|| format!("{} {} of a kind that this version does not know", self.unknown, lines(self.unknown)));
        f.write_str(&damaged.into_iter().chain(unknown).collect::<Vec<_>>().join(", "))
    }
}

/// The kind of a line.
enum Line<T> {
    Known(T),
    /// Possibly of another version; the step that it names.
    Unknown(Option<u64>),
    Damaged,
    Blank,
}

impl<T: Entry> Line<T> {
    fn of(line: &[u8]) -> Self {
        if line.trim_ascii().is_empty() {
            return Self::Blank;
        }
        match serde_json::from_slice::<T>(line) {
            Ok(entry) if entry.step().is_some() => Self::Known(entry),
            Ok(_) => Self::Damaged,
            Err(_) => match serde_json::from_slice::<Map<String, Value>>(line) {
                Ok(other) if !other.is_empty() => Self::Unknown(other.get("step").and_then(Value::as_u64)),
                _ => Self::Damaged,
            },
        }
    }
}

/// Shows every entry of a journal, one at a time: a long run has many. A missing file has none.
///
/// # Errors
/// Any error of the file system, with the path.
pub fn for_each<T: Entry>(path: &Path, mut show: impl FnMut(T)) -> io::Result<Skipped> {
    let file = match shared_bounds::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Skipped::default()),
        file => file.map_err(named(path))?,
    };
    let mut skipped = Skipped::default();
    lines(BufReader::with_capacity(1 << 16, file), |line, whole| {
        skipped.entry(line, whole).into_iter().for_each(&mut show);
        Ok(())
    })
    .map_err(named(path))?;
    Ok(skipped)
}

/// Every entry of a journal.
///
/// # Errors
/// As [`for_each`].
pub fn read<T: Entry>(path: &Path) -> io::Result<(Vec<T>, Skipped)> {
    let mut entries = Vec::new();
    let skipped = for_each(path, |entry| entries.push(entry))?;
    Ok((entries, skipped))
}

/// Every entry of a journal that is in memory.
#[must_use]
pub fn parse<T: Entry>(text: &[u8]) -> (Vec<T>, Skipped) {
    let (mut entries, mut skipped) = (Vec::new(), Skipped::default());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        entries.extend(skipped.entry(line, line.ends_with(b"\n")));
    }
    (entries, skipped)
}

/// Cuts a journal to the entries of the steps from `first` to `last`, and shows those: lines of other steps and damaged
/// lines go, whole lines of unknown kinds stay. Afterwards the file exists, and each of its lines is complete.
///
/// # Errors
/// As [`for_each`]; a file that cannot be written.
pub fn keep<T: Entry>(path: &Path, first: u64, last: u64, mut show: impl FnMut(&T)) -> io::Result<Skipped> {
    let file = match shared_bounds::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return atomic::write(path, b"").map(|()| Skipped::default()),
        file => file.map_err(named(path))?,
    };
    let mut skipped = Skipped::default();
    atomic::write_with(path, |out| {
        lines(BufReader::with_capacity(1 << 16, file), |line, whole| {
            let stays = match Line::<T>::of(line) {
                Line::Known(entry) if entry.step().is_some_and(|step| (first..=last).contains(&step)) => {
                    show(&entry);
                    true
                }
                Line::Known(_) | Line::Blank => false,
                _ if !whole => {
                    skipped.torn = true;
                    false
                }
                Line::Unknown(step) => {
                    let stays = step.is_none_or(|step| (first..=last).contains(&step));
                    skipped.unknown += u64::from(stays);
                    stays
                }
                Line::Damaged => {
                    skipped.damaged += 1;
                    false
                }
            };
            if stays {
                out.write_all(line)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        })
        .map_err(named(path))
    })?;
    Ok(skipped)
}

/// Shows every line without its end, and whether it had one. Of a line that is too long, only the beginning is shown.
fn lines(mut text: impl BufRead, mut show: impl FnMut(&[u8], bool) -> io::Result<()>) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let part = text.fill_buf()?;
        if part.is_empty() {
            return if line.is_empty() { Ok(()) } else { show(&line, false) };
        }
        let end = part.iter().position(|byte| *byte == b'\n');
        let used = end.unwrap_or(part.len());
        let room = (MOST_LINE - line.len()).min(used);
        line.extend_from_slice(&part[..room]);
        text.consume(used + usize::from(end.is_some()));
        if end.is_some() {
            show(&line, true)?;
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Seen {
        step: Option<u64>,
        kind: Kind,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        A,
        B,
    }

    impl Entry for Seen {
        fn step(&self) -> Option<u64> {
            self.step
        }
    }

    fn entry(step: u64, kind: Kind) -> Seen {
        Seen { step: Some(step), kind }
    }

    const TEXT: &[u8] =
        b"{\"step\":1,\"kind\":\"a\"}\n\0\0\0\0\n{\"step\":2,\"kind\":\n\n{\"step\":3,\"kind\":\"of_tomorrow\"}\n\
        {}\n[1]\n\xff\xfe\n{\"kind\":\"a\"}\n{\"step\":4,\"kind\":\"b\"}\n{\"step\":5,\"ki";

    #[test]
    fn what_is_damaged_or_unknown_is_counted_and_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.jsonl");
        assert_eq!(read::<Seen>(&path).unwrap(), (Vec::new(), Skipped::default()));
        fs::write(&path, TEXT).unwrap();
        let expected = (vec![entry(1, Kind::A), entry(4, Kind::B)], Skipped { damaged: 6, unknown: 1, torn: true });
        assert_eq!(read::<Seen>(&path).unwrap(), expected);
        assert_eq!(parse::<Seen>(TEXT), expected);
        let words = "7 damaged lines, 1 line of a kind that this version does not know";
        assert_eq!(expected.1.of_a_whole_file().to_string(), words);
    }

    #[test]
    fn a_journal_that_is_cut_back_keeps_what_is_whole_and_what_is_of_another_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.jsonl");
        keep::<Seen>(&path, 0, 9, |_| ()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"", "who opens it finds a file");
        fs::write(&path, TEXT).unwrap();
        let mut shown = Vec::new();
        let skipped = keep::<Seen>(&path, 0, 3, |seen| shown.push(seen.step)).unwrap();
        assert_eq!((shown, skipped.unknown, skipped.torn), (vec![Some(1)], 1, true));
        let kept = fs::read_to_string(&path).unwrap();
        assert_eq!(kept, "{\"step\":1,\"kind\":\"a\"}\n{\"step\":3,\"kind\":\"of_tomorrow\"}\n");
        assert_eq!(keep::<Seen>(&path, 2, 9, |_| ()).unwrap(), Skipped { unknown: 1, ..Skipped::default() });
        // Only the end of the line is missing.
        fs::write(&path, "{\"step\":1,\"kind\":\"a\"}").unwrap();
        assert_eq!(keep::<Seen>(&path, 0, 3, |_| ()).unwrap(), Skipped::default());
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1,\"kind\":\"a\"}\n");
    }

    #[test]
    fn a_file_without_ends_of_lines_and_a_pipe_are_no_trouble() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.jsonl");
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        let (entries, skipped) = read::<Seen>(&path).unwrap();
        assert!(entries.is_empty() && skipped.torn);
        let pipe = dir.path().join("pipe.jsonl");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for error in [read::<Seen>(&pipe).unwrap_err(), keep::<Seen>(&pipe, 0, 9, |_| ()).unwrap_err()] {
            assert!(error.to_string().contains("pipe.jsonl: is a pipe"), "{error}");
        }
    }
}
