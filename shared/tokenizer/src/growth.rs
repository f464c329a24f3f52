//! Bound on the characters that the steps of a normaliser or decoder make of one.
//!
//! The steps are examined from the last to the first. Behind the last one, every character counts 1. Before a
//! replacement, the first character of its pattern counts as much as the whole content counts behind it, if that is
//! more: each match has a first character of its own. So forty doublings of a letter are found, and forty spelled-out
//! abbreviations are not mistaken for them.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

/// Most characters that a normaliser or decoder may make of one. Unicode's normal forms alone make up to eighteen.
pub const MOST_GROWTH: f64 = 10_000.0;

/// The parts of a `tokenizer.json` that change texts.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    decoder: Value,
}

/// Refuses a `tokenizer.json` whose normaliser or decoder lets texts explode.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let Parts { normalizer, decoder } = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    for (part, list, value) in [("normalizer", "normalizers", normalizer), ("decoder", "decoders", decoder)] {
        let mut growth = Growth { any: 1.0, of: HashMap::new() };
        growth.before(&value, list, part == "normalizer");
        if growth.most() > MOST_GROWTH {
            let most = growth.most();
            return Err(format!(
                "its `{part}` can make {most} characters of one, which is refused above {MOST_GROWTH}"
            ));
        }
    }
    Ok(())
}

/// Most characters that the steps behind some place make of one character.
struct Growth {
    /// For any character that is not in `of`.
    any: f64,
    of: HashMap<char, f64>,
}

impl Growth {
    fn most(&self) -> f64 {
        self.of.values().copied().fold(self.any, f64::max)
    }

    fn character(&self, c: char) -> f64 {
        self.of.get(&c).copied().unwrap_or(self.any)
    }

    fn text(&self, text: &str) -> f64 {
        text.chars().map(|c| self.character(c)).sum()
    }

    /// Goes back over one step, or over all steps of a sequence.
    fn before(&mut self, step: &Value, list: &str, normalises: bool) {
        if let Some(steps) = step.get(list).and_then(Value::as_array) {
            steps.iter().rev().for_each(|step| self.before(step, list, normalises));
            return;
        }
        match step.get("type").and_then(Value::as_str).unwrap_or_default() {
            "Replace" => self.before_replacement(step),
            "Lowercase" | "BertNormalizer" if normalises => self.before_any(3.0),
            "ByteLevel" if normalises => self.before_any(4.0),
            "NFC" | "NFD" | "NFKC" | "NFKD" | "Nmt" | "Precompiled" if normalises => self.before_any(18.0),
            _ => {}
        }
    }

    /// A step that may make `times` characters of any.
    fn before_any(&mut self, times: f64) {
        *self = Self { any: times * self.most(), of: HashMap::new() };
    }

    fn before_replacement(&mut self, step: &Value) {
        let content = self.text(step.get("content").and_then(Value::as_str).unwrap_or_default());
        let pattern = step.get("pattern").unwrap_or(&Value::Null);
        match pattern.get("String").and_then(Value::as_str).map(|text| text.chars().next()) {
            Some(Some(first)) => {
                let growth = self.character(first).max(content);
                self.of.insert(first, growth);
            }
            // Between any two characters.
            Some(None) => self.before_all(|growth| growth + content),
            None if matches_nothing(pattern) => self.before_all(|growth| growth.max(content) + content),
            None => self.before_all(|growth| growth.max(content)),
        }
    }

    fn before_all(&mut self, grown: impl Fn(f64) -> f64) {
        self.any = grown(self.any);
        self.of.values_mut().for_each(|growth| *growth = grown(*growth));
    }
}

/// Whether a regular expression may match where there is no character. One with look-around counts as if it did.
fn matches_nothing(pattern: &Value) -> bool {
    let regex = pattern.get("Regex").and_then(Value::as_str).unwrap_or_default();
    regex_syntax::parse(regex).ok().and_then(|hir| hir.properties().minimum_len()).is_none_or(|length| length == 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn growth(steps: &[Value]) -> f64 {
        let mut growth = Growth { any: 1.0, of: HashMap::new() };
        growth.before(&json!({"type": "Sequence", "normalizers": steps}), "normalizers", true);
        growth.most()
    }

    fn replace(pattern: Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    #[test]
    fn only_what_is_replaced_again_multiplies() {
        let text = |from: &str, to| replace(json!({"String": from}), to);
        let regex = |from: &str, to| replace(json!({"Regex": from}), to);
        let abbreviations: Vec<Value> = ('a'..='z').map(|c| text(&c.to_string(), "WRITTEN OUT")).collect();
        assert_eq!(growth(&abbreviations), 11.0);
        assert_eq!(growth(&[text("a", "bb"), text("b", "cc"), text("c", "dd")]), 8.0);
        assert_eq!(growth(&[text("c", "dd"), text("b", "cc"), text("a", "bb")]), 2.0);
        assert_eq!(growth(&[text("``", "\""), json!({"type": "NFKD"}), json!({"type": "Lowercase"})]), 54.0);
        assert_eq!(growth(&vec![regex(r"\s+", " "); 20]), 1.0);
        assert_eq!(growth(&vec![regex("[a-z]", "xyz"); 3]), 27.0);
        for empty in [json!({"String": ""}), json!({"Regex": "a*"}), json!({"Regex": "(?=a)"})] {
            assert!(growth(&vec![replace(empty.clone(), "a"); 20]) > MOST_GROWTH, "{empty}");
        }
    }
}
