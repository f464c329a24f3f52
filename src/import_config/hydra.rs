//! Values of Hydra's overrides: lists and mappings in Hydra's grammar, which is not YAML's. `{a:b}` needs no blank
//! there.

use serde_json::{Map, Value};

use super::read;

/// Most lists and mappings within each other.
const DEEPEST: usize = 32;

/// The value of an override: lists and mappings as in Hydra, the rest as in YAML.
pub fn value(text: &str) -> Value {
    let plain = || Value::String(text.to_owned());
    if text.trim_start().starts_with(['{', '[']) {
        let mut reader = Reader { text, at: 0 };
        let found = reader.value(0);
        reader.blanks();
        if let Some(value) = found.filter(|_| reader.rest().is_empty()) {
            return value;
        }
        return serde_saphyr::from_str(text).unwrap_or_else(|_| plain());
    }
    match serde_saphyr::from_str(text) {
        Ok(Value::Object(_) | Value::Array(_)) | Err(_) => plain(),
        Ok(value) => value,
    }
}

/// A text, and the position up to which it was read.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn take(&mut self, sign: char) -> bool {
        self.blanks();
        let found = self.rest().starts_with(sign);
        self.at += if found { sign.len_utf8() } else { 0 };
        found
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.blanks();
        match self.rest().chars().next()? {
            _ if depth > DEEPEST => None,
            '{' => self.mapping(depth).map(Value::Object),
            '[' => self.list(depth).map(Value::Array),
            '\'' | '"' => self.quoted().map(Value::String),
            _ => self.plain(&[',', ']', '}']).map(|text| read::scalar(&text)),
        }
    }

    fn mapping(&mut self, depth: usize) -> Option<Map<String, Value>> {
        let mut map = Map::new();
        self.take('{');
        if self.take('}') {
            return Some(map);
        }
        loop {
            self.blanks();
            let key = match self.rest().chars().next()? {
                '\'' | '"' => self.quoted()?,
                _ => self.plain(&[':', ',', '}'])?,
            };
            if !self.take(':') {
                return None;
            }
            map.insert(key, self.value(depth + 1)?);
            if self.take('}') {
                return Some(map);
            }
            if !self.take(',') {
                return None;
            }
        }
    }

    fn list(&mut self, depth: usize) -> Option<Vec<Value>> {
        let mut list = Vec::new();
        self.take('[');
        if self.take(']') {
            return Some(list);
        }
        loop {
            list.push(self.value(depth + 1)?);
            if self.take(']') {
                return Some(list);
            }
            if !self.take(',') {
                return None;
            }
        }
    }

    fn quoted(&mut self) -> Option<String> {
        let quote = self.rest().chars().next()?;
        self.at += quote.len_utf8();
        let mut out = String::new();
        let mut escaped = false;
        for (index, letter) in self.rest().char_indices() {
            match letter {
                // A backslash escapes a quote; before other letters it stands for itself.
                _ if escaped => {
                    if letter != quote && letter != '\\' {
                        out.push('\\');
                    }
                    out.push(letter);
                    escaped = false;
                }
                '\\' => escaped = true,
                letter if letter == quote => {
                    self.at += index + quote.len_utf8();
                    return Some(out);
                }
                letter => out.push(letter),
            }
        }
        None
    }

    /// A text without quotes, up to one of these characters outside of `${…}`; none if it is empty.
    fn plain(&mut self, ends: &[char]) -> Option<String> {
        let (mut inside, mut dollar, mut length) = (0_usize, false, self.rest().len());
        for (index, letter) in self.rest().char_indices() {
            match letter {
                '{' if dollar => inside += 1,
                '}' if inside > 0 => inside -= 1,
                letter if inside == 0 && ends.contains(&letter) => {
                    length = index;
                    break;
                }
                _ => {}
            }
            dollar = letter == '$';
        }
        let text = self.rest()[..length].trim().to_owned();
        self.at += length;
        Some(text).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_mappings_are_read_as_hydra_reads_them() {
        for (text, expected) in [
            ("{enable_thinking:False}", json!({ "enable_thinking": false })),
            ("{enable_thinking: False, n:3,x : 'a, b'}", json!({ "enable_thinking": false, "n": 3, "x": "a, b" })),
            ("{a:{b:1e-6},c:[1,two]}", json!({ "a": { "b": 1e-6 }, "c": [1, "two"] })),
            ("['a b.parquet',/m/x:y]", json!(["a b.parquet", "/m/x:y"])),
            ("[\"console\",\"wandb\"]", json!(["console", "wandb"])),
            ("{path:${a.b},q:\"it\\\"s\"}", json!({ "path": "${a.b}", "q": "it\"s" })),
            ("{}", json!({})),
            ("[]", json!([])),
            ("0.5", json!(0.5)),
            ("null", json!(null)),
            ("True", json!(true)),
            ("a: b", json!("a: b")),
            ("'s t'", json!("s t")),
            ("{not closed", json!("{not closed")),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
        assert!(value(&"[".repeat(100)).is_string());
    }
}
