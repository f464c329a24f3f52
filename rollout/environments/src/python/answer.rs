//! Lines that a process writes.

use serde_json::Value;
use shared_chat::turn::Reply;

use crate::{
    Failure,
    environment::{Opening, Step},
};

/// Longest piece of a line that is quoted.
const QUOTED: usize = 80;

/// The protocol that this program speaks.
const PROTOCOL: u64 = 1;

/// The first line: what there is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Greeting {
    /// JSON schemas of the listed functions, in order.
    pub tools: Vec<Value>,
    /// The classes.
    pub environments: Vec<Found>,
}

/// A class of the user's.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The name that chooses it.
    pub key: Option<String>,
    /// Whether it has `get_reward`.
    pub rewards: bool,
    /// JSON schemas of its methods, by name.
    pub tools: Vec<Value>,
}

/// What is wrong, with a traceback where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    pub reason: String,
    pub traceback: Option<String>,
}

impl Wrong {
    fn of(line: &Value) -> Option<Self> {
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        Some(Self { reason: text("error")?, traceback: text("traceback") })
    }

    fn quoting(what: &str, line: &str) -> Self {
        let quoted: String = line.trim().chars().take(QUOTED).collect();
        Self { reason: format!("{what}: `{quoted}`"), traceback: None }
    }
}

/// Reads the first line; `None` for a line of something else.
pub fn greeting(line: &str) -> Option<Result<Greeting, Wrong>> {
    let said: Value = serde_json::from_str(line).ok()?;
    if let Some(wrong) = Wrong::of(&said) {
        return Some(Err(wrong));
    }
    said.get("ready")?;
    if said["protocol"].as_u64() != Some(PROTOCOL) {
        return Some(Err(Wrong::quoting("its first line is of another protocol", line)));
    }
    let list = |value: &Value| value.as_array().cloned();
    let found = |value: &Value| {
        let key = value["key"].as_str().map(str::to_owned);
        Some(Found { key, rewards: value["rewards"].as_bool()?, tools: list(&value["tools"])? })
    };
    let read = || {
        let environments = said["environments"].as_array()?.iter().map(found).collect::<Option<_>>()?;
        Some(Greeting { tools: list(&said["tools"])?, environments })
    };
    Some(read().ok_or_else(|| Wrong::quoting("its first line cannot be read", line)))
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The number of the request.
    pub id: u64,
    /// Calls in the process that go on though nobody waits for them.
    pub abandoned: u64,
    /// All fields, or why there are none.
    pub fields: Result<Value, Failure>,
}

/// Reads an answer. `seconds` is the time that a function has.
///
/// # Errors
/// A line that is no answer.
pub fn read(line: &str, seconds: f64) -> Result<Answer, String> {
    let no_answer = || Wrong::quoting("this line is no answer", line).reason;
    let fields: Value = serde_json::from_str(line).map_err(|_| no_answer())?;
    let id = fields["id"].as_u64().ok_or_else(no_answer)?;
    let abandoned = fields["abandoned"].as_u64().unwrap_or_default();
    let failure = |Wrong { reason, traceback }: Wrong| {
        let environment = String::new();
        if fields["late"] == Value::Bool(true) {
            return Failure::Late { environment, function: reason, seconds };
        }
        if fields["too_long"] == Value::Bool(true) {
            return Failure::TooLong { environment, reason };
        }
        Failure::Broken { environment, reason, traceback }
    };
    let wrong = Wrong::of(&fields).map(failure);
    Ok(Answer { id, abandoned, fields: wrong.map_or(Ok(fields), Err) })
}

/// The answer to `open`.
///
/// # Errors
/// What is wrong with it.
pub fn opening(fields: Value) -> Result<Opening, String> {
    match &fields["text"] {
        Value::Null => Ok(Opening::default()),
        Value::String(text) => Ok(Opening { text: Some(text.clone()) }),
        other => Err(format!("the text of its opening is {other}")),
    }
}

/// The answer to `step`.
///
/// # Errors
/// What is wrong with it.
pub fn step(mut fields: Value) -> Result<Step, String> {
    let Value::Array(replies) = fields["replies"].take() else {
        return Err("its answer to a turn has no list of replies".to_owned());
    };
    let replies = replies.into_iter().map(reply).collect::<Option<_>>();
    let replies =
        replies.ok_or("a reply needs `name`, `content` (a text, or content blocks with texts) and `failed`")?;
    Ok(Step { replies, reward: reward_of(&fields)?, done: fields["done"].as_bool().unwrap_or_default() })
}

fn reply(mut value: Value) -> Option<Reply> {
    let content = value.get_mut("content")?.take();
    let is_block = |part: &Value| part["type"] == "text" && part["text"].is_string();
    let fits = content.is_string() || content.as_array().is_some_and(|parts| parts.iter().all(is_block));
    let (name, failed) = (value["name"].as_str()?.to_owned(), value["failed"].as_bool()?);
    fits.then_some(Reply { name, content, failed })
}

/// The answer to `score`.
///
/// # Errors
/// What is wrong with it.
pub fn reward(fields: Value) -> Result<Option<f64>, String> {
    reward_of(&fields)
}

fn reward_of(fields: &Value) -> Result<Option<f64>, String> {
    match &fields["reward"] {
        Value::Null => Ok(None),
        reward => reward.as_f64().map(Some).ok_or_else(|| format!("its reward is {reward}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_says_what_it_is_for_and_how_it_went() {
        let read = |line: &str| read(line, 2.0).unwrap();
        let answer = read(r#"{"id": 7, "text": "hi", "abandoned": 2}"#);
        assert_eq!((answer.id, answer.abandoned), (7, 2));
        assert_eq!(opening(answer.fields.unwrap()), Ok(Opening { text: Some("hi".to_owned()) }));
        for (line, kind, words) in [
            (r#"{"id": 1, "error": "`f`", "late": true}"#, "late", "`f` has not answered within 2 s"),
            (r#"{"id": 1, "error": "`f` is long", "too_long": true}"#, "too_long", "`f` is long"),
            (r#"{"id": 1, "error": "KeyError: 1", "traceback": "a\nb"}"#, "broken", "KeyError: 1"),
        ] {
            let failure = read(line).fields.unwrap_err().of("e.py:E");
            assert_eq!(failure.kind(), kind);
            assert!(failure.to_string().starts_with("e.py:E: ") && failure.to_string().contains(words), "{failure}");
        }
        assert_eq!(read(r#"{"id": 1, "error": "x", "traceback": "a\nb"}"#).fields.unwrap_err().words(), ["a", "b"]);
    }

    #[test]
    fn what_is_no_answer_is_named() {
        for line in ["hello", "[1]", r#"{"text": null}"#, r#"{"id": "a"}"#] {
            assert!(read(line, 1.0).unwrap_err().contains(line), "{line}");
        }
        assert!(opening(json!({"text": 5})).is_err());
        assert!(reward(json!({"reward": "much"})).is_err());
        for replies in [
            json!({}),
            json!({"replies": [{"name": "a", "failed": false}]}),
            json!({"replies": [{"name": "a", "content": 5, "failed": false}]}),
            json!({"replies": [{"name": "a", "content": [{"type": "image"}], "failed": false}]}),
            json!({"replies": [], "reward": "much"}),
        ] {
            assert!(step(replies.clone()).is_err(), "{replies}");
        }
    }

    #[test]
    fn a_first_line_of_another_protocol_is_refused() {
        assert_eq!(greeting("hello"), None);
        assert_eq!(greeting(r#"{"id": 1}"#), None);
        let refused = |line: &str| greeting(line).unwrap().unwrap_err().reason;
        assert!(refused(r#"{"protocol": 2, "ready": true}"#).contains("another protocol"));
        assert!(refused(r#"{"protocol": 1, "ready": true}"#).contains("cannot be read"));
        assert_eq!(refused(r#"{"error": "no", "traceback": "t"}"#), "no");
        let line = r#"{"protocol": 1, "ready": true, "tools": [], "environments": []}"#;
        assert_eq!(greeting(line), Some(Ok(Greeting::default())));
    }

    #[test]
    fn any_line_is_survived() {
        let seeds = [
            r#"{"protocol": 1, "ready": true, "tools": [{}], "environments": [{"key": null, "rewards": true,
                "tools": []}]}"#,
            r#"{"id": 1, "text": "hi", "abandoned": 3}"#,
            r#"{"id": 2, "replies": [{"name": "a", "content": "b", "failed": false}], "reward": 0.5, "done": true}"#,
            r#"{"id": 3, "error": "a", "traceback": "b", "late": true}"#,
        ];
        harness::fuzz::explore("environment_answers", &seeds.map(|line| line.as_bytes().to_vec()), |bytes| {
            let Ok(line) = std::str::from_utf8(bytes) else { return };
            let _ = greeting(line);
            let Ok(Answer { fields: Ok(fields), .. }) = read(line, 1.0) else { return };
            let _ = (opening(fields.clone()), reward(fields.clone()));
            if let Ok(step) = step(fields) {
                assert!(step.replies.iter().all(|reply| reply.content.is_string() || reply.content.is_array()));
            }
        });
    }
}
