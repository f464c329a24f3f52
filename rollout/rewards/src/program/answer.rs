//! The line that a process answers.

use serde_json::{Map, Value};
use shared::{Logged, Note, RewardOutcome, StepScore};

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

/// Python writes `NaN` and `Infinity`, which JSON does not know. Read as texts, they fail a single completion and not
/// the whole line.
fn parse(line: &str) -> Result<Value, String> {
    let lenient = || {
        let line = line.replace("NaN", "\"NaN\"").replace("-Infinity", "\"-inf\"").replace("Infinity", "\"inf\"");
        serde_json::from_str(&line).ok()
    };
    match serde_json::from_str(line) {
        Ok(answer) => Ok(answer),
        Err(e) => lenient().ok_or_else(|| format!("answered `{}`, which is no JSON: {e}", shortened(line.trim()))),
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
    use super::*;

    /// Explores mutated lines, as the targets of `tests/fuzz` do.
    #[test]
    fn whatever_a_line_says_there_is_an_outcome_for_each_completion_or_a_reason() {
        assert_eq!(number(r#" {"id": 3, "scores": [NaN]}"#), Some(3));
        assert_eq!([r#"{"id": 3}"#, r#"{"id": "3", "scores": []}"#, "[3]"].map(number), [None; 3]);
        let lines = [
            r#"{"id": 3, "scores": [1, 2, NaN]}"#,
            r#"[1.5, null, {"error": "no", "traceback": "line 1\nline 2"}]"#,
            "[NaN, -Infinity, Infinity]",
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
