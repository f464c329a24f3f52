//! The fields of a request's body. Each is taken, ignored because it changes no answer, or refused by its name: a
//! client never gets an answer to another question than its own. (`sampling_params` of `/inference/v1/generate` alone
//! may have fields that nobody reads.)

pub mod chat;
pub mod completion;
#[cfg(test)]
mod forced_tests;
pub mod generate;
pub mod grammar;
pub mod sampling;
#[cfg(test)]
mod tests;
pub mod tokens;
pub mod tools;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use shared_bounds::KeysOnce;

use crate::{
    error::ApiError,
    models::{Model, Models},
};

/// Fields that change no answer: names of users and sessions, and hints to servers of other kinds.
const IGNORED: [&str; 12] = [
    "cache_salt",
    "metadata",
    "parallel_tool_calls",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
    "user",
];

/// A field that is not supported, and whether a value asks for nothing that would be.
type Neutral = (&'static str, fn(&Value) -> bool);

/// Fields that are not supported and that clients send anyway, with values that ask for nothing.
const NEUTRAL: [Neutral; 12] = [
    ("bad_words", is_empty),
    ("include_reasoning", Value::is_boolean),
    ("include_stop_str_in_output", is_false),
    ("length_penalty", is_one),
    ("logit_bias", is_empty),
    ("min_tokens", is_zero),
    ("modalities", |value| value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text"))),
    ("prompt_logprobs", |_| false),
    ("skip_special_tokens", is_true),
    ("suffix", is_empty),
    ("truncate_prompt_tokens", |value| value == -1),
    ("use_beam_search", is_false),
];

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_true(value: &Value) -> bool {
    value == true
}

fn is_false(value: &Value) -> bool {
    value == false
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The fields that nobody has taken yet. `null` is the same as no field.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body.
    ///
    /// # Errors
    /// When it is no object of JSON.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let invalid = |message: String| ApiError::new(axum::http::StatusCode::BAD_REQUEST, message);
        match serde_json::from_slice(body) {
            Ok(KeysOnce(Value::Object(fields))) => Ok(Self::of(fields)),
            Ok(_) => Err(invalid("the body must be an object of JSON".into())),
            Err(error) => Err(invalid(format!("the body cannot be read as JSON: {error}"))),
        }
    }

    fn of(mut fields: Map<String, Value>) -> Self {
        fields.retain(|_, value| !value.is_null());
        Self(fields)
    }

    /// Takes a field of a type.
    ///
    /// # Errors
    /// When it has another type.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.remove(name) else { return Ok(None) };
        let read = serde_json::from_value(value).map(Some);
        read.map_err(|error| ApiError::field(name, format!("`{name}`: {error}")))
    }

    /// Takes a field of a type, which must be there.
    ///
    /// # Errors
    /// When it is missing or has another type.
    pub fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| ApiError::field(name, format!("`{name}` is missing")))
    }

    /// Takes a field that is an object of its own.
    ///
    /// # Errors
    /// When it is something else.
    pub fn fields(&mut self, name: &str) -> Result<Self, ApiError> {
        Ok(Self::of(self.take(name)?.unwrap_or_default()))
    }

    /// The end: whatever is left asks for nothing, or is refused.
    ///
    /// # Errors
    /// A field that is not supported, or that nobody knows.
    pub fn end(mut self) -> Result<(), ApiError> {
        IGNORED.iter().for_each(|name| _ = self.0.remove(*name));
        for (name, asks_for_nothing) in NEUTRAL {
            if let Some(value) = self.0.remove(name).filter(|value| !asks_for_nothing(value)) {
                let shown: String = value.to_string().chars().take(80).collect();
                return Err(ApiError::field(name, format!("`{name}` is not supported here, and {shown} asks for it")));
            }
        }
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(ApiError::field(name, format!("`{name}` is no field that this route knows"))),
        }
    }
}

/// How a client wants its answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streaming {
    /// In pieces, as tokens come.
    pub stream: bool,
    /// With the counts of tokens in a last piece.
    pub include_usage: bool,
}

impl Streaming {
    /// Takes `stream` and `stream_options`.
    ///
    /// # Errors
    /// Options without a stream, or unknown ones.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let stream = fields.take("stream")?.unwrap_or(false);
        if !stream && fields.0.contains_key("stream_options") {
            return Err(ApiError::field("stream_options", "`stream_options` needs `stream`: true"));
        }
        let mut options = fields.fields("stream_options")?;
        let include_usage = options.take("include_usage")?.unwrap_or(false);
        // Noise against observers of the traffic.
        let _: Option<bool> = options.take("include_obfuscation")?;
        if options.take("continuous_usage_stats")? == Some(true) {
            let message = "`continuous_usage_stats` is not supported: `include_usage` has the counts at the end";
            return Err(ApiError::field("stream_options", message));
        }
        options.end()?;
        Ok(Self { stream, include_usage })
    }
}

/// Takes `model`, and finds it.
///
/// # Errors
/// When there is none of that name.
pub fn take_model(fields: &mut Fields, models: &Models) -> Result<Model, ApiError> {
    models.find(fields.take::<String>("model")?.as_deref())
}
