//! The types that an option may have.

use std::path::PathBuf;

use toml::{Table, Value};

use super::{
    Bounds, JsonTable, Paths,
    choice::{ChoiceSpec, words},
};

/// The type of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// True or false.
    Flag,
    /// A whole number, not negative.
    Whole,
    /// A number.
    Number,
    /// A text.
    Text,
    /// A path: in a file, relative to the file's folder.
    Path,
    /// One path, or a list of them.
    Paths,
    /// One of these words.
    Choice(&'static [ChoiceSpec]),
    /// Any number of texts.
    Texts,
    /// Any number of numbers.
    Numbers,
    /// Values by their names.
    Table,
    /// A text, or texts by their names.
    TextOrTable,
}

impl ValueKind {
    /// In words: `whole number`.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Whole => "whole number",
            Self::Number => "number",
            Self::Text => "text",
            Self::Path => "path",
            Self::Paths => "path or list of paths",
            Self::Choice(_) => "one of the values below",
            Self::Texts => "list of texts",
            Self::Numbers => "list of numbers",
            Self::Table => "table",
            Self::TextOrTable => "text or table of texts",
        }
    }

    /// The message for a value of another type.
    pub(crate) fn wanted(self) -> String {
        match self {
            Self::Flag => self.words().to_owned(),
            Self::Choice(values) => format!("one of {}", words(values)),
            Self::Whole => "a whole number of at least 0".to_owned(),
            Self::Table => "a table, as in { name = value }, or the JSON of an object".to_owned(),
            kind => format!("a {}", kind.words()),
        }
    }

    /// Turns a word of the command line into the value that a file would have: a TOML value without quotes around
    /// texts. A list is separated by commas, or written as in TOML. Words that are no such value stay texts.
    pub(crate) fn parse(self, text: &str) -> Value {
        let in_words = || Value::String(text.to_owned());
        let as_toml = |text: &str| format!("v = {text}").parse::<Table>().ok()?.remove("v");
        match self {
            Self::Flag => as_toml(&text.to_ascii_lowercase()).unwrap_or_else(in_words),
            Self::Whole | Self::Number => as_toml(text).unwrap_or_else(in_words),
            Self::Text | Self::Path | Self::Choice(_) => in_words(),
            // A JSON object stays a text, which the option reads; a text that is no JSON may be a table in TOML's
            // notation.
            Self::Table | Self::TextOrTable if text.parse::<JsonTable>().is_ok() => in_words(),
            Self::TextOrTable if !text.trim_start().starts_with('{') => in_words(),
            Self::Table | Self::TextOrTable => as_toml(text).unwrap_or_else(in_words),
            Self::Texts | Self::Paths | Self::Numbers if text.trim_start().starts_with('[') => {
                as_toml(text).unwrap_or_else(in_words)
            }
            Self::Texts | Self::Paths | Self::Numbers => {
                let item = if self == Self::Numbers { Self::Number } else { Self::Text };
                let items = text.split(',').map(str::trim).filter(|text| !text.is_empty());
                Value::Array(items.map(|text| item.parse(text)).collect())
            }
        }
    }
}

/// A type that an option may have.
pub trait OptionValue {
    /// The type of the value.
    const KIND: ValueKind;
    /// The largest number of the type, for whole numbers. TOML has none above those of 64 bits with a sign.
    const MOST: Option<i64> = None;

    /// What the first number in it that is outside a range must be, and the number.
    fn outside(&self, _bounds: &Bounds) -> Option<String> {
        None
    }

    /// Whether it is an empty text or path, or a list with one. An option that is absent is not empty.
    fn has_empty_text(&self) -> bool {
        false
    }

    /// The paths in it.
    fn paths_mut(&mut self) -> &mut [PathBuf] {
        &mut []
    }
}

impl OptionValue for bool {
    const KIND: ValueKind = ValueKind::Flag;
}

macro_rules! numbers {
    ($($type:ty: $kind:ident up to $most:expr),+) => { $(
        impl OptionValue for $type {
            const KIND: ValueKind = ValueKind::$kind;
            const MOST: Option<i64> = $most;

            fn outside(&self, bounds: &Bounds) -> Option<String> {
                let number = *self as f64;
                (!bounds.contain(number)).then(|| format!("must be {}, got {self}", bounds.instead_of(number)))
            }
        }
    )+ };
}
numbers!(
    u32: Whole up to Some(u32::MAX as i64),
    u64: Whole up to Some(i64::MAX),
    usize: Whole up to Some(i64::MAX),
    f32: Number up to None,
    f64: Number up to None
);

impl OptionValue for String {
    const KIND: ValueKind = ValueKind::Text;

    fn has_empty_text(&self) -> bool {
        self.is_empty()
    }
}

impl OptionValue for PathBuf {
    const KIND: ValueKind = ValueKind::Path;

    fn has_empty_text(&self) -> bool {
        self.as_os_str().is_empty()
    }

    fn paths_mut(&mut self) -> &mut [PathBuf] {
        std::slice::from_mut(self)
    }
}

impl OptionValue for Paths {
    const KIND: ValueKind = ValueKind::Paths;

    fn has_empty_text(&self) -> bool {
        self.iter().any(PathBuf::has_empty_text)
    }

    fn paths_mut(&mut self) -> &mut [PathBuf] {
        self
    }
}

impl OptionValue for JsonTable {
    const KIND: ValueKind = ValueKind::Table;
}

impl<T: OptionValue> OptionValue for Option<T> {
    const KIND: ValueKind = T::KIND;
    const MOST: Option<i64> = T::MOST;

    fn outside(&self, bounds: &Bounds) -> Option<String> {
        self.as_ref()?.outside(bounds)
    }

    fn has_empty_text(&self) -> bool {
        self.as_ref().is_some_and(T::has_empty_text)
    }

    fn paths_mut(&mut self) -> &mut [PathBuf] {
        self.as_mut().map_or(&mut [], T::paths_mut)
    }
}

impl<T: OptionValue> OptionValue for Vec<T> {
    const KIND: ValueKind = match T::KIND {
        ValueKind::Text => ValueKind::Texts,
        _ => ValueKind::Numbers,
    };

    fn outside(&self, bounds: &Bounds) -> Option<String> {
        self.iter().find_map(|item| item.outside(bounds))
    }

    fn has_empty_text(&self) -> bool {
        self.iter().any(T::has_empty_text)
    }
}
