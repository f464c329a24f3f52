//! The record of a step or of an evaluation.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Family, Key, STEP};
use crate::files::journal::Entry;

/// The values of declared metrics, in the order in which they were set.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct MetricRecord {
    values: Map<String, Value>,
}

impl MetricRecord {
    /// Sets a number. A value that is not finite is stored as `null`, since JSON cannot express it.
    pub fn set(&mut self, metric: impl Into<Key>, value: f64) -> &mut Self {
        self.insert(metric.into(), serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    /// Sets a whole number.
    pub fn count(&mut self, metric: impl Into<Key>, value: u64) -> &mut Self {
        self.insert(metric.into(), value.into())
    }

    fn insert(&mut self, key: Key, value: Value) -> &mut Self {
        self.values.insert(key.as_str().to_owned(), value);
        self
    }

    /// The value of a metric; none if it is missing or was not finite.
    #[must_use]
    pub fn get(&self, metric: impl Into<Key>) -> Option<f64> {
        self.values.get(metric.into().as_str()).and_then(Value::as_f64)
    }

    /// Names and values of a family, in the order of the record.
    pub fn family(&self, family: &'static Family) -> impl Iterator<Item = (&str, Option<f64>)> {
        self.values.iter().filter_map(|(key, value)| Some((family.metric().name_in(key)?, value.as_f64())))
    }

    /// All keys and values, for output.
    #[must_use]
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// The record on a line of the file; none if the line is torn or no JSON object.
    #[must_use]
    pub fn from_line(line: &[u8]) -> Option<Self> {
        match serde_json::from_slice(line) {
            Ok(Value::Object(values)) => Some(Self { values }),
            _ => None,
        }
    }

    pub(super) fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(&self.values).expect("a map of numbers is valid JSON");
        line.push(b'\n');
        line
    }

    /// Adds every entry of another record.
    pub fn extend(&mut self, other: Self) {
        self.values.extend(other.values);
    }
}

impl Entry for MetricRecord {
    fn step(&self) -> Option<u64> {
        self.get(STEP).filter(|step| *step >= 0.0).map(|step| step as u64)
    }
}
