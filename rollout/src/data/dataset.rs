//! A JSONL file of prompts.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rayon::prelude::*;
use rollout_rewards::{RewardCompletion, RewardInput};
use serde_json::{Map, Value};
use shared::{FinishReason, PromptId};

use super::{
    Tokenizer,
    adapters::{self, Prompt},
    chat,
};

/// A dataset that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The file cannot be read.
    #[error("{path}: cannot be read: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A row is no prompt.
    #[error("{path}, line {line}: {reason}")]
    Row {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// No rows.
    #[error("{path}: holds no rows; write one JSON object per line, for instance {{\"prompt\": \"2 + 3 =\"}}")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// How rows become prompts.
#[derive(Debug, Clone, Default)]
pub struct PromptOptions {
    /// Put before the messages of every prompt as a system message; a plain text prompt becomes a user message then.
    pub system_prompt: Option<String>,
    /// Keep at most this many tokens, from the end (TRL's `max_prompt_length`, left truncation). `None` = all.
    pub max_prompt_length: Option<u32>,
}

/// One prompt, ready for the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptRow {
    /// Index among the file's rows, from 0.
    pub prompt_id: PromptId,
    /// The prompt as text, chat template applied, before any truncation.
    pub prompt_text: String,
    /// The tokens that the model sees; never empty.
    pub prompt_ids: Arc<[u32]>,
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

/// All prompts of a file, in the order of its lines.
#[derive(Debug, Clone)]
pub struct Dataset {
    path: PathBuf,
    rows: Vec<PromptRow>,
}

impl Dataset {
    /// Reads and tokenises every row; blank lines are passed over.
    ///
    /// A row is a JSON object with `prompt` (a text, or a list of messages with `role` and `content`), `prompt_ids`
    /// (token ids), GSM8K's `question` and `answer`, or countdown's `nums` and `target`; see [`adapters`]. The columns
    /// `tools` and `chat_template_kwargs` of a row with messages reach the chat template.
    ///
    /// # Errors
    /// An unreadable or empty file, or the first bad row, with its line number and the reason.
    pub fn load(path: &Path, tokenizer: &Tokenizer, options: &PromptOptions) -> Result<Self, DatasetError> {
        Self::load_first(path, tokenizer, options, usize::MAX)
    }

    /// As [`Dataset::load`], of the first `limit` rows; those behind are not looked at.
    ///
    /// # Errors
    /// As [`Dataset::load`].
    pub fn load_first(
        path: &Path,
        tokenizer: &Tokenizer,
        options: &PromptOptions,
        limit: usize,
    ) -> Result<Self, DatasetError> {
        let bytes = fs::read(path).map_err(|reason| DatasetError::File { path: path.to_owned(), reason })?;
        let lines: Vec<(usize, &[u8])> = bytes
            .split(|&b| b == b'\n')
            .enumerate()
            .filter(|(_, line)| !line.trim_ascii().is_empty())
            .take(limit)
            .map(|(index, line)| (index + 1, line))
            .collect();
        let rows: Vec<Result<PromptRow, DatasetError>> = lines
            .par_iter()
            .enumerate()
            .map(|(index, &(line, bytes))| {
                prompt_row(PromptId(index as u64), bytes, tokenizer, options).map_err(|reason| DatasetError::Row {
                    path: path.to_owned(),
                    line,
                    reason,
                })
            })
            .collect();
        let rows = rows.into_iter().collect::<Result<Vec<_>, _>>()?;
        if rows.is_empty() {
            return Err(DatasetError::Empty { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), rows })
    }

    /// Keeps the first `limit` rows.
    pub fn truncate(&mut self, limit: usize) {
        self.rows.truncate(limit);
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every row, in the order of the file; the index is the row's `prompt_id`.
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
    line: &[u8],
    tokenizer: &Tokenizer,
    options: &PromptOptions,
) -> Result<PromptRow, String> {
    let row = parse(line)?;
    let messages = conversation(&row);
    let row = adapters::adapt(row, tokenizer.template().is_some())?;
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
        prefill,
        messages,
        columns: Arc::new(row.columns),
        tokenizer: tokenizer.clone(),
    })
}

fn parse(line: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(line) {
        Ok(Value::Object(row)) => Ok(row),
        Ok(_) => Err("is no JSON object".into()),
        Err(e) => {
            // Each line is parsed on its own, so the parser's line number is always 1 and misleads.
            let message = e.to_string();
            let what = message.split(" at line ").next().unwrap_or_default();
            Err(format!("is not valid JSON: {what} (column {})", e.column()))
        }
    }
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
