//! The types that an option may have.

use std::path::PathBuf;

use toml::{Table, Value};

use super::{
    Bounds,
    choice::{ChoiceSpec, words},
};

/// What the value of an option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
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
    /// One of these words.
    Choice(&'static [ChoiceSpec]),
    /// Any number of texts.
    Texts,
    /// Any number of numbers.
    Numbers,
}

impl Kind {
    /// In words: `whole number`.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Whole => "whole number",
            Self::Number => "number",
            Self::Text => "text",
            Self::Path => "path",
            Self::Choice(_) => "one of the values below",
            Self::Texts => "list of texts",
            Self::Numbers => "list of numbers",
        }
    }

    /// What is said to somebody who gave something else.
    pub(super) fn wanted(self) -> String {
        match self {
            Self::Flag => self.words().to_owned(),
            Self::Choice(values) => format!("one of {}", words(values)),
            Self::Whole => "a whole number of at least 0".to_owned(),
            kind => format!("a {}", kind.words()),
        }
    }
}

/// A value on its way into an option.
#[derive(Debug, Clone, Copy)]
pub enum Given<'a> {
    /// From a file.
    Toml(&'a Value),
    /// From the command line.
    Text(&'a str),
}

/// A type that an option may have.
pub trait OptionValue: Sized {
    /// What a value is.
    const KIND: Kind;

    /// The value of a file, if it is of this type.
    fn from_toml(value: &Value) -> Option<Self>;

    /// A word of the command line: a TOML value without quotes around texts.
    fn from_text(text: &str) -> Option<Self> {
        Self::from_toml(&literal(text)?)
    }

    /// The first number in it outside a range.
    fn outside(&self, _bounds: &Bounds) -> Option<String> {
        None
    }

    /// The path in it.
    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        None
    }
}

/// A text as a TOML value.
fn literal(text: &str) -> Option<Value> {
    format!("v = {text}").parse::<Table>().ok()?.remove("v")
}

impl OptionValue for bool {
    const KIND: Kind = Kind::Flag;

    fn from_toml(value: &Value) -> Option<Self> {
        value.as_bool()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.to_ascii_lowercase().parse().ok()
    }
}

macro_rules! whole_numbers {
    ($($type:ty),+) => { $(
        impl OptionValue for $type {
            const KIND: Kind = Kind::Whole;

            fn from_toml(value: &Value) -> Option<Self> {
                value.as_integer()?.try_into().ok()
            }

            fn outside(&self, bounds: &Bounds) -> Option<String> {
                (!bounds.contain(*self as f64)).then(|| self.to_string())
            }
        }
    )+ };
}
whole_numbers!(u32, u64, usize);

impl OptionValue for f64 {
    const KIND: Kind = Kind::Number;

    fn from_toml(value: &Value) -> Option<Self> {
        value.as_float().or_else(|| value.as_integer().map(|whole| whole as Self))
    }

    fn outside(&self, bounds: &Bounds) -> Option<String> {
        (!bounds.contain(*self)).then(|| self.to_string())
    }
}

impl OptionValue for f32 {
    const KIND: Kind = Kind::Number;

    fn from_toml(value: &Value) -> Option<Self> {
        f64::from_toml(value).map(|number| number as Self)
    }

    fn outside(&self, bounds: &Bounds) -> Option<String> {
        (!bounds.contain(f64::from(*self))).then(|| self.to_string())
    }
}

impl OptionValue for String {
    const KIND: Kind = Kind::Text;

    fn from_toml(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl OptionValue for PathBuf {
    const KIND: Kind = Kind::Path;

    fn from_toml(value: &Value) -> Option<Self> {
        value.as_str().map(Self::from)
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(text.into())
    }

    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        Some(self)
    }
}

/// Absent values are written `none`.
impl<T: OptionValue> OptionValue for Option<T> {
    const KIND: Kind = T::KIND;

    fn from_toml(value: &Value) -> Option<Self> {
        if value.as_str() == Some("none") { Some(None) } else { T::from_toml(value).map(Some) }
    }

    fn from_text(text: &str) -> Option<Self> {
        if text == "none" { Some(None) } else { T::from_text(text).map(Some) }
    }

    fn outside(&self, bounds: &Bounds) -> Option<String> {
        self.as_ref()?.outside(bounds)
    }

    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        self.as_mut()?.path_mut()
    }
}

/// On the command line a list is separated by commas, or written as in TOML.
impl<T: OptionValue> OptionValue for Vec<T> {
    const KIND: Kind = match T::KIND {
        Kind::Text => Kind::Texts,
        _ => Kind::Numbers,
    };

    fn from_toml(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(T::from_toml).collect()
    }

    fn from_text(text: &str) -> Option<Self> {
        if text.trim_start().starts_with('[') {
            return Self::from_toml(&literal(text)?);
        }
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(T::from_text).collect()
    }

    fn outside(&self, bounds: &Bounds) -> Option<String> {
        self.iter().find_map(|item| item.outside(bounds))
    }
}
