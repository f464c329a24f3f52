//! The line that a process answers.

use serde_json::{Map, Value};
use shared::{Logged, Note, RewardOutcome, StepScore};
use shared_bounds::KeysOnce;

/// Longest piece of an answer that is quoted in a message.
const QUOTED: usize = 60;

/// The key of an answer that says which request it is for.
const ID: &str = "id";
const SCORES: &str = "scores";
/// What is logged beside the scores, by the names of TRL's functions.
const LOG_EXTRA: &str = "log_extra";
const LOG_METRIC: &str = "log_metric";

/// The content of a line.
#[derive(Debug)]
pub(super) struct Answer {
    /// One outcome per completion.
    pub outcomes: Vec<RewardOutcome>,
    /// Tracebacks of errors, as far as the line has them.
    pub tracebacks: Vec<String>,
    /// What is logged beside the outcomes.
    pub logged: Logged,
    /// Whether the errors arose in the program. A program that asks another process passes on errors that no
    /// containment can have caused: its entries have `"contained": false`.
    pub contained: bool,
}

/// Reads a line.
///
/// # Errors
/// A line that is no list with one entry per completion.
pub(super) fn read(line: &str, completions: usize) -> Result<Answer, String> {
    let mut logged = Logged::default();
    let answer = match parse(line)? {
        Value::Object(mut numbered) if numbered.contains_key(ID) && numbered.contains_key(SCORES) => {
            logged = log_of(&numbered, completions);
            numbered.remove(SCORES).unwrap_or_default()
        }
        answer => answer,
    };
    let Value::Array(entries) = answer else {
        return Err(format!("answered {} and not a list", describe(&answer)));
    };
    if entries.len() != completions {
        return Err(format!("answered {} entries for {completions} completions", entries.len()));
    }
    let tracebacks = entries.iter().filter_map(|entry| entry.get("traceback")?.as_str());
    Ok(Answer {
        outcomes: entries.iter().map(outcome).collect(),
        tracebacks: tracebacks.map(str::to_owned).collect(),
        logged,
        contained: entries.iter().all(|entry| entry.get("contained") != Some(&Value::Bool(false))),
    })
}

/// `{"log_extra": {"column": [one value for each completion]}, "log_metric": {"metric": value, "other": [values]}}`.
/// Anything else is passed over: a program that logs wrongly has its scores all the same.
fn log_of(answer: &Map<String, Value>, completions: usize) -> Logged {
    let mut logged = Logged::default();
    let entries = |key: &str| answer.get(key).and_then(Value::as_object).into_iter().flatten();
    for (column, values) in entries(LOG_EXTRA) {
        if let Some(values) = values.as_array().filter(|values| values.len() == completions) {
            logged.set_extra(column, values.iter().map(Note::of).collect());
        }
    }
    for (metric, values) in entries(LOG_METRIC) {
        let values = values.as_array().map_or(std::slice::from_ref(values), Vec::as_slice);
        values.iter().filter_map(Value::as_f64).for_each(|value| logged.add_metric(metric, value));
    }
    logged
}

/// The number of the request that a line answers, where the line says so: `{"id": 3, "scores": […]}`.
pub(super) fn number(line: &str) -> Option<u64> {
    // Most lines are lists, which need not be read twice.
    let answer = line.trim_start().starts_with('{').then(|| parse(line).ok())??;
    answer.get(SCORES)?;
    answer.get(ID)?.as_u64()
}

/// Whether a line without [`number`] is meant as the answer to a request all the same: it has the number and no scores,
/// or it has scores and cannot be read. [`read`] says what is wrong with it.
pub(super) fn is_wrong(line: &str, request: u64) -> bool {
    line.trim_start().starts_with('{')
        && match parse(line) {
            Ok(answer) => answer.get(SCORES).is_none() && answer.get(ID).and_then(Value::as_u64) == Some(request),
            Err(_) => line.contains(SCORES),
        }
}

/// Reads JSON as Python writes it. See [`mended`].
pub(super) fn parse(line: &str) -> Result<Value, String> {
    match serde_json::from_str(line) {
        Ok(KeysOnce(answer)) => Ok(answer),
        Err(e) => serde_json::from_str(&mended(line)).map(|KeysOnce(answer)| answer).map_err(|of_mended| {
            let error = if of_mended.is_data() { of_mended } else { e };
            format!("answered `{}`, which is no JSON: {error}", shortened(line.trim()))
        }),
    }
}

/// A line without what Python's `json.dumps` writes and JSON does not know. `NaN` and `Infinity` become texts, which
/// fail a single completion and not the whole line. Within a text, the half of a pair of surrogates (`\udce9`) becomes
/// the replacement character.
fn mended(line: &str) -> String {
    const WORDS: [(&str, &str); 3] = [("NaN", "\"NaN\""), ("-Infinity", "\"-inf\""), ("Infinity", "\"inf\"")];
    let mut mended = String::with_capacity(line.len());
    let (mut rest, mut in_text) = (line, false);
    while let Some(first) = rest.chars().next() {
        let word = WORDS.iter().find(|(word, _)| !in_text && rest.starts_with(word));
        let (taken, written) = match (word, first) {
            (Some((word, text)), _) => (word.len(), *text),
            (None, '\\') if in_text => escape(rest),
            _ => (first.len_utf8(), &rest[..first.len_utf8()]),
        };
        in_text ^= first == '"';
        mended.push_str(written);
        rest = &rest[taken..];
    }
    mended
}

/// The bytes of the escape at the beginning of a text, and what to write for it.
fn escape(text: &str) -> (usize, &str) {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    match (unit(0), unit(6)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, &text[..12]),
        (Some(0xd800..=0xdfff), _) => (6, "\u{fffd}"),
        // A backslash with the character behind it, which may be a quotation mark.
        _ => {
            let length = text.chars().take(2).map(char::len_utf8).sum();
            (length, &text[..length])
        }
    }
}

fn outcome(entry: &Value) -> RewardOutcome {
    match entry {
        Value::Null => RewardOutcome::NotApplicable,
        Value::Array(steps) => match steps.iter().map(step).collect() {
            Some(steps) => RewardOutcome::Steps(steps),
            None => RewardOutcome::Failed(format!("answered {}; a step is [end, score]", describe(entry))),
        },
        Value::Object(object) if object.get("error").is_some_and(Value::is_string) => {
            RewardOutcome::Failed(object["error"].as_str().unwrap_or_default().to_owned())
        }
        entry => match entry.as_f64() {
            Some(score) => RewardOutcome::Score(score),
            None => RewardOutcome::Failed(format!("answered {} and not a number", describe(entry))),
        },
    }
}

fn step(entry: &Value) -> Option<StepScore> {
    match entry.as_array()?.as_slice() {
        [end, score] => Some(StepScore { end: u32::try_from(end.as_u64()?).ok()?, score: score.as_f64()? }),
        _ => None,
    }
}

fn describe(value: &Value) -> String {
    let kind = match value {
        Value::Null => return "null".to_owned(),
        Value::Bool(_) => "the truth value",
        Value::Number(_) => "the number",
        Value::String(_) => "the text",
        Value::Array(_) => "the list",
        Value::Object(_) => "the object",
    };
    format!("{kind} {}", shortened(&value.to_string()))
}

/// The beginning of a text, as far as a message has room for it.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_python_writes_and_json_does_not_know_is_mended_and_the_rest_stays() {
        for (line, expected) in [
            (
                r#"[NaN, "NaN", -Infinity, "a -Infinity", Infinity]"#,
                json!(["NaN", "NaN", "-inf", "a -Infinity", "inf"]),
            ),
            (r#"[NaN, "\" NaN", "\\", NaN]"#, json!(["NaN", "\" NaN", "\\", "NaN"])),
            (
                r#"["caf\udce9", "\ud83d", "\ud83dé", "\ud83d\n"]"#,
                json!(["caf\u{fffd}", "\u{fffd}", "\u{fffd}é", "\u{fffd}\n"]),
            ),
            (r#"["\ud83d\ud83d\ude00", "\\udce9\udce9"]"#, json!(["\u{fffd}😀", "\\udce9\u{fffd}"])),
            (r#"{"\udc00": NaN}"#, json!({"\u{fffd}": "NaN"})),
        ] {
            assert_eq!(parse(line), Ok(expected), "{line}");
        }
        for line in ["[NaN", r#"["\ud83"#, r#"["\"#, r#"["\u+123\udc00"]"#, "[NaNa]"] {
            assert!(parse(line).unwrap_err().contains(line), "{line}");
        }
        for line in [r#"{"scores": [1], "scores": [2]}"#, r#"{"scores": [NaN], "scores": [2]}"#] {
            assert!(parse(line).unwrap_err().contains("the key `scores` is given twice"), "{line}");
        }
    }

    #[test]
    fn a_wrong_answer_is_told_from_other_lines() {
        for line in [r#" {"id": 2, "scores": [1, }"#, r#"{"id": 2, "error": "no"}"#] {
            assert!(is_wrong(line, 2), "{line}");
        }
        for line in [r#"{"id": 1, "error": "no"}"#, r#"{"loss": 1}"#, "{'loss': 1}", "scores: [", "[9, 9]"] {
            assert!(!is_wrong(line, 2), "{line}");
        }
    }

    /// Explores mutated lines, as the targets of `tests/fuzz` do.
    #[test]
    fn whatever_a_line_says_there_is_an_outcome_for_each_completion_or_a_reason() {
        assert_eq!(number(r#" {"id": 3, "scores": [NaN]}"#), Some(3));
        assert_eq!([r#"{"id": 3}"#, r#"{"id": "3", "scores": []}"#, "[3]"].map(number), [None; 3]);
        let lines = [
            r#"{"id": 3, "scores": [1, 2, NaN]}"#,
            r#"[1.5, null, {"error": "no", "traceback": "line 1\nline 2"}]"#,
            "[NaN, -Infinity, Infinity]",
            r#"[NaN, {"error": "\udce9 \" \ud83d\ude00 \\ NaN"}, 1]"#,
            "[[[0, 0.5], [3, 1e300]], [], [[4294967296, 1]]]",
            r#"{"id": 1, "scores": [1, 2, 3], "log_extra": {"a": [1, "b", null]}, "log_metric": {"m": [0.5, NaN]}}"#,
            "Traceback (most recent call last):",
        ];
        harness::fuzz::explore("reward_answers", &lines.map(|line| line.as_bytes().to_vec()), |bytes| {
            match read(&String::from_utf8_lossy(bytes), 3) {
                Ok(answer) => {
                    assert_eq!(answer.outcomes.len(), 3);
                    assert!(Logged::means([&answer.logged]).values().all(|mean| !mean.is_nan()));
                }
                // However long the line is.
                Err(reason) => assert!(reason.len() < 1000, "{reason}"),
            }
        });
    }
}
