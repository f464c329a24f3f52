//! The right answers of a row, as datasets write them: a text, a number, a truth value, or a list of alternatives.

use serde_json::{Map, Value};

use crate::written;

/// Columns with the right answer, as GSM8K and TRL name them.
pub(crate) const ANSWER_COLUMNS: &[&str] = &["answer", "solution"];

/// Keys under which mappings usually hold the answer. A message proposes the first that does.
const KEYS: [&str; 5] = ["target", "answer", "value", "ground_truth", "solution"];

/// The answers that count as right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// The right answers, at least one. An answer is right if it matches any of them.
    pub any_of: Vec<String>,
    /// Whether they are spellings of one truth value. Then an answer is wrong if it surely is not one of them.
    pub truth: bool,
}

impl Answers {
    /// The answers in the value of a column. `None` for a mapping, an empty list, an empty text and null. A text may
    /// hold a list or a mapping.
    #[must_use]
    pub fn of(value: &Value) -> Option<Self> {
        let one = |text: String| Some(Self { any_of: vec![text], truth: false });
        match value {
            Value::String(text) if text.trim().is_empty() => None,
            Value::String(text) => match written::list(text) {
                Some(mut any_of) => {
                    any_of.retain(|answer| !answer.trim().is_empty());
                    (!any_of.is_empty()).then_some(Self { any_of, truth: false })
                }
                None if written::first_key(text).is_some() => None,
                None => one(text.clone()),
            },
            Value::Number(number) => one(digits(number)),
            Value::Bool(truth) => {
                let spellings = if *truth { ["True", "true", "Yes", "yes"] } else { ["False", "false", "No", "no"] };
                Some(Self { any_of: spellings.map(str::to_owned).to_vec(), truth: true })
            }
            Value::Array(items) => {
                let found: Vec<Self> = items.iter().filter_map(Self::of).collect();
                let truth = !found.is_empty() && found.iter().all(|answers| answers.truth);
                let any_of: Vec<String> = found.into_iter().flat_map(|answers| answers.any_of).collect();
                (!any_of.is_empty()).then_some(Self { any_of, truth })
            }
            Value::Object(_) | Value::Null => None,
        }
    }

    /// The first answer; empty without one.
    #[must_use]
    pub fn first(&self) -> &str {
        self.any_of.first().map_or("", String::as_str)
    }
}

/// A number as text, without an exponent, since rules read digits.
fn digits(number: &serde_json::Number) -> String {
    let text = number.to_string();
    let written = |value: f64| value.is_finite().then(|| value.to_string());
    if text.contains(['e', 'E']) { number.as_f64().and_then(written).unwrap_or(text) } else { text }
}

/// Describes, for a message, the values in `columns` of `rows` from which rules can read no answer. `None` where they
/// can read one from every row that has such a column. Nulls and empty texts are reported only where all rows have
/// nothing else.
#[must_use]
pub fn unreadable<'a>(columns: &[&str], rows: impl IntoIterator<Item = &'a Map<String, Value>>) -> Option<String> {
    let (mut all, mut nulls) = (0, 0);
    // Columns and kinds in the order in which they are met, with the first value and the number of rows.
    let mut found: Vec<(&str, &str, &Value, usize)> = Vec::new();
    for row in rows {
        all += 1;
        let present: Vec<(&str, &Value)> = columns.iter().filter_map(|c| Some((*c, row.get(*c)?))).collect();
        if present.is_empty() || present.iter().any(|(_, value)| Answers::of(value).is_some()) {
            continue;
        }
        match present.iter().find(|(_, value)| !is_blank(value)) {
            Some(&(column, value)) => match found.iter_mut().find(|one| (one.0, one.1) == (column, kind(value))) {
                Some(one) => one.3 += 1,
                None => found.push((column, kind(value), value, 1)),
            },
            None => nulls += 1,
        }
    }
    let reads = "the rule reads texts, numbers, truth values and lists of them";
    match found.as_slice() {
        [(column, kind, value, count), others @ ..] => {
            let others: String = others
                .iter()
                .map(|(other, kind, _, count)| match other == column {
                    true => format!(", and {kind} in {count}"),
                    false => format!(", and `{other}` {kind} in {count}"),
                })
                .collect();
            let way_out = way_out(column, value);
            Some(format!(
                "column `{column}` holds {kind} in {count} of {all} rows that were looked at{others}; {reads}{way_out}"
            ))
        }
        [] if nulls > 0 && nulls == all => Some(format!(
            "column `{}` is null or empty in all {all} rows that were looked at; {reads}",
            columns.join("` or `")
        )),
        [] => None,
    }
}

/// Whether a value is null or an empty text.
fn is_blank(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty())
}

/// The kind of a value without an answer.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "mappings",
        Value::String(text) if written::list(text).is_none() => "mappings that are written as texts",
        Value::Array(items) if items.is_empty() => "empty lists",
        Value::Array(items) if items.iter().all(Value::is_object) => "lists of mappings",
        _ => "lists without an answer",
    }
}

/// The advice for a column whose value has no answer.
fn way_out(column: &str, value: &Value) -> String {
    let object = match value {
        Value::Object(object) => object,
        Value::String(_) => {
            return "; write the answer itself into a column of its own".to_owned();
        }
        _ => return String::new(),
    };
    let named = KEYS.iter().copied().find(|key| object.get(*key).is_some_and(|v| Answers::of(v).is_some()));
    let any = || object.iter().find(|(_, v)| Answers::of(v).is_some()).map(|(key, _)| key.as_str());
    let key = named.or_else(any);
    key.map_or_else(String::new, |key| format!(" (`answer_column = \"{column}.{key}\"` names one)"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_numbers_truths_and_lists_are_answers() {
        for (value, any_of) in [
            (json!("7"), Some(vec!["7"])),
            (json!(""), None),
            (json!(" \n"), None),
            (json!(7), Some(vec!["7"])),
            (json!(7.5), Some(vec!["7.5"])),
            (json!(1e22), Some(vec!["10000000000000000000000"])),
            (json!(["7", 8, [9]]), Some(vec!["7", "8", "9"])),
            (json!(true), Some(vec!["True", "true", "Yes", "yes"])),
            (json!([null, "x"]), Some(vec!["x"])),
            (json!("['4']"), Some(vec!["4"])),
            (json!("[\"4\", \"5\"]"), Some(vec!["4", "5"])),
            (json!("['', '7']"), Some(vec!["7"])),
            (json!("['']"), None),
            (json!(["", "7"]), Some(vec!["7"])),
            (json!("[4, 5]"), Some(vec!["[4, 5]"])),
            (json!("{'target': 4}"), None),
            (json!({"target": "7"}), None),
            (json!([]), None),
            (json!([{"a": 1}]), None),
            (json!(null), None),
        ] {
            let found = Answers::of(&value).map(|answers| answers.any_of);
            assert_eq!(found, any_of.map(|texts| texts.into_iter().map(str::to_owned).collect()), "{value}");
        }
    }

    #[test]
    fn what_is_no_answer_is_named_with_the_way_out() {
        let rows = |values: &[Value]| -> Vec<Map<String, Value>> {
            values.iter().map(|value| json!({ "answer": value }).as_object().unwrap().clone()).collect()
        };
        let told = |values: &[Value]| unreadable(&["answer", "solution"], &rows(values));
        assert_eq!(told(&[json!("7"), json!(["7"]), json!(7), json!(true)]), None);
        let words = told(&[json!(["7"]), json!({"source": {}, "target": ["7"]})]).unwrap();
        assert!(words.starts_with("column `answer` holds mappings in 1 of 2 rows"), "{words}");
        assert!(words.contains("`answer_column = \"answer.target\"`"), "{words}");
        assert!(told(&[json!([])]).unwrap().contains("empty lists"));
        let words = told(&[json!("{'target': 4}")]).unwrap();
        assert!(
            words.starts_with("column `answer` holds mappings that are written as texts in 1 of 1 rows"),
            "{words}"
        );
        let words = told(&[json!([]), json!({"a": []}), json!([]), json!("7")]).unwrap();
        let expected =
            "column `answer` holds empty lists in 2 of 4 rows that were looked at, and mappings in 1; the rule";
        assert!(words.starts_with(expected), "{words}");
        assert!(told(&[json!([{"a": 1}])]).unwrap().contains("lists of mappings"));
        assert!(told(&[json!("['']")]).unwrap().contains("lists without an answer"));
        for blank in [json!(null), json!(" ")] {
            assert!(told(std::slice::from_ref(&blank)).unwrap().contains("is null or empty in all 1 rows"));
            assert_eq!(told(&[blank, json!("7")]), None);
        }
        let row = json!({"answer": null, "solution": "7"}).as_object().unwrap().clone();
        assert_eq!(unreadable(&["answer", "solution"], [&row]), None);
    }
}
