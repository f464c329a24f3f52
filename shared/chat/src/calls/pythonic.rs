//! Calls in the form of Python: `[NAME(KEY=VALUE, …), …]`.
//!
//! The template of LFM2.5 writes texts between single quotation marks and escapes nothing, lists and objects as JSON,
//! and all else as Python prints it. Models write double quotation marks too. A quotation mark ends a text where an
//! argument can end, so that an apostrophe does not.

use serde_json::{Map, Value};

use super::{Call, body::Found};

/// Reads a block of calls. None if a block that has its end is anything else.
pub(super) fn read(block: &str, closed: bool) -> Option<Found<'_>> {
    let mut found = Found { calls: Vec::new(), whole: closed, rest: block };
    let mut reader = Reader { without_end: Vec::new() };
    let mut opening = '[';
    while let Some((name, behind)) = call_begins(found.rest, opening) {
        let (arguments, behind, whole) = reader.arguments(behind);
        found.whole &= whole && reader.without_end.is_empty();
        found.calls.push(Call::new(name, arguments.into()));
        (found.rest, opening) = (behind, ',');
    }
    match (closed, found.rest.trim()) {
        (true, "]") if !found.calls.is_empty() => found.rest = "",
        (true, _) => return None,
        (false, _) => {}
    }
    Some(found)
}

/// The name of a call behind a bracket or a comma, and the text behind its parenthesis.
fn call_begins(text: &str, opening: char) -> Option<(&str, &str)> {
    let text = text.trim_start().strip_prefix(opening)?.trim_start();
    let length = text.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.')))?;
    let behind = text[length..].strip_prefix('(')?;
    (length > 0).then_some((&text[..length], behind))
}

/// The bytes of a text between double quotation marks, with both; none without the second.
pub(super) fn end_of_text(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return Some(at + 1),
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

struct Reader {
    /// Marks of values that had no end. None of the same marks behind them is looked at: each might take the whole rest
    /// of the text.
    without_end: Vec<u8>,
}

impl Reader {
    /// The arguments of a call, the text behind its parenthesis, and whether that and all arguments are there.
    fn arguments<'a>(&mut self, text: &'a str) -> (Map<String, Value>, &'a str, bool) {
        let (mut arguments, mut rest, mut whole) = (Map::new(), text.trim_start(), true);
        loop {
            if let Some(behind) = rest.strip_prefix(')') {
                return (arguments, behind.trim_start(), whole);
            }
            let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let (key, behind) = rest.split_at(length);
            let behind = match behind.strip_prefix('=').filter(|_| length > 0) {
                Some(value) => {
                    let (value, behind) = self.value(value);
                    arguments.insert(key.to_owned(), value);
                    behind
                }
                // No argument by name.
                None => {
                    whole = false;
                    bare(rest).1
                }
            };
            let behind = behind.trim_start();
            match behind.strip_prefix(',') {
                Some(behind) => rest = behind.trim_start(),
                None if behind.starts_with(')') => rest = behind,
                // The end of the text, or what is no argument.
                None => return (arguments, if behind.is_empty() { "" } else { bare(behind).1 }, false),
            }
        }
    }

    /// The value of an argument, and the text behind it.
    fn value<'a>(&mut self, text: &'a str) -> (Value, &'a str) {
        let mark = text.as_bytes().first().copied().unwrap_or_default();
        let end_of: Option<fn(&str) -> Option<usize>> = match mark {
            b'\'' => Some(end_of_quoted),
            b'"' => Some(end_of_text),
            b'[' | b'{' => Some(end_of_brackets),
            _ => None,
        };
        let end = end_of.filter(|_| !self.without_end.contains(&mark)).and_then(|end_of| end_of(text));
        let Some(end) = end else {
            if end_of.is_some() && !self.without_end.contains(&mark) {
                self.without_end.push(mark);
            }
            let (word, behind) = bare(text);
            return (literal(word.trim()), behind);
        };
        let (value, behind) = text.split_at(end);
        let value = match value.as_bytes()[0] {
            b'\'' => value[1..end - 1].into(),
            b'"' => serde_json::from_str(value).unwrap_or_else(|_| value.into()),
            _ => serde_json::from_str(&to_json(value)).unwrap_or_else(|_| value.into()),
        };
        (value, behind)
    }
}

/// The text up to where an argument ends that is between no marks.
fn bare(text: &str) -> (&str, &str) {
    text.split_at(text.find([',', ')']).unwrap_or(text.len()))
}

/// A number or a word of JSON or Python; all else is a text.
fn literal(word: &str) -> Value {
    match word {
        "True" => true.into(),
        "False" => false.into(),
        "None" => Value::Null,
        _ => serde_json::from_str(word).unwrap_or_else(|_| word.into()),
    }
}

/// The bytes of a text between single quotation marks, with both.
fn end_of_quoted(text: &str) -> Option<usize> {
    let ends = |at: usize| {
        let behind = text[at + 1..].trim_start_matches(' ');
        behind.is_empty() || behind.starts_with([',', ')'])
    };
    let mut marks = text.match_indices('\'').map(|(at, _)| at).skip(1);
    marks.find(|&at| ends(at)).map(|at| at + 1)
}

/// The bytes of a list or an object, with its brackets.
fn end_of_brackets(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        at += match text.as_bytes()[at] {
            b'"' => end_of_text(&text[at..])?,
            b'\'' => text[at + 1..].find('\'')? + 2,
            b'[' | b'{' => {
                depth += 1;
                1
            }
            b']' | b'}' => {
                depth -= 1;
                1
            }
            _ => 1,
        };
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// JSON of a list or an object in which texts may stand between single quotation marks, and with the words of Python.
fn to_json(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => end_of_text(rest).unwrap_or(rest.len()),
            '\'' => rest[1..].find('\'').map_or(rest.len(), |at| at + 2),
            c if c.is_alphabetic() => rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (word, behind) = rest.split_at(length);
        match word {
            "True" => json.push_str("true"),
            "False" => json.push_str("false"),
            "None" => json.push_str("null"),
            _ if first == '\'' && length > 1 => json.push_str(&Value::from(&word[1..length - 1]).to_string()),
            _ => json.push_str(word),
        }
        rest = behind;
    }
    json
}
