//! `ended.json`: how the last start of a run ended, as its launcher saw it.
//!
//! It is there for people, such as readers of the page; no process of a run depends on it. A launcher that was killed
//! leaves none, and the one of an earlier start does not count, since every start has an id of its own.

use std::io;

use serde::{Deserialize, Serialize};

use crate::{RunDir, channel::RunId, files::atomic};

/// Most bytes of `ended.json`.
const MOST_BYTES: u64 = 1 << 16;
/// Characters of the error that are kept.
const MOST_CHARACTERS: usize = 2_000;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Every step was made, or evaluations ended the run early: exit code 0.
    Finished,
    /// Every step was made, and nothing was learned: exit code 4.
    LearnedNothing,
    /// An error ended it: exit code 1.
    Failed,
    /// A signal ended it.
    Stopped,
}

/// The end of a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The id of the run in this start.
    run: String,
    /// How it ended.
    pub how: How,
    /// The error, if one ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Ended {
    /// The end of a start with this id.
    #[must_use]
    pub fn new(run: RunId, how: How, error: Option<&str>) -> Self {
        let error = error.map(|error| error.chars().take(MOST_CHARACTERS).collect());
        Self { run: run.to_string(), how, error }
    }

    /// Leaves it on disk, in the place of an earlier one.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn leave(&self, run_dir: &RunDir) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        atomic::write(&run_dir.ended(), &text)
    }

    /// How the newest start of a run ended; none while it goes on, and if its launcher could not say.
    #[must_use]
    pub fn of(run_dir: &RunDir) -> Option<Self> {
        let text = shared_bounds::read(&run_dir.ended(), MOST_BYTES).ok()?;
        let ended: Self = serde_json::from_slice(&text).ok()?;
        let newest = RunId::of(run_dir).ok()?.to_string();
        (ended.run == newest).then_some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_start_is_known_until_the_next_start() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        dir.create().unwrap();
        assert_eq!(Ended::of(&dir), None);
        let id = RunId::draw();
        id.leave(&dir).unwrap();
        let ended = Ended::new(id, How::Failed, Some(&"e".repeat(MOST_CHARACTERS + 1)));
        ended.leave(&dir).unwrap();
        let found = Ended::of(&dir).unwrap();
        assert_eq!((found.how, found.error.unwrap().len()), (How::Failed, MOST_CHARACTERS));
        RunId::draw().leave(&dir).unwrap();
        assert_eq!(Ended::of(&dir), None, "the run goes on");
    }
}
