//! The bodies of `POST /tokenize` and `POST /detokenize`.

use rollout::data::Tokenizer;

use super::{Fields, chat::conversation, completion::check_known, take_model};
use crate::{error::ApiError, models::Models};

/// The tokens of a prompt or of a conversation.
///
/// # Errors
/// What is wrong with the body.
pub fn tokenize(body: &[u8], models: &Models, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
    let mut fields = Fields::parse(body)?;
    take_model(&mut fields, models)?;
    let special: Option<bool> = fields.take("add_special_tokens")?;
    let ids = match fields.take::<String>("prompt")? {
        Some(prompt) => {
            let ids = tokenizer.encode(&prompt, special.unwrap_or(true));
            ids.map_err(|error| ApiError::field("prompt", error.to_string()))?
        }
        None if special == Some(true) => {
            let message = "`add_special_tokens` is for a `prompt`: a chat template writes its own";
            return Err(ApiError::field("add_special_tokens", message));
        }
        None if !fields.0.contains_key("messages") => {
            return Err(ApiError::field("prompt", "`prompt` or `messages` is missing"));
        }
        None => {
            let text = conversation(&mut fields, tokenizer)?.text;
            tokenizer.encode(&text, false).map_err(|error| ApiError::field("messages", error.to_string()))?
        }
    };
    fields.end()?;
    Ok(ids)
}

/// The text of tokens.
///
/// # Errors
/// What is wrong with the body.
pub fn detokenize(body: &[u8], models: &Models, tokenizer: &Tokenizer) -> Result<String, ApiError> {
    let mut fields = Fields::parse(body)?;
    take_model(&mut fields, models)?;
    let ids: Vec<u32> = fields.require("tokens")?;
    fields.end()?;
    check_known("tokens", &ids, tokenizer.model_vocab_size())?;
    tokenizer.decode(&ids).map_err(|error| ApiError::field("tokens", error.to_string()))
}
