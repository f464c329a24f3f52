//! Messages of a chat, in the forms in which datasets have them.

use serde_json::{Map, Value};

use crate::json;

/// Form of messages that are no list of objects with `role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// As objects with `from` and `value`.
    ShareGpt,
    /// As a text of JSON.
    JsonText,
    /// As a text of Python, which is not read.
    PythonText,
    /// As a text that begins like JSON and is no JSON.
    BrokenJson,
}

impl Written {
    /// How the messages of a column are written; none for a list as it should be, and for a value that is no list of
    /// messages.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Array(items) => items.iter().any(|item| share_gpt(item).is_some()).then_some(Self::ShareGpt),
            Value::String(text) if from_text(text).is_some() => Some(Self::JsonText),
            Value::String(text) if is_python(text) => Some(Self::PythonText),
            Value::String(text) if is_broken_json(text) => Some(Self::BrokenJson),
            _ => None,
        }
    }

    /// Whether messages in this form are read.
    pub fn is_read(self) -> bool {
        matches!(self, Self::ShareGpt | Self::JsonText)
    }
}

/// Turns the messages of a column into a list of `role` and `content`, if they are in another form that is read; other
/// values stay as they are.
pub fn settle(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(settle_message),
        Value::Object(_) if is_message(value) => {
            settle_message(value);
            *value = vec![value.take()].into();
        }
        Value::String(text) => {
            if let Some(messages) = from_text(text) {
                *value = messages.into();
            }
        }
        _ => {}
    }
}

fn settle_message(message: &mut Value) {
    if let Some(settled) = share_gpt(message) {
        *message = settled.into();
    }
    // A single part without a list around it.
    if let Some(content) = message.get_mut("content")
        && content["type"].is_string()
        && content["text"].is_string()
    {
        *content = vec![content.take()].into();
    }
}

/// The value of a prompt, a completion or a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A text.
    Text(String),
    /// Messages, each an object with a `role`; at least one.
    Messages(Vec<Value>),
}

/// A column as a text or as messages, in whatever form they are. Errors name it `column`.
///
/// # Errors
/// A value that is neither a text nor a list of messages.
pub fn messages(column: &str, mut value: Value) -> Result<Content, String> {
    settle(&mut value);
    match value {
        Value::String(text) => match parsed(&text) {
            // As a text, the model would read the JSON.
            Some(Err(error)) if error.is_data() => Err(format!("`{column}` holds messages as JSON: {error}")),
            _ => Ok(Content::Text(text)),
        },
        Value::Array(messages) => check_messages(column, &messages).map(|()| Content::Messages(messages)),
        other => {
            let kind = match other {
                Value::Number(_) => "a number; write it as a text",
                Value::Bool(_) => "a truth value; write it as a text",
                Value::Null => "nothing (`null`)",
                _ => "an object without the keys of a message",
            };
            Err(format!("`{column}` is neither a text nor a list of messages, but {kind}"))
        }
    }
}

/// Whether each item of a list is a message that says something. Errors name the list `column`.
///
/// # Errors
/// An empty list, an item without a `role`, and a message without words where nothing stands in their place.
pub fn check_messages(column: &str, messages: &[Value]) -> Result<(), String> {
    if messages.is_empty() {
        return Err(format!("`{column}` is an empty list of messages"));
    }
    messages.iter().enumerate().try_for_each(|(index, message)| {
        let reason = match message {
            Value::Object(keys) if message["role"].is_string() => no_content(message, keys),
            Value::Object(keys) => Some(no_role(&format!("an object of {}", listed(keys)))),
            Value::String(_) => Some(no_role("a text")),
            _ => Some(no_role("neither a text nor an object")),
        };
        reason.map_or(Ok(()), |reason| Err(format!("message {index} of `{column}` {reason}")))
    })
}

fn listed(keys: &Map<String, Value>) -> String {
    keys.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}

fn no_role(found: &str) -> String {
    format!("is no object with a `role`, but {found}; a message is {{\"role\": \"user\", \"content\": \"...\"}}")
}

/// Roles of results of tools, which may be any value.
const TOOLS: [&str; 4] = ["tool", "function", "ipython", "tool_response"];
/// Keys that let a message of the assistant go without content: one of them is enough.
const IN_PLACE: [&str; 5] = ["tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"];

/// Why a message has no content that a template can write.
fn no_content(message: &Value, keys: &Map<String, Value>) -> Option<String> {
    let role = message["role"].as_str().unwrap_or_default();
    if TOOLS.contains(&role) && keys.contains_key("content") {
        return None;
    }
    let speaks_otherwise = || role == "assistant" && IN_PLACE.iter().any(|key| !message[*key].is_null());
    let kind = match keys.get("content") {
        Some(Value::String(_)) => return None,
        Some(Value::Array(parts)) if !parts.is_empty() => return parts.iter().enumerate().find_map(no_text),
        None | Some(Value::Null) if speaks_otherwise() => return None,
        None => return Some(format!("has no `content`, but {}", listed(keys))),
        Some(Value::Null) => "nothing (`null`)",
        Some(Value::Array(_)) => "an empty list",
        Some(Value::Object(_)) => "a mapping",
        Some(Value::Number(_)) => "a number",
        Some(Value::Bool(_)) => "a truth value",
    };
    Some(format!(
        "has {kind} as its `content`; write a text, or a list of parts as {{\"type\": \"text\", \"text\": \"...\"}}"
    ))
}

/// Why a part has no text. Objects of other kinds than `text` are refused where prompts are made.
fn no_text((index, part): (usize, &Value)) -> Option<String> {
    match part {
        Value::String(_) => None,
        Value::Object(keys) => (part["type"] == "text" && !part["text"].is_string()).then(|| {
            format!("has a content whose part {index} has no text under `text`; its keys are {}", listed(keys))
        }),
        _ => Some(format!("has a content whose part {index} is neither a text nor an object")),
    }
}

/// A message of ShareGPT's shape in that of chat templates, whose roles are `user` and `assistant`; TRL renames the
/// keys alike (`maybe_convert_to_chatml`).
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

/// Whether a value has the keys of a message.
fn is_message(value: &Value) -> bool {
    value["role"].is_string() && value.get("content").is_some() || share_gpt(value).is_some()
}

/// How often JSON may be wrapped in a text of JSON.
const MOST_TIMES: usize = 3;

/// The value of a text of JSON that may hold messages; none for any other text.
fn parsed(text: &str) -> Option<serde_json::Result<Value>> {
    let text = text.trim();
    if !(text.starts_with(['[', '{', '"']) && (text.contains("role") || text.contains("from"))) {
        return None;
    }
    let mut value = json::parse(text.as_bytes());
    for _ in 1..MOST_TIMES {
        if let Ok(Value::String(inner)) = &value {
            value = json::parse(inner.trim().as_bytes());
        }
    }
    Some(value)
}

/// The messages in a text of JSON, if it holds messages; [`check`] later refuses items that are none.
fn from_text(text: &str) -> Option<Vec<Value>> {
    let mut value = parsed(text)?.ok()?;
    let (Value::Array(_) | Value::Object(_)) = value else { return None };
    settle(&mut value);
    let Value::Array(messages) = value else { return None };
    let all_have_roles = !messages.is_empty() && messages.iter().all(|message| message["role"].is_string());
    all_have_roles.then_some(messages)
}

/// Keys with which a message may begin.
const KEYS: [&str; 4] = ["role", "content", "from", "value"];

/// Whether a text is messages as Python, NumPy or pandas prints them: `[{'role': 'user', ...}]`, also as a tuple,
/// within `array(...)`, or one alone.
fn is_python(text: &str) -> bool {
    let text = text.trim();
    let inner = text.strip_prefix("array").unwrap_or(text).trim_start_matches(['[', '(', ' ', '\n']);
    let begins = KEYS.iter().any(|key| inner.starts_with(&format!("{{'{key}':")));
    let has = |key: &str| inner.contains(&format!("'{key}':"));
    begins && text.ends_with([']', ')', '}']) && (has("role") && has("content") || has("from") && has("value"))
}

/// Whether a text that is no JSON begins as a list of messages in JSON does.
fn is_broken_json(text: &str) -> bool {
    let after = |text: &str, mark: &str| text.trim_start().strip_prefix(mark).map(str::to_owned);
    let inner = after(text, "[").and_then(|inner| after(&inner, "{")).unwrap_or_default();
    let value = |key: &&str| after(&inner, &format!("\"{key}\"")).and_then(|rest| after(&rest, ":"));
    KEYS.iter().any(|key| value(key).is_some()) && json::parse(text.trim().as_bytes()).is_err()
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
    fn a_text_of_messages_gives_no_key_twice() {
        let text = r#"[{"role": "user", "content": "a", "content": "b"}]"#;
        for text in [text.to_owned(), Value::from(text).to_string()] {
            let error = messages("prompt", text.into()).unwrap_err();
            assert!(error.starts_with("`prompt` holds messages as JSON: the key `content` is given twice"), "{error}");
        }
        let text = "[role, from]";
        assert_eq!(messages("prompt", text.into()), Ok(Content::Text(text.to_owned())));
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
        let one = json!({"role": "user", "content": "a"});
        for form in [one.clone(), json!(one.to_string()), json!({"from": "human", "value": "a"})] {
            assert_eq!(settled(form), json!([one]));
        }
        let twice = json!(expected.to_string()).to_string();
        assert_eq!((Written::of(&json!(twice)), settled(json!(twice))), (Some(Written::JsonText), expected));
        let part = json!({"type": "text", "text": "a"});
        assert_eq!(settled(json!([{"role": "user", "content": part}])), json!([{"role": "user", "content": [part]}]));
        for text in ["", "2 + 3?", "[1, 2]", "[\"role\"]", r#"[{"name": "role"}]"#, r#"{"role": "user"}"#, "\"role\""] {
            assert_eq!((settled(text.into()), Written::of(&text.into())), (json!(text), None), "{text}");
        }
    }

    #[test]
    fn what_python_prints_is_told_and_stays_a_text() {
        for text in [
            "[{'role': 'user', 'content': '1 + 1?'}]",
            "[{'content': \"it's\", 'role': 'user'}\n {'content': 'a', 'role': 'assistant'}]",
            " [{'from': 'human', 'value': None}] ",
            "array([{'role': 'user', 'content': 'a'}], dtype=object)",
            "({'role': 'user', 'content': 'a'},)",
            "{'content': 'a', 'role': 'user'}",
        ] {
            assert_eq!(Written::of(&text.into()), Some(Written::PythonText), "{text}");
            assert_eq!(settled(text.into()), text);
        }
        assert_eq!(Written::of(&json!("Explain [{'role': 1, 'content': 2}]!")), None);
        let cut = r#"[{"role": "user", "content": "one two"#;
        assert_eq!((Written::of(&cut.into()), settled(cut.into())), (Some(Written::BrokenJson), cut.into()));
    }

    #[test]
    fn what_is_no_message_is_named() {
        for (value, words) in [
            (json!([]), "`p` is an empty list of messages"),
            (json!(["a"]), "message 0 of `p` is no object with a `role`, but a text; a message is"),
            (
                json!([{"role": "user", "content": "a"}, {"text": 1, "who": 2}]),
                "message 1 of `p` is no object with a `role`, but an object of `text`, `who`",
            ),
            (json!([{"role": 7}]), "message 0 of `p` is no object with a `role`"),
            (json!([{"role": "user", "value": "a"}]), "message 0 of `p` has no `content`, but `role`, `value`"),
            (json!(r#"[{"role": "user", "text": "a"}]"#), "message 0 of `p` has no `content`, but `role`, `text`"),
            (json!([{"role": "assistant", "text": "a"}]), "message 0 of `p` has no `content`, but `role`, `text`"),
            (
                json!([{"role": "user", "content": null}]),
                "message 0 of `p` has nothing (`null`) as its `content`; write",
            ),
            (json!([{"role": "user", "content": []}]), "message 0 of `p` has an empty list as its `content`; write"),
            (json!([{"role": "user", "content": {"a": 1}}]), "message 0 of `p` has a mapping as its `content`; write"),
            (json!([{"role": "user", "content": 7}]), "message 0 of `p` has a number as its `content`; write"),
            (json!([{"role": "user", "content": true}]), "message 0 of `p` has a truth value as its `content`; write"),
            (
                json!([{"role": "user", "content": ["a", {"type": "text", "content": "b"}]}]),
                "message 0 of `p` has a content whose part 1 has no text under `text`; its keys are `type`, `content`",
            ),
            (
                json!([{"role": "user", "content": [1, 2]}]),
                "message 0 of `p` has a content whose part 0 is neither a text nor an object",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text", "text": null}]}]),
                "message 0 of `p` has a content whose part 0 has no text under `text`",
            ),
            (json!(7), "`p` is neither a text nor a list of messages, but a number; write it as a text"),
            (json!(null), "`p` is neither a text nor a list of messages, but nothing"),
            (json!({"a": 1}), "`p` is neither a text nor a list of messages, but an object without"),
        ] {
            let error = messages("p", value).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
        assert_eq!(messages("p", json!("a")), Ok(Content::Text("a".to_owned())));
        for fine in [
            json!([{"role": "assistant", "content": null, "tool_calls": [{}]}]),
            json!([{"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "content": {"a": 1}}]),
            json!([{"role": "user", "content": ""}, {"role": "user", "content": ["a", {"type": "image"}]}]),
        ] {
            let Value::Array(expected) = fine.clone() else { unreachable!() };
            assert_eq!(messages("p", fine), Ok(Content::Messages(expected)));
        }
    }
}
