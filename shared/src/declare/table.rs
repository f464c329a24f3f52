//! A table of values of any kind.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value};
use shared_bounds::KeysOnce;

/// Values by their names: a table in a file, a JSON object on the command line. It is written as the text of that JSON
/// with its names in order, since TOML has no `null`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JsonTable(Map<String, Value>);

impl JsonTable {
    /// The values.
    #[must_use]
    pub fn values(&self) -> &Map<String, Value> {
        &self.0
    }
}

impl From<Map<String, Value>> for JsonTable {
    fn from(values: Map<String, Value>) -> Self {
        Self(values)
    }
}

/// Reads a JSON object.
impl FromStr for JsonTable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match serde_json::from_str(text) {
            Ok(KeysOnce(Value::Object(values))) => Ok(Self(values)),
            Ok(_) => Err(format!("must be the JSON of an object, as in {{\"enable_thinking\": false}}, got {text}")),
            Err(error) => Err(format!("must be the JSON of an object, as in {{\"enable_thinking\": false}}: {error}")),
        }
    }
}

impl fmt::Display for JsonTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sorted: BTreeMap<&String, &Value> = self.0.iter().collect();
        f.write_str(&serde_json::to_string(&sorted).expect("values of JSON with texts as names"))
    }
}

impl Serialize for JsonTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JsonTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Table(Map<String, Value>),
            Json(String),
        }
        match Given::deserialize(deserializer)? {
            Given::Table(values) => Ok(Self(values)),
            Given::Json(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_is_written_as_json_and_read_from_both() {
        let table: JsonTable = serde_json::from_value(json!({"b": null, "a": [1, {"z": "é", "y": 0.5}]})).unwrap();
        let written = serde_json::to_value(&table).unwrap();
        assert_eq!(written, r#"{"a":[1,{"z":"é","y":0.5}],"b":null}"#);
        assert_eq!(serde_json::from_value::<JsonTable>(written).unwrap(), table);
        for bad in [json!("[1]"), json!("no"), json!(3), json!(["a"])] {
            assert!(serde_json::from_value::<JsonTable>(bad.clone()).is_err(), "{bad}");
        }
        let twice = r#"{"a": 1, "a": 2}"#.parse::<JsonTable>().unwrap_err();
        assert!(twice.contains("the key `a` is given twice"), "{twice}");
    }
}
