//! Shows the learner's notices, each one once.

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf};

use shared::run::notices::{self, Notice};

/// Follows `notices.jsonl`, which the learner writes anew with each notice.
#[derive(Debug)]
pub struct Board {
    path: PathBuf,
    /// The file's identity, to tell it from one that replaced it.
    seen: Option<(u64, u64, i64)>,
    told: Vec<Notice>,
}

impl Board {
    /// Follows a file that need not exist yet. An earlier session has shown the notices that it holds by now.
    pub fn new(path: PathBuf) -> Self {
        let mut board = Self { path, seen: None, told: Vec::new() };
        board.news();
        board
    }

    /// Notices that were not there before. A restarted learner makes some again that it had lost; they are no news.
    pub fn news(&mut self) -> Vec<Notice> {
        let now = fs::metadata(&self.path).ok().map(|file| (file.ino(), file.len(), file.mtime_nsec()));
        if now == self.seen {
            return Vec::new();
        }
        // A file that cannot be read now is read at the next look.
        let Ok(found) = notices::read(&self.path) else {
            return Vec::new();
        };
        self.seen = now;
        let is_new = |notice: &Notice| !self.told.iter().any(|told| told.repeats(notice));
        let news: Vec<Notice> = found.into_iter().filter(is_new).collect();
        self.told.extend(news.clone());
        news
    }
}

#[cfg(test)]
mod tests {
    use shared::run::notices::{NoticeKind, NoticesFile};

    use super::*;

    #[test]
    fn each_notice_is_news_once_even_if_the_learner_falls_back_and_finds_it_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notices.jsonl");
        let notice = |kind, step| Notice::new(kind, step, "text", "remedy");
        let mut file = NoticesFile::open(&path, 0).unwrap();
        file.add(notice(NoticeKind::LearningRate, 0)).unwrap();
        let mut board = Board::new(path.clone());
        assert_eq!(board.news(), [], "it was shown before");
        file.add(notice(NoticeKind::Truncated, 3)).unwrap();
        assert_eq!(board.news(), [notice(NoticeKind::Truncated, 3)]);
        assert_eq!(board.news(), []);
        let mut file = NoticesFile::open(&path, 2).unwrap();
        assert_eq!(board.news(), []);
        file.add(notice(NoticeKind::Truncated, 3)).unwrap();
        file.add(notice(NoticeKind::EqualGroups, 4)).unwrap();
        assert_eq!(board.news(), [notice(NoticeKind::EqualGroups, 4)]);
    }
}
