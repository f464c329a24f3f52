//! The body of `POST /v1/completions`.

use std::sync::Arc;

use rollout::{data::Tokenizer, engine::MOST_TOP_LOGPROBS};
use rollout_constraint::Start;
use serde_json::Value;

use super::{
    Fields, Streaming,
    sampling::{Sampling, max_tokens, room},
    take_model,
};
use crate::{
    error::ApiError,
    models::{Model, Models},
};

/// Most prompts of a request, and most completions of all of them.
const MOST: usize = 2048;
/// Tokens of a completion where nobody says, as OpenAI has it.
const MAX_TOKENS: u32 = 16;
/// Bytes of a text for each token that the model has room for. A longer text is refused before time goes into its
/// tokens.
const BYTES_OF_TOKEN: usize = 32;

/// A prompt, and how many tokens may follow it.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Its text, where that goes before the completion (`echo`).
    pub text: String,
    /// Its tokens.
    pub ids: Arc<[u32]>,
    /// Tokens that may follow.
    pub max_tokens: u32,
    /// Whether a completion goes on with this text. If not, it is a text of its own, as the answer in a chat is.
    pub goes_on: bool,
}

impl Prompt {
    /// The tokens that a completion's text goes on after.
    #[must_use]
    pub fn before(&self) -> &[u32] {
        if self.goes_on { &self.ids } else { &[] }
    }

    /// Whether a completion is a text of its own.
    #[must_use]
    pub fn start(&self) -> Start {
        if self.goes_on { Start::WithinText } else { Start::OfText }
    }
}

/// What is asked for.
#[derive(Debug)]
pub struct Completion {
    /// Who is asked.
    pub model: Model,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// In which way the answer comes.
    pub streaming: Streaming,
    /// Log-probs of the drawn tokens, with so many of the likeliest in their places.
    pub logprobs: Option<u32>,
    /// Whether the prompt goes before each completion.
    pub echo: bool,
    /// Whether token ids come along.
    pub return_token_ids: bool,
    /// Whether tokens in log-probs are named by their ids.
    pub tokens_as_ids: bool,
}

impl AsRef<Model> for Completion {
    fn as_ref(&self) -> &Model {
        &self.model
    }
}

impl Completion {
    /// Reads a body.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(body: &[u8], models: &Models, tokenizer: &Tokenizer, max_model_len: usize) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let model = take_model(&mut fields, models)?;
        let sampling = Sampling::take(&mut fields, tokenizer.model_vocab_size())?;
        let streaming = Streaming::take(&mut fields)?;
        let echo = fields.take("echo")?.unwrap_or(false);
        let logprobs = fields.take("logprobs")?;
        logprobs.map_or(Ok(()), |count| check_top("logprobs", count))?;
        // Nothing is generated then: the answer is the prompt.
        let wanted = max_tokens(&mut fields, &["max_tokens"], u32::from(!echo))?;
        let special = fields.take("add_special_tokens")?.unwrap_or(true);
        let return_token_ids = fields.take("return_token_ids")?.unwrap_or(false);
        let tokens_as_ids = fields.take("return_tokens_as_token_ids")?.unwrap_or(return_token_ids);
        let prompts = prompts(fields.require("prompt")?)?;
        fields.end()?;
        if prompts.is_empty() || prompts.len().saturating_mul(sampling.n as usize) > MOST {
            return Err(ApiError::field("prompt", format!("a request takes 1 to {MOST} prompts, times `n`")));
        }
        let tokenise = |given: Given| -> Result<Prompt, ApiError> {
            let (text, ids) = match given {
                Given::Text(text) => {
                    check_text("prompt", &text, max_model_len)?;
                    let ids = tokenizer.encode(&text, special).map_err(|e| ApiError::field("prompt", e.to_string()))?;
                    (text, ids)
                }
                Given::Ids(ids) if echo => {
                    let text = tokenizer.decode(&ids).map_err(|e| ApiError::field("prompt", e.to_string()))?;
                    (text, ids)
                }
                Given::Ids(ids) => (String::new(), ids),
            };
            check_ids("prompt", &ids, tokenizer.model_vocab_size())?;
            let room = room("prompt", ids.len(), wanted, max_model_len)?;
            let max_tokens = if wanted.is_none() { room.min(MAX_TOKENS) } else { room };
            Ok(Prompt { text, ids: ids.into(), max_tokens, goes_on: true })
        };
        let prompts = prompts.into_iter().map(tokenise).collect::<Result<_, ApiError>>()?;
        Ok(Self { model, prompts, sampling, streaming, logprobs, echo, return_token_ids, tokens_as_ids })
    }
}

/// Refuses more of the likeliest tokens than the engine tells.
///
/// # Errors
/// By the name of the field.
pub fn check_top(param: &str, count: u32) -> Result<(), ApiError> {
    if count <= MOST_TOP_LOGPROBS {
        return Ok(());
    }
    Err(ApiError::field(param, format!("`{param}` is at most {MOST_TOP_LOGPROBS}")))
}

/// A prompt as it is given.
enum Given {
    Text(String),
    Ids(Vec<u32>),
}

/// A text, texts, ids, or lists of ids.
fn prompts(value: Value) -> Result<Vec<Given>, ApiError> {
    let invalid = || ApiError::field("prompt", "`prompt` must be a text, texts, token ids, or lists of token ids");
    let ids = |value: Value| serde_json::from_value(value).map(Given::Ids).map_err(|_| invalid());
    match value {
        Value::String(text) => Ok(vec![Given::Text(text)]),
        Value::Array(items) if items.iter().any(Value::is_number) => Ok(vec![ids(Value::Array(items))?]),
        Value::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(Given::Text(text)),
                item => ids(item),
            })
            .collect(),
        _ => Err(invalid()),
    }
}

/// Refuses a text that is far longer than the model takes.
///
/// # Errors
/// By the name of the field.
pub fn check_text(param: &str, text: &str, max_model_len: usize) -> Result<(), ApiError> {
    let most = max_model_len.saturating_mul(BYTES_OF_TOKEN);
    if text.len() <= most {
        return Ok(());
    }
    let length = text.len();
    let message = format!(
        "this model's maximum context length is {max_model_len} tokens, and texts of more than {most} bytes are not \
         tokenised for it; this one has {length} bytes"
    );
    Err(ApiError::too_long(param, message))
}

/// Refuses a prompt without tokens, or with tokens that the model does not have.
///
/// # Errors
/// By the name of the field.
pub fn check_ids(param: &str, ids: &[u32], vocab_size: usize) -> Result<(), ApiError> {
    if ids.is_empty() {
        return Err(ApiError::field(param, "the prompt has no tokens"));
    }
    check_known(param, ids, vocab_size)
}

/// Refuses tokens that the model does not have.
///
/// # Errors
/// By the name of the field.
pub fn check_known(param: &str, ids: &[u32], vocab_size: usize) -> Result<(), ApiError> {
    match ids.iter().find(|&&id| id as usize >= vocab_size) {
        None => Ok(()),
        Some(id) => {
            let message = format!("token {id} is not in the model's vocabulary of {vocab_size} tokens");
            Err(ApiError::field(param, message))
        }
    }
}
