//! Tools and environments, which TRL's trainer takes as functions and classes, and a run by the places of their files.

use serde_json::{Map, Value};
use shared::config::{
    environments::{BUILT_IN, COMMAND},
    rewards::PythonFunction,
};

use super::{
    prompts,
    rules::{Lookup, Reason},
};

/// The tools of a list.
///
/// # Errors
/// A tool without a place.
pub fn list(value: &Value) -> Result<Value, Reason> {
    let Value::Array(tools) = value else { return placed(value, "my_tools.py:").map(|tool| vec![tool].into()) };
    let tools: Result<Vec<Value>, Reason> = tools.iter().map(|tool| placed(tool, "my_tools.py:")).collect();
    tools.map(Value::from)
}

/// A class, or a table of classes by their names; none where none is given.
///
/// # Errors
/// A class without a place.
pub fn environments(get: Lookup<'_>) -> Result<Option<Value>, Reason> {
    let (given, below) = (get("environment_factory"), get("environment_factory.*"));
    match given {
        Some(class @ Value::String(_)) if !class.as_str().is_some_and(|text| text.trim_start().starts_with('{')) => {
            placed(&class, PLACE).map(Some)
        }
        given => prompts::named_values(given, below)?.map(|classes| table(&classes)).transpose(),
    }
}

/// The example of a file with a class.
const PLACE: &str = "my_env.py:";

fn table(classes: &Map<String, Value>) -> Result<Value, Reason> {
    let classes: Result<Map<String, Value>, Reason> =
        classes.iter().map(|(name, class)| Ok((name.clone(), placed(class, PLACE)?))).collect();
    classes.map(Value::from)
}

/// An entry that says where its function or class is.
fn placed(entry: &Value, place: &str) -> Result<Value, Reason> {
    let Value::String(entry) = entry else { return Err(format!("{entry} is no name of a function or class").into()) };
    let is_placed = [BUILT_IN, COMMAND].iter().any(|mark| entry.starts_with(mark))
        || PythonFunction::parse(entry).is_some_and(|python| python.function.is_some());
    if is_placed {
        return Ok(entry.clone().into());
    }
    Err(format!("`{entry}` does not say in which file it is: write {place}{entry}").into())
}
