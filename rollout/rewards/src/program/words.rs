//! The last words of a program.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Lines that are kept.
const KEPT: usize = 20;

/// The last words of a function's processes about a failure: the traceback that one sent, or else the last lines on
/// stderr.
#[derive(Debug, Clone, Default)]
pub struct LastWords(Arc<Mutex<Words>>);

#[derive(Debug, Default)]
struct Words {
    written: VecDeque<String>,
    traceback: Option<String>,
}

impl LastWords {
    fn words(&self) -> MutexGuard<'_, Words> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line of stderr.
    pub fn push(&self, line: &str) {
        let written = &mut self.words().written;
        if written.len() == KEPT {
            written.pop_front();
        }
        written.push_back(line.to_owned());
    }

    /// Forgets what was written: another process begins.
    pub fn begin(&self) {
        self.words().written.clear();
    }

    /// Takes the traceback of the last failure; none where it has none.
    pub fn set_traceback(&self, traceback: Option<&str>) {
        self.words().traceback = traceback.map(str::to_owned);
    }

    /// The lines, the last one last.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let words = self.words();
        match &words.traceback {
            Some(traceback) => traceback.lines().map(str::to_owned).collect(),
            None => words.written.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceback_is_more_than_the_last_lines() {
        let words = LastWords::default();
        (0..30).for_each(|line| words.push(&line.to_string()));
        assert_eq!(words.lines().first().map(String::as_str), Some("10"));
        assert_eq!(words.lines().len(), KEPT);
        words.set_traceback(Some("Traceback\nValueError"));
        words.push("later");
        assert_eq!(words.lines(), ["Traceback", "ValueError"]);
        words.set_traceback(None);
        assert_eq!(words.lines().last().map(String::as_str), Some("later"));
    }
}
