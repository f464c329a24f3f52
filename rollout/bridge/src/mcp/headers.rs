//! Arguments that a call over HTTP has in headers too, so that what stands before a server need not read its body. A
//! tool marks them by `x-mcp-header` in the schema of its input (revision 2026-07-28, "Custom Headers from Tool
//! Parameters").

use serde_json::Value;

/// The mark in a schema. Its value is the end of the header's name.
const MARK: &str = "x-mcp-header";

/// What the name of such a header begins with.
const PREFIX: &str = "mcp-param-";

/// Types of arguments that may have a header.
const TYPES: [&str; 3] = ["boolean", "integer", "string"];

/// Keys of a schema below which no schema stands.
const NO_SCHEMAS: [&str; 4] = ["const", "default", "enum", "examples"];

/// Whole numbers up to here are the same for every reader of JSON.
const LARGEST_WHOLE: f64 = 9_007_199_254_740_991.0;

/// An argument that has a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// The header's name.
    pub header: String,
    /// Where the value stands among the arguments: a name for each object on the way.
    path: Vec<String>,
}

impl Mirrored {
    /// The arguments that the schema of a tool's input marks.
    ///
    /// # Errors
    /// A mark that the revision does not allow; the tool must not be used then.
    pub fn of(schema: &Value) -> Result<Vec<Self>, String> {
        let mut found = Vec::new();
        look_through(schema, &mut Vec::new(), &mut found)?;
        Ok(found)
    }

    /// Its value among the arguments of a call; none where the call leaves it out.
    #[must_use]
    pub fn value(&self, arguments: &Value) -> Option<String> {
        match self.path.iter().try_fold(arguments, |inner, name| inner.get(name))? {
            Value::String(text) => Some(text.clone()),
            Value::Bool(truth) => Some(truth.to_string()),
            Value::Number(number) => {
                let whole = number.as_f64().filter(|value| value.fract() == 0.0 && value.abs() <= LARGEST_WHOLE);
                Some(whole.map_or_else(|| number.to_string(), |value| format!("{value:.0}")))
            }
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

fn look_through(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Mirrored>) -> Result<(), String> {
    for (key, value) in schema.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            (MARK, mark) => {
                let header = header(mark, schema, path)?;
                if found.iter().any(|other| other.header == header) {
                    return Err(format!("`{MARK}` {mark} marks two arguments"));
                }
                found.push(Mirrored { header, path: path.clone() });
            }
            ("properties", Value::Object(properties)) => {
                for (name, inner) in properties {
                    path.push(name.clone());
                    look_through(inner, path, found)?;
                    path.pop();
                }
            }
            (key, inner) if !NO_SCHEMAS.contains(&key) && has_mark(inner) => {
                return Err(format!("`{MARK}` stands below `{key}`, where a value has no place of its own"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The name of the header for a mark of a schema.
fn header(mark: &Value, schema: &Value, path: &[String]) -> Result<String, String> {
    let is_letter = |letter: u8| letter.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&letter);
    let name = mark.as_str().filter(|name| !name.is_empty() && name.bytes().all(is_letter));
    let name = name.ok_or_else(|| format!("`{MARK}` {mark} cannot be part of the name of a header"))?;
    if path.is_empty() || !is_plain(&schema["type"]) {
        return Err(format!("`{MARK}` {mark} marks what is no text, whole number or truth value"));
    }
    Ok(format!("{PREFIX}{}", name.to_ascii_lowercase()))
}

/// Whether a type is one of [`TYPES`], or one of them or null.
fn is_plain(of_schema: &Value) -> bool {
    let is_one = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    match of_schema {
        Value::Array(several) => several.iter().any(is_one) && several.iter().all(|one| is_one(one) || one == "null"),
        one => is_one(one),
    }
}

fn has_mark(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, inner)| {
            key == MARK && inner.is_string() || !NO_SCHEMAS.contains(&key.as_str()) && has_mark(inner)
        }),
        Value::Array(items) => items.iter().any(has_mark),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn property(schema: Value) -> Value {
        json!({"type": "object", "properties": {"a": schema}})
    }

    #[test]
    fn marked_arguments_are_found_where_they_stand_and_read_as_texts() {
        let region = json!({"type": "string", "x-mcp-header": "Region"});
        let count = json!({"type": ["integer", "null"], "x-mcp-header": "Count"});
        let inner = json!({"type": "object", "properties": {"count": count}});
        let schema = json!({"properties": {"region": region, "in": inner, "x-mcp-header": {"type": "string"}},
            "default": {"x-mcp-header": "Region"}});
        let found = Mirrored::of(&schema).unwrap();
        let read = |arguments: Value| {
            let values = found.iter().map(|one| one.value(&arguments)).collect::<Vec<_>>();
            (values[0].clone(), values[1].clone())
        };
        let headers: Vec<&str> = found.iter().map(|one| one.header.as_str()).collect();
        assert_eq!(headers, ["mcp-param-region", "mcp-param-count"]);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(read(json!({"region": " é", "in": {"count": -7}})), (text(" é"), text("-7")));
        assert_eq!(read(json!({"region": true, "in": {"count": 42.0}})), (text("true"), text("42")));
        assert_eq!(read(json!({"region": "", "in": {"count": 0.5}})), (text(""), text("0.5")));
        assert_eq!(read(json!({"region": null, "in": 3})), (None, None));
        assert_eq!(read(json!({"region": ["a"]})), (None, None));
        assert_eq!(Mirrored::of(&json!({"type": "object"})), Ok(Vec::new()));
    }

    #[test]
    fn marks_that_the_revision_does_not_allow_are_refused() {
        let text = |name: &str| json!({"type": "string", "x-mcp-header": name});
        for (schema, words) in [
            (property(text("")), "cannot be part of the name"),
            (property(text("a b")), "cannot be part of the name"),
            (property(text("a\r\nb")), "cannot be part of the name"),
            (property(json!({"type": "string", "x-mcp-header": 5})), "cannot be part of the name"),
            (property(json!({"type": "number", "x-mcp-header": "a"})), "no text, whole number or truth value"),
            (property(json!({"type": ["null"], "x-mcp-header": "a"})), "no text, whole number or truth value"),
            (property(json!({"x-mcp-header": "a"})), "no text, whole number or truth value"),
            (text("a"), "no text, whole number or truth value"),
            (property(json!({"type": "array", "items": text("a")})), "stands below `items`"),
            (property(json!({"anyOf": [text("a"), {"type": "null"}]})), "stands below `anyOf`"),
            (json!({"$defs": {"A": text("a")}}), "stands below `$defs`"),
            (json!({"properties": {"a": text("A"), "b": text("a")}}), "marks two arguments"),
        ] {
            let reason = Mirrored::of(&schema).unwrap_err();
            assert!(reason.contains(words), "{schema}: {reason}");
        }
    }
}
