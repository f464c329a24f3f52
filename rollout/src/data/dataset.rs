//! Prompts of datasets.

use std::{path::PathBuf, sync::Arc};

use rayon::prelude::*;
use rollout_rewards::{RewardCompletion, RewardInput};
use serde_json::{Map, Value};
use shared::{
    FinishReason, PromptId,
    prompts::{LongPrompts, NAMED},
};
use shared_data::{Columns, DataError, Part, Row};

use super::{
    Tokenizer,
    adapters::{self, Prompt},
    chat,
};

/// A dataset that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// It cannot be read, or a row is no prompt.
    #[error(transparent)]
    Data(#[from] DataError),
    /// No prompt leaves room for a completion.
    #[error(
        "{path}: none of its {rows} prompts leaves room for a completion: the shortest has {shortest} tokens, prompt and \
         completion together may have {max_model_len}; raise `max_model_len` (within the model's limit) or set \
         `max_prompt_length`"
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
    /// Put before the messages of every prompt as a system message; a plain text prompt becomes a user message then.
    pub system_prompt: Option<String>,
    /// Keep at most this many tokens, from the end (TRL's `max_prompt_length`, left truncation). `None` = all.
    pub max_prompt_length: Option<u32>,
    /// Where prompt and answer are, where rows do not call them so.
    pub columns: Columns,
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
    /// Every other column of the row.
    pub columns: Arc<Map<String, Value>>,
    /// What made the tokens.
    pub tokenizer: Tokenizer,
}

impl PromptRow {
    /// What the reward functions get to see of this prompt's completions, given as (decoded text, tokens, reason of the
    /// end). As in TRL, a prefill is counted to the completion, not to the prompt.
    pub fn reward_input<'a>(
        &self,
        completions: impl IntoIterator<Item = (&'a str, &'a [u32], FinishReason)>,
    ) -> RewardInput {
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
                .map(|(text, token_ids, finish_reason)| RewardCompletion {
                    text: format!("{}{text}", self.prefill),
                    token_ids: token_ids.to_vec(),
                    finish_reason,
                })
                .collect(),
        }
    }
}

/// Prompts of one or several files and folders, in the order of their rows.
#[derive(Debug, Clone)]
pub struct Dataset {
    sources: Vec<Source>,
    rows: Vec<PromptRow>,
}

/// A file or folder, and where its rows end.
#[derive(Debug, Clone)]
struct Source {
    path: PathBuf,
    /// The id after that of its last row.
    end: u64,
}

impl Dataset {
    /// Reads and tokenises every row of files and folders, the `part` of those that have several.
    ///
    /// A row has `prompt` (a text, or a list of messages with `role` and `content`), `prompt_ids` (token ids), GSM8K's
    /// `question` and `answer`, or countdown's `nums` and `target`; see [`adapters`]. The columns `tools` and
    /// `chat_template_kwargs` of a row with messages reach the chat template.
    ///
    /// # Errors
    /// What cannot be read, or the first bad row, with its place and the reason.
    pub fn load<'a>(
        paths: &[PathBuf],
        part: impl Into<Part<'a>>,
        tokenizer: &Tokenizer,
        options: &PromptOptions,
    ) -> Result<Self, DatasetError> {
        Self::load_first(paths, part, tokenizer, options, usize::MAX)
    }

    /// As [`Dataset::load`], of the first `limit` rows; those behind are no prompts.
    ///
    /// # Errors
    /// As [`Dataset::load`].
    pub fn load_first<'a>(
        paths: &[PathBuf],
        part: impl Into<Part<'a>>,
        tokenizer: &Tokenizer,
        options: &PromptOptions,
        limit: usize,
    ) -> Result<Self, DatasetError> {
        let mut dataset = Self { sources: Vec::new(), rows: Vec::new() };
        let part = part.into();
        for path in paths {
            let mut table = shared_data::read(path, part)?;
            tracing::info!("{}: {}", path.display(), table.describe(&options.columns)?);
            table.rows.truncate(limit - dataset.rows.len());
            let first = dataset.rows.len() as u64;
            let prompt = |(index, row): (usize, Row)| {
                let Row { values, place } = row;
                let prompt = prompt_row(PromptId(first + index as u64), values, tokenizer, options);
                prompt.map_err(|reason| DataError::Row { place, reason })
            };
            // The first bad row is named, whichever thread finds one first.
            let prompts: Vec<Result<PromptRow, DataError>> =
                table.rows.into_par_iter().enumerate().map(prompt).collect();
            dataset.rows.extend(prompts.into_iter().collect::<Result<Vec<_>, _>>()?);
            dataset.sources.push(Source { path: path.clone(), end: dataset.rows.len() as u64 });
        }
        Ok(dataset)
    }

    /// Keeps the first `limit` rows.
    pub fn truncate(&mut self, limit: usize) {
        self.rows.truncate(limit);
    }

    /// Leaves out the prompts with `max_model_len` tokens or more, which leave no room for a completion, and counts them and
    /// those that were shortened.
    ///
    /// # Errors
    /// [`DatasetError::NoRoom`] of a file or folder of which nothing would be left.
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
            crowded: 0,
            max_completion_length: 0,
        })
    }

    /// `long`, with the rows of this dataset whose prompt leaves room for fewer than `max_completion_length` tokens in `room`.
    #[must_use]
    pub fn count_crowded(&self, long: LongPrompts, room: usize, max_completion_length: usize) -> LongPrompts {
        let crowded = self.rows.iter().filter(|row| row.prompt_ids.len() + max_completion_length > room).count() as u64;
        LongPrompts { crowded, max_completion_length: max_completion_length as u64, ..long }
    }

    /// The files or folders, for whoever reads a message.
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

fn prompt_row(
    prompt_id: PromptId,
    mut values: Map<String, Value>,
    tokenizer: &Tokenizer,
    options: &PromptOptions,
) -> Result<PromptRow, String> {
    options.columns.apply(&mut values)?;
    let messages = conversation(&values);
    let row = adapters::adapt(values, tokenizer.template().is_some())?;
    let prompt = with_system_prompt(row.prompt, options.system_prompt.as_deref())?;
    let (prompt_text, prefill, ids) = tokenise(prompt, &row.columns, tokenizer)?;
    let vocab_size = tokenizer.model_vocab_size();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(format!("token {id} of the prompt is not in the model's vocabulary of {vocab_size} tokens"));
    }
    let kept = options.max_prompt_length.map_or(ids.len(), |max| ids.len().min(max as usize));
    if kept == 0 {
        return Err("the prompt has no tokens".into());
    }
    Ok(PromptRow {
        prompt_id,
        prompt_text,
        prompt_ids: ids[ids.len() - kept..].into(),
        shortened: kept < ids.len(),
        prefill,
        messages,
        columns: Arc::new(row.columns),
        tokenizer: tokenizer.clone(),
    })
}

/// The messages of a row that has some, as TRL's rewards see them; what begins the answer belongs to the completion.
fn conversation(row: &Map<String, Value>) -> Option<Arc<[Value]>> {
    let messages = row.get("prompt")?.as_array()?;
    let kept = messages.len() - usize::from(chat::prefill(messages).is_some());
    Some(messages[..kept].into())
}

fn with_system_prompt(prompt: Prompt, system_prompt: Option<&str>) -> Result<Prompt, String> {
    let Some(system_prompt) = system_prompt else { return Ok(prompt) };
    let mut messages = vec![adapters::message("system", system_prompt)];
    match prompt {
        Prompt::Text { text, prefill } => messages.extend(adapters::turns(&text, &prefill)),
        Prompt::Messages(own) => messages.extend(own),
        Prompt::Ids(_) => return Err("a row of `prompt_ids` cannot take a system prompt".into()),
    }
    Ok(Prompt::Messages(messages))
}

/// The prompt's text, the end of it that is a prefill, and its tokens.
fn tokenise(
    prompt: Prompt,
    columns: &Map<String, Value>,
    tokenizer: &Tokenizer,
) -> Result<(String, String, Vec<u32>), String> {
    let encode = |text: &str, special| tokenizer.encode(text, special).map_err(|e| e.to_string());
    match prompt {
        Prompt::Text { text, prefill } => {
            let text = format!("{text}{prefill}");
            let ids = encode(&text, true)?;
            Ok((text, prefill, ids))
        }
        Prompt::Messages(messages) => {
            let text = tokenizer.render(&messages, &template_variables(columns)).map_err(|e| e.to_string())?;
            let ids = encode(&text, false)?;
            let given = chat::prefill(&messages).unwrap_or_default();
            // A template may strip the message.
            let prefill = [given, given.trim_start(), given.trim_end(), given.trim()]
                .into_iter()
                .find(|p| text.ends_with(p))
                .unwrap_or_default();
            Ok((text.clone(), prefill.to_owned(), ids))
        }
        Prompt::Ids(ids) => {
            let text = tokenizer.decode(&ids).map_err(|e| e.to_string())?;
            Ok((text, String::new(), ids))
        }
    }
}

/// Columns that transformers' callers hand to the template.
fn template_variables(columns: &Map<String, Value>) -> Map<String, Value> {
    let mut variables = columns.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    if let Some(tools) = columns.get("tools") {
        variables.insert("tools".into(), tools.clone());
    }
    variables
}

#[cfg(test)]
mod tests;
