//! Log-probs in the two forms that OpenAI has.

use serde_json::{Map, Value, json};
use shared::TokenLogprob;

/// A token with its log-prob.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The token: its text, or its id.
    pub token: String,
    /// None for the first token of a prompt.
    pub logprob: Option<f64>,
    /// The bytes of its text, if that is what it is named by.
    pub bytes: Option<Vec<u8>>,
    /// Characters before it.
    pub offset: usize,
    /// The likeliest token in its place, where it is known.
    pub likeliest: Option<Likeliest>,
}

/// The likeliest token in a place.
#[derive(Debug, Clone, PartialEq)]
pub struct Likeliest {
    /// The token: its text, or its id.
    pub token: String,
    /// Its log-prob.
    pub logprob: f64,
}

/// The log-prob of a drawn token under the distribution that it was drawn from. At temperature 0 it has none,
/// so those at 1 stand in, over the tokens that a constraint leaves.
#[must_use]
pub fn logprob_of(figures: &TokenLogprob, greedy: bool) -> f32 {
    if greedy && figures.kept_count == 0 { figures.logprob } else { figures.sampling_logprob() }
}

/// The form of `POST /v1/completions`: a list for each figure.
pub fn of_text(entries: &[Entry], alternatives: bool) -> Value {
    let top = |entry: &Entry| match (&entry.likeliest, entry.logprob) {
        (Some(likeliest), Some(logprob)) => {
            // The drawn token is listed as well. Where both have one text, the likeliest stays.
            let both = [(entry.token.as_str(), logprob), (likeliest.token.as_str(), likeliest.logprob)];
            both.into_iter().map(|(token, logprob)| (token.to_owned(), logprob.into())).collect::<Map<_, _>>().into()
        }
        _ => Value::Null,
    };
    let list = |value: &dyn Fn(&Entry) -> Value| entries.iter().map(value).collect::<Value>();
    json!({
        "tokens": list(&|entry| entry.token.as_str().into()),
        "token_logprobs": list(&|entry| entry.logprob.into()),
        "top_logprobs": if alternatives { list(&top) } else { Value::Null },
        "text_offset": list(&|entry| entry.offset.into()),
    })
}

/// The form of `POST /v1/chat/completions`: an object for each token.
pub fn of_chat(entries: &[Entry]) -> Value {
    let entry = |entry: &Entry| {
        let Entry { token, logprob, bytes, .. } = entry;
        json!({ "token": token, "logprob": logprob, "bytes": bytes, "top_logprobs": [] })
    };
    json!({ "content": entries.iter().map(entry).collect::<Value>(), "refusal": null })
}
