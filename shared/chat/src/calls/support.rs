//! Which parts of a conversation with tools a template writes.
//!
//! Many templates pass over tools, calls or replies in silence, and some refuse them. So a short conversation with
//! words that stand nowhere else is rendered, and what became of them counts: TRL's `supports_tool_calling` does the
//! same.

use serde_json::{Map, Value, json};

use super::Format;
use crate::ChatTemplate;

/// What a template does with tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolSupport {
    /// Whether it writes the tools that there are.
    pub tools: bool,
    /// Whether it writes the calls of the assistant's messages.
    pub calls: bool,
    /// Whether it writes messages of the role `tool`.
    pub replies: bool,
    /// How it wants the arguments of calls.
    pub arguments: Arguments,
    /// The format of calls that it teaches, if that is known.
    pub format: Option<Format>,
}

/// How a template wants the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arguments {
    /// As an object, as transformers gives them.
    Object,
    /// As a text of JSON; the template fails with an object.
    Text,
}

const TOOL: &str = "tool_name_a8f3e2b1";
const NAME: &str = "called_name_e7c2d4a6";
const KEY: &str = "argument_key_b9d4f5c2";
const VALUE: &str = "argument_value_d6e7a9f3";
const REPLY: &str = "reply_c4f9a8e2";

impl ToolSupport {
    /// Tries a template.
    pub(crate) fn of(template: &ChatTemplate) -> Self {
        let user = json!({"role": "user", "content": "hi"});
        let properties = json!({"a": {"type": "string", "description": "a"}});
        let parameters = json!({"type": "object", "properties": properties, "required": ["a"]});
        let function = json!({"name": TOOL, "description": "a", "parameters": parameters});
        let tools = json!([{"type": "function", "function": function}]);
        let variables: Map<String, Value> = [("tools".to_owned(), tools)].into_iter().collect();
        let turn = |arguments: &Value| {
            let call =
                json!({"id": "call00001", "type": "function", "function": {"name": NAME, "arguments": arguments}});
            json!({"role": "assistant", "content": "", "tool_calls": [call]})
        };
        let reply = json!({"role": "tool", "name": NAME, "tool_call_id": "call00001", "content": REPLY});
        let holds = |messages: &[Value], words: &[&str]| {
            let rendered = template.render(messages, true, &variables);
            rendered.is_ok_and(|text| words.iter().all(|word| text.contains(word)))
        };
        let object = json!({KEY: VALUE});
        let text = Value::from(object.to_string());
        let writes = |arguments: &Value| holds(&[user.clone(), turn(arguments)], &[NAME, KEY, VALUE]);
        let as_object = writes(&object);
        let arguments = if !as_object && writes(&text) { Arguments::Text } else { Arguments::Object };
        let turn = turn(if arguments == Arguments::Text { &text } else { &object });
        Self {
            tools: holds(std::slice::from_ref(&user), &[TOOL]),
            calls: as_object || arguments == Arguments::Text,
            replies: holds(&[user, turn, reply], &[REPLY]),
            arguments,
            format: Format::of_template(template),
        }
    }
}
