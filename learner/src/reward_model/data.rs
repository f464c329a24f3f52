//! Rows for the reward model: pairs of completions of one prompt, the better one first, or single completions to score.

use std::path::Path;

use serde::Deserialize;
use shared::ModelDir;

use crate::{
    error::LearnerError,
    text::{self, TextIds},
};

/// Where a completion is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// At its last token.
    Outcome,
    /// At the last token of each step, where a row names them; a completion's score is their mean.
    Steps,
}

/// Prompt and completion with the places where scores are read off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Prompt, then completion.
    pub tokens: Vec<u32>,
    /// Indexes into `tokens`, ascending; at least one.
    pub ends: Vec<usize>,
}

/// Two completions of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The better one.
    pub chosen: Answer,
    /// The worse one.
    pub rejected: Answer,
}

#[derive(Debug, Deserialize)]
struct PairRow {
    prompt: Option<String>,
    chosen: Option<String>,
    rejected: Option<String>,
    prompt_ids: Option<Vec<u32>>,
    chosen_ids: Option<Vec<u32>>,
    rejected_ids: Option<Vec<u32>>,
    chosen_ends: Option<Vec<usize>>,
    rejected_ends: Option<Vec<usize>>,
}

#[derive(Debug, Deserialize)]
struct AnswerRow {
    prompt: Option<String>,
    completion: Option<String>,
    prompt_ids: Option<Vec<u32>>,
    #[serde(alias = "token_ids")]
    completion_ids: Option<Vec<u32>>,
    ends: Option<Vec<usize>>,
}

/// Turns rows into answers.
#[derive(Debug)]
pub struct Reader {
    text: TextIds,
    level: Level,
    max_length: usize,
}

impl Reader {
    /// A reader for a model. Of rows with more than `max_length` tokens (at most, and without one, the model's limit),
    /// the last are kept. Texts are tokenised without special tokens.
    ///
    /// # Errors
    /// A tokenizer that cannot be read.
    pub fn new(model: &ModelDir, level: Level, max_length: Option<usize>) -> Result<Self, LearnerError> {
        let limit = model.config().max_position_embeddings;
        Ok(Self { text: TextIds::open(model)?, level, max_length: max_length.map_or(limit, |most| most.min(limit)) })
    }

    /// Reads a dataset of pairs.
    ///
    /// # Errors
    /// A dataset that cannot be read, or the first unusable row, with its place and the reason.
    pub fn pairs(&self, path: &Path) -> Result<Vec<Pair>, LearnerError> {
        text::rows(path, |row: PairRow| {
            let prompt = self.text.ids(row.prompt_ids, row.prompt, "prompt", false)?;
            let chosen = self.text.ids(row.chosen_ids, row.chosen, "chosen", false)?;
            let rejected = self.text.ids(row.rejected_ids, row.rejected, "rejected", false)?;
            Ok(Pair {
                chosen: self.answer(&prompt, &chosen, row.chosen_ends, "chosen")?,
                rejected: self.answer(&prompt, &rejected, row.rejected_ends, "rejected")?,
            })
        })
    }

    /// Reads a dataset of single completions: `prompt` and `completion` or `prompt_ids` and `completion_ids`, and
    /// `ends` for scores of steps.
    ///
    /// # Errors
    /// As [`Self::pairs`].
    pub fn answers(&self, path: &Path) -> Result<Vec<Answer>, LearnerError> {
        text::rows(path, |row: AnswerRow| {
            let prompt = self.text.ids(row.prompt_ids, row.prompt, "prompt", false)?;
            let completion = self.text.ids(row.completion_ids, row.completion, "completion", false)?;
            self.answer(&prompt, &completion, row.ends, "completion")
        })
    }

    fn answer(
        &self,
        prompt: &[u32],
        completion: &[u32],
        ends: Option<Vec<usize>>,
        key: &str,
    ) -> Result<Answer, String> {
        let last = completion.len().checked_sub(1).ok_or_else(|| format!("`{key}` has no token"))?;
        let ends = match ends {
            Some(ends) if self.level == Level::Steps => ends,
            _ => vec![last],
        };
        if ends.is_empty() || ends.windows(2).any(|two| two[0] >= two[1]) || ends.iter().any(|&end| end > last) {
            return Err(format!(
                "the ends of `{key}` must be ascending token indexes below {}, found {ends:?}",
                last + 1
            ));
        }
        let tokens: Vec<u32> = prompt.iter().chain(completion).copied().collect();
        let cut = tokens.len().saturating_sub(self.max_length);
        let ends = ends.iter().filter_map(|end| (prompt.len() + end).checked_sub(cut)).collect::<Vec<_>>();
        if ends.is_empty() {
            return Err(format!("no step of `{key}` ends within the last {} tokens", self.max_length));
        }
        Ok(Answer { tokens: tokens[cut..].to_vec(), ends })
    }
}
