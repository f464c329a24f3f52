//! The inside of a call to its name and arguments.

use serde_json::{Map, Value};

use super::{Call, Format, pythonic, schema::Tools};

/// What is within the marks of a call.
#[derive(Debug)]
pub(super) struct Found<'a> {
    /// One call, or all of a block.
    pub calls: Vec<Call>,
    /// Whether nothing is missing.
    pub whole: bool,
    /// Text in a block that is no call.
    pub rest: &'a str,
}

/// Reads the inside of a call. None if it cannot be read.
pub(super) fn read<'a>(
    format: Format,
    name: Option<&str>,
    body: &'a str,
    closed: bool,
    tools: &Tools,
) -> Option<Found<'a>> {
    let one = |name: &str, arguments: Value, whole: bool| {
        let call = Call::new(name, if arguments.is_null() { no_arguments() } else { arguments });
        Found { calls: vec![call], whole: whole && closed, rest: "" }
    };
    let mut found = match (format, name) {
        (Format::Lfm25, _) => pythonic::read(body, closed)?,
        (Format::Qwen, _) => {
            let mut call: Map<String, Value> = serde_json::from_str(body).ok()?;
            let arguments = match call.shift_remove("arguments") {
                // Llama's key: its values are meant, and a call without any would run.
                None if call.contains_key("parameters") => return None,
                arguments => arguments.unwrap_or_default(),
            };
            let name = call.shift_remove("name")?;
            let mut found = one(name.as_str()?, arguments, true);
            found.calls[0].more = call;
            found
        }
        (Format::Llama31 | Format::GptOss, Some(name)) => one(name, serde_json::from_str(body).ok()?, true),
        (Format::Gemma4, Some(name)) => one(name, serde_json::from_str(&from_gemma(body)).ok()?, true),
        (Format::Qwen35 | Format::Nemotron3, Some(name)) => {
            let (arguments, whole) = between_tags(body);
            one(name, arguments, whole)
        }
        (Format::Glm4Moe, Some(name)) => {
            let (arguments, whole) = of_pairs(body);
            one(name, arguments, whole)
        }
        (_, None) => return None,
    };
    found.calls.iter_mut().for_each(|call| tools.type_arguments(&call.name, &mut call.arguments));
    Some(found)
}

fn no_arguments() -> Value {
    Value::Object(Map::new())
}

/// `<parameter=KEY>VALUE</parameter>`: arguments, and whether each of them has its end. Values are texts without the
/// spaces around them.
fn between_tags(body: &str) -> (Value, bool) {
    const END: &str = "</parameter>";
    let (mut arguments, mut rest) = (Map::new(), body);
    while let Some((_, behind)) = rest.split_once("<parameter=") {
        let Some(end) = behind.find(['>', '\n']) else { return (arguments.into(), false) };
        let (key, value) = behind.split_at(end);
        if key.is_empty() || value.starts_with('\n') {
            // A broken key: neither it nor one that begins within it can be read.
            return (arguments.into(), false);
        }
        let Some((value, behind)) = value[1..].split_once(END) else { return (arguments.into(), false) };
        arguments.insert(key.to_owned(), value.trim().into());
        rest = behind;
    }
    (arguments.into(), true)
}

/// `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`: as [`between_tags`].
fn of_pairs(body: &str) -> (Value, bool) {
    let (mut arguments, mut rest) = (Map::new(), body);
    while let Some((_, behind)) = rest.split_once("<arg_key>") {
        let pair = || {
            let (key, behind) = behind.split_once("</arg_key>")?;
            let (value, behind) = behind.trim_start().strip_prefix("<arg_value>")?.split_once("</arg_value>")?;
            Some((key, value, behind))
        };
        let Some((key, value, behind)) = pair() else { return (arguments.into(), false) };
        arguments.insert(key.to_owned(), value.trim().into());
        rest = behind;
    }
    (arguments.into(), true)
}

/// JSON of an object whose keys have no quotation marks and whose texts stand between `<|"|>`.
fn from_gemma(body: &str) -> String {
    const QUOTE: &str = "<|\"|>";
    let mut json = String::with_capacity(body.len() + body.len() / 8);
    let mut rest = body;
    let mut may_be_key = false;
    while let Some(first) = rest.chars().next() {
        if let Some((text, behind)) = rest.strip_prefix(QUOTE).and_then(|rest| rest.split_once(QUOTE)) {
            json.push_str(&Value::from(text).to_string());
            rest = behind;
        } else if first == '"' {
            let end = pythonic::end_of_text(rest).unwrap_or(rest.len());
            json.push_str(&rest[..end]);
            rest = &rest[end..];
        } else {
            let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(length.max(first.len_utf8()));
            if may_be_key && length > 0 && behind.starts_with(':') {
                json.extend(["\"", word, "\""]);
            } else {
                json.push_str(word);
            }
            rest = behind;
        }
        may_be_key = matches!(first, '{' | ',') || may_be_key && first.is_whitespace();
    }
    json
}
