//! A check of values against a JSON schema, for the keywords that this project's schemas have.

use serde_json::Value;

/// Whether a value is valid under a schema; the error says where it is not, and why.
///
/// # Errors
/// The first fault.
///
/// # Panics
/// At a keyword that is not known here: it would be passed over.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    check_part(schema, schema, value, "")
}

fn check_part(root: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let fail = |wanted: String| Err(format!("{place}: {value} is not {wanted}"));
    for (keyword, said) in schema.as_object().expect("a schema is an object") {
        let number = |fits: fn(f64, f64) -> bool| match (value.as_f64(), said.as_f64()) {
            (Some(value), Some(bound)) => fits(value, bound),
            (_, bound) => bound.is_some(),
        };
        let fits = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            "$ref" => {
                let pointer = said.as_str().and_then(|text| text.strip_prefix('#')).expect("a place in the schema");
                let other = root.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in the schema"));
                return check_part(root, other, value, place);
            }
            "type" => is_of(value, said.as_str().expect("the name of a type")),
            "const" => value == said,
            "enum" => list(said).contains(value),
            "anyOf" => list(said).iter().any(|schema| check_part(root, schema, value, place).is_ok()),
            "minimum" => number(|value, bound| value >= bound),
            "exclusiveMinimum" => number(|value, bound| value > bound),
            "maximum" => number(|value, bound| value <= bound),
            "exclusiveMaximum" => number(|value, bound| value < bound),
            "minLength" => {
                value.as_str().is_none_or(|text| text.chars().count() as u64 >= said.as_u64().expect("a number"))
            }
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= said.as_u64().expect("a number")),
            "uniqueItems" => value.as_array().is_none_or(|items| {
                let is_new = |(at, item)| !items[..at].contains(item);
                *said == Value::Bool(false) || items.iter().enumerate().all(is_new)
            }),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check_part(root, said, item, &format!("{place}[{i}]"))?;
                }
                true
            }
            "properties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    let declared = said.get(name);
                    declared
                        .map_or(Ok(()), |declared| check_part(root, declared, member, &format!("{place}/{name}")))?;
                }
                true
            }
            "additionalProperties" => {
                let is_declared = |name: &str| schema["properties"].get(name).is_some();
                let members = value.as_object().into_iter().flatten();
                for (name, member) in members.filter(|(name, _)| !is_declared(name)) {
                    if *said == Value::Bool(false) {
                        return Err(format!("{place}/{name} is unknown"));
                    }
                    check_part(root, said, member, &format!("{place}/{name}"))?;
                }
                true
            }
            other => panic!("{place}: the keyword `{other}` is not known"),
        };
        if !fits {
            return fail(format!("as its `{keyword}` {said} says"));
        }
    }
    Ok(())
}

fn list(said: &Value) -> &[Value] {
    said.as_array().expect("the keyword has a list")
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("`{other}` is no type of JSON"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_keyword_refuses_what_it_should() {
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "count": { "type": "integer", "minimum": 1, "maximum": 3 },
                "share": { "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 },
                "word": { "enum": ["a", "b"] },
                "name": { "type": "string", "minLength": 2 },
                "other": { "$ref": "#/properties/word" },
                "some": { "type": "array", "items": { "type": "integer" }, "minItems": 1, "uniqueItems": true },
                "list": { "anyOf": [{ "const": "none" }, { "type": "array", "items": { "type": "boolean" } }] },
            },
        });
        for (value, valid) in [
            (json!({ "count": 1, "share": 0.5, "word": "b", "other": "a", "list": [true] }), true),
            (json!({ "count": 3, "list": "none" }), true),
            (json!({ "name": "éß" }), true),
            (json!({ "name": "é" }), false),
            (json!({ "some": [1, 2] }), true),
            (json!({ "some": [] }), false),
            (json!({ "some": [1, 2, 1] }), false),
            (json!({ "count": 0 }), false),
            (json!({ "count": 4 }), false),
            (json!({ "count": 1.5 }), false),
            (json!({ "share": 0 }), false),
            (json!({ "share": 1 }), false),
            (json!({ "share": "0.5" }), false),
            (json!({ "word": "c" }), false),
            (json!({ "other": "c" }), false),
            (json!({ "list": "some" }), false),
            (json!({ "list": [1] }), false),
            (json!({ "wrd": "a" }), false),
            (json!([]), false),
        ] {
            assert_eq!(check(&schema, &value).is_ok(), valid, "{value}");
        }
        assert_eq!(check(&schema, &json!({ "wrd": 1 })), Err("/wrd is unknown".to_owned()));
    }
}
