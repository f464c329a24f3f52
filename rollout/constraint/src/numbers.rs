//! Numbers of JSON schemas that the library rounds.
//!
//! It keeps every number as a double, and whole numbers of integers as 64 bits that it takes from one. From 2^53 on,
//! doubles pass over whole numbers, and an answer up to a bound that was rounded may lie beyond the bound that was
//! given.

use serde_json::{Map, Number, Value};

/// The keywords of the two ends, each with that of an end which does not belong to the range.
const ENDS: [(&str, &str); 2] = [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")];

/// Refuses a schema whose own bounds or values would be rounded. It does not look into the schemas in it.
pub fn check(schema: &Map<String, Value>) -> Result<(), String> {
    let of_integers = match schema.get("type") {
        Some(Value::Array(kinds)) => {
            kinds.iter().any(|kind| kind == "integer") && !kinds.iter().any(|kind| kind == "number")
        }
        Some(kind) => kind == "integer",
        None => false,
    };
    for (inclusive, exclusive) in ENDS {
        // In draft 4 the second keyword is a flag of the first.
        let is_flag = schema.get(exclusive) == Some(&Value::Bool(true));
        for (key, is_exclusive) in [(inclusive, is_flag), (exclusive, true)] {
            let Some(Value::Number(bound)) = schema.get(key) else { continue };
            let inwards = i128::from(is_exclusive) * if inclusive == "minimum" { 1 } else { -1 };
            let is_kept = match whole(bound) {
                Some(bound) if of_integers => is_kept_for_integers(bound, inwards, inclusive == "minimum"),
                Some(bound) => is_double(bound),
                None => true,
            };
            if !is_kept {
                return Err(rounded(key, bound));
            }
        }
    }
    ["const", "enum"].into_iter().try_for_each(|key| schema.get(key).map_or(Ok(()), |value| check_value(key, value)))
}

/// Refuses a value of `const` or `enum` with a number in it that would be rounded.
fn check_value(key: &str, value: &Value) -> Result<(), String> {
    match value {
        // The double beside the largest integer is cut to 64 bits, which gives that integer again.
        Value::Number(number) if number.as_i64() == Some(i64::MAX) => Ok(()),
        Value::Number(number) if whole(number).is_some_and(|whole| !is_double(whole)) => Err(rounded(key, number)),
        Value::Array(values) => values.iter().try_for_each(|value| check_value(key, value)),
        Value::Object(fields) => fields.values().try_for_each(|value| check_value(key, value)),
        _ => Ok(()),
    }
}

/// Whether the library's bound for integers is the one that is given. `inwards` leads from the bound to the last number
/// of the range. A bound beyond 64 bits is the last number of 64 bits there, which an answer may have as well.
fn is_kept_for_integers(bound: i128, inwards: i128, is_minimum: bool) -> bool {
    let given = bound + inwards;
    let kept = (bound as f64 + inwards as f64) as i64;
    let wanted = if is_minimum { given.max(i64::MIN.into()) } else { given.min(i64::MAX.into()) };
    i128::from(kept) == wanted
}

fn is_double(whole: i128) -> bool {
    whole as f64 as i128 == whole
}

/// The number, if it is a whole one. Beyond 64 bits it has been read as a double.
fn whole(number: &Number) -> Option<i128> {
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    // Far enough inside of 128 bits for the step to the next number.
    let is_whole = |double: &f64| double.fract() == 0.0 && double.abs() < 1e38;
    integer.or_else(|| number.as_f64().filter(is_whole).map(|double| double as i128))
}

fn rounded(key: &str, number: &Number) -> String {
    format!(
        "`{key}` {number} would be rounded, and an answer might not follow it: numbers are kept as doubles, which pass \
         over whole numbers from 9007199254740992 (2^53) on; give another number, or a text with a `pattern`"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(schema: Value) -> Option<String> {
        check(schema.as_object().unwrap()).err()
    }

    #[test]
    fn numbers_that_doubles_pass_over_are_refused() {
        let beyond = (1u64 << 53) + 1;
        for (schema, words) in [
            (json!({"type": "integer", "minimum": beyond}), "`minimum` 9007199254740993 would be rounded"),
            (json!({"type": "number", "maximum": beyond}), "`maximum` 9007199254740993 would"),
            (json!({"maximum": -(beyond as i64)}), "`maximum` -9007199254740993 would"),
            (json!({"type": "integer", "exclusiveMinimum": beyond - 1}), "`exclusiveMinimum` 9007199254740992 would"),
            (json!({"type": "integer", "minimum": beyond - 1, "exclusiveMinimum": true}), "`minimum` 90071992547409"),
            (json!({"type": "integer", "exclusiveMaximum": i64::MAX}), "`exclusiveMaximum` 9223372036854775807 would"),
            (json!({"type": "integer", "minimum": 1e19}), "`minimum` 1"),
            (json!({"type": "number", "maximum": u64::MAX}), "`maximum` 18446744073709551615 would"),
            (json!({"const": beyond}), "`const` 9007199254740993 would"),
            (json!({"enum": ["a", {"b": [1, beyond]}]}), "`enum` 9007199254740993 would"),
        ] {
            let error = refused(schema).unwrap_or_default();
            assert!(error.starts_with(words), "{words}: {error:?}");
        }
    }

    #[test]
    fn numbers_that_are_kept_are_not() {
        let last = 1u64 << 53;
        for schema in [
            json!({"type": "integer", "minimum": -5, "exclusiveMaximum": 7, "multipleOf": 3}),
            json!({"type": "number", "minimum": 0.1, "exclusiveMaximum": 1e300}),
            json!({"type": "integer", "minimum": last, "maximum": last + 2}),
            json!({"type": "integer", "exclusiveMaximum": last}),
            json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
            json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
            json!({"type": ["integer", "null"], "minimum": 0, "maximum": i64::MAX}),
            json!({"type": "integer", "minimum": -1e30, "maximum": 1e30}),
            json!({"const": i64::MAX}),
            json!({"enum": [0.1, last, {"a": "9007199254740993"}]}),
        ] {
            assert_eq!(refused(schema.clone()), None, "{schema}");
        }
    }
}
