//! Replies in TRL's words, which are those of Python.

use shared_chat::turn::Reply;

/// The reply of a call that went well.
pub fn said(name: &str, text: String) -> Reply {
    Reply { name: name.to_owned(), content: text.into(), failed: false }
}

/// The reply of a call that failed: `str({"error": reason})` in Python.
pub fn refused(name: &str, reason: &str) -> Reply {
    Reply { name: name.to_owned(), content: format!("{{'error': {}}}", repr(reason)).into(), failed: true }
}

/// The reply to a call of a tool that is not there.
pub fn unknown(name: &str) -> Reply {
    refused(name, &format!("Tool {name} not found."))
}

/// A text as Python's `repr` writes it.
fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut written = String::with_capacity(text.len() + 2);
    written.push(quote);
    for c in text.chars() {
        match c {
            '\\' => written.push_str(r"\\"),
            '\n' => written.push_str(r"\n"),
            '\r' => written.push_str(r"\r"),
            '\t' => written.push_str(r"\t"),
            c if c == quote => written.extend(['\\', quote]),
            c if is_printable(c) => written.push(c),
            c => {
                written.push_str(&match u32::from(c) {
                    code @ ..=0xff => format!(r"\x{code:02x}"),
                    code @ ..=0xffff => format!(r"\u{code:04x}"),
                    code => format!(r"\U{code:08x}"),
                });
            }
        }
    }
    written.push(quote);
    written
}

/// Rust and Python hold the same categories of Unicode for not printable. At the beginning of a text, Rust escapes
/// accents too.
fn is_printable(c: char) -> bool {
    ['a', c].iter().collect::<String>().escape_debug().count() == 2 || matches!(c, '\'' | '"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_as_python_writes_them() {
        for (text, written) in [
            ("plain", "'plain'"),
            ("it's", r#""it's""#),
            (r#"it's "so""#, r#"'it\'s "so"'"#),
            (r#"a "b""#, r#"'a "b"'"#),
            ("a\\b\n\r\t\0\u{7f}", r"'a\\b\n\r\t\x00\x7f'"),
            ("\u{a0}\u{ad}é東🏔️e\u{301}", "'\\xa0\\xadé東🏔️e\u{301}'"),
            ("\u{200b}\u{2028}\u{e000}\u{e0001}", r"'\u200b\u2028\ue000\U000e0001'"),
        ] {
            assert_eq!(repr(text), written);
        }
    }

    #[test]
    fn a_call_of_no_tool_is_answered_as_trl_answers_it() {
        let reply = unknown("multiply");
        assert_eq!(reply.content, "{'error': 'Tool multiply not found.'}");
        assert!(reply.failed && reply.name == "multiply");
    }
}
