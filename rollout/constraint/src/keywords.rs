//! Misspelt keywords of JSON schemas, and the way through all schemas in one.
//!
//! JSON Schema takes a keyword that it does not know for a remark, and so does the library. A misspelt one would bound
//! nothing, and nobody would be told.

use serde_json::Value;

use super::numbers;

/// Keywords, and names of remarks that resemble one.
const KEYWORDS: [&str; 50] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$ref",
    "$schema",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "default",
    "definitions",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "enum",
    "example",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "readOnly",
    "required",
    "then",
    "title",
    "type",
    "uniqueItems",
];
/// Keywords whose values are schemas by names of the user's own.
const BY_NAMES: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords whose values are no schemas.
const VALUES: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// How alike another word and a keyword are at least, of 1, if the keyword was meant.
const ALIKE: f64 = 0.8;

/// Refuses a schema with a key that is nearly a keyword, or with numbers that would be rounded.
pub fn check(schema: &Value) -> Result<(), String> {
    match schema {
        Value::Array(schemas) => schemas.iter().try_for_each(check),
        Value::Object(keys) => {
            numbers::check(keys)?;
            keys.iter().try_for_each(|(key, value)| match (key.as_str(), value) {
                (key, _) if VALUES.contains(&key) => Ok(()),
                (key, Value::Object(named)) if BY_NAMES.contains(&key) => named.values().try_for_each(check),
                (key, value) if KEYWORDS.contains(&key) => check(value),
                (key, _) => meant(key).map_or(Ok(()), |keyword| {
                    let key = key.escape_debug();
                    Err(format!("`{key}` is no keyword of JSON schemas, and would bound nothing; `{keyword}` is one"))
                }),
            })
        }
        _ => Ok(()),
    }
}

/// The keyword that a word resembles.
fn meant(word: &str) -> Option<&'static str> {
    let length = word.chars().count();
    // Of too different lengths nothing is alike, and comparing takes time with both.
    let is_as_long = |keyword: &&str| {
        let (short, long) = (length.min(keyword.len()), length.max(keyword.len()));
        short as f64 >= ALIKE * long as f64
    };
    let likeness = |keyword: &&str| strsim::normalized_damerau_levenshtein(keyword, word);
    let near = KEYWORDS.into_iter().filter(is_as_long);
    let nearest = near.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&nearest) >= ALIKE).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_word_as_long_as_a_schema_may_be_is_looked_at_in_no_time() {
        let begun = Instant::now();
        assert_eq!(meant(&"maximun".repeat(1 << 17)), None);
        assert!(begun.elapsed().as_secs() < 2, "{:?}", begun.elapsed());
        for (word, keyword) in [("additionalProperty", "additionalProperties"), ("type_", "type"), ("tipe", "")] {
            assert_eq!(meant(word).unwrap_or_default(), keyword);
        }
    }

    #[test]
    fn what_is_not_followed_is_named_wherever_a_schema_stands() {
        for (schema, words) in [
            (json!({"type": "integer", "maximun": 5}), "`maximun` is no keyword of JSON schemas, and"),
            (json!({"properties": {"a": {"maxLenght": 2}}}), "`maxLenght`"),
            (json!({"anyOf": [{"type": "null"}, {"requird": ["a"]}]}), "`required` is one"),
            (json!({"$defs": {"x": {"items": {"additionalPropertys": false}}}}), "`additionalPropertys`"),
            (json!({"maxi\nmum": 5}), "`maxi\\nmum` is no keyword"),
            (json!({"items": {"anyOf": [{"minimum": 9_007_199_254_740_993_u64}]}}), "`minimum` 9007199254740993 w"),
        ] {
            let error = check(&schema).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let others = json!({
            "nullable": true, "x-order": 3, "discriminator": {"propertyName": "kind"}, "example": 3, "title": "a",
            "properties": {"maximun": {"type": "integer"}, "require": {"const": {"maxLenght": 1}}},
            "enum": [{"requird": 1}], "default": {"patern": 1},
        });
        assert_eq!(check(&others), Ok(()), "names of properties, values, and remarks of other tools");
    }
}
