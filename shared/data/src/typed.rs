//! Columns whose type says more than their values show: JSON in texts, and texts in bytes.
//!
//! Arrow's writer of JSON writes the first as a text and the second in hexadecimal. [`Typed`] says where a column has
//! them, and turns the written value into the intended one.

use arrow_schema::{DataType, Field, Schema};
use parquet::{
    basic::{ConvertedType, LogicalType},
    schema::types::SchemaDescriptor,
};
use serde_json::{Map, Value};

use crate::json;

/// Arrow's key for the name of an extension type, and the name for JSON.
const EXTENSION: (&str, &str) = ("ARROW:extension:name", "arrow.json");
/// Metadata key under which Hugging Face's datasets keep their own types.
const FEATURES: &str = "huggingface";

/// The types that the values of a column, or of a part of it, have beyond their written form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Typed {
    /// Nothing else.
    Plain,
    /// A text.
    Text {
        /// In bytes, which are written in hexadecimal.
        bytes: Option<Bytes>,
        /// The text is JSON.
        json: bool,
    },
    /// A list of typed values.
    List(Box<Typed>),
    /// An object with any keys.
    Map(Box<Typed>),
    /// An object with these keys.
    Struct(Vec<(String, Typed)>),
}

/// How bytes hold a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bytes {
    /// All of them are the text.
    Text,
    /// Their number is fixed, and the last ones may be zeros, as NumPy pads texts.
    Padded,
}

/// Why a value is not what its type says.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its bytes are no UTF-8 text.
    NoText,
    /// Its text is no JSON; the parser's reason.
    NoJson(String),
}

impl Typed {
    /// The columns of a schema. `is_json` tells of the n-th leaf (columns without a type of their own, in the order of
    /// the schema) whether something other than the schema calls it JSON.
    pub fn columns(schema: &Schema, is_json: impl Fn(usize) -> bool) -> Vec<Self> {
        let mut leaves = 0;
        let mut leaf = || {
            leaves += 1;
            is_json(leaves - 1)
        };
        let mut columns: Vec<Self> = schema.fields().iter().map(|field| Self::of(field, &mut leaf)).collect();
        let features = schema.metadata().get(FEATURES).and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(features) = features.as_ref().map(|all| &all["info"]["features"]) {
            for (field, column) in schema.fields().iter().zip(&mut columns) {
                column.follow(&features[field.name()]);
            }
        }
        columns
    }

    fn of(field: &Field, leaf: &mut dyn FnMut() -> bool) -> Self {
        let is_json = field.metadata().get(EXTENSION.0).is_some_and(|name| name == EXTENSION.1);
        Self::of_type(field.data_type(), is_json, leaf)
    }

    fn of_type(data_type: &DataType, is_json: bool, leaf: &mut dyn FnMut() -> bool) -> Self {
        match data_type {
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::FixedSizeList(item, _) => Self::List(Self::of(item, leaf).into()),
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(fields) => {
                    let parts: Vec<Self> = fields.iter().map(|field| Self::of(field, leaf)).collect();
                    Self::Map(parts.into_iter().last().unwrap_or(Self::Plain).into())
                }
                _ => Self::Plain,
            },
            DataType::Struct(fields) => {
                Self::Struct(fields.iter().map(|field| (field.name().clone(), Self::of(field, leaf))).collect())
            }
            DataType::Dictionary(_, values) => Self::of_type(values, is_json, leaf),
            DataType::RunEndEncoded(_, values) => {
                Self::of_type(values.data_type(), is_json || Self::of(values, &mut || false).is_json(), leaf)
            }
            leaf_type => Self::of_leaf(leaf_type, leaf() || is_json),
        }
    }

    fn of_leaf(data_type: &DataType, json: bool) -> Self {
        match data_type {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text { bytes: None, json },
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                Self::Text { bytes: Some(Bytes::Text), json }
            }
            DataType::FixedSizeBinary(_) => Self::Text { bytes: Some(Bytes::Padded), json },
            _ => Self::Plain,
        }
    }

    fn is_json(&self) -> bool {
        matches!(self, Self::Text { json: true, .. })
    }

    /// Takes over what a feature of datasets says: a `Json` feature is JSON unless it is not to be decoded.
    fn follow(&mut self, feature: &Value) {
        let kind = feature["_type"].as_str();
        match self {
            Self::Text { json, .. } if kind == Some("Json") => *json = feature["decode"] != false,
            Self::List(item) => item.follow(&feature["feature"]),
            Self::Struct(parts) => parts.iter_mut().for_each(|(name, part)| part.follow(&feature[name.as_str()])),
            Self::Text { .. } | Self::Map(_) | Self::Plain => {}
        }
    }

    /// Whether written and intended values are the same, so that [`apply`](Self::apply) changes nothing.
    pub fn is_plain(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Text { bytes, json } => bytes.is_none() && !json,
            Self::List(item) | Self::Map(item) => item.is_plain(),
            Self::Struct(parts) => parts.iter().all(|(_, part)| part.is_plain()),
        }
    }

    /// Turns a written value into the intended one.
    ///
    /// # Errors
    /// The fault, and the path of the faulty part within the value.
    pub fn apply(&self, value: &mut Value) -> Result<(), (Fault, String)> {
        match (self, &mut *value) {
            (Self::Text { bytes, json }, Value::String(text)) => {
                if let Some(bytes) = bytes {
                    *text = bytes.text(text).ok_or((Fault::NoText, String::new()))?;
                }
                if *json {
                    let parsed = json::parse(text.as_bytes());
                    *value = parsed.map_err(|error| (Fault::NoJson(error.to_string()), String::new()))?;
                }
                Ok(())
            }
            (Self::List(item), Value::Array(items)) => items.iter_mut().try_for_each(|value| item.apply(value)),
            (Self::Map(item), Value::Object(entries)) => entries.values_mut().try_for_each(|value| item.apply(value)),
            (Self::Struct(parts), Value::Object(entries)) => apply_parts(parts, entries),
            _ => Ok(()),
        }
    }
}

fn apply_parts(parts: &[(String, Typed)], entries: &mut Map<String, Value>) -> Result<(), (Fault, String)> {
    for (name, part) in parts.iter().filter(|(_, part)| !part.is_plain()) {
        let Some(value) = entries.get_mut(name) else { continue };
        part.apply(value).map_err(|(fault, within)| (fault, format!(".{name}{within}")))?;
    }
    Ok(())
}

impl Bytes {
    /// The text of bytes that are written in hexadecimal; nothing where they are no UTF-8.
    fn text(self, hexadecimal: &str) -> Option<String> {
        let digits = hexadecimal.as_bytes().chunks(2);
        let byte = |two: &[u8]| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok();
        let mut text = String::from_utf8(digits.map(byte).collect::<Option<_>>()?).ok()?;
        if self == Self::Padded {
            text.truncate(text.trim_end_matches('\0').len());
        }
        Some(text)
    }
}

/// Leaves of a Parquet file that the file's own types call JSON; writers other than Arrow's set these types as well.
pub fn json_leaves(schema: &SchemaDescriptor) -> Vec<bool> {
    let is_json = |column: &parquet::schema::types::ColumnDescPtr| {
        column.logical_type_ref() == Some(&LogicalType::Json) || column.converted_type() == ConvertedType::JSON
    };
    schema.columns().iter().map(is_json).collect()
}
