//! Arguments that stand alone: in formats that write `KEY=VALUE` or tags, and not one object of JSON.
//!
//! Between tags, a text stands as it is, and the reader gives a value the first type of its schema that the text can be
//! (see `schema`). So what follows the schema there is either JSON that is no text, one of some words, or any text.

use std::collections::HashSet;

use serde_json::{Map, Value as Json};

/// The keyword of a schema that has options of llguidance.
pub(super) const OPTIONS: &str = "x-guidance";
/// Keywords of a schema that restrict no value.
const REMARKS: [&str; 12] = [
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "strict",
    OPTIONS,
];
/// Keywords of the arguments' own schema that are followed or restrict nothing that is written: arguments that the
/// schema does not name are never written.
const OF_OBJECT: [&str; 6] = ["type", "properties", "required", "additionalProperties", "$defs", "definitions"];

/// Where an argument stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Between tags, where texts have no quotation marks.
    Tag,
    /// In a list in the form of Python, where JSON is understood.
    List,
}

/// An argument.
#[derive(Debug, PartialEq)]
pub(super) struct Argument {
    pub key: String,
    pub required: bool,
    pub value: Value,
}

/// What a value may be.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    /// JSON of this schema.
    Json(Json),
    /// One of these words.
    Words(Vec<String>),
    /// Any text.
    Text,
}

/// The arguments of a schema, in its order.
///
/// # Errors
/// A keyword that cannot be followed, or a name that cannot be written.
pub(super) fn of(schema: &Json, place: Place) -> Result<Vec<Argument>, String> {
    let none = Map::new();
    let keywords = schema.as_object().unwrap_or(&none);
    if let Some(word) = keywords.keys().find(|word| !REMARKS.contains(&&word[..]) && !OF_OBJECT.contains(&&word[..])) {
        return Err(format!(
            "the keyword `{word}` of its parameters cannot be followed in this model's format of calls"
        ));
    }
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let required: HashSet<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    if let Some(missing) = required.iter().find(|key| !properties.contains_key(**key)) {
        return Err(format!("`{missing}` is required and is none of its properties"));
    }
    let argument = |(key, value): (&String, &Json)| {
        let is_name = match place {
            Place::Tag => !key.is_empty() && !key.contains(['<', '>', '\n']) && key.trim() == key,
            Place::List => !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_'),
        };
        if !is_name {
            return Err(format!("the argument {key:?} cannot be written in this model's format of calls"));
        }
        let found = if place == Place::Tag { between_tags(value) } else { Ok(in_list(value)) };
        let value = match found.map_err(|fault| format!("the argument `{key}`: {fault}"))? {
            Value::Json(own) => Value::Json(with_definitions(own, schema)),
            value => value,
        };
        Ok(Argument { key: key.clone(), required: required.contains(&key[..]), value })
    };
    properties.iter().map(argument).collect()
}

/// References lead to definitions of the whole schema, and options stand at its top.
fn with_definitions(mut own: Json, whole: &Json) -> Json {
    for word in ["$defs", "definitions"] {
        if let (Some(own), Some(definitions)) = (own.as_object_mut(), whole.get(word)) {
            own.insert(word.into(), definitions.clone());
        }
    }
    if let (Some(own), Some(Json::Object(options))) = (own.as_object_mut(), whole.get(OPTIONS))
        && let Json::Object(all) = own.entry(OPTIONS).or_insert_with(|| Json::Object(Map::new()))
    {
        for (key, value) in options {
            all.entry(key).or_insert_with(|| value.clone());
        }
    }
    own
}

/// In the form of Python, JSON is understood, and models write the words of Python.
fn in_list(schema: &Json) -> Value {
    let words = restricting(schema);
    if words == ["type"] && schema["type"] == "boolean" {
        return Value::Words(["True", "False", "true", "false"].map(str::to_owned).into());
    }
    Value::Json(schema.clone())
}

/// The keywords that restrict a value.
fn restricting(schema: &Json) -> Vec<&str> {
    let keywords = schema.as_object().into_iter().flat_map(Map::keys).map(String::as_str);
    keywords.filter(|word| !REMARKS.contains(word)).collect()
}

fn between_tags(schema: &Json) -> Result<Value, String> {
    let words = restricting(schema);
    let only = |known: &[&str]| match words.iter().find(|word| !known.contains(word)) {
        None => Ok(()),
        Some(word) => Err(format!("the keyword `{word}` of a text cannot be followed in this model's format of calls")),
    };
    if let Some(values) = schema["enum"].as_array().cloned().or_else(|| Some(vec![schema.get("const")?.clone()])) {
        // Of values that are no texts, the schema has to tell the type, or they would be read as texts.
        let texts: Option<Vec<&str>> = values.iter().map(Json::as_str).collect();
        return match texts {
            Some(texts) if schema["type"].is_null() || schema["type"] == "string" => {
                only(&["type", "enum", "const"])?;
                let is_plain = |text: &&str| text.trim() == *text && !text.contains("</");
                match texts.iter().find(|text| !is_plain(text)) {
                    None => Ok(Value::Words(texts.into_iter().map(str::to_owned).collect())),
                    Some(text) => Err(format!("{text:?} cannot be written in this model's format of calls")),
                }
            }
            None if is_typed_without_text(schema) => Ok(Value::Json(schema.clone())),
            _ => Err("an `enum` of texts and others cannot be told apart in this model's format of calls".into()),
        };
    }
    if is_typed_without_text(schema) {
        return Ok(Value::Json(schema.clone()));
    }
    let types: Vec<&Json> = match &schema["type"] {
        Json::Array(types) => types.iter().collect(),
        one => vec![one],
    };
    let is_text_or_null = |kind: &Json| kind == "string" || kind == "null";
    if schema["type"].is_null() && words.iter().all(|word| matches!(*word, "anyOf" | "oneOf")) && words.len() == 1 {
        let branches = schema[words[0]].as_array().map_or(&[][..], Vec::as_slice);
        let is_plain = |branch: &Json| restricting(branch) == ["type"] && is_text_or_null(&branch["type"]);
        if !branches.is_empty() && branches.iter().all(is_plain) {
            return Ok(Value::Text);
        }
    }
    // A value of any type is read as a text, and any text follows.
    if words.is_empty() || !types.is_empty() && types.iter().all(|kind| is_text_or_null(kind)) {
        only(&["type"])?;
        return Ok(Value::Text);
    }
    Err(format!("its schema {} cannot be followed in this model's format of calls", shown(schema)))
}

/// Whether a schema has types of its own, none of which is that of texts: JSON of it is read as what it is.
fn is_typed_without_text(schema: &Json) -> bool {
    let is_other = |kind: &Json| kind.is_string() && kind != "string";
    let own = match &schema["type"] {
        Json::Null => None,
        Json::Array(kinds) => Some(!kinds.is_empty() && kinds.iter().all(is_other)),
        kind => Some(is_other(kind)),
    };
    let branches = |word: &str| schema[word].as_array().map(|all| all.iter().all(is_typed_without_text));
    own.or_else(|| branches("anyOf")).or_else(|| branches("oneOf")).unwrap_or(false)
}

fn shown(schema: &Json) -> String {
    schema.to_string().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(schema: &Json, place: Place) -> Result<Value, String> {
        let whole = json!({ "type": "object", "properties": { "a": schema }, "required": ["a"] });
        of(&whole, place).map(|mut all| all.remove(0).value)
    }

    #[test]
    fn between_tags_a_schema_is_json_words_or_any_text_or_is_refused() {
        for (schema, expected) in [
            (json!({ "type": "integer", "minimum": 3 }), None),
            (json!({ "type": ["integer", "null"] }), None),
            (json!({ "type": "array", "items": { "type": "string" } }), None),
            (json!({ "anyOf": [{ "type": "integer" }, { "type": "null" }] }), None),
            (json!({ "type": "integer", "enum": [1, 2] }), None),
            (json!({ "type": "string", "title": "A", "default": "x" }), Some(Value::Text)),
            (json!({}), Some(Value::Text)),
            (json!({ "type": ["string", "null"] }), Some(Value::Text)),
            (json!({ "anyOf": [{ "type": "string" }, { "type": "null" }], "default": null }), Some(Value::Text)),
            (json!({ "type": "string", "enum": ["x", "y z"] }), Some(Value::Words(vec!["x".into(), "y z".into()]))),
            (json!({ "const": "x" }), Some(Value::Words(vec!["x".into()]))),
        ] {
            let expected = expected.unwrap_or_else(|| Value::Json(schema.clone()));
            assert_eq!(value(&schema, Place::Tag), Ok(expected), "{schema}");
        }
        for (schema, word) in [
            (json!({ "type": "string", "pattern": "a+" }), "`pattern`"),
            (json!({ "type": "string", "maxLength": 3 }), "`maxLength`"),
            (json!({ "type": ["string", "integer"] }), "cannot be followed"),
            (json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] }), "cannot be followed"),
            (json!({ "enum": [1, "x"] }), "`enum`"),
            (json!({ "enum": [1, 2] }), "`enum`"),
            (json!({ "enum": [" x"] }), "cannot be written"),
            (json!({ "$ref": "#/$defs/A" }), "cannot be followed"),
        ] {
            let error = value(&schema, Place::Tag).unwrap_err();
            assert!(error.contains(word) && error.starts_with("the argument `a`: "), "{schema}: {error}");
        }
    }

    #[test]
    fn arguments_keep_their_order_and_definitions_go_along() {
        let definitions = json!({ "A": { "type": "integer" } });
        let schema = json!({ "type": "object", "properties": { "b": { "type": "boolean", "description": "on" },
            "a": { "$ref": "#/$defs/A" } }, "required": ["a"], "additionalProperties": false, "$defs": definitions });
        let words = Value::Words(["True", "False", "true", "false"].map(str::to_owned).into());
        let reference = Value::Json(json!({ "$ref": "#/$defs/A", "$defs": definitions }));
        let expected = [("b", false, words), ("a", true, reference)];
        let mut all = of(&schema, Place::List).unwrap();
        all.sort_by(|one, other| other.key.cmp(&one.key));
        for (argument, (key, required, value)) in all.into_iter().zip(expected) {
            assert_eq!(argument, Argument { key: key.into(), required, value });
        }
        let of_its_own = json!({ "properties": { "a": { "type": "integer", "x-guidance": { "lenient": false } } },
            "x-guidance": { "coerce_one_of": true } });
        let Value::Json(found) = of(&of_its_own, Place::List).unwrap().remove(0).value else { panic!("no JSON") };
        assert_eq!(found["x-guidance"], json!({ "lenient": false, "coerce_one_of": true }));
        let options = json!({ "coerce_one_of": true });
        let schema = json!({ "properties": { "a": { "type": "integer" } }, "x-guidance": options });
        let expected = Value::Json(json!({ "type": "integer", "x-guidance": options }));
        assert_eq!(of(&schema, Place::Tag).unwrap()[0].value, expected);
        let refused = |schema: Json, place: Place| of(&schema, place).unwrap_err();
        assert!(refused(json!({ "minProperties": 1 }), Place::Tag).contains("`minProperties`"));
        assert!(refused(json!({ "required": ["x"] }), Place::List).contains("`x` is required"));
        assert!(refused(json!({ "properties": { "a b": {} } }), Place::List).contains("\"a b\""));
        assert!(refused(json!({ "properties": { "a>": {} } }), Place::Tag).contains("\"a>\""));
    }
}
