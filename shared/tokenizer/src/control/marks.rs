//! Marks in texts that a template will render, by which a place is found again in what it writes.

use std::collections::HashSet;

use serde_json::Value;

/// Characters that serve as marks: rare ideographs. They are letters without case, and printable, so templates pass
/// them on as they are, also within JSON and printed lists.
const MARKS: std::ops::RangeInclusive<char> = '\u{20000}'..='\u{2a6df}';

/// Five characters that no text of a rendering has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Before a control token in a text.
    pub(super) open: char,
    /// Behind it.
    pub(super) close: char,
    /// At an end of a text that a control token could begin or end with.
    pub(super) seam: char,
    /// For callers: a message of one of these characters is found again in the rendered text.
    pub places: [char; 2],
}

impl Marks {
    /// Marks for a rendering of these messages, tools and variables. `is_taken` knows the characters of the template.
    /// None if every possible mark is taken.
    #[must_use]
    pub fn unused_in<'a>(values: impl IntoIterator<Item = &'a Value>, is_taken: impl Fn(char) -> bool) -> Option<Self> {
        let mut used = HashSet::new();
        values.into_iter().for_each(|value| collect(value, &mut used));
        let mut free = MARKS.rev().filter(|mark| !used.contains(mark) && !is_taken(*mark));
        let mut next = || free.next();
        Some(Self { open: next()?, close: next()?, seam: next()?, places: [next()?, next()?] })
    }

    /// A text without its marks.
    #[must_use]
    pub fn removed_from(&self, text: &str) -> String {
        text.chars().filter(|&c| !self.is_mark(c)).collect()
    }

    /// A text whose marks are characters again, where a template has written them as escapes of JSON
    /// (`tojson(ensure_ascii=true)`).
    #[must_use]
    pub fn unescaped_in(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let [first, second] = self.places;
        for mark in [self.open, self.close, self.seam, first, second] {
            let escape: String = mark.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
            text = text.replace(&escape, mark.encode_utf8(&mut [0; 4]));
        }
        text
    }

    /// Whether a character is a mark of a control token or of a seam.
    pub(super) fn is_mark(&self, c: char) -> bool {
        [self.open, self.close, self.seam].contains(&c)
    }

    /// Whether the part of a text from `start` to `end` is marked as a control token in a text from elsewhere.
    #[must_use]
    pub fn surround(&self, text: &str, start: usize, end: usize) -> bool {
        text[..start].ends_with(self.open) && text[end..].starts_with(self.close)
    }
}

/// The characters among [`MARKS`] that a value has.
fn collect(value: &Value, used: &mut HashSet<char>) {
    let mut of_text = |text: &str| used.extend(text.chars().filter(|c| MARKS.contains(c)));
    match value {
        Value::String(text) => of_text(text),
        Value::Array(items) => items.iter().for_each(|item| collect(item, used)),
        Value::Object(keys) => {
            keys.keys().for_each(|key| of_text(key));
            keys.values().for_each(|value| collect(value, used));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
