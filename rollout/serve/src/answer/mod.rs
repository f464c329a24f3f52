//! Tokens to answers: whole ones, and chunks of streams, in the forms of completions and of chats.

mod choice;
mod logprobs;
mod names;

pub use choice::{Choice, End, Piece};
pub use logprobs::{Entry, Top, logprob_of};
pub use names::TokenNames;

use std::{iter, sync::Arc};

use serde_json::{Map, Value, json};
use shared::FinishReason;
use shared_chat::calls::Call;

/// Which route answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `POST /v1/completions`.
    Text,
    /// `POST /v1/chat/completions`.
    Chat,
}

/// How an answer is written.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Which route answers.
    pub form: Form,
    /// The name of the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model.
    pub model: Arc<str>,
    /// Whether log-probs come along.
    pub logprobs: bool,
    /// The likeliest tokens that come with each of them.
    pub top_logprobs: u32,
    /// Whether token ids come along.
    pub return_token_ids: bool,
    /// Whether tokens in log-probs are named by their ids.
    pub tokens_as_ids: bool,
    /// Whether a stream ends with the counts of tokens.
    pub include_usage: bool,
}

/// Counts of tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Of all prompts.
    pub prompt: usize,
    /// Of all completions.
    pub completion: usize,
}

impl Usage {
    fn json(self) -> Value {
        let Self { prompt, completion } = self;
        json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion })
    }
}

/// A completion that has ended.
#[derive(Debug)]
pub struct Done {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Their log-probs, those of the prompt before them with `echo`.
    pub entries: Vec<Entry>,
    /// Calls of tools.
    pub calls: Vec<Call>,
    /// Why it has ended.
    pub finish_reason: FinishReason,
}

/// Why a completion with these calls has ended, in OpenAI's words.
fn reason(finish_reason: FinishReason, calls: &[Call]) -> &'static str {
    if calls.is_empty() { finish_reason.as_str() } else { "tool_calls" }
}

impl Shape {
    /// The answer with all choices: those of each prompt, and its tokens, in order.
    #[must_use]
    pub fn whole(&self, prompts: &[(Arc<[u32]>, Vec<Done>)], usage: Usage) -> Value {
        let all = prompts.iter().flat_map(|(ids, choices)| choices.iter().map(move |done| (ids, done)));
        let choice = |(index, (prompt, done)): (usize, (&Arc<[u32]>, &Done))| {
            let mut choice = self.choice(index, &done.entries, Some(reason(done.finish_reason, &done.calls)));
            match self.form {
                Form::Text => choice.insert("text".into(), done.text.as_str().into()),
                Form::Chat => {
                    // Calls without a word beside them have no content.
                    let content = Some(&done.text).filter(|text| done.calls.is_empty() || !text.is_empty());
                    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
                    if !done.calls.is_empty() {
                        let calls = done.calls.iter().enumerate();
                        message["tool_calls"] = calls.map(|(at, call)| self.call(index, at, call)).collect();
                    }
                    choice.insert("message".into(), message)
                }
            };
            if self.return_token_ids {
                choice.insert("token_ids".into(), done.ids.as_slice().into());
                if self.form == Form::Text {
                    choice.insert("prompt_token_ids".into(), Value::from(&prompt[..]));
                }
            }
            Value::Object(choice)
        };
        let mut answer = self.head(all.enumerate().map(choice).collect());
        answer.insert("usage".into(), usage.json());
        if let (Form::Chat, true, [(prompt, _)]) = (self.form, self.return_token_ids, prompts) {
            answer.insert("prompt_token_ids".into(), Value::from(&prompt[..]));
        }
        answer.into()
    }

    /// The first chunk of a choice: the role in a chat, the tokens of the prompt, with `echo` its text and log-probs.
    #[must_use]
    pub fn first(&self, index: usize, prompt: &[u32], echo: Option<(&str, &[Entry])>) -> Option<Value> {
        if self.form == Form::Text && !self.return_token_ids && echo.is_none() {
            return None;
        }
        let (text, entries) = echo.unwrap_or_default();
        let mut choice = self.choice(index, entries, None);
        match self.form {
            Form::Text => {
                choice.insert("text".into(), text.into());
                if self.return_token_ids {
                    choice.insert("prompt_token_ids".into(), prompt.into());
                }
            }
            Form::Chat => _ = choice.insert("delta".into(), json!({ "role": "assistant", "content": "" })),
        }
        let mut chunk = self.chunk(vec![choice.into()]);
        if self.form == Form::Chat && self.return_token_ids {
            chunk.insert("prompt_token_ids".into(), prompt.into());
        }
        Some(chunk.into())
    }

    /// A call in OpenAI's form.
    fn call(&self, index: usize, at: usize, call: &Call) -> Value {
        let answer = self.id.rsplit('-').next().unwrap_or_default();
        let function = json!({ "name": call.name, "arguments": call.arguments.to_string() });
        json!({ "id": format!("call_{answer}_{index}_{at}"), "type": "function", "function": function })
    }

    /// The last chunks of a choice: text that was held back, calls, and the reason of its end. A call comes in two
    /// chunks, its arguments in the second.
    #[must_use]
    pub fn last(&self, index: usize, text: String, calls: &[Call], finish_reason: FinishReason) -> Vec<Value> {
        let end = Some(reason(finish_reason, calls));
        let text = Piece { text, ..Piece::default() };
        if calls.is_empty() {
            return self.next(index, &text, end).into_iter().collect();
        }
        let delta = |call: Value| {
            let mut choice = self.choice(index, &[], None);
            choice.insert("delta".into(), json!({ "tool_calls": [call] }));
            Value::from(self.chunk(vec![choice.into()]))
        };
        let called = calls.iter().enumerate().flat_map(|(at, call)| {
            let mut begun = self.call(index, at, call);
            begun["index"] = at.into();
            let arguments = begun["function"]["arguments"].take();
            begun["function"]["arguments"] = "".into();
            [begun, json!({ "index": at, "function": { "arguments": arguments } })].map(&delta)
        });
        let before = self.next(index, &text, None);
        before.into_iter().chain(called).chain(self.next(index, &Piece::default(), end)).collect()
    }

    /// A chunk with what a token has added, if that is anything that is wanted; with a reason, the last one of its
    /// choice.
    #[must_use]
    pub fn next(&self, index: usize, piece: &Piece, finish_reason: Option<&str>) -> Option<Value> {
        let has_token = piece.id.is_some() && (self.logprobs || self.return_token_ids);
        if piece.text.is_empty() && !has_token && finish_reason.is_none() {
            return None;
        }
        let mut choice = self.choice(index, piece.entry.as_slice(), finish_reason);
        match self.form {
            Form::Text => _ = choice.insert("text".into(), piece.text.as_str().into()),
            Form::Chat if piece.text.is_empty() && !has_token => _ = choice.insert("delta".into(), json!({})),
            Form::Chat => _ = choice.insert("delta".into(), json!({ "content": piece.text })),
        }
        if self.return_token_ids {
            choice.insert("token_ids".into(), piece.id.as_slice().into());
        }
        Some(self.chunk(vec![choice.into()]).into())
    }

    /// The chunk with the counts of tokens, if it is wanted.
    #[must_use]
    pub fn usage(&self, usage: Usage) -> Option<Value> {
        let mut chunk = self.chunk(Vec::new());
        chunk.insert("usage".into(), usage.json());
        self.include_usage.then(|| chunk.into())
    }

    fn choice(&self, index: usize, entries: &[Entry], finish_reason: Option<&str>) -> Map<String, Value> {
        let logprobs = match self.form {
            _ if !self.logprobs || entries.is_empty() => Value::Null,
            Form::Text => logprobs::of_text(entries, self.top_logprobs > 0),
            Form::Chat => logprobs::of_chat(entries),
        };
        let fields = [("index", index.into()), ("logprobs", logprobs), ("finish_reason", finish_reason.into())];
        fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }

    fn head(&self, choices: Vec<Value>) -> Map<String, Value> {
        let object = if self.form == Form::Text { "text_completion" } else { "chat.completion" };
        self.named(object, choices)
    }

    fn chunk(&self, choices: Vec<Value>) -> Map<String, Value> {
        let object = if self.form == Form::Text { "text_completion" } else { "chat.completion.chunk" };
        let usage = iter::once(("usage".to_owned(), Value::Null)).filter(|_| self.include_usage);
        self.named(object, choices).into_iter().chain(usage).collect()
    }

    fn named(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let fields = [
            ("id", self.id.as_str().into()),
            ("object", object.into()),
            ("created", self.created.into()),
            ("model", Value::from(&*self.model)),
            ("choices", choices.into()),
        ];
        fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }
}
