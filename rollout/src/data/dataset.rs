//! Prompts of datasets.

use std::{
    collections::{BTreeSet, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rayon::prelude::*;
use rollout_rewards::{RewardCompletion, RewardInput};
use serde_json::{Map, Value};
use shared::{
    PromptId,
    run::prompts::{LongPrompts, NAMED},
};
use shared_data::{Columns, DataError, Row, Selection, Table};

use super::{
    ChatTemplate, Tokenizer,
    oddities::{OddPrompts, Oddities},
    prompt::prompt_row,
};

/// Steps that a chat template may take for a whole dataset, some seconds' worth, besides those for each row.
const STEPS: u64 = 100_000_000;
/// Steps that it may take for each row on average: a conversation of a thousand messages takes ten thousand.
const STEPS_OF_ROW: u64 = 50_000;
/// Characters that are shown of an example prompt.
const SHOWN: usize = 80;

/// A dataset that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// It cannot be read, or a row is no prompt.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The chat template is too slow for the dataset.
    #[error(
        "{path}: the chat template takes more than {most} steps for {rows} rows together; give the run another with \
         `chat_template`, or fewer rows"
    )]
    SlowTemplate {
        /// The file or folder.
        path: PathBuf,
        /// Its rows.
        rows: usize,
        /// Steps that its rows may take together.
        most: u64,
    },
    /// A row cannot begin a conversation with tools.
    #[error("{path}, row {row}: {reason}")]
    Conversation {
        /// The files or folders.
        path: String,
        /// The row, from 0.
        row: u64,
        /// What is wrong.
        reason: String,
    },
    /// No prompt leaves room for a completion.
    #[error(
        "{path}: none of its {rows} prompts leaves room for a completion: the shortest has {shortest} tokens, prompt \
         and completion together may have {max_model_len}; raise `max_model_len` (within the model's limit), or set \
         `max_prompt_length`, which runs with tools do not take"
    )]
    NoRoom {
        /// The file or folder.
        path: PathBuf,
        /// Its rows.
        rows: usize,
        /// Tokens of the shortest prompt.
        shortest: usize,
        /// Tokens of prompt and completion together.
        max_model_len: usize,
    },
}

/// How rows become prompts.
#[derive(Debug, Clone, Default)]
pub struct PromptOptions {
    /// Put before the messages of every prompt as a system message, unless they have one. A plain text prompt then
    /// becomes a user message.
    pub system_prompt: Option<String>,
    /// Keep at most this many tokens, from the end (TRL's `max_prompt_length`, left truncation). `None` = all.
    pub max_prompt_length: Option<u32>,
    /// The columns of prompt and answer, where rows name them differently.
    pub columns: Columns,
    /// Whether prompts begin conversations with tools: each then keeps its messages ([`PromptRow::beginning`]), and
    /// must have some.
    pub with_tools: bool,
}

/// The beginning of a conversation with tools.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Beginning {
    /// All messages of the prompt, also a system prompt of the run.
    pub messages: Arc<[Value]>,
    /// JSON schemas of the tools, in the order of the prompt.
    pub tools: Arc<[Value]>,
}

/// One prompt, ready for the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptRow {
    /// Index among all rows of the dataset, from 0; those that are left out have theirs too.
    pub prompt_id: PromptId,
    /// The prompt as text, chat template applied, before any truncation.
    pub prompt_text: String,
    /// The tokens that the model sees; never empty.
    pub prompt_ids: Arc<[u32]>,
    /// Whether the prompt has lost its beginning to `max_prompt_length`.
    pub shortened: bool,
    /// The end of `prompt_text` that already belongs to the answer: the content of a last assistant message. Rewards
    /// see it in front of the completion. Empty without one.
    pub prefill: String,
    /// The row's own messages, where its prompt is a conversation: without the prefill and a system prompt of the run.
    pub messages: Option<Arc<[Value]>>,
    /// A hash that equals those of other rows with the same question, under another system prompt or with other blanks.
    /// `None` for rows of tokens.
    pub question: Option<u64>,
    /// Every other column of the row.
    pub columns: Arc<Map<String, Value>>,
    /// The tokenizer that made the tokens.
    pub tokenizer: Tokenizer,
    /// What a conversation begins with, in a run with tools.
    pub beginning: Option<Beginning>,
}

impl PromptRow {
    /// The input of the reward functions for completions of this prompt, given with their decoded texts. As in TRL, a
    /// prefill is counted to the completion, not to the prompt.
    pub fn reward_input(&self, completions: impl IntoIterator<Item = RewardCompletion>) -> RewardInput {
        let prompt = self.prompt_text.strip_suffix(self.prefill.as_str()).unwrap_or(&self.prompt_text);
        RewardInput {
            prompt: prompt.into(),
            messages: self.messages.clone(),
            prompt_ids: self.prompt_ids.clone(),
            prefill: self.prefill.len(),
            tokenizer: Some(Arc::new(self.tokenizer.clone())),
            deadline: None,
            columns: self.columns.clone(),
            completions: completions
                .into_iter()
                .map(|mut completion| {
                    completion.text.insert_str(0, &self.prefill);
                    completion
                })
                .collect(),
        }
    }
}

/// Prompts of one or several files and folders, in the order of their rows.
#[derive(Debug, Clone)]
pub struct Dataset {
    sources: Vec<RowSource>,
    rows: Vec<PromptRow>,
    odd: OddPrompts,
}

/// A file or folder, and where its rows end.
#[derive(Debug, Clone)]
struct RowSource {
    path: PathBuf,
    /// The id after its last row.
    end: u64,
}

impl Dataset {
    /// Reads and tokenises every row of files and folders, or their `part` where they have several.
    ///
    /// A row has `prompt` (a text, or a list of messages with `role` and `content`), `prompt_ids` (token ids), GSM8K's
    /// `question` and `answer`, or countdown's `nums` and `target`; see [`adapters`]. The columns `tools` and
    /// `chat_template_kwargs` of a row with messages reach the chat template.
    ///
    /// # Errors
    /// A file that cannot be read, or the first bad row, with its place and the reason.
    pub fn load<'a>(
        paths: &[PathBuf],
        part: impl Into<Selection<'a>>,
        tokenizer: &Tokenizer,
        options: &PromptOptions,
    ) -> Result<Self, DatasetError> {
        Self::load_first(paths, part, tokenizer, options, usize::MAX)
    }

    /// As [`Dataset::load`], for the first `limit` rows; later rows become no prompts.
    ///
    /// # Errors
    /// As [`Dataset::load`].
    pub fn load_first<'a>(
        paths: &[PathBuf],
        part: impl Into<Selection<'a>>,
        tokenizer: &Tokenizer,
        options: &PromptOptions,
        limit: usize,
    ) -> Result<Self, DatasetError> {
        let mut dataset = Self { sources: Vec::new(), rows: Vec::new(), odd: OddPrompts::default() };
        let part = part.into();
        for path in paths {
            let mut table = shared_data::read(path, part)?;
            tracing::info!("{}: {}", path.display(), table.describe(&options.columns)?);
            for warning in table.warnings(&options.columns) {
                tracing::warn!("{}: {warning}", path.display());
            }
            table.rows.truncate(limit - dataset.rows.len());
            let most = most_steps(table.rows.len());
            dataset.add(path, table, tokenizer, options, most)?;
        }
        dataset.fill_columns();
        Ok(dataset)
    }

    /// As [`Dataset::load`], of rows that are in no file; `name` stands for one in messages.
    ///
    /// # Errors
    /// As [`Dataset::load`].
    pub fn of_table(
        name: &str,
        table: Table,
        tokenizer: &Tokenizer,
        options: &PromptOptions,
    ) -> Result<Self, DatasetError> {
        let mut dataset = Self { sources: Vec::new(), rows: Vec::new(), odd: OddPrompts::default() };
        table.describe(&options.columns)?;
        let most = most_steps(table.rows.len());
        dataset.add(Path::new(name), table, tokenizer, options, most)?;
        dataset.fill_columns();
        Ok(dataset)
    }

    /// Adds the rows of a file or folder, whose template takes at most so many steps.
    fn add(
        &mut self,
        path: &Path,
        table: Table,
        tokenizer: &Tokenizer,
        options: &PromptOptions,
        most: u64,
    ) -> Result<(), DatasetError> {
        let first = self.rows.len() as u64;
        let rows = table.rows.len();
        let before = steps(tokenizer);
        let slow = || steps(tokenizer) - before > most;
        // The error names the first bad row, whichever thread finds one first. Rows behind it are not read any more.
        let bad = AtomicUsize::new(usize::MAX);
        let prompt = |(index, row): (usize, Row)| {
            if index > bad.load(Ordering::Relaxed) || slow() {
                return None;
            }
            let Row { values, place } = row;
            let prompt = prompt_row(PromptId(first + index as u64), values, tokenizer, options);
            if prompt.is_err() {
                bad.fetch_min(index, Ordering::Relaxed);
            }
            let prompt = prompt.map(|(prompt, oddities)| (prompt, oddities.at(&place)));
            Some(prompt.map_err(|reason| DataError::Row { place, reason }))
        };
        let prompts: Vec<Option<Result<(PromptRow, Oddities), DataError>>> =
            table.rows.into_par_iter().enumerate().map(prompt).collect();
        if slow() && bad.into_inner() == usize::MAX {
            return Err(DatasetError::SlowTemplate { path: path.to_owned(), rows, most });
        }
        for prompt in prompts.into_iter().flatten() {
            let (prompt, oddities) = prompt?;
            self.odd.count(oddities);
            self.rows.push(prompt);
        }
        self.sources.push(RowSource { path: path.to_owned(), end: self.rows.len() as u64 });
        Ok(())
    }

    /// Gives every row the columns that any row has, with `null`, as the rows of Parquet have them and as Hugging
    /// Face's datasets reads JSON: a reward function takes them as arguments by name.
    fn fill_columns(&mut self) {
        let names: BTreeSet<&String> = self.rows.iter().flat_map(|row| row.columns.keys()).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        for row in self.rows.iter_mut().filter(|row| row.columns.len() < names.len()) {
            let columns = Arc::make_mut(&mut row.columns);
            names.iter().for_each(|name| _ = columns.entry(name).or_insert(Value::Null));
        }
    }

    /// Remarks on odd prompts, with the numbers of rows.
    #[must_use]
    pub fn remarks(&self, tokenizer: &Tokenizer, options: &PromptOptions) -> Vec<String> {
        self.odd.remarks(&self.name(), tokenizer, options)
    }

    /// A remark on prompts that `training` has as well, with their number and an example: they were trained on.
    #[must_use]
    pub fn overlap(&self, training: &Self) -> Option<String> {
        let trained: HashSet<&[u32]> = training.rows.iter().map(|row| &*row.prompt_ids).collect();
        let asked: HashSet<u64> = training.rows.iter().filter_map(|row| row.question).collect();
        let is_asked = |row: &PromptRow| row.question.is_some_and(|question| asked.contains(&question));
        let is_trained = |row: &&PromptRow| trained.contains(&*row.prompt_ids) || is_asked(row);
        let mut both = self.rows.iter().filter(is_trained);
        let first = both.next()?;
        let (count, rows) = (1 + both.count(), self.rows.len());
        let begin: String = first.prompt_text.chars().take(SHOWN).collect();
        let more = if begin.len() < first.prompt_text.len() { "..." } else { "" };
        Some(format!(
            "{}: {count} of {rows} prompts of the evaluation are among those of the training, for instance {:?}{more}; \
             name rows that are not trained on as `eval_dataset`, or leave these out of `dataset`",
            self.name(),
            begin
        ))
    }

    /// Keeps the first `limit` rows.
    pub fn truncate(&mut self, limit: usize) {
        self.rows.truncate(limit);
    }

    /// Leaves out the prompts with `max_model_len` tokens or more, which leave no room for a completion. Counts these
    /// prompts and the shortened ones.
    ///
    /// # Errors
    /// [`DatasetError::NoRoom`] for a file or folder that would have no prompts left.
    pub fn leave_out_long(&mut self, max_model_len: usize) -> Result<LongPrompts, DatasetError> {
        let rows = self.rows.len();
        let shortened = self.rows.iter().filter(|row| row.shortened).count() as u64;
        let mut begin = 0;
        for (source, rows) in self.sources.iter().zip(self.sizes()) {
            let prompts = self.rows[begin..begin + rows].iter().map(|row| row.prompt_ids.len());
            begin += rows;
            if let Some(shortest) = prompts.min().filter(|&shortest| shortest >= max_model_len) {
                return Err(DatasetError::NoRoom { path: source.path.clone(), rows, shortest, max_model_len });
            }
        }
        let fits = |row: &PromptRow| row.prompt_ids.len() < max_model_len;
        let left_out_ids = self.rows.iter().filter(|row| !fits(row)).map(|row| row.prompt_id.0).take(NAMED).collect();
        self.rows.retain(fits);
        Ok(LongPrompts {
            dataset: self.name(),
            rows: rows as u64,
            left_out: (rows - self.rows.len()) as u64,
            left_out_ids,
            max_model_len: max_model_len as u64,
            shortened,
            remarks: Vec::new(),
            crowded: 0,
            max_completion_length: 0,
        })
    }

    /// The first prompt of at most `length` tokens that with `more` tokens, and at most `room` in all, gets longer than
    /// that: its id and its tokens.
    #[must_use]
    pub fn first_across(&self, length: usize, more: usize, room: usize) -> Option<(u64, usize)> {
        let prompts = self.rows.iter().map(|row| (row.prompt_id.0, row.prompt_ids.len()));
        prompts.into_iter().find(|&(_, tokens)| tokens <= length && (tokens + more).min(room) > length)
    }

    /// `long`, with the rows of this dataset whose prompt leaves room for fewer than `max_completion_length` tokens in
    /// `room`.
    #[must_use]
    pub fn count_crowded(&self, long: LongPrompts, room: usize, max_completion_length: usize) -> LongPrompts {
        let crowded = self.rows.iter().filter(|row| row.prompt_ids.len() + max_completion_length > room).count() as u64;
        LongPrompts { crowded, max_completion_length: max_completion_length as u64, ..long }
    }

    /// The files or folders, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        let names: Vec<String> = self.sources.iter().map(|source| source.path.display().to_string()).collect();
        names.join(", ")
    }

    /// Number of rows of each file or folder.
    #[must_use]
    pub fn sizes(&self) -> Vec<usize> {
        let ends = self.sources.iter().map(|source| self.rows.partition_point(|row| row.prompt_id.0 < source.end));
        ends.scan(0, |begin, end| Some(end - std::mem::replace(begin, end))).collect()
    }

    /// Changes every row, on all cores.
    ///
    /// # Errors
    /// The first row that cannot be changed.
    pub fn change(&mut self, change: impl Fn(&mut PromptRow) -> Result<(), String> + Sync) -> Result<(), DatasetError> {
        let changed = self.rows.par_iter_mut().map(|row| change(row).map_err(|reason| (row.prompt_id.0, reason)));
        let wrong = changed.filter_map(Result::err).min_by_key(|(row, _)| *row);
        let path = || self.name();
        wrong.map_or(Ok(()), |(row, reason)| Err(DatasetError::Conversation { path: path(), row, reason }))
    }

    /// Every row, in order.
    #[must_use]
    pub fn rows(&self) -> &[PromptRow] {
        &self.rows
    }

    /// The columns of every row.
    pub fn columns(&self) -> impl Iterator<Item = &Map<String, Value>> {
        self.rows.iter().map(|row| &*row.columns)
    }

    /// Number of rows, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a dataset is never empty")]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Number of tokens of the longest prompt.
    #[must_use]
    pub fn longest_prompt(&self) -> usize {
        self.rows.iter().map(|row| row.prompt_ids.len()).max().unwrap_or(0)
    }
}

/// Steps that a chat template may take for so many rows together.
fn most_steps(rows: usize) -> u64 {
    STEPS + rows as u64 * STEPS_OF_ROW
}

/// Steps that a chat template has taken for all prompts so far.
fn steps(tokenizer: &Tokenizer) -> u64 {
    tokenizer.template().map_or(0, ChatTemplate::steps)
}

#[cfg(test)]
mod tests;
