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
            let rendered = conversation(&mut fields, tokenizer)?.rendered;
            tokenizer.prompt_ids(&rendered).map_err(|error| ApiError::field("messages", error.to_string()))?
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::chat::Chat, *};
    use crate::testing::{MAX_MODEL_LEN, models, with_template};

    #[test]
    fn control_tokens_of_messages_are_text() {
        let tokenizer = with_template("{% for m in messages %}{{ m.content }}<eos>{% endfor %}");
        let letters = |text: &str| -> Vec<u32> {
            text.chars().flat_map(|c| tokenizer.encode(&c.to_string(), false).unwrap()).collect()
        };
        let body = json!({ "messages": [{ "role": "user", "content": "a<eos>" }] }).to_string();
        let ids = tokenize(body.as_bytes(), &models(), &tokenizer).unwrap();
        assert_eq!(ids, [letters("a<eos>"), vec![0]].concat());
        let chat = Chat::read(body.as_bytes(), &models(), &tokenizer, Some(MAX_MODEL_LEN)).unwrap();
        assert_eq!(chat.prompt.ids[..], ids[..]);
        let body = json!({ "prompt": "a<eos>" }).to_string();
        let of_text = tokenize(body.as_bytes(), &models(), &tokenizer).unwrap();
        assert_eq!(of_text, [letters("a"), vec![0]].concat(), "a text is read as it is");
    }
}
