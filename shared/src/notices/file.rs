//! `notices.jsonl`: one notice per line.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::Notice;
use crate::atomic::{self, named};

/// The notices of a run, on disk as in memory. They are few, so that the file is written anew, and whole, with each.
#[derive(Debug)]
pub struct NoticesFile {
    path: PathBuf,
    notices: Vec<Notice>,
}

impl NoticesFile {
    /// Opens the file for a run that goes on after `completed_steps` steps: what was found in later steps will be found
    /// again and is cut off.
    ///
    /// # Errors
    /// Any error of the file system, or a line that is no notice.
    pub fn open(path: &Path, completed_steps: u64) -> io::Result<Self> {
        let found = read(path)?;
        let known = found.len();
        let notices: Vec<Notice> = found.into_iter().filter(|notice| notice.step <= completed_steps).collect();
        let file = Self { path: path.to_owned(), notices };
        if file.notices.len() < known {
            file.write()?;
        }
        Ok(file)
    }

    /// Adds a notice, unless it repeats one that is there; whether it was added.
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
        let line = |notice| serde_json::to_string(notice).expect("a notice is valid JSON") + "\n";
        atomic::write(&self.path, self.notices.iter().map(line).collect::<String>().as_bytes())
    }
}

/// Every notice of a file; none where there is no file.
///
/// # Errors
/// Any error of the file system, or a line that is no notice, with the path.
pub fn read(path: &Path) -> io::Result<Vec<Notice>> {
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(named(path))?,
    };
    let notice = |line: &str| serde_json::from_str(line).map_err(|e| named(path)(e.into()));
    text.lines().map(notice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notices::NoticeKind;

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
    fn a_file_that_holds_anything_else_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notices.jsonl");
        fs::write(&path, "{\"kind\": \"gossip\"}\n").unwrap();
        assert!(NoticesFile::open(&path, 0).unwrap_err().to_string().contains("notices.jsonl: "));
    }
}
