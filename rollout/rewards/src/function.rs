//! A reward function that was made, and the errors that keep one from being made or used.

use std::{path::Path, sync::Arc};

use serde_json::{Map, Value};

use crate::{
    Reward,
    answers::{self, ANSWER_COLUMNS},
};

/// A reward function that cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// No such function.
    #[error(
        "unknown reward function `{name}`{}; there are {}, and functions in Python as my_rewards.py:my_function",
        hint(.suggestion), .known.join(", ")
    )]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The nearest name.
        suggestion: Option<String>,
        /// Every name.
        known: Vec<&'static str>,
    },
    /// A parameter is unknown, missing or out of range.
    #[error("reward function `{name}`: {reason}")]
    Parameter {
        /// The function.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A function in Python that cannot be loaded.
    #[error("reward function `{name}` cannot be loaded: {reason}")]
    Python {
        /// The name that was asked for.
        name: String,
        /// What is wrong, in one line.
        reason: String,
        /// The end of the traceback, or the last words of the interpreter.
        words: Vec<String>,
    },
    /// The dataset has no row that the function could score.
    #[error(
        "reward function `{name}` needs the column {}, but no row of {path} has it{}{}",
        .columns.join(" or "), others(.found), way_out(.columns)
    )]
    Columns {
        /// The function.
        name: String,
        /// The columns, any of which would do.
        columns: Vec<&'static str>,
        /// The other columns of the first row, without the prompt.
        found: Vec<String>,
        /// The dataset.
        path: String,
    },
}

fn others(found: &[String]) -> String {
    if found.is_empty() { String::new() } else { format!("; the rows have {}", found.join(", ")) }
}

/// The option that names a column with another name.
fn way_out(columns: &[&str]) -> &'static str {
    if columns.contains(&"answer") { "; `answer_column` names the one with the right answer" } else { "" }
}

fn hint(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|s| format!(" (did you mean `{s}`?)")).unwrap_or_default()
}

impl RewardError {
    /// The last words of the function's own program, if it has one.
    #[must_use]
    pub fn last_words(&self) -> &[String] {
        match self {
            Self::Python { words, .. } => words,
            _ => &[],
        }
    }
}

/// A reward function ready for use.
#[derive(Clone)]
pub struct RewardFunction {
    pub(crate) name: String,
    pub(crate) columns: &'static [&'static str],
    /// Whether it is the user's own code.
    pub(crate) own: bool,
    /// Whether it is called with the environments of a group, where these are.
    pub(crate) is_rater: bool,
    pub(crate) reward: Arc<dyn Reward>,
}

impl std::fmt::Debug for RewardFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RewardFunction").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RewardFunction {
    /// The text with which it was asked for. For a function in Python, the text includes its name, also where only its
    /// file was named.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The function itself.
    #[must_use]
    pub fn reward(&self) -> &Arc<dyn Reward> {
        &self.reward
    }

    /// Whether it is a rater: a function in Python that asks for `environments`, in a run that has some. It is called
    /// in the process of the environments, and not by [`RewardPool`](crate::RewardPool).
    #[must_use]
    pub fn is_rater(&self) -> bool {
        self.is_rater
    }

    /// Checks that the function can score at least one row of the dataset at `path`, given by the rows' columns.
    ///
    /// # Errors
    /// [`RewardError::Columns`].
    pub fn check<'a>(
        &self,
        path: &Path,
        rows: impl IntoIterator<Item = &'a Map<String, Value>>,
    ) -> Result<(), RewardError> {
        let has_any = |row: &Map<String, Value>| self.columns.iter().any(|c| row.contains_key(*c));
        let mut rows = rows.into_iter().peekable();
        let found = rows.peek().map(|row| row.keys().map(|column| format!("`{column}`")).collect()).unwrap_or_default();
        if self.columns.is_empty() || rows.any(has_any) {
            return Ok(());
        }
        Err(RewardError::Columns {
            name: self.name.clone(),
            columns: self.columns.to_vec(),
            found,
            path: path.display().to_string(),
        })
    }

    /// Describes the values in its answer columns that the function cannot read. `None` where every row has an answer,
    /// and for functions that look for none.
    pub fn unreadable<'a>(&self, rows: impl IntoIterator<Item = &'a Map<String, Value>>) -> Option<String> {
        let reads_answers = self.columns.iter().any(|column| ANSWER_COLUMNS.contains(column));
        reads_answers.then(|| answers::unreadable(self.columns, rows))?
    }
}
