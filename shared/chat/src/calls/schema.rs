//! Arguments that a model wrote as texts, to the types that the called tool's schema gives them.
//!
//! Formats without JSON write the number 7 and the text "7" alike, and models quote numbers in JSON. The rules are
//! those of transformers' `parse_response` with `tools`: the first type of the schema that the text can be counts, and
//! a text that can be none of them stays a text.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

/// Types that a schema may nest in each other (`anyOf`, `oneOf`).
const MOST_NESTED: usize = 16;

/// What is known of the tools that a turn may call.
#[derive(Debug, Clone, Default)]
pub struct Tools {
    /// The properties of the arguments, by the name of the tool.
    properties: HashMap<String, Map<String, Value>>,
}

impl Tools {
    /// From tools as templates take them: `{"type": "function", "function": {…}}`, or the function alone. Others are
    /// passed over. Of tools with the same name, the last counts.
    #[must_use]
    pub fn new(tools: &[Value]) -> Self {
        let tool = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let properties = function["parameters"]["properties"].as_object().cloned().unwrap_or_default();
            Some((function["name"].as_str()?.to_owned(), properties))
        };
        Self { properties: tools.iter().filter_map(tool).collect() }
    }

    /// Gives the arguments of a call their types. Arguments that no schema describes stay as they are.
    pub(super) fn type_arguments(&self, name: &str, arguments: &mut Value) {
        let (Some(properties), Some(arguments)) = (self.properties.get(name), arguments.as_object_mut()) else {
            return;
        };
        for (key, argument) in arguments {
            let mut types = Vec::new();
            types_of(properties.get(key).unwrap_or(&Value::Null), MOST_NESTED, &mut types);
            match argument {
                Value::String(text) => {
                    if let Some(typed) = typed(text, &types) {
                        *argument = typed;
                    }
                }
                Value::Array(items) if !types.is_empty() && !types.contains(&"array") => {
                    let typed_item = |item: &mut Value| {
                        if let Some(typed) = item.as_str().and_then(|text| typed(text, &types)) {
                            *item = typed;
                        }
                    };
                    items.iter_mut().for_each(typed_item);
                }
                _ => {}
            }
        }
    }
}

/// The types that a schema names, in order.
fn types_of<'a>(schema: &'a Value, depth: usize, types: &mut Vec<&'a str>) {
    match &schema["type"] {
        Value::String(one) => types.push(one),
        Value::Array(many) => types.extend(many.iter().filter_map(Value::as_str)),
        _ => {}
    }
    let choices = ["anyOf", "oneOf"].into_iter().filter_map(|union| schema[union].as_array()).flatten();
    for choice in choices.take_while(|_| depth > 0) {
        types_of(choice, depth - 1, types);
    }
    if schema["nullable"] == true && !types.contains(&"null") {
        types.push("null");
    }
}

/// The text as a value of the first of these types that it can be.
fn typed(text: &str, types: &[&str]) -> Option<Value> {
    types.iter().find_map(|&kind| match kind {
        "integer" => integer(text),
        "number" => number(text),
        "boolean" => match text.trim().to_lowercase().as_str() {
            "true" | "1" => Some(true.into()),
            "false" | "0" => Some(false.into()),
            _ => None,
        },
        "null" => matches!(text.trim(), "null" | "None").then_some(Value::Null),
        "object" => serde_json::from_str(text).ok().filter(Value::is_object),
        "array" => serde_json::from_str(text).ok().filter(Value::is_array),
        _ => None,
    })
}

/// A whole number, also one that is written as `3.0`.
fn integer(text: &str) -> Option<Value> {
    let text = text.trim();
    let digits = text.strip_prefix('+').unwrap_or(text);
    let whole = digits.parse::<i64>().map(Value::from).or_else(|_| digits.parse::<u64>().map(Value::from));
    whole.ok().or_else(|| as_whole(float(text)?))
}

/// A number; one without a full stop stays whole.
fn number(text: &str) -> Option<Value> {
    let value = float(text)?;
    let whole = if text.contains('.') { None } else { integer(text) };
    whole.or_else(|| Number::from_f64(value).map(Value::Number))
}

fn float(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|value: &f64| value.is_finite())
}

/// A float without a fraction, in the range in which floats are exact.
fn as_whole(value: f64) -> Option<Value> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (value.fract() == 0.0 && value.abs() <= EXACT).then(|| Value::from(value as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn typed_by(schema: &Value, text: &str) -> Value {
        let tool = json!({"name": "f", "parameters": {"properties": {"a": schema}}});
        let mut arguments = json!({ "a": text });
        Tools::new(&[tool]).type_arguments("f", &mut arguments);
        arguments["a"].take()
    }

    /// Results of transformers 5.23 for the same schemas and texts.
    #[test]
    fn a_text_becomes_the_first_type_that_it_can_be() {
        let of = |kind: &str| json!({ "type": kind });
        for (schema, text, expected) in [
            (of("string"), "75001", json!("75001")),
            (of("integer"), " -3 ", json!(-3)),
            (of("integer"), "+3", json!(3)),
            (of("integer"), "3.0", json!(3)),
            (of("integer"), "3.5", json!("3.5")),
            (of("integer"), "18446744073709551615", json!(u64::MAX)),
            (of("number"), "0.5", json!(0.5)),
            (of("number"), "2", json!(2)),
            (of("number"), "2.0", json!(2.0)),
            (of("number"), "1e3", json!(1000)),
            (of("number"), "inf", json!("inf")),
            (of("boolean"), "True", json!(true)),
            (of("boolean"), "0", json!(false)),
            (of("boolean"), "yes", json!("yes")),
            (of("null"), "None", json!(null)),
            (of("array"), "[1, 2]", json!([1, 2])),
            (of("array"), "{}", json!("{}")),
            (of("object"), "{\"k\": null}", json!({"k": null})),
            (json!({"type": ["integer", "string"]}), "x", json!("x")),
            (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "null", json!(null)),
            (json!({"type": "integer", "nullable": true}), "None", json!(null)),
            (json!({}), "1", json!("1")),
            (json!(7), "1", json!("1")),
        ] {
            assert_eq!(typed_by(&schema, text), expected, "{schema} {text:?}");
        }
    }

    #[test]
    fn what_is_typed_or_unknown_stays() {
        let function = json!({"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}});
        let tools = Tools::new(&[json!({"type": "function", "function": function}), json!(5)]);
        for (name, arguments) in [("f", json!({"a": true, "b": "1"})), ("g", json!({"a": "1"})), ("f", json!("text"))] {
            let mut typed = arguments.clone();
            tools.type_arguments(name, &mut typed);
            assert_eq!(typed, arguments);
        }
        let mut many = json!({"a": ["1", "x", 2]});
        tools.type_arguments("f", &mut many);
        assert_eq!(many, json!({"a": [1, "x", 2]}));
    }
}
