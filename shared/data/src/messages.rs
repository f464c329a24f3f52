//! Messages of a chat in the ways in which they are written down.

use serde_json::{Map, Value};

use crate::json;

/// How messages are written, where that is not a list of objects with `role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// As objects with `from` and `value`.
    ShareGpt,
    /// As a text of JSON.
    JsonText,
    /// As a text of Python, which is not read.
    PythonText,
}

impl Written {
    /// How the messages of a column are written; nothing for a list as it should be, and for what is no list of messages.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Array(items) => items.iter().any(|item| share_gpt(item).is_some()).then_some(Self::ShareGpt),
            Value::String(text) if from_text(text).is_some() => Some(Self::JsonText),
            Value::String(text) if is_python(text) => Some(Self::PythonText),
            _ => None,
        }
    }
}

/// Puts the messages of a column into the form of `role` and `content`, if they are in another that is read; other values
/// stay as they are.
pub fn settle(value: &mut Value) {
    match value {
        Value::Array(items) => {
            for item in items {
                if let Some(message) = share_gpt(item) {
                    *item = message.into();
                }
            }
        }
        Value::String(text) => {
            if let Some(messages) = from_text(text) {
                *value = messages.into();
            }
        }
        _ => {}
    }
}

/// What a prompt, a completion or a conversation is.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A text.
    Text(String),
    /// Messages, each an object with a `role`; at least one.
    Messages(Vec<Value>),
}

/// A column as a text or as messages, in whatever form they are written. `column` is what errors name.
///
/// # Errors
/// What is neither a text nor a list of messages.
pub fn messages(column: &str, mut value: Value) -> Result<Content, String> {
    settle(&mut value);
    match value {
        Value::String(text) => Ok(Content::Text(text)),
        Value::Array(messages) => check(column, &messages).map(|()| Content::Messages(messages)),
        _ => Err(format!("`{column}` is neither a text nor a list of messages")),
    }
}

/// Whether each item of a list is a message.
fn check(column: &str, messages: &[Value]) -> Result<(), String> {
    if messages.is_empty() {
        return Err(format!("`{column}` is an empty list of messages"));
    }
    match messages.iter().position(|message| !message["role"].is_string()) {
        None => Ok(()),
        Some(index) => {
            let found = match &messages[index] {
                Value::Object(keys) => {
                    let names: Vec<String> = keys.keys().map(|key| format!("`{key}`")).collect();
                    format!("an object of {}", names.join(", "))
                }
                Value::String(_) => "a text".to_owned(),
                _ => "neither a text nor an object".to_owned(),
            };
            Err(format!(
                "message {index} of `{column}` is no object with a `role`, but {found}; a message is \
                 {{\"role\": \"user\", \"content\": \"...\"}}"
            ))
        }
    }
}

/// A message of ShareGPT's shape in that of chat templates, whose roles are `user` and `assistant`; TRL renames the keys alike
/// (`maybe_convert_to_chatml`).
fn share_gpt(message: &Value) -> Option<Map<String, Value>> {
    let keys = message.as_object().filter(|keys| !keys.contains_key("role"))?;
    let (from, value) = (keys.get("from")?.as_str()?, keys.get("value")?);
    let role = match from {
        "human" => "user",
        "gpt" | "chatgpt" | "bard" | "bing" | "bot" | "model" => "assistant",
        "observation" | "function_response" => "tool",
        other => other,
    };
    let mut settled: Map<String, Value> =
        [("role".to_owned(), role.into()), ("content".to_owned(), value.clone())].into_iter().collect();
    let others = keys.iter().filter(|(key, _)| !matches!(key.as_str(), "from" | "value"));
    settled.extend(others.map(|(key, value)| (key.clone(), value.clone())));
    Some(settled)
}

/// The messages that a text of JSON holds, if that is what it is.
fn from_text(text: &str) -> Option<Vec<Value>> {
    let text = text.trim();
    if !(text.starts_with('[') && text.ends_with(']') && (text.contains("\"role\"") || text.contains("\"from\""))) {
        return None;
    }
    let mut value = json::parse(text.as_bytes()).ok()?;
    settle(&mut value);
    let Value::Array(messages) = value else { return None };
    check("", &messages).is_ok().then_some(messages)
}

/// Whether a text is a list of messages as Python or NumPy prints it: `[{'role': 'user', ...}]`.
fn is_python(text: &str) -> bool {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or_default().trim();
    let has = |key: &str| inner.contains(&format!("'{key}':")) || inner.contains(&format!("\"{key}\":"));
    inner.starts_with("{'") && inner.ends_with('}') && (has("role") && has("content") || has("from") && has("value"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settled(mut value: Value) -> Value {
        settle(&mut value);
        value
    }

    #[test]
    fn messages_are_read_in_every_form_that_means_one_thing() {
        let expected = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho", "weight": 1}]);
        for form in [
            expected.clone(),
            json!([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho", "weight": 1}]),
            json!(expected.to_string()),
            json!(format!(" {} \n", serde_json::to_string_pretty(&expected).unwrap())),
            json!(r#"[{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho", "weight": 1}]"#),
        ] {
            assert_eq!(settled(form), expected);
        }
        assert_eq!(settled(json!([{"from": "observation", "value": 1}])), json!([{"role": "tool", "content": 1}]));
        for text in
            ["", "2 + 3?", "[1, 2]", "[\"role\"]", r#"[{"name": "role"}]"#, r#"{"role": "user", "content": "a"}"#]
        {
            assert_eq!((settled(text.into()), Written::of(&text.into())), (json!(text), None), "{text}");
        }
    }

    #[test]
    fn what_python_prints_is_told_and_stays_a_text() {
        for text in [
            "[{'role': 'user', 'content': '1 + 1?'}]",
            "[{'content': \"it's\", 'role': 'user'}\n {'content': 'a', 'role': 'assistant'}]",
            " [{'from': 'human', 'value': None}] ",
        ] {
            assert_eq!(Written::of(&text.into()), Some(Written::PythonText), "{text}");
            assert_eq!(settled(text.into()), text);
        }
        assert_eq!(Written::of(&json!("Explain [{'role': 1, 'content': 2}]!")), None);
    }

    #[test]
    fn what_is_no_message_is_named() {
        for (value, words) in [
            (json!([]), "`p` is an empty list of messages"),
            (json!(["a"]), "message 0 of `p` is no object with a `role`, but a text; a message is"),
            (
                json!([{"role": "user"}, {"text": 1, "who": 2}]),
                "message 1 of `p` is no object with a `role`, but an object of `text`, `who`",
            ),
            (json!([{"role": 7}]), "message 0 of `p` is no object with a `role`"),
            (json!(7), "`p` is neither a text nor a list of messages"),
        ] {
            let error = messages("p", value).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
        assert_eq!(messages("p", json!("a")), Ok(Content::Text("a".to_owned())));
    }
}
