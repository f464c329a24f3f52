//! JSON schemas within a grammar in Lark (`%json { … }`).
//!
//! The library's own lexer is not public. So a grammar is walked through here, past everything that only looks like a
//! schema: texts, expressions, special tokens, comments, and JSON that belongs to other words. A grammar that is none
//! may be walked through wrongly; the library refuses it.

use serde_json::{Deserializer, Value};
use shared_bounds::KeysOnce;

/// The word before a schema.
const SCHEMA: &str = "%json";
/// Words before other JSON.
const OTHERS: [&str; 2] = ["%regex", "%llguidance"];

/// All schemas of a grammar, in its order, also those of grammars within it (`%lark { … }`).
///
/// # Errors
/// A schema that is no JSON, or that gives a key twice. On one line.
pub fn schemas(grammar: &str) -> Result<Vec<Value>, String> {
    let (bytes, mut schemas, mut at) = (grammar.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += match rest {
            [b'#', ..] | [b'/', b'/', ..] => until(rest, b'\n'),
            [b'<', ..] => until(rest, b'>'),
            [mark @ (b'"' | b'/'), ..] => quoted(rest, *mark),
            _ if rest.starts_with(SCHEMA.as_bytes()) => {
                let (schema, length) = json(&rest[SCHEMA.len()..]).map_err(|error| format!("`{SCHEMA}`: {error}"))?;
                schemas.push(schema);
                SCHEMA.len() + length
            }
            _ => match OTHERS.iter().find(|word| rest.starts_with(word.as_bytes())) {
                Some(word) => word.len() + json(&rest[word.len()..]).map_or(0, |(_, length)| length),
                None => 1,
            },
        };
    }
    Ok(schemas)
}

/// The length of a text up to and including a byte.
fn until(text: &[u8], end: u8) -> usize {
    text.iter().position(|&byte| byte == end).map_or(text.len(), |at| at + 1)
}

/// The length of a text in marks, at the first of which it begins.
fn quoted(text: &[u8], mark: u8) -> usize {
    let mut at = 1;
    while let Some(&byte) = text.get(at) {
        at += if byte == b'\\' { 2 } else { 1 };
        if byte == mark {
            return at;
        }
    }
    text.len()
}

/// The value of JSON with which a text begins, and its length.
fn json(text: &[u8]) -> Result<(Value, usize), String> {
    let mut values = Deserializer::from_slice(text).into_iter::<KeysOnce>();
    match values.next() {
        Some(Ok(KeysOnce(value))) => Ok((value, values.byte_offset())),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("no schema comes behind it".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_are_found_wherever_they_stand_and_nothing_else_is() {
        let [one, two] = [json!({ "type": "integer", "title": "%json {\"a\": 1} /" }), json!({ "enum": ["}", "<"] })];
        for (grammar, expected) in [
            (format!("start: %json {one}"), vec![&one]),
            (format!("start: \"a\\\"\" a \"b\"\na: %json\n{one} | %json{two} /c/"), vec![&one, &two]),
            (format!("start: %lark {{ start: %json {two} }}"), vec![&two]),
            (format!("start: <tool_call> a </tool_call>\na: %json {one}"), vec![&one]),
            (format!("start: /[\"]\\/\"/ %json {one} /é\\\\/ // \"\n# /\na: %json {two}"), vec![&one, &two]),
            (format!("%llguidance {{ \"x\": \"%json {{}}\" }}\nstart: %json {two}"), vec![&two]),
            (format!("start: %regex {{ \"a\": \"/\" }} %json {two}"), vec![&two]),
            ("start: \"%json {\\\"a\\\": 1}\" /%json {}/ <%json{}> // %json {}\n# %json {}".into(), vec![]),
            ("start: %json true | \"a\"".into(), vec![&Value::Bool(true)]),
            (String::new(), vec![]),
        ] {
            let found = schemas(&grammar).unwrap();
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{grammar}");
        }
    }

    #[test]
    fn what_is_no_schema_is_refused_in_one_line() {
        for (grammar, words) in [
            ("start: %json", "`%json`: no schema comes behind it"),
            ("start: %json { \"a\": }", "`%json`: expected value"),
            ("start: %json {\n\"maximum\": 5, \"maximum\": 6}", "`%json`: the key `maximum` is given twice"),
            ("start: \"a\" %json {", "`%json`: EOF"),
        ] {
            let error = schemas(grammar).unwrap_err();
            assert!(error.starts_with(words) && !error.contains('\n'), "{grammar}: {error}");
        }
        for odd in ["\"", "\"\\", "/\\", "<", "%", "%jso", "%regex", "%llguidance {", "//", "é\"é\\é"] {
            assert_eq!(schemas(odd), Ok(Vec::new()), "{odd}");
        }
    }
}
