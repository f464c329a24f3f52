//! The content of messages: a text, or a list of parts.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::TemplateError;

/// Kinds of parts that are text, as OpenAI's and vLLM's interfaces call them.
const TEXT: [&str; 4] = ["text", "input_text", "output_text", "refusal"];

/// The text of a message's content: as it is, or its parts joined with line breaks as in vLLM (`"\n".join(texts)`).
/// None if a part is no text, or if there is no content.
#[must_use]
pub fn text_of(content: &Value) -> Option<Cow<'_, str>> {
    match content {
        Value::String(text) => Some(text.into()),
        Value::Array(parts) => {
            let texts: Option<Vec<&str>> = parts.iter().map(part).collect();
            Some(texts?.join("\n").into())
        }
        _ => None,
    }
}

/// The text of a part.
fn part(part: &Value) -> Option<&str> {
    let kind = &part["type"];
    let is_text = kind.is_null() || kind.as_str().is_some_and(|kind| TEXT.contains(&kind));
    part.as_str().or_else(|| part["text"].as_str().or_else(|| part["refusal"].as_str()).filter(|_| is_text))
}

/// Whether a message has its content in parts: texts, or objects. A tool may also return a list of numbers, which has
/// no parts.
pub fn has_parts(message: &Value) -> bool {
    let is_part = |part: &Value| part.is_string() || part.is_object();
    message["content"].as_array().is_some_and(|parts| parts.iter().all(is_part))
}

/// The messages with every part as templates for parts expect it.
///
/// # Errors
/// A part that is no text: the model takes text alone.
pub fn in_parts(messages: &[Value]) -> Result<Vec<Value>, TemplateError> {
    with_content(messages, |parts| Ok(parts.iter().map(|text| json!({"type": "text", "text": text})).collect()))
}

/// The messages, with the parts of each one joined to a text.
///
/// # Errors
/// As [`in_parts`].
pub fn in_texts(messages: &[Value]) -> Result<Vec<Value>, TemplateError> {
    with_content(messages, |parts| Ok(parts.join("\n").into()))
}

fn with_content(
    messages: &[Value],
    make: impl Fn(&[&str]) -> Result<Value, TemplateError>,
) -> Result<Vec<Value>, TemplateError> {
    let changed = |(index, message): (usize, &Value)| {
        let Some(parts) = message["content"].as_array().filter(|_| has_parts(message)) else {
            return Ok(message.clone());
        };
        let texts = parts.iter().map(|found| {
            part(found).ok_or_else(|| {
                let kind =
                    found["type"].as_str().map_or_else(|| "without a text".to_owned(), |kind| format!("`{kind}`"));
                TemplateError::Part { index, kind }
            })
        });
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let mut message = message.clone();
        message["content"] = make(&texts)?;
        Ok(message)
    };
    messages.iter().enumerate().map(changed).collect()
}

/// Whether a template has gone through the parts of messages: their texts stand in its output one behind the other, and
/// not as a printed list.
pub fn went_through(messages: &[Value], rendered: &str) -> bool {
    let parts = || messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let texts = || parts().filter_map(|part| part["text"].as_str());
    let mut rest = rendered;
    for text in texts() {
        let Some((_, behind)) = rest.split_once(text.trim()) else { return false };
        rest = behind;
    }
    let keys = ["'type': ", "\"type\": ", "\"type\":"];
    !keys.iter().any(|key| rendered.contains(key) && !texts().any(|text| text.contains(key)))
}

/// The last message whose words are not in a rendered prompt. Messages of the assistant do not count: templates leave
/// out its reasoning. Only letters and digits are compared, without their case, since templates strip, indent and
/// escape.
pub(crate) fn lost(messages: &[Value], rendered: &str) -> Option<usize> {
    let whole = words(rendered);
    let is_lost = |message: &Value| {
        if message["role"] == "assistant" {
            return false;
        }
        let content = &message["content"];
        let text = text_of(content).unwrap_or_else(|| content.to_string().into());
        !content.is_null() && !is_in(&text, rendered, &whole)
    };
    messages.iter().rposition(is_lost)
}

fn is_in(text: &str, rendered: &str, whole: &str) -> bool {
    let found = words(text);
    if found.is_empty() {
        return rendered.contains(text.trim());
    }
    // In JSON, line breaks and quotation marks are escaped.
    whole.contains(&found) || whole.contains(&words(&Value::from(text).to_string()))
}

/// Letters and digits, in small letters.
fn words(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_text_make_a_text_and_others_none() {
        let text = |content: Value| text_of(&content).map(Cow::into_owned);
        assert_eq!(text(json!("a")).as_deref(), Some("a"));
        let parts = json!([{"type": "text", "text": "a"}, "b", {"text": "c"}, {"type": "input_text", "text": "d"}]);
        assert_eq!(text(parts).as_deref(), Some("a\nb\nc\nd"));
        for other in [json!([{"type": "image"}]), json!([{"type": "image_url", "text": "a"}]), json!([3]), json!(null)]
        {
            assert_eq!(text(other.clone()), None, "{other}");
        }
    }

    #[test]
    fn words_are_looked_for_as_templates_write_them() {
        let of =
            |role: &str, content: Value, rendered: &str| lost(&[json!({"role": role, "content": content})], rendered);
        for (content, rendered) in [
            (json!(" What is\n2+3? "), "<user>What is 2 + 3?</user>"),
            (json!("Say \"hi\"\nthen"), r#"{"content": "Say \"hi\"\nthen"}"#),
            (json!("shout"), "[SHOUT]"),
            (json!("?!"), "[?!]"),
            (json!(""), "[]"),
            (json!([{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]), "a bc"),
            (json!(null), ""),
            (json!({"a": 1}), "{\"a\": 1}"),
            (json!([1, 2]), "[1, 2]"),
        ] {
            assert_eq!(of("user", content.clone(), rendered), None, "{content}");
        }
        for (content, rendered) in [
            (json!("What is 2+3?"), "[user] \n[assistant]"),
            (json!("2+3?"), "Today is 26 July 2034"),
            (json!("?!"), "[]"),
            (json!([{"type": "image"}]), "[user]"),
            (json!({"a": 1}), "[user]"),
        ] {
            assert_eq!(of("human", content.clone(), rendered), Some(0), "{content}");
        }
        assert_eq!(of("assistant", json!("gone"), ""), None);
    }
}
