//! The metadata of a file, by keys.

use std::collections::BTreeMap;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number of any width that is not negative.
    Unsigned(u64),
    /// A whole number of a type with a sign.
    Signed(i64),
    /// A number with a point.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A text; bytes that are no UTF-8 are replaced.
    Text(String),
    /// Values of one type.
    List(Vec<Value>),
}

/// The metadata of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata(pub(super) BTreeMap<String, Value>);

impl Metadata {
    /// A value.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// A size.
    #[must_use]
    pub fn size(&self, key: &str) -> Option<usize> {
        match self.get(key)? {
            Value::Unsigned(n) => usize::try_from(*n).ok(),
            Value::Signed(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }

    /// A number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Float(n) => Some(*n),
            Value::Unsigned(n) => Some(*n as f64),
            Value::Signed(n) => Some(*n as f64),
            _ => None,
        }
    }

    /// A text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A list.
    #[must_use]
    pub fn list(&self, key: &str) -> Option<&[Value]> {
        match self.get(key)? {
            Value::List(list) => Some(list),
            _ => None,
        }
    }
}
