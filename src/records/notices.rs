//! Shows the learner's notices, each one once, and adds those that come after its end.

use std::{fs, io, os::unix::fs::MetadataExt, path::PathBuf};

use shared::{
    RunDir,
    config::TrainConfig,
    metrics,
    run::{
        best::{Selection, lost_evaluations},
        notices::{self, Notice, NoticesFile},
    },
};

/// Adds the notices of evaluations of which too much has failed to those of a run whose processes have ended. The
/// learner has told of all but those that ended after it, such as that of the last version.
///
/// # Errors
/// Any error of the file system.
pub fn add_lost_evaluations(dir: &RunDir, config: &TrainConfig) -> io::Result<()> {
    if !config.evaluates() {
        return Ok(());
    }
    let selection = Selection::of(config).map_err(io::Error::other)?;
    let lost = lost_evaluations(selection.as_ref(), &metrics::read(&dir.eval())?, u64::MAX);
    if lost.is_empty() {
        return Ok(());
    }
    let mut file = NoticesFile::open(&dir.notices(), u64::MAX)?;
    lost.into_iter().try_for_each(|notice| file.add(notice).map(drop))
}

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
    use shared::run::notices::NoticeKind;

    use super::*;

    #[test]
    fn an_evaluation_that_ended_after_the_learner_is_told_of_as_well() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        let config = TrainConfig { eval_steps: Some(2), ..TrainConfig::default() };
        add_lost_evaluations(&dir, &config).unwrap();
        let line = |step| format!("{{\"step\":{step},\"eval_prompts\":10,\"eval_failed_prompts\":9}}\n");
        fs::write(dir.eval(), line(2) + &line(4)).unwrap();
        let by_the_learner = lost_evaluations(None, &metrics::read(&dir.eval()).unwrap(), 2);
        let mut file = NoticesFile::open(&dir.notices(), 0).unwrap();
        by_the_learner.into_iter().for_each(|notice| assert!(file.add(notice).unwrap()));
        let mut board = Board::new(dir.notices());
        let without = TrainConfig { eval_steps: None, ..config.clone() };
        add_lost_evaluations(&dir, &without).unwrap();
        assert_eq!(board.news(), [], "its file of evaluations is of an earlier start");
        for _ in 0..2 {
            add_lost_evaluations(&dir, &config).unwrap();
        }
        let found = |notice: &Notice| (notice.kind, notice.step);
        assert_eq!(board.news().iter().map(found).collect::<Vec<_>>(), [(NoticeKind::EvaluationLost, 4)]);
        let all = notices::read(&dir.notices()).unwrap();
        assert_eq!(all.iter().map(|notice| notice.step).collect::<Vec<_>>(), [2, 4]);
    }

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
