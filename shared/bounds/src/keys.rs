//! JSON in which no object gives a key twice.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value, map::Entry};

use crate::OneLine;

/// A value of JSON that somebody has written. Where an object gives a key twice, parsers keep the last value and say
/// nothing of the others; here it is an error that names the key.
#[derive(Debug, Clone, PartialEq)]
pub struct KeysOnce(pub Value);

impl<'de> Deserialize<'de> for KeysOnce {
    fn deserialize<D: Deserializer<'de>>(parser: D) -> Result<Self, D::Error> {
        parser.deserialize_any(AnyValue).map(Self)
    }
}

/// Makes a value as serde_json does.
struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(KeysOnce(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            match object.entry(key) {
                Entry::Vacant(place) => {
                    let KeysOnce(value) = entries.next_value()?;
                    place.insert(value);
                }
                Entry::Occupied(known) => {
                    let key = OneLine(known.key());
                    return Err(A::Error::custom(format_args!("the key `{key}` is given twice")));
                }
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gives_each_key_once_is_read_as_by_serde_json() {
        for text in [
            r#"{"b": [1, -2, 0.1, 1e300, 18446744073709551615, "é\n", null, true], "a": {"b": {}, "c": []}}"#,
            "[]",
            "\"a\"",
            "-9223372036854775808",
        ] {
            let KeysOnce(found) = serde_json::from_str(text).unwrap();
            let expected: Value = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&found).unwrap(), serde_json::to_string(&expected).unwrap());
        }
        assert!(serde_json::from_str::<KeysOnce>("{\"a\": 1").unwrap_err().is_eof());
        let deep = "[".repeat(500) + &"]".repeat(500);
        assert!(serde_json::from_str::<KeysOnce>(&deep).unwrap_err().to_string().contains("recursion limit"));
    }

    #[test]
    fn a_key_that_is_given_twice_is_named_wherever_it_is() {
        for (text, key) in [
            (r#"{"a": 1, "b": 2, "a": 1}"#, "a"),
            (r#"{"list": [{"a": 1}, {"role": "x", "role": "y"}]}"#, "role"),
            (r#"{"a": {"": 0, "": 0}}"#, ""),
            (r#"{"a\n": 1, "\u0061\n": 2}"#, "a\\n"),
        ] {
            let error = serde_json::from_str::<KeysOnce>(text).unwrap_err();
            let words = format!("the key `{key}` is given twice at line 1 ");
            assert!(error.is_data() && error.to_string().starts_with(&words), "{error}");
        }
    }
}
