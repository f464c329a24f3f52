//! `notices.jsonl`: one notice per line.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::Notice;
use crate::files::{
    atomic,
    journal::{self, Entry, Skipped},
};

/// The notices of a run, on disk and in memory. They are few, so each one rewrites the whole file.
#[derive(Debug)]
pub struct NoticesFile {
    path: PathBuf,
    notices: Vec<Notice>,
    /// Notices of unknown kinds, which stay as they are.
    unknown: Vec<Map<String, Value>>,
}

impl Entry for Notice {
    fn step(&self) -> Option<u64> {
        Some(self.step)
    }
}

impl NoticesFile {
    /// Opens the file for a run that goes on after `completed_steps` steps: notices of later steps will be found again
    /// and are cut off.
    ///
    /// # Errors
    /// Any error of the file system, with the path.
    pub fn open(path: &Path, completed_steps: u64) -> io::Result<Self> {
        Self::open_and_look(path, completed_steps).map(|(file, _)| file)
    }

    /// As [`NoticesFile::open`], and the lines that are left out: damaged ones go.
    ///
    /// # Errors
    /// As [`NoticesFile::open`].
    pub fn open_and_look(path: &Path, completed_steps: u64) -> io::Result<(Self, Skipped)> {
        let (mut notices, skipped) = read_all(path)?;
        let (lines, _) = journal::read::<Map<String, Value>>(path)?;
        let is_unknown = |line: &Map<String, Value>| {
            !line.is_empty() && serde_json::from_value::<Notice>(Value::Object(line.clone())).is_err()
        };
        let mut unknown: Vec<_> = lines.into_iter().filter(is_unknown).collect();
        let found = notices.len() + unknown.len();
        notices.retain(|notice| notice.step <= completed_steps);
        unknown.retain(|line| Entry::step(line).is_none_or(|step| step <= completed_steps));
        let file = Self { path: path.to_owned(), notices, unknown };
        if file.notices.len() + file.unknown.len() < found || skipped.damaged > 0 {
            file.write()?;
        }
        Ok((file, skipped))
    }

    /// Adds a notice, unless it repeats an earlier one; returns whether it was added.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn add(&mut self, notice: Notice) -> io::Result<bool> {
        if self.notices.iter().any(|known| known.repeats(&notice)) {
            return Ok(false);
        }
        self.notices.push(notice);
        self.write().map(|()| true)
    }

    fn write(&self) -> io::Result<()> {
        let known = self.notices.iter().map(|notice| serde_json::to_string(notice).expect("a notice is valid JSON"));
        let unknown = self.unknown.iter().map(|line| serde_json::to_string(line).expect("what was JSON is JSON"));
        atomic::write(&self.path, known.chain(unknown).map(|line| line + "\n").collect::<String>().as_bytes())
    }
}

/// Every notice of a file; none without a file.
///
/// # Errors
/// Any error of the file system, with the path.
pub fn read(path: &Path) -> io::Result<Vec<Notice>> {
    read_all(path).map(|(notices, _)| notices)
}

/// As [`read`], and the lines that are left out. The file is always written as a whole, so half a line is damage.
///
/// # Errors
/// As [`read`].
pub fn read_all(path: &Path) -> io::Result<(Vec<Notice>, Skipped)> {
    journal::read(path).map(|(notices, skipped)| (notices, skipped.of_a_whole_file()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::run::notices::NoticeKind;

    fn notice(kind: NoticeKind, step: u64) -> Notice {
        Notice::new(kind, step, format!("found in {step}"), "do this")
    }

    #[test]
    fn each_notice_is_written_once_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notices.jsonl");
        let mut file = NoticesFile::open(&path, 0).unwrap();
        assert!(!path.exists(), "a run without notices has no file of them");
        assert!(file.add(notice(NoticeKind::Truncated, 3)).unwrap());
        assert!(!file.add(notice(NoticeKind::Truncated, 4)).unwrap());
        assert!(file.add(notice(NoticeKind::RewardFailures, 4).about("judge")).unwrap());
        let expected = [notice(NoticeKind::Truncated, 3), notice(NoticeKind::RewardFailures, 4).about("judge")];
        assert_eq!(read(&path).unwrap(), expected);
        let text = fs::read_to_string(&path).unwrap();
        let first = r#"{"kind":"truncated","step":3,"text":"found in 3","remedy":"do this"}"#;
        assert_eq!(text.lines().next(), Some(first));
    }

    #[test]
    fn a_run_that_falls_back_forgets_what_it_will_find_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notices.jsonl");
        let mut file = NoticesFile::open(&path, 0).unwrap();
        for (kind, step) in [(NoticeKind::LearningRate, 0), (NoticeKind::Truncated, 3), (NoticeKind::EqualGroups, 5)] {
            file.add(notice(kind, step)).unwrap();
        }
        let mut file = NoticesFile::open(&path, 4).unwrap();
        let steps = |path: &Path| read(path).unwrap().iter().map(|notice| notice.step).collect::<Vec<_>>();
        assert_eq!(steps(&path), [0, 3]);
        assert!(file.add(notice(NoticeKind::EqualGroups, 5)).unwrap());
        assert!(!file.add(notice(NoticeKind::Truncated, 6)).unwrap(), "it was told before the checkpoint");
        assert_eq!(steps(&path), [0, 3, 5]);
    }

    #[test]
    fn damaged_lines_are_counted_and_go_and_those_of_another_version_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notices.jsonl");
        let known = serde_json::to_string(&notice(NoticeKind::Truncated, 3)).unwrap();
        let gossip = r#"{"kind":"gossip","step":2,"more":[1]}"#;
        let late = r#"{"kind":"gossip","step":9}"#;
        fs::write(&path, format!("{gossip}\n\0\0\n{known}\n{late}\n{{\"kind\":")).unwrap();
        let (mut file, skipped) = NoticesFile::open_and_look(&path, 4).unwrap();
        assert_eq!(skipped, Skipped { damaged: 2, unknown: 2, torn: false });
        file.add(notice(NoticeKind::EqualGroups, 4)).unwrap();
        let added = serde_json::to_string(&notice(NoticeKind::EqualGroups, 4)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{known}\n{added}\n{gossip}\n"));
        let (_, skipped) = NoticesFile::open_and_look(&path, 4).unwrap();
        assert_eq!(skipped, Skipped { unknown: 1, ..Skipped::default() });
    }
}
