//! Rows for the supervised warm start: prompts with completions, or conversations.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use shared::ModelDir;
use shared_data::{Content, Values};

use crate::{
    conversation::{self, Conversations},
    error::LearnerError,
    text::{self, TextIds},
};

/// A tokenised row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Prompt tokens; of a conversation that is trained on as a whole, the first token, which nothing predicts.
    pub prompt: Vec<u32>,
    /// Tokens behind them, which alone carry loss.
    pub completion: Vec<u32>,
}

/// A row: texts, messages, or token ids that are taken as they are.
#[derive(Debug, Deserialize)]
struct Row {
    prompt: Option<Value>,
    completion: Option<Value>,
    #[serde(alias = "conversations")]
    messages: Option<Value>,
    prompt_ids: Option<Vec<u32>>,
    completion_ids: Option<Vec<u32>>,
    tools: Option<Value>,
    chat_template_kwargs: Option<Value>,
}

/// What rows are, and what of them is trained on; TRL's `SFTTrainer` does the same by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Prompt and completion as texts or ids.
    Plain,
    /// Prompt and completion as messages.
    Messages,
    /// A conversation.
    Conversation,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Self::Plain => "prompts and completions; the completions are trained on",
            Self::Messages => {
                "prompts and completions of messages, written by the chat template; the completions are trained on"
            }
            Self::Conversation => {
                "conversations (`messages`), written by the chat template; all of their tokens are trained on, those of users and \
                 systems as well (write `prompt` and `completion` as lists of messages to train on answers alone)"
            }
        }
    }
}

/// Turns rows into examples.
#[derive(Debug)]
pub struct Encoder {
    text: TextIds,
    conversations: Conversations,
    /// Every end-of-sequence id; the first is appended to completion texts that have none at their end.
    eos: Vec<u32>,
}

impl Encoder {
    /// An encoder with the model's tokenizer; without one, rows must carry token ids.
    ///
    /// # Errors
    /// A tokenizer that cannot be read, or `append_eos` for a model that names no end-of-sequence token.
    pub fn new(model: &ModelDir, append_eos: bool) -> Result<Self, LearnerError> {
        let text = TextIds::open(model)?;
        let eos = if append_eos { model.generation().eos_token_ids.clone() } else { Vec::new() };
        if append_eos && eos.is_empty() {
            return Err(LearnerError::content(
                model.path(),
                "neither generation_config.json nor config.json names an `eos_token_id`; add one, or pass \
                 --no-append-eos",
            ));
        }
        Ok(Self { text, conversations: Conversations::open(model)?, eos })
    }

    /// Reads a dataset, and says what of its rows is trained on.
    ///
    /// # Errors
    /// A dataset that cannot be read, or the first unusable row, with its place and the reason.
    pub fn read(&self, path: &Path) -> Result<Vec<Example>, LearnerError> {
        let rows = text::rows(path, |row| self.encode(row))?;
        for kind in [Kind::Plain, Kind::Messages, Kind::Conversation] {
            let count = rows.iter().filter(|(_, of_row)| *of_row == kind).count();
            if count > 0 {
                tracing::info!("{count} rows are {}", kind.words());
            }
        }
        Ok(rows.into_iter().map(|(example, _)| example).collect())
    }

    fn encode(&self, row: Row) -> Result<(Example, Kind), String> {
        let prompt = conversation::content("prompt", row.prompt)?;
        let completion = conversation::content("completion", row.completion)?;
        let conversation = conversation::content("messages", row.messages)?;
        let variables = conversation::variables(row.tools, row.chat_template_kwargs)?;
        let (example, kind) = match (prompt, completion, conversation) {
            (Some(Content::Messages(prompt)), Some(Content::Messages(completion)), _) => {
                (self.messages(&prompt, &completion, &variables)?, Kind::Messages)
            }
            (Some(Content::Messages(_)), Some(Content::Text(_)), _)
            | (Some(Content::Text(_)), Some(Content::Messages(_)), _) => {
                return Err("of `prompt` and `completion`, one is a text and one a list of messages; write both alike".into());
            }
            (Some(Content::Messages(_)), None, _) | (None, Some(Content::Messages(_)), _) => {
                return Err("has messages as one of `prompt` and `completion`, and not as the other".into());
            }
            (None, None, Some(Content::Messages(messages))) if row.prompt_ids.is_none() => {
                (self.conversation(&messages, &variables)?, Kind::Conversation)
            }
            (None, None, Some(Content::Text(_))) if row.prompt_ids.is_none() => {
                return Err("`messages` is a text, not a list of messages".into());
            }
            (prompt, completion, _) => {
                let text = |content| match content {
                    Some(Content::Text(text)) => Some(text),
                    _ => None,
                };
                let ids = (row.prompt_ids, row.completion_ids);
                (self.plain(text(prompt), text(completion), ids)?, Kind::Plain)
            }
        };
        if example.prompt.is_empty() || example.completion.is_empty() {
            return Err("prompt and completion must have at least one token each".into());
        }
        Ok((example, kind))
    }

    fn plain(
        &self,
        prompt: Option<String>,
        completion: Option<String>,
        (prompt_ids, completion_ids): (Option<Vec<u32>>, Option<Vec<u32>>),
    ) -> Result<Example, String> {
        // A plain text prompt is tokenised with special tokens, as the sampler does; a completion goes on from it.
        let prompt = self.text.ids(prompt_ids, prompt, "prompt", true)?;
        let from_text = completion_ids.is_none();
        let mut completion = self.text.ids(completion_ids, completion, "completion", false)?;
        if let Some(&eos) = self.eos.first()
            && from_text
            && !completion.last().is_some_and(|last| self.eos.contains(last))
        {
            completion.push(eos);
        }
        Ok(Example { prompt, completion })
    }

    /// What follows the rendered prompt in the tokens of both together. The template ends the turn.
    fn messages(&self, prompt: &[Value], completion: &[Value], variables: &Values) -> Result<Example, String> {
        let (prompt, completion) = self.conversations.prompt_and_completion(prompt, completion, variables)?;
        let ids = |text: &str, key| self.text.ids(None, Some(text.to_owned()), key, false);
        let mut whole = ids(&format!("{prompt}{completion}"), "completion")?;
        let prompt = ids(&prompt, "prompt")?;
        // Where a token reaches over the end of the prompt, the model has to go on from the prompt's own tokens.
        let completion =
            if whole.starts_with(&prompt) { whole.split_off(prompt.len()) } else { ids(&completion, "completion")? };
        Ok(Example { prompt, completion })
    }

    /// All of a conversation, but for the first token.
    fn conversation(&self, messages: &[Value], variables: &Values) -> Result<Example, String> {
        let text = self.conversations.text(messages, variables)?;
        let mut prompt = self.text.ids(None, Some(text), "messages", false)?;
        let completion = prompt.split_off(prompt.len().min(1));
        Ok(Example { prompt, completion })
    }
}
