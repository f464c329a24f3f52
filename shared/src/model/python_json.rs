//! JSON as Python's `json` writes it: with `Infinity`, `-Infinity` and `NaN`, which JSON does not have.

use serde_json::{Value, json};

/// The words, longer ones first.
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Reads a text. The three words become objects as transformers 5 writes them, `{"__float__": "Infinity"}`.
///
/// # Errors
/// A text that is no JSON in any other way.
pub(crate) fn from_str(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).or_else(|error| {
        let replaced = replaced(text);
        // The place in an error is that of the text as it stands.
        serde_json::from_str(&replaced).map_err(|_| error)
    })
}

/// The text with objects in the place of the words outside of strings.
fn replaced(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut in_string) = (text, false);
    while let Some(c) = rest.chars().next() {
        let word = WORDS.iter().find(|word| !in_string && rest.starts_with(**word));
        if let Some(word) = word {
            out += &json!({"__float__": word}).to_string();
            rest = &rest[word.len()..];
            continue;
        }
        let escaped = if in_string && c == '\\' { rest[1..].chars().next() } else { None };
        let taken = c.len_utf8() + escaped.map_or(0, char::len_utf8);
        in_string ^= c == '"';
        out += &rest[..taken];
        rest = &rest[taken..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_of_strings_are_objects() {
        let text = r#"{"a": [-Infinity, NaN, 1], "b": "Infinity \" NaN", "c": Infinity}"#;
        let float = |word: &str| json!({"__float__": word});
        let found = from_str(text).unwrap();
        assert_eq!(
            found,
            json!({"a": [float("-Infinity"), float("NaN"), 1], "b": "Infinity \" NaN", "c": float("Infinity")})
        );
        assert_eq!(from_str("{\"a\": nan}").unwrap_err().to_string(), "expected ident at line 1 column 8");
    }
}
