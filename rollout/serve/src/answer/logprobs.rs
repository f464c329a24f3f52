//! Log-probs in the two forms that OpenAI has.

use serde_json::{Map, Value, json};
use shared::TokenLogprob;

/// A token with its log-prob.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The token.
    pub id: u32,
    /// What it is called by itself: its text, or its id.
    pub token: String,
    /// The text that is certain with it, or its id. The texts of all tokens are the text that was drawn, including a
    /// stop string that ended it.
    pub text: String,
    /// None for the first token of a prompt.
    pub logprob: Option<f64>,
    /// The bytes that it adds to the text, if that is what it is named by.
    pub bytes: Option<Vec<u8>>,
    /// Characters before it.
    pub offset: usize,
    /// Where they are wanted, the likeliest tokens in its place, the likeliest first, and the token itself if it is
    /// none of them.
    pub top: Vec<Top>,
}

impl Entry {
    /// Adds to its text.
    pub(super) fn add(&mut self, text: &str) {
        if self.bytes.is_some() {
            self.text += text;
        }
    }
}

/// One of the likeliest tokens in a place.
#[derive(Debug, Clone, PartialEq)]
pub struct Top {
    /// The token.
    pub id: u32,
    /// The token: its text, or its id.
    pub token: String,
    /// Its log-prob.
    pub logprob: f64,
    /// The bytes of its text, if that is what it is named by.
    pub bytes: Option<Vec<u8>>,
}

/// The log-prob of a drawn token under the distribution that it was drawn from. At temperature 0 it has none,
/// so those at 1 stand in, over the tokens that a constraint leaves.
#[must_use]
pub fn logprob_of(figures: &TokenLogprob, greedy: bool) -> f32 {
    if greedy && figures.kept_count == 0 { figures.logprob } else { figures.sampling_logprob() }
}

/// The form of `POST /v1/completions`: a list for each figure.
pub fn of_text(entries: &[Entry], with_top: bool) -> Value {
    let top = |entry: &Entry| {
        let mut by_token = Map::new();
        for Top { id, token, logprob, bytes } in &entry.top {
            let is_text = bytes.as_ref().is_none_or(|bytes| str::from_utf8(bytes).is_ok());
            // Each token has a name of its own, and the drawn one that of `tokens`.
            let name = match *id == entry.id {
                true => entry.text.clone(),
                false if is_text && *token != entry.text && !by_token.contains_key(token) => token.clone(),
                false => named(*id),
            };
            by_token.insert(name, (*logprob).into());
        }
        if entry.logprob.is_none() { Value::Null } else { by_token.into() }
    };
    let list = |value: &dyn Fn(&Entry) -> Value| entries.iter().map(value).collect::<Value>();
    json!({
        "tokens": list(&|entry| entry.text.as_str().into()),
        "token_logprobs": list(&|entry| entry.logprob.into()),
        "top_logprobs": if with_top { list(&top) } else { Value::Null },
        "text_offset": list(&|entry| entry.offset.into()),
    })
}

/// The form of `POST /v1/chat/completions`: an object for each token.
pub fn of_chat(entries: &[Entry]) -> Value {
    let top = |Top { token, logprob, bytes, .. }: &Top| json!({ "token": token, "logprob": logprob, "bytes": bytes });
    let entry = |entry: &Entry| {
        let Entry { token, logprob, bytes, .. } = entry;
        let top: Value = entry.top.iter().map(top).collect();
        json!({ "token": token, "logprob": logprob, "bytes": bytes, "top_logprobs": top })
    };
    json!({ "content": entries.iter().map(entry).collect::<Value>(), "refusal": null })
}

/// The name of a token by its id.
pub fn named(id: u32) -> String {
    format!("token_id:{id}")
}
