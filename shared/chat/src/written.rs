//! Values as Python writes them: floats, printed lists, and JSON.

use std::{fmt::Write, iter};

use minijinja::{
    Environment, Error, ErrorKind, Output, State, Value, escape_formatter, filters,
    value::{Kwargs, ValueKind},
};

/// Most spaces that JSON may be indented by.
const MOST_INDENT: usize = 64;

/// Registers the filter `tojson`, and makes printed floats those of Python.
pub fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", string);
    environment.set_formatter(|out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value| match printed(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => escape_formatter(out, state, value),
    });
}

fn string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    printed(value).map_or_else(|| filters::string(state, value), |text| Ok(text.into()))
}

/// A float as Python's `repr` writes it. Rust's digits and its bounds for exponents are the same.
fn repr_of_float(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_owned();
    }
    let text = format!("{float:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// A float, or a list or map with floats, where minijinja would write it otherwise than Python.
fn printed(value: &Value) -> Option<String> {
    if let Some(float) = as_float(value) {
        return Some(repr_of_float(float));
    }
    if !has_odd_float(value) {
        return None;
    }
    // An object that is more than its items is printed in a way of its own, and stays as it is.
    let is_plain = repr(value, &|float| format!("{float:?}")) == value.to_string();
    is_plain.then(|| repr(value, &repr_of_float))
}

/// The items of a list, or the values of a map. What can be gone through only once has none.
fn items(value: &Value) -> Vec<Value> {
    match value.kind() {
        ValueKind::Seq => value.try_iter().into_iter().flatten().collect(),
        ValueKind::Map => value.try_iter().into_iter().flatten().filter_map(|key| value.get_item(&key).ok()).collect(),
        _ => Vec::new(),
    }
}

fn has_odd_float(value: &Value) -> bool {
    let is_odd = |float: f64| repr_of_float(float) != format!("{float:?}");
    as_float(value).is_some_and(is_odd) || items(value).iter().any(has_odd_float)
}

/// A value as it stands in a printed list.
fn repr(value: &Value, of_float: &dyn Fn(f64) -> String) -> String {
    if let Some(float) = as_float(value) {
        return of_float(float);
    }
    let texts = items(value).into_iter().map(|item| repr(&item, of_float));
    match value.kind() {
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten().map(|key| repr(&key, of_float));
            let pairs: Vec<String> = keys.zip(texts).map(|(key, text)| format!("{key}: {text}")).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        ValueKind::Seq => {
            let list = texts.collect::<Vec<_>>().join(", ");
            match (value.is_tuple(), value.len()) {
                (true, Some(1)) => format!("({list},)"),
                (true, _) => format!("({list})"),
                (false, _) => format!("[{list}]"),
            }
        }
        _ => format!("{value:?}"),
    }
}

/// transformers' `tojson`: Python's `json.dumps(value, ensure_ascii=False)`, which escapes nothing for HTML.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let refuse = |reason: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {reason}"));
    let indent: Option<usize> = kwargs.get("indent")?;
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    let separators: Option<Value> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    if let Some(width) = indent.filter(|width| *width > MOST_INDENT) {
        return Err(refuse(format!("indent is {width}, and may be {MOST_INDENT}")));
    }
    let [between_items, behind_keys] = match separators.filter(|given| !given.is_none()) {
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
        Some(given) => {
            let texts: Option<Vec<String>> = given.try_iter()?.map(|text| text.as_str().map(str::to_owned)).collect();
            let two = texts.and_then(|texts| <[String; 2]>::try_from(texts).ok());
            two.ok_or_else(|| refuse("separators are two texts".to_owned()))?
        }
    };
    let ensure_ascii = ensure_ascii.unwrap_or(false);
    let json = Json { indent, ensure_ascii, sort_keys: sort_keys.unwrap_or(false), between_items, behind_keys };
    let mut text = String::new();
    json.write(value, 0, &mut text)?;
    Ok(Value::from_safe_string(text))
}

/// How JSON is written.
struct Json {
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
    between_items: String,
    behind_keys: String,
}

impl Json {
    fn write(&self, value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                self.write_items(['[', ']'], items, depth, text, |item, text| self.write(&item, depth + 1, text))
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items(['{', '}'], keys.into_iter(), depth, text, |key, text| {
                    let name = key.as_str().map(str::to_owned).or_else(|| scalar(&key));
                    let name = name.ok_or_else(|| bad(format!("a {} cannot be a key", key.kind())))?;
                    self.write_text(&name, text);
                    text.push_str(&self.behind_keys);
                    self.write(&value.get_item(&key)?, depth + 1, text)
                })
            }
            ValueKind::Invalid => Err(bad(value.to_string())),
            ValueKind::Undefined => {
                text.push_str("null");
                Ok(())
            }
            _ => {
                match scalar(value) {
                    Some(scalar) => text.push_str(&scalar),
                    None => self.write_text(&value.to_string(), text),
                }
                Ok(())
            }
        }
    }

    fn write_items(
        &self,
        [opening, closing]: [char; 2],
        items: impl Iterator<Item = Value>,
        depth: usize,
        text: &mut String,
        write: impl Fn(Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        text.push(opening);
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                text.push_str(&self.between_items);
            }
            is_empty = false;
            self.begin_line(depth + 1, text);
            write(item, text)?;
        }
        if !is_empty {
            self.begin_line(depth, text);
        }
        text.push(closing);
        Ok(())
    }

    /// Begins a line, if the JSON is in lines.
    fn begin_line(&self, depth: usize, text: &mut String) {
        if let Some(width) = self.indent {
            text.push('\n');
            text.extend(iter::repeat_n(' ', width * depth));
        }
    }

    fn write_text(&self, content: &str, text: &mut String) {
        text.push('"');
        for c in content.chars() {
            match c {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                c if c < ' ' || self.ensure_ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(text, "\\u{unit:04x}").expect("a text takes what is written");
                    }
                }
                c => text.push(c),
            }
        }
        text.push('"');
    }
}

/// None, a truth value or a number in JSON.
fn scalar(value: &Value) -> Option<String> {
    match (value.kind(), as_float(value)) {
        (ValueKind::None, _) => Some("null".to_owned()),
        (ValueKind::Bool, _) => Some(if value.is_true() { "true" } else { "false" }.to_owned()),
        (ValueKind::Number, None) => Some(value.to_string()),
        (ValueKind::Number, Some(float)) if float.is_nan() => Some("NaN".to_owned()),
        (ValueKind::Number, Some(float)) if float.is_infinite() => {
            Some(if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned())
        }
        (ValueKind::Number, Some(float)) => Some(repr_of_float(float)),
        _ => None,
    }
}

fn bad(reason: String) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("tojson: {reason}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};
    use time::OffsetDateTime;

    use crate::ChatTemplate;

    fn text(source: &str) -> String {
        let variables = json!({
            "x": [1e-5, 1e-7, 0.0001, 1e16, 1e20, 100_000.0, 1e22, 5.0, -0.0, 1.5, -2.5e-10, 5e-324, 0.1, 7],
            "d": {"a": 1e-5, "b": [2e16, "q", null, true]},
            "s": "é\u{1f600}\u{7f}\u{1}\n\"\\/\u{2028}<",
        });
        let template = ChatTemplate::new(source, Map::new(), OffsetDateTime::UNIX_EPOCH).unwrap();
        let rendered = template.render(&[], false, variables.as_object().unwrap());
        rendered.unwrap_or_else(|error| panic!("{source}: {error}"))
    }

    const NUMBERS: &str =
        "[1e-05, 1e-07, 0.0001, 1e+16, 1e+20, 100000.0, 1e+22, 5.0, -0.0, 1.5, -2.5e-10, 5e-324, 0.1, 7]";

    /// Results of jinja2 3.1 as transformers sets it up, and CPython 3.13.
    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let lines = format!("[\n {}\n]", NUMBERS[1..NUMBERS.len() - 1].replace(", ", ",\n "));
        let words = format!("{} ", NUMBERS[1..NUMBERS.len() - 1].replace(',', ""));
        for (source, expected) in [
            ("{{ x | tojson }}", NUMBERS),
            ("{{ x | tojson(indent=1) }}", lines.as_str()),
            ("{{ x }}", NUMBERS),
            ("{{ x | string }}", NUMBERS),
            ("{% for i in x %}{{ i }} {% endfor %}", words.as_str()),
            ("{% for i in x %}{{ i | string }} {% endfor %}", words.as_str()),
            ("{{ d }}", "{'a': 1e-05, 'b': [2e+16, 'q', None, True]}"),
            ("{{ (x[0],) }}{{ (x[0], 1) }}", "(1e-05,)(1e-05, 1)"),
            ("{{ x[0] + 1 }}{{ x[7] | int }}", "1.000015"),
        ] {
            assert_eq!(text(source), expected, "{source}");
        }
        let set = "{% set i = 'inf' | float %}{% set n = 'nan' | float %}";
        let found = text(&format!("{set}{{{{ [i, -i, n] | tojson }}}}{{{{ i }}}}{{{{ n }}}}{{{{ [n, i] }}}}"));
        assert_eq!(found, "[Infinity, -Infinity, NaN]infnan[nan, inf]");
    }

    /// As above.
    #[test]
    fn json_has_the_options_that_transformers_gives_it() {
        for (source, expected) in [
            ("{{ s | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83d\ude00\u007f\u0001\n\"\\/\u2028<""#),
            ("{{ s | tojson(ensure_ascii=true, indent=2) }}", r#""\u00e9\ud83d\ude00\u007f\u0001\n\"\\/\u2028<""#),
            ("{{ {'é': 1} | tojson(ensure_ascii=true) }}", r#"{"\u00e9": 1}"#),
            ("{{ s | tojson }}", "\"é\u{1f600}\u{7f}\\u0001\\n\\\"\\\\/\u{2028}<\""),
            ("{{ {'b': 1, 'a': {'d': 1, 'c': []}} | tojson(sort_keys=true) }}", r#"{"a": {"c": [], "d": 1}, "b": 1}"#),
            ("{{ {'b': 1, 'a': {'d': 1, 'c': []}} | tojson(separators=(',', ':')) }}", r#"{"b":1,"a":{"d":1,"c":[]}}"#),
            (
                "{{ {'b': [1, {}], 'a': 'q'} | tojson(separators=('; ', '=>'), indent=2) }}",
                "{\n  \"b\"=>[\n    1; \n    {}\n  ]; \n  \"a\"=>\"q\"\n}",
            ),
            ("{{ {1.5: 1, true: 3, 7: 5} | tojson }}", r#"{"1.5": 1, "true": 3, "7": 5}"#),
            ("{{ [[], {}] | tojson(indent=2) }}{{ [1, 2] | tojson(indent=0) }}", "[\n  [],\n  {}\n][\n1,\n2\n]"),
        ] {
            assert_eq!(text(source), expected, "{source}");
        }
        for (source, why) in [
            ("{{ [] | tojson(separators=(',',)) }}", "tojson: separators are two texts"),
            ("{{ {(1, 2): 3} | tojson }}", "tojson: a sequence cannot be a key"),
        ] {
            let template = ChatTemplate::new(source, Map::new(), OffsetDateTime::UNIX_EPOCH).unwrap();
            let error = template.render(&[], false, &Map::new()).unwrap_err().to_string();
            assert!(error.contains(why), "{source}: {error}");
        }
    }
}
