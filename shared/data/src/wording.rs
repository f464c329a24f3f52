//! Words for the refusals of foreign parsers, with the way out.

use serde_json::Value;

use crate::Values;

/// Words outside of texts, with the places where they begin.
pub fn bare_words(text: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(&byte) = text.get(at) {
            if byte == b'"' {
                at = end_of_text(text, at);
                continue;
            }
            let length = text[at..].iter().take_while(|&&byte| is_of_a_word(byte)).count();
            if length > 0 {
                let start = at;
                at += length;
                return str::from_utf8(&text[start..at]).ok().map(|word| (start, word));
            }
            at += 1;
        }
        None
    })
}

fn is_of_a_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_')
}

/// The place behind a text that begins with a quotation mark.
fn end_of_text(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = text.get(at) {
        at += 1 + usize::from(byte == b'\\');
        if byte == b'"' {
            break;
        }
    }
    at.min(text.len())
}

/// The fault of a text that is no JSON; `place` is where the parser stopped.
pub fn of_json(text: &[u8], error: &serde_json::Error, place: &str) -> String {
    let Ok(words) = str::from_utf8(text) else {
        return format!("is no UTF-8 text; save the file as UTF-8 ({place})");
    };
    let said = error.to_string();
    let said = said.rsplit_once(" at line ").map_or(&*said, |(said, _)| said);
    if error.is_data() {
        // It is JSON, and says something twice.
        return format!("{said} ({place})");
    }
    if said.starts_with("number out of range") {
        return format!("holds a number beyond those of 64 bits ({place}); write it as a text");
    }
    match foreign_word(text, error) {
        Some((word, place)) if is_not_finite(word) => format!(
            "holds {word} ({place}), which JSON does not have (Python's json.dumps writes it); write `null` or a text \
             in its place"
        ),
        Some((word, place)) => {
            format!("holds {word} ({place}), which is Python's; write rows with `json.dumps(row)`")
        }
        None if words.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '[' | '{')).starts_with('\'') => {
            format!("is a dict as Python prints it, not JSON; write rows with `json.dumps(row)` ({place})")
        }
        None => format!("is not valid JSON: {said} ({place})"),
    }
}

fn is_not_finite(word: &str) -> bool {
    matches!(word.trim_start_matches(['-', '+']).to_ascii_lowercase().as_str(), "nan" | "infinity" | "inf")
}

/// The word of another language at which the parser stopped, and its place.
fn foreign_word<'a>(text: &'a [u8], error: &serde_json::Error) -> Option<(&'a str, String)> {
    let line_start = text.split(|&byte| byte == b'\n').take(error.line() - 1).map(|line| line.len() + 1).sum::<usize>();
    let stopped = line_start + error.column();
    let covers = |&(start, word): &(usize, &str)| start < stopped && stopped <= start + word.len() + 1;
    let (start, word) = bare_words(text).take_while(|&(start, _)| start < stopped).find(covers)?;
    if !is_not_finite(word) && !matches!(word, "None" | "True" | "False" | "undefined") {
        return None;
    }
    let column = start - line_start + 1;
    let is_one_line = !text.trim_ascii_end().contains(&b'\n');
    let place =
        if is_one_line { format!("column {column}") } else { format!("line {}, column {column}", error.line()) };
    Some((word, place))
}

/// Whether an object is not one row but holds all rows: a table of pandas in one of the forms of `to_json`, columns as
/// lists, or a list of rows under a name.
pub fn holds_everything(object: &Values) -> bool {
    let values = || object.values();
    let by_index = |value: &Value| value.as_object().is_some_and(|cells| cells.contains_key("0"));
    let is_row =
        |row: &Values| ["prompt", "question", "messages", "conversations"].iter().any(|key| row.contains_key(*key));
    let first_of =
        |value: &Value| value.as_array().and_then(|items| items.first()).and_then(Value::as_object).is_some_and(is_row);
    let has_rows = !is_row(object) && values().any(first_of);
    let is_split = ["columns", "index", "data"].iter().all(|key| object.contains_key(*key));
    let from_index = object.get("0").is_some_and(Value::is_object) && values().all(Value::is_object);
    !object.is_empty() && (values().all(by_index) || from_index || is_split || has_rows || are_columns(object))
}

/// Whether all values are lists of one length, and one is a list of texts: the columns of a table. Messages and token
/// ids are lists that belong to one row.
fn are_columns(object: &Values) -> bool {
    let mut lists = object.values().map(|value| value.as_array().filter(|items| !items.is_empty()));
    let length = object.values().next().and_then(Value::as_array).map(Vec::len);
    let is_message = |item: &Value| item.get("role").or(item.get("from")).is_some();
    let alike =
        lists.all(|items| items.is_some_and(|items| Some(items.len()) == length && !items.iter().any(is_message)));
    let texts = |value: &Value| value.as_array().is_some_and(|items| items.iter().all(Value::is_string));
    alike && !object.contains_key("prompt_ids") && object.values().any(texts)
}
