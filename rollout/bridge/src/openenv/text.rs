//! What a server of OpenEnv says, as the policy reads it.

use serde_json::{Map, Value};

use crate::lines::{Reply, tool};

/// Fields of an observation that are not for the policy.
const HIDDEN: [&str; 3] = ["metadata", "reward", "done"];

/// Longest piece of a value that is quoted.
const QUOTED: usize = 80;

/// The text of an observation: its only field where that is a text, else its fields as JSON. None if it says nothing.
#[must_use]
pub fn of_observation(observation: &Value) -> Option<String> {
    let fields = match observation {
        Value::Object(fields) => fields,
        Value::Null => return None,
        Value::String(text) => return Some(text.clone()),
        other => return Some(other.to_string()),
    };
    let shown: Map<String, Value> = fields
        .iter()
        .filter(|(name, value)| !HIDDEN.contains(&name.as_str()) && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let values: Vec<&Value> = shown.values().collect();
    if let [Value::String(text)] = values.as_slice() {
        return Some(text.clone());
    }
    (!shown.is_empty()).then(|| Value::Object(shown).to_string())
}

/// The reply in the observation of a call of a tool: `result` with content blocks as MCP has them, or `error`.
#[must_use]
pub fn of_tool(observation: &Value) -> Reply {
    if let Some(error) = observation.get("error").filter(|error| !error.is_null()) {
        return Reply::failed(error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned));
    }
    let result = &observation["result"];
    let blocks = result["content"].as_array();
    let texts = blocks.map(|blocks| blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>());
    let text = match (texts, result) {
        (Some(texts), _) if !texts.is_empty() => texts.join("\n"),
        (_, Value::String(text)) => text.clone(),
        (_, result) => result.get("data").filter(|data| !data.is_null()).unwrap_or(result).to_string(),
    };
    Reply { text, failed: result["is_error"] == Value::Bool(true) }
}

/// An error of the server in one line: its message, and what it says of each field.
#[must_use]
pub fn of_error(data: &Value) -> String {
    let message = data["message"].as_str().unwrap_or("no reason");
    let field = |error: &Value| {
        let place = error["loc"].as_array().into_iter().flatten();
        let place: Vec<String> =
            place.map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)).collect();
        Some(format!("{}: {}", place.join("."), error["msg"].as_str()?))
    };
    let fields: Vec<String> = data["errors"].as_array().into_iter().flatten().filter_map(field).collect();
    if fields.is_empty() { message.to_owned() } else { format!("{message}: {}", fields.join("; ")) }
}

/// The reward in an answer, and whether the episode is over. Truth values count as 0 and 1. A field that is null or not
/// there says nothing.
///
/// # Errors
/// A field of another kind. Passed over, it would train on rewards that nobody gave.
pub fn outcome(data: &Value) -> Result<(Option<f64>, bool), String> {
    let reward = match &data["reward"] {
        Value::Null => None,
        Value::Bool(reward) => Some(f64::from(u8::from(*reward))),
        reward => Some(reward.as_f64().ok_or_else(|| format!("the server's reward is {}", quoted(reward)))?),
    };
    match &data["done"] {
        Value::Null => Ok((reward, false)),
        Value::Bool(done) => Ok((reward, *done)),
        done => Err(format!("the server's `done` is {}, neither true nor false", quoted(done))),
    }
}

/// The beginning of a value.
fn quoted(value: &Value) -> String {
    value.to_string().chars().take(QUOTED).collect()
}

/// The action of an environment as a tool, which is called after the title of its schema. The keys keep the order that
/// the schema has.
#[must_use]
pub fn action(schema: &Value) -> Option<Value> {
    let name = snake_case(schema["title"].as_str().unwrap_or("act"));
    let mut parameters = schema.as_object()?.clone();
    let description = match parameters.shift_remove("description") {
        Some(Value::String(text)) => text,
        _ => "Acts in the environment.".to_owned(),
    };
    parameters.shift_remove("title");
    if let Some(Value::Object(properties)) = parameters.get_mut("properties") {
        properties.shift_remove("metadata");
        let properties = properties.values_mut().filter_map(Value::as_object_mut);
        properties.for_each(|property| drop(property.shift_remove("title")));
    }
    Some(tool(&name, &description, &parameters))
}

/// The name of a class in small letters, with `_` between its words: `DoorAction` becomes `door_action`. A run of
/// capitals is one word, and its last capital begins the next word where a small letter follows: `SQLAction` becomes
/// `sql_action`. All that is neither letter nor digit of ASCII becomes `_`.
fn snake_case(title: &str) -> String {
    let mut name = String::new();
    let mut is_in_run = false;
    let mut rest = title.chars().peekable();
    while let Some(c) = rest.next() {
        let ends_run = rest.peek().is_some_and(|next| next.is_lowercase());
        let begins_word = c.is_uppercase() && (!is_in_run || ends_run);
        if begins_word && !name.is_empty() && !name.ends_with('_') {
            name.push('_');
        }
        name.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
        is_in_run = c.is_uppercase();
    }
    name
}

/// The tools in the observation of `list_tools`.
#[must_use]
pub fn listed(observation: &Value) -> Option<Vec<Value>> {
    let one = |listed: &Value| {
        let schema = listed.get("input_schema").or_else(|| listed.get("inputSchema"))?.as_object()?;
        Some(tool(listed["name"].as_str()?, listed["description"].as_str().unwrap_or_default(), schema))
    };
    observation["tools"].as_array()?.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_policy_reads_what_is_said_and_nothing_else() {
        for (observation, text) in [
            (json!({"metadata": {"steps": 1}, "text": "higher"}), Some("higher".to_owned())),
            (json!({"metadata": {"ready": true}}), None),
            (json!({"text": "a", "error": null, "done": true}), Some("a".to_owned())),
            (json!({"board": [1, 2], "turn": "x"}), Some(r#"{"board":[1,2],"turn":"x"}"#.to_owned())),
            (json!({"count": 3}), Some(r#"{"count":3}"#.to_owned())),
            (Value::Null, None),
        ] {
            assert_eq!(of_observation(&observation), text, "{observation}");
        }
    }

    #[test]
    fn an_action_is_a_tool_whose_parameters_keep_their_order() {
        let schema = json!({
            "description": "Asks the database.",
            "title": "SQLAction",
            "type": "object",
            "properties": {
                "metadata": {"type": "object"},
                "query": {"title": "Query", "type": "string", "description": "What to ask", "minLength": 1},
                "limit": {"title": "Limit", "type": "integer", "default": 5},
                "database": {"title": "Database", "type": "string"},
            },
            "required": ["query"],
            "additionalProperties": false,
        });
        let parameters = json!({
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to ask", "minLength": 1},
                "limit": {"type": "integer", "default": 5},
                "database": {"type": "string"},
            },
            "required": ["query"],
            "additionalProperties": false,
        });
        let function = json!({"name": "sql_action", "description": "Asks the database.", "parameters": parameters});
        // Objects are equal in any order; their texts are not.
        let expected = json!({"type": "function", "function": function}).to_string();
        assert_eq!(action(&schema).unwrap().to_string(), expected);
    }

    #[test]
    fn the_words_of_a_class_are_told_by_its_capitals() {
        for (title, name) in [
            ("Guess", "guess"),
            ("act", "act"),
            ("DoorAction", "door_action"),
            ("SQLAction", "sql_action"),
            ("HTTPServerAction", "http_server_action"),
            ("MoveXY", "move_xy"),
            ("SQL", "sql"),
            ("AAction", "a_action"),
            ("Door2Action", "door2_action"),
            ("Door_Action", "door_action"),
            ("door action", "door_action"),
        ] {
            assert_eq!(snake_case(title), name, "{title}");
        }
    }

    #[test]
    fn errors_name_their_fields() {
        let errors = json!([{"loc": ["number"], "msg": "Field required"}, {"loc": ["a", 1], "msg": "No"}]);
        let found = of_error(&json!({"message": "Invalid message", "errors": errors}));
        assert_eq!(found, "Invalid message: number: Field required; a.1: No");
        assert_eq!(of_error(&json!({"message": "above 100"})), "above 100");
        assert_eq!(of_error(&json!({})), "no reason");
    }

    #[test]
    fn a_reward_is_a_number_or_a_truth_value_and_done_a_truth_value() {
        for (data, expected) in [
            (json!({"reward": true, "done": false}), (Some(1.0), false)),
            (json!({"reward": 2, "done": true}), (Some(2.0), true)),
            (json!({"reward": -0.5}), (Some(-0.5), false)),
            (json!({"reward": null, "done": null}), (None, false)),
            (json!({}), (None, false)),
        ] {
            assert_eq!(outcome(&data), Ok(expected), "{data}");
        }
        for (data, words) in [
            (json!({"reward": "1.0"}), r#"the server's reward is "1.0""#),
            (json!({"reward": [1.0], "done": false}), "the server's reward is [1.0]"),
            (json!({"reward": 1.0, "done": "true"}), r#"the server's `done` is "true", neither true nor false"#),
            (json!({"done": 1}), "the server's `done` is 1, neither true nor false"),
        ] {
            assert_eq!(outcome(&data), Err(words.to_owned()), "{data}");
        }
        assert!(outcome(&json!({"reward": "x".repeat(1000)})).unwrap_err().len() < 200, "the beginning is quoted");
    }
}
