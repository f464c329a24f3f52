//! Messages as they are compared: a client sends back what it was told, in forms that differ.

use serde_json::Value;
use shared_chat::calls::Call;

/// A message without what clients are free to change: ids of calls, names, empty fields, and the form of arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    role: String,
    text: String,
    calls: Vec<(String, Value)>,
}

impl Said {
    /// A message of a request.
    #[must_use]
    pub fn of(message: &Value) -> Self {
        let call = |call: &Value| {
            let function = &call["function"];
            let arguments = match &function["arguments"] {
                Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
                arguments => arguments.clone(),
            };
            (function["name"].as_str().unwrap_or_default().to_owned(), arguments)
        };
        Self {
            role: message["role"].as_str().unwrap_or_default().to_owned(),
            text: text(&message["content"]),
            calls: message["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
        }
    }

    /// A turn of the policy as the client was told of it.
    #[must_use]
    pub fn turn(text: &str, calls: &[Call]) -> Self {
        let call = |call: &Call| (call.name.clone(), call.arguments.clone());
        Self { role: "assistant".into(), text: text.into(), calls: calls.iter().map(call).collect() }
    }

    /// Whether the policy is said to have said it.
    #[must_use]
    pub fn is_of_policy(&self) -> bool {
        self.role == "assistant"
    }
}

/// The text of a content, which may come in parts.
fn text(content: &Value) -> String {
    match content {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(|part| part["text"].as_str().unwrap_or_default()).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_turn_comes_back_in_other_forms_and_is_the_same() {
        let call = Call::new("add", json!({ "a": 2 }));
        let turn = Said::turn("", &[call]);
        let back = |content: Value, arguments: Value| {
            let function = json!({ "name": "add", "arguments": arguments });
            let calls = json!([{ "id": "call_1", "type": "function", "function": function }]);
            Said::of(&json!({ "role": "assistant", "content": content, "tool_calls": calls, "refusal": null }))
        };
        assert_eq!(back(Value::Null, "{\"a\": 2}".into()), turn);
        assert_eq!(back("".into(), json!({ "a": 2 })), turn);
        assert_ne!(back("".into(), json!({ "a": 3 })), turn);
        assert_ne!(back("x".into(), json!({ "a": 2 })), turn);
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(Said::of(&json!({ "role": "user", "content": parts })).text, "ab");
    }
}
