//! Tools and environments in Rust, for tests, examples and people without Python.
//!
//! They say what classes in Python would say, also where a call has wrong arguments.

mod calculator;
mod maze;

use serde_json::{Map, Value};

use crate::{
    Failure,
    environment::{BoxFuture, Environment, Opening, Step, ToolCall, Turn},
    reply,
};

/// The arguments of a call.
type Arguments = Map<String, Value>;

/// A tool that keeps nothing between two calls.
#[derive(Debug)]
pub struct Tool {
    /// Its name in an entry, behind `builtin:`.
    pub entry: &'static str,
    /// Its name for the model.
    pub name: &'static str,
    /// Its JSON schema.
    pub schema: fn() -> Value,
    call: fn(&Arguments) -> Result<String, String>,
}

/// A kind of environment, which gives a reward.
#[derive(Debug)]
pub struct Class {
    /// Its name in an entry, behind `builtin:`.
    pub entry: &'static str,
    /// JSON schemas of its tools, by name.
    pub schemas: fn() -> Vec<Value>,
    /// Whether it gives its reward by turn, and not at the end.
    pub by_turn: bool,
    /// Makes one for a conversation.
    pub make: fn() -> Box<dyn Environment>,
}

const TOOLS: &[Tool] = &[calculator::TOOL];
const CLASSES: &[Class] = &[maze::CLASS, maze::SHAPED];

/// The tool that an entry names behind `builtin:`.
///
/// # Errors
/// What there is instead.
pub fn tool(name: &str) -> Result<&'static Tool, String> {
    let known = || TOOLS.iter().map(|tool| tool.entry).collect::<Vec<_>>().join(", ");
    TOOLS.iter().find(|tool| tool.entry == name).ok_or_else(|| format!("the tools that are built in are {}", known()))
}

/// The environment that an entry names behind `builtin:`.
///
/// # Errors
/// What there is instead.
pub fn class(name: &str) -> Result<&'static Class, String> {
    let known = || CLASSES.iter().map(|class| class.entry).collect::<Vec<_>>().join(", ");
    let found = CLASSES.iter().find(|class| class.entry == name);
    found.ok_or_else(|| format!("the environments that are built in are {}", known()))
}

/// Tools without an environment.
pub struct Tools(pub Vec<&'static Tool>);

impl Environment for Tools {
    fn init(&mut self, _: &Map<String, Value>) -> BoxFuture<'_, Result<Opening, Failure>> {
        Box::pin(async { Ok(Opening::default()) })
    }

    fn step(&mut self, turn: Turn) -> BoxFuture<'_, Result<Step, Failure>> {
        let answer = |call: &ToolCall| match self.0.iter().find(|tool| tool.name == call.name) {
            Some(tool) => answered(&call.name, mapping(tool.name, &call.arguments).and_then(tool.call)),
            None => reply::unknown(&call.name),
        };
        let replies = turn.calls.iter().map(answer).collect();
        Box::pin(async { Ok(Step { replies, ..Step::default() }) })
    }

    fn score(&mut self) -> BoxFuture<'_, Result<Option<f64>, Failure>> {
        Box::pin(async { Ok(None) })
    }
}

fn answered(name: &str, result: Result<String, String>) -> shared_chat::turn::Reply {
    match result {
        Ok(text) => reply::said(name, text),
        Err(reason) => reply::refused(name, &reason),
    }
}

/// The arguments of a call by their names; a model may write any JSON in their place.
fn mapping<'a>(function: &str, given: &'a Value) -> Result<&'a Arguments, String> {
    let kind = match given {
        Value::Object(arguments) => return Ok(arguments),
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
    };
    Err(format!("{function}() argument after ** must be a mapping, not {kind}"))
}

/// The one argument of a function, a text, or none for a function without; errors are in Python's words.
fn text<'a>(function: &str, parameter: &str, given: &'a Arguments) -> Result<&'a str, String> {
    nothing_but(function, Some(parameter), given)?;
    let value = given.get(parameter);
    let value = value.ok_or_else(|| format!("{function}() missing 1 required positional argument: '{parameter}'"))?;
    value.as_str().ok_or_else(|| format!("{parameter} must be a text"))
}

fn nothing_but(function: &str, parameter: Option<&str>, given: &Arguments) -> Result<(), String> {
    match given.keys().find(|name| Some(name.as_str()) != parameter) {
        Some(name) => Err(format!("{function}() got an unexpected keyword argument '{name}'")),
        None => Ok(()),
    }
}
