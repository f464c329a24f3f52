//! Tools and environments, which TRL's trainer takes as functions and classes, and a run by the places of their files.

use serde_json::{Map, Value};
use shared::config::{environments::BUILT_IN, rewards::PythonFunction};

use super::rules::Reason;

/// The tools of a list.
///
/// # Errors
/// A tool without a place.
pub fn list(value: &Value) -> Result<Value, Reason> {
    let Value::Array(tools) = value else { return placed(value, "my_tools.py:").map(|tool| vec![tool].into()) };
    let tools: Result<Vec<Value>, Reason> = tools.iter().map(|tool| placed(tool, "my_tools.py:")).collect();
    tools.map(Value::from)
}

/// A class, or a table of classes by their names.
///
/// # Errors
/// A class without a place.
pub fn factory(value: &Value) -> Result<Value, Reason> {
    let Value::Object(classes) = value else { return placed(value, "my_env.py:") };
    let classes: Result<Map<String, Value>, Reason> =
        classes.iter().map(|(name, class)| Ok((name.clone(), placed(class, "my_env.py:")?))).collect();
    classes.map(Value::from)
}

/// An entry that says where its function or class is.
fn placed(entry: &Value, place: &str) -> Result<Value, Reason> {
    let Value::String(entry) = entry else { return Err(format!("{entry} is no name of a function or class").into()) };
    let is_placed =
        entry.starts_with(BUILT_IN) || PythonFunction::parse(entry).is_some_and(|python| python.function.is_some());
    if is_placed {
        return Ok(entry.clone().into());
    }
    Err(format!("`{entry}` does not say in which file it is: write {place}{entry}").into())
}
