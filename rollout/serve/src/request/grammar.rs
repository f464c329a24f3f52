//! What an answer may be: OpenAI's `response_format` and vLLM's `structured_outputs`.

use rollout::commands::constraint::Grammar;
use rollout_constraint::{check_length, fault_of_schemas};
use serde_json::{Value, json};
use shared_bounds::KeysOnce;

use super::Fields;
use crate::error::ApiError;

/// Fields of vLLM that are called otherwise now, and how.
const OLD: [(&str, &str); 6] = [
    ("guided_json", "`structured_outputs`: {\"json\": …}"),
    ("guided_regex", "`structured_outputs`: {\"regex\": …}"),
    ("guided_choice", "`structured_outputs`: {\"choice\": […]}"),
    ("guided_grammar", "`structured_outputs`: {\"grammar\": …}"),
    ("guided_json_object", "`structured_outputs`: {\"json_object\": true}"),
    ("guided_decoding_backend", "nothing: grammars have one backend here"),
];

/// What is asked for, and the field that asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The field.
    pub field: &'static str,
    /// The grammar.
    pub grammar: Grammar,
    /// Of calls that must come, the grammar of each tool alone, in Lark, with the name of the tool.
    pub parts: Vec<(String, String)>,
}

impl Asked {
    /// What one field alone says.
    fn of_field(field: &'static str, grammar: Grammar) -> Self {
        Self { field, grammar, parts: Vec::new() }
    }

    /// The error of a grammar that cannot be followed. It names the tool whose parameters are the reason.
    #[must_use]
    pub fn refused(&self, reason: &str) -> ApiError {
        // A grammar that is too long is not looked into.
        let parts: &[(String, String)] = if check_length(&self.grammar).is_ok() { &self.parts } else { &[] };
        match parts.iter().find_map(|(name, part)| Some((name, fault_of_schemas(part)?))) {
            Some((name, fault)) => of_parameters(name, &fault),
            None => ApiError::field(self.field, format!("`{}`: {reason}", self.field)),
        }
    }
}

/// The error of parameters that cannot be followed, by the name of their tool.
#[must_use]
pub fn of_parameters(name: &str, reason: &str) -> ApiError {
    ApiError::field("tools", format!("`tools`: the parameters of `{name}`: {reason}"))
}

/// Takes both fields.
///
/// # Errors
/// Both at once, or a value that is none of theirs.
pub fn take(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    for (old, new) in OLD {
        if fields.take::<Value>(old)?.is_some() {
            return Err(ApiError::field(old, format!("`{old}` is not taken any more, as in vLLM; use {new}")));
        }
    }
    let format = response_format(fields)?.map(|grammar| Asked::of_field("response_format", grammar));
    let outputs = structured_outputs(fields)?.map(|grammar| Asked::of_field("structured_outputs", grammar));
    if format.is_some() && outputs.is_some() {
        let message =
            "`structured_outputs` and `response_format` both say what the answer may be: leave one of them out";
        return Err(ApiError::field("structured_outputs", message));
    }
    Ok(format.or(outputs))
}

/// A schema that every object follows.
fn any_object() -> Value {
    json!({ "type": "object" })
}

fn response_format(fields: &mut Fields) -> Result<Option<Grammar>, ApiError> {
    const FIELD: &str = "response_format";
    let is_there = fields.0.contains_key(FIELD);
    let mut format = fields.fields(FIELD)?;
    if !is_there {
        return Ok(None);
    }
    let kind: String = format.require("type").map_err(|error| within(FIELD, error))?;
    let schema = match kind.as_str() {
        "text" => None,
        "json_object" => Some(any_object()),
        "json_schema" => {
            let mut named = format.fields("json_schema").map_err(|error| within(FIELD, error))?;
            let schema = named.require("schema").and_then(checked).map_err(|error| within(FIELD, error))?;
            // Names are for the model, which is not told of them, and every schema is followed strictly.
            for ignored in ["name", "description", "strict"] {
                let _: Option<Value> = named.take(ignored)?;
            }
            named.end().map_err(|error| within(FIELD, error))?;
            Some(schema)
        }
        other => {
            let message = format!("`response_format` takes the types text, json_object and json_schema, not {other:?}");
            return Err(ApiError::field(FIELD, message));
        }
    };
    format.end().map_err(|error| within(FIELD, error))?;
    Ok(schema.map(|schema| Grammar::Json { schema, compact: false }))
}

fn structured_outputs(fields: &mut Fields) -> Result<Option<Grammar>, ApiError> {
    const FIELD: &str = "structured_outputs";
    if !fields.0.contains_key(FIELD) {
        return Ok(None);
    }
    let mut outputs = fields.fields(FIELD)?;
    let read = |outputs: &mut Fields| -> Result<Option<Grammar>, ApiError> {
        let compact = outputs.take("disable_any_whitespace")?.unwrap_or(false);
        let json = outputs.take("json")?.map(schema).transpose()?;
        let object = outputs.take("json_object")?.unwrap_or(false).then(any_object);
        let found = [
            json.map(|schema| Grammar::Json { schema, compact }),
            object.map(|schema| Grammar::Json { schema, compact }),
            outputs.take("regex")?.map(Grammar::Regex),
            outputs.take("choice")?.map(Grammar::Choice),
            outputs.take("grammar")?.map(Grammar::Lark),
        ];
        let mut found = found.into_iter().flatten();
        let (first, second) = (found.next(), found.next());
        if first.is_none() || second.is_some() {
            let message = "it takes exactly one of `json`, `json_object`, `regex`, `choice` and `grammar`";
            return Err(ApiError::field(FIELD, message));
        }
        if compact && !matches!(first, Some(Grammar::Json { .. })) {
            let message = "`disable_any_whitespace` is for `json` and `json_object`";
            return Err(ApiError::field(FIELD, message));
        }
        Ok(first)
    };
    let grammar = read(&mut outputs).map_err(|error| within(FIELD, error))?;
    outputs.end().map_err(|error| within(FIELD, error))?;
    Ok(grammar)
}

/// A schema, which may be written as a text.
fn schema(value: Value) -> Result<Value, ApiError> {
    let Value::String(text) = value else { return checked(value) };
    let read = serde_json::from_str(&text).map(|KeysOnce(schema)| schema);
    checked(read.map_err(|error| ApiError::field("json", format!("`json` is a text, but no JSON: {error}")))?)
}

fn checked(schema: Value) -> Result<Value, ApiError> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(schema),
        _ => Err(ApiError::field("schema", "a schema must be an object")),
    }
}

/// An error of a field within another, which is named first.
fn within(field: &str, error: ApiError) -> ApiError {
    ApiError { param: Some(field.to_owned()), message: format!("`{field}`: {}", error.message), ..error }
}
