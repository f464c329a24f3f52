//! What a conversation says of tools: which there are, the calls of earlier turns, and the replies to them.

use std::{
    collections::{HashMap, HashSet},
    slice,
};

use rollout::{commands::constraint::Grammar, data::Tokenizer};
use serde_json::{Map, Value};
use shared_chat::calls::{Arguments, Format, MustCall, Reader, ToolSupport, Tools};

use super::{Fields, grammar};
use crate::error::ApiError;

/// Most characters of a tool's name, as MCP has it; OpenAI allows 64.
const LONGEST_NAME: usize = 128;

/// How the calls of an answer are read.
#[derive(Debug, Clone)]
pub struct Calling {
    format: Format,
    tools: Tools,
    /// The conversation as the template wrote it.
    prompt: String,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

impl Calling {
    /// For answers to a prompt of the template, where tools may be called; none if there are no tools.
    ///
    /// # Errors
    /// A template whose format of calls is not known.
    pub fn new(
        tools: &[Value],
        support: Option<ToolSupport>,
        prompt: &str,
        parallel: bool,
    ) -> Result<Option<Self>, ApiError> {
        let Some(support) = support.filter(|_| !tools.is_empty()) else { return Ok(None) };
        let Some(format) = support.format else {
            let known = Format::ALL.map(Format::models).join(", ");
            let message = format!(
                "the model's chat template writes tool calls in no format that is known here ({known}); with \
                 `tool_choice` none the tools reach the template, and calls stay text"
            );
            return Err(ApiError::field("tools", message));
        };
        Ok(Some(Self { format, tools: Tools::new(tools), prompt: prompt.to_owned(), parallel }))
    }

    /// The grammar of answers that call one of these tools; several calls may come where they may be parallel.
    ///
    /// # Errors
    /// Parameters of a tool that would be followed in part, a format without a grammar, or parameters that the format
    /// cannot follow.
    pub fn must_call(&self, tools: &[Value], tokenizer: &Tokenizer) -> Result<grammar::Asked, ApiError> {
        for (name, schema) in tools.iter().filter_map(parameters) {
            rollout_constraint::check_schema(schema).map_err(|reason| grammar::of_parameters(name, &reason))?;
        }
        let is_special = |mark: &str| {
            let ids = tokenizer.encode(mark, false).unwrap_or_default();
            matches!(ids[..], [id] if tokenizer.special_text(id).is_some_and(|text| text == mark))
        };
        let may_think = tokenizer.template().is_some_and(|template| self.format.thinks(template));
        let grammar_of = |tools: &[Value]| {
            let must = MustCall { tools, several: self.parallel, may_think };
            let grammar = self.format.grammar(&self.prompt, must, &is_special);
            grammar.map_err(|fault| ApiError::field("tool_choice", format!("`tool_choice`: {fault}")))
        };
        let grammar = Grammar::Lark(grammar_of(tools)?);
        // A format may leave parts of a schema out, so a tool's own grammar has the schemas that are really followed.
        let mut parts = Vec::new();
        for tool in tools {
            if let Some((name, _)) = parameters(tool) {
                parts.push((name.to_owned(), grammar_of(slice::from_ref(tool))?));
            }
        }
        Ok(grammar::Asked { field: "tools", grammar, parts })
    }

    /// A reader for an answer.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(self.format, &self.prompt, self.tools.clone())
    }
}

/// Which tools an answer may or must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Any of them, or none.
    Auto,
    /// None of them: a call is text.
    None,
    /// At least one of them.
    Required,
    /// This one, once.
    Named(String),
}

impl Choice {
    /// Takes `tool_choice`.
    ///
    /// # Errors
    /// What is none.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let Some(choice) = fields.take::<Value>("tool_choice")? else { return Ok(Self::Auto) };
        let name = || (choice["type"] == "function").then(|| choice["function"]["name"].as_str()).flatten();
        match choice.as_str() {
            Some("auto") => Ok(Self::Auto),
            Some("none") => Ok(Self::None),
            Some("required") => Ok(Self::Required),
            _ => name().map(|name| Self::Named(name.to_owned())).ok_or_else(|| {
                let form = r#"{"type": "function", "function": {"name": …}}"#;
                let message = format!("`tool_choice` takes auto, none, required and {form}");
                ApiError::field("tool_choice", message)
            }),
        }
    }

    /// The tools, one of which must be called; none where none has to be.
    ///
    /// # Errors
    /// A name that none of them has, or no tools at all.
    pub fn must_call(&self, tools: &[Value]) -> Result<Option<Vec<Value>>, ApiError> {
        let refuse = |message: String| Err(ApiError::field("tool_choice", message));
        match self {
            Self::Auto | Self::None => Ok(None),
            Self::Required if tools.is_empty() => refuse("`tool_choice` required needs `tools`".into()),
            Self::Required => Ok(Some(tools.to_vec())),
            Self::Named(name) => {
                let named = tools.iter().find(|tool| name_of(tool).is_ok_and(|own| own == name));
                named.map_or_else(
                    || refuse(format!("`tool_choice` names `{name}`, and none of the `tools` has that name")),
                    |tool| Ok(Some(vec![tool.clone()])),
                )
            }
        }
    }
}

/// Takes `tools`.
///
/// # Errors
/// What is no tool, two of the same name, or a template that would not show them to the model.
pub fn take(fields: &mut Fields, support: Option<ToolSupport>) -> Result<Vec<Value>, ApiError> {
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let refuse = |message: String| Err(ApiError::field("tools", message));
    let mut names = HashSet::new();
    for (index, tool) in tools.iter().enumerate() {
        match name_of(tool) {
            Err(fault) => return refuse(format!("`tools[{index}]` {fault}")),
            Ok(name) if !names.insert(name) => return refuse(format!("two of the `tools` have the name `{name}`")),
            Ok(_) => {}
        }
    }
    if !tools.is_empty() && support.is_some_and(|support| !support.tools) {
        return refuse("the model's chat template writes no tools, so the model would not know of them".into());
    }
    Ok(tools)
}

/// The name of a tool, in OpenAI's form or as the function alone.
fn name_of(tool: &Value) -> Result<&str, String> {
    let tool = tool.as_object().ok_or("is no object")?;
    match tool.get("type") {
        None | Some(Value::Null) => {}
        Some(kind) if kind == "function" => {}
        Some(kind) => return Err(format!("has the type {kind}, and only a `function` can be called here")),
    }
    let function = match tool.get("function") {
        None => tool,
        Some(function) => function.as_object().ok_or("has a `function` that is no object")?,
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name = function.get("name").and_then(Value::as_str).ok_or("has no `name` that is a text")?;
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_part) {
        return Err(format!("has a `name` that is not 1 to {LONGEST_NAME} letters, digits, `_`, `-` and `.`"));
    }
    match function.get("parameters").filter(|parameters| !parameters.is_null()) {
        Some(schema) if !is_schema_of_object(schema) => {
            Err(format!("(`{name}`) has `parameters` that are no JSON schema of an object"))
        }
        _ => Ok(name),
    }
}

/// The name of a tool, and its parameters; of a tool without any, nothing.
fn parameters(tool: &Value) -> Option<(&str, &Value)> {
    let function = tool.get("function").unwrap_or(tool);
    let schema = function.get("parameters").filter(|schema| !schema.is_null())?;
    Some((function["name"].as_str()?, schema))
}

fn is_schema_of_object(schema: &Value) -> bool {
    let is_object = |value: &Value| value.is_null() || value.is_object();
    let kind = &schema["type"];
    schema.is_object() && (kind.is_null() || kind == "object") && is_object(&schema["properties"])
}

/// Clients write the arguments of a call as a text of JSON, and templates want the object.
pub(super) fn read_arguments(message: &mut Map<String, Value>) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let Some(arguments) = function_of(call).and_then(|function| function.get_mut("arguments")) else { continue };
        let Some(text) = arguments.as_str() else { continue };
        // Some clients write nothing where there are no arguments.
        let text = if text.trim().is_empty() { "{}" } else { text };
        if let Ok(object) = serde_json::from_str::<Map<String, Value>>(text) {
            *arguments = object.into();
        }
    }
}

/// The function of a call, in OpenAI's form or alone.
fn function_of(call: &mut Value) -> Option<&mut Map<String, Value>> {
    let call = call.as_object_mut()?;
    if call.contains_key("function") { call.get_mut("function")?.as_object_mut() } else { Some(call) }
}

/// Brings the calls and replies of a conversation into the form that the template wants. A reply gets the name of the
/// tool, as templates for training have it.
///
/// # Errors
/// What is no call or no reply, or what the template would leave out.
pub fn prepare(messages: &mut [Value], support: Option<ToolSupport>) -> Result<(), ApiError> {
    let refuse = |index: usize, fault: &str| Err(ApiError::field("messages", format!("`messages[{index}]` {fault}")));
    let mut called = Called::default();
    for (index, message) in messages.iter_mut().enumerate() {
        let Some(message) = message.as_object_mut() else { return refuse(index, "is no object") };
        read_arguments(message);
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        let fault = match role {
            "tool" if support.is_some_and(|support| !support.replies) => {
                return refuse(index, "has the role `tool`, and the model's chat template writes no such message");
            }
            "tool" => called.reply(message),
            "assistant" => called.turn(message, support),
            _ => Ok(()),
        };
        if let Err(fault) = fault {
            return refuse(index, &fault);
        }
    }
    Ok(())
}

/// Calls of a conversation so far.
#[derive(Default)]
struct Called {
    /// The names of tools by the ids of their calls.
    names: HashMap<String, String>,
    /// Whether there was a call without an id.
    without_id: bool,
}

impl Called {
    /// Takes the calls of a turn of the assistant.
    fn turn(&mut self, message: &mut Map<String, Value>, support: Option<ToolSupport>) -> Result<(), String> {
        let Some(calls) = message.get_mut("tool_calls").filter(|calls| !calls.is_null()) else { return Ok(()) };
        let calls = calls.as_array_mut().ok_or("has `tool_calls` that are no list")?;
        if !calls.is_empty() && support.is_some_and(|support| !support.calls) {
            return Err("has `tool_calls`, and the model's chat template writes none".into());
        }
        for call in calls {
            let id = call["id"].as_str().map(str::to_owned);
            if call.get("type").is_some_and(|kind| !kind.is_null() && kind != "function") {
                return Err("has a call that is not of the type `function`".into());
            }
            let function = function_of(call).ok_or("has a call that is no object with a `function`")?;
            let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
            let name = name.ok_or("has a call without the `name` of its function")?.to_owned();
            let wants_text = support.is_some_and(|support| support.arguments == Arguments::Text);
            match function.get_mut("arguments") {
                None | Some(Value::Null) => _ = function.insert("arguments".into(), Map::new().into()),
                Some(Value::Object(_)) => {}
                Some(_) => return Err(format!("has a call of `{name}` with `arguments` that are no object of JSON")),
            }
            if wants_text {
                let text = function["arguments"].to_string();
                function.insert("arguments".into(), text.into());
            }
            match id {
                Some(id) => _ = self.names.insert(id, name),
                None => self.without_id = true,
            }
        }
        Ok(())
    }

    /// Takes a reply to a call.
    fn reply(&self, message: &mut Map<String, Value>) -> Result<(), String> {
        let has_name = message.get("name").is_some_and(Value::is_string);
        match message.get("tool_call_id").and_then(Value::as_str).map(|id| (id, self.names.get(id))) {
            Some((_, Some(name))) if !has_name => _ = message.insert("name".into(), name.as_str().into()),
            Some((id, None)) if !self.without_id => {
                return Err(format!("replies to the call `{id}`, and no message before it has a call with that id"));
            }
            None if !has_name => return Err("has the role `tool` and no `tool_call_id`".into()),
            _ => {}
        }
        Ok(())
    }
}
