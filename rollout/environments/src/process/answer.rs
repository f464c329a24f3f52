//! Lines that a process writes.

use serde_json::Value;
use shared_bounds::KeysOnce;
use shared_chat::turn::{Reply, ToolCall};

use crate::{
    Failure,
    environment::{Opening, Step},
};

/// Longest piece of a line that is quoted.
const QUOTED: usize = 80;

/// The reason of an `error` that is empty.
const NO_REASON: &str = "it failed, and gave no reason (its `error` is empty)";

/// The mark that some programs write before their first line.
const BOM: char = '\u{feff}';

/// The version of the protocol that this program speaks.
pub const PROTOCOL: u64 = 1;

/// Most bytes of a text that is passed on. Longer texts fit into no model.
const MAX_TEXT: usize = 1 << 20;

/// Most bytes of all replies of a turn; the rest is cut off. Hardly a model has room for more, so the conversation ends
/// as one whose reply is too long, and is trained on: a policy must not leave the loss by long replies.
const MAX_TURN: usize = 2 * MAX_TEXT;

/// The first line: what there is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Greeting {
    /// JSON schemas of the tools of a program, or of the listed functions in Python, in order.
    pub tools: Vec<Value>,
    /// Whether a program gives rewards.
    pub rewards: bool,
    /// The classes in Python.
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
        let reason = match &line["error"] {
            // These say that nothing went wrong.
            Value::Null | Value::Bool(false) => return None,
            Value::Number(code) if code.as_f64() == Some(0.0) => return None,
            Value::Array(list) if list.is_empty() => return None,
            Value::Object(fields) if fields.is_empty() => return None,
            Value::String(given) if given.trim().is_empty() => NO_REASON.to_owned(),
            Value::String(given) => given.clone(),
            other => quoted(other),
        };
        Some(Self { reason, traceback: line["traceback"].as_str().map(str::to_owned) })
    }

    fn quoting(what: &str, line: &str) -> Self {
        let quoted: String = line.trim().chars().take(QUOTED).collect();
        Self { reason: format!("{what}: `{quoted}`"), traceback: None }
    }
}

/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// It is not what the protocol says.
    Broken(String),
    /// A text is too long.
    TooLong(String),
}

impl Unusable {
    /// The failure of a conversation.
    pub fn failure(self) -> Failure {
        let environment = String::new();
        match self {
            Self::Broken(reason) => Failure::Broken { environment, reason, traceback: None },
            Self::TooLong(reason) => Failure::TooLong { environment, reason },
        }
    }
}

impl From<&str> for Unusable {
    fn from(reason: &str) -> Self {
        Self::Broken(reason.to_owned())
    }
}

/// Reads the first line; `None` for a line of something else. Programs may write such lines before it, so what cannot
/// be read is refused only where it must have been meant as the first line.
pub fn greeting(line: &str) -> Option<Result<Greeting, Wrong>> {
    let line = line.trim_start_matches(BOM);
    let said: Value = match serde_json::from_str(line) {
        Ok(said) => said,
        Err(error) => {
            let what = format!("its first line cannot be read, since it is no JSON in one line ({error})");
            return is_meant_as_greeting(line).then(|| Err(Wrong::quoting(&what, line)));
        }
    };
    if let Some(wrong) = Wrong::of(&said) {
        return Some(Err(wrong));
    }
    let Some(version) = said.get("protocol") else {
        let is_meant = said["tools"].is_array() || said["rewards"].is_boolean();
        let what = format!("its first line has no `protocol`; add \"protocol\": {PROTOCOL}");
        return is_meant.then(|| Err(Wrong::quoting(&what, line)));
    };
    if version.as_u64() != Some(PROTOCOL) {
        let reason = format!("its first line is of another protocol, {version}; this build speaks {PROTOCOL}");
        return Some(Err(Wrong { reason, traceback: None }));
    }
    let list = |value: &Value| match value {
        Value::Null => Some(Vec::new()),
        value => value.as_array().filter(|tools| tools.iter().all(is_tool)).cloned(),
    };
    let found = |value: &Value| {
        let key = value["key"].as_str().map(str::to_owned);
        Some(Found { key, rewards: value["rewards"].as_bool()?, tools: list(&value["tools"])? })
    };
    let read = || {
        let rewards = said.get("rewards").map_or(Some(false), Value::as_bool)?;
        let environments =
            said["environments"].as_array().map_or(Some(Vec::new()), |all| all.iter().map(found).collect());
        Some(Greeting { tools: list(&said["tools"])?, rewards, environments: environments? })
    };
    let needs = "its first line cannot be read: `tools` is a list of {\"type\": \"function\", \"function\": {\"name\": \
                 …, …}}, and `rewards` true or false";
    Some(read().ok_or_else(|| Wrong::quoting(needs, line)))
}

/// Whether a line that is no JSON says `protocol` where a first line says it: in an object, or in a line of an object
/// that was written over several lines.
fn is_meant_as_greeting(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("\"protocol\"") || line.starts_with('{') && line.contains("protocol")
}

fn is_tool(schema: &Value) -> bool {
    let function = &schema["function"];
    let has_name = function["name"].as_str().is_some_and(|name| !name.is_empty());
    schema["type"] == "function" && has_name && function.get("parameters").is_none_or(Value::is_object)
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The number of the request.
    pub id: u64,
    /// Calls in the process that go on though nobody waits for them.
    pub abandoned: u64,
    /// It is no answer yet: the episode waits for a place.
    pub queued: bool,
    /// All fields, or why there are none.
    pub fields: Result<Value, Failure>,
}

impl Answer {
    fn broken(id: u64, reason: String) -> Self {
        let failure = Failure::Broken { environment: String::new(), reason, traceback: None };
        Self { id, abandoned: 0, queued: false, fields: Err(failure) }
    }
}

/// The number that an `id` means which is written as another number or as a text.
fn number(id: &Value) -> Option<u64> {
    match id {
        Value::String(text) => text.trim().parse().ok(),
        id => id.as_f64().filter(|id| id.fract() == 0.0 && (0.0..1e15).contains(id)).map(|id| id as u64),
    }
}

/// The failure that a line with an `id` is, which is no JSON. None for a line without.
fn unreadable(line: &str, error: &str) -> Option<Answer> {
    let begins = |text: &str| text.trim_start().starts_with('{');
    let digits = behind(line, "id").filter(|_| begins(line))?.trim_start_matches('"');
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let id = digits[..end].parse().ok()?;
    // Python writes these.
    let reward = behind(line, "reward").unwrap_or_default();
    let infinite = ["NaN", "Infinity", "-Infinity"].into_iter().find(|&word| reward.starts_with(word));
    Some(Answer::broken(
        id,
        match infinite {
            Some(word) => format!("its reward is {word}"),
            None => Wrong::quoting(&format!("its answer is no JSON ({error})"), line).reason,
        },
    ))
}

/// What stands behind a key, wherever it first stands. A key within a text has other quotes.
fn behind<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let key = format!("\"{key}\"");
    let value = |(at, _): (usize, _)| line[at + key.len()..].trim_start().strip_prefix(':');
    line.match_indices(&key).find_map(value).map(str::trim_start)
}

/// Reads an answer. `seconds` is the time that a function has. A line with an `id` that cannot be read otherwise is an
/// answer too: a failure.
///
/// # Errors
/// A line that is no answer.
pub fn read(line: &str, seconds: f64) -> Result<Answer, String> {
    let line = line.trim_start_matches(BOM);
    let no_answer = || Wrong::quoting("this line is no answer", line).reason;
    let fields = match serde_json::from_str(line) {
        Ok(KeysOnce(fields)) => fields,
        Err(error) => return unreadable(line, &error.to_string()).ok_or_else(no_answer),
    };
    let Some(id) = fields["id"].as_u64() else {
        let id = number(&fields["id"]).ok_or_else(no_answer)?;
        let reason = format!("the `id` of its answer is {} and not the number {id}", quoted(&fields["id"]));
        return Ok(Answer::broken(id, reason));
    };
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
    let queued = wrong.is_none() && fields["queued"] == Value::Bool(true);
    Ok(Answer { id, abandoned, queued, fields: wrong.map_or(Ok(fields), Err) })
}

/// The answer to `open`.
///
/// # Errors
/// What is wrong with it.
pub fn opening(fields: &Value) -> Result<Opening, Unusable> {
    refuse_misspelt(fields, &["text"], &[])?;
    if !fields["reward"].is_null() || fields["done"] == true {
        return Err("its answer to `open` has a `reward`, or is `done`: rewards are for turns and for the end".into());
    }
    match &fields["text"] {
        Value::Null => Ok(Opening::default()),
        Value::String(text) if text.len() > MAX_TEXT => Err(too_long("the text of its opening", text.len(), MAX_TEXT)),
        Value::String(text) => Ok(Opening { text: Some(text.clone()) }),
        other => Err(Unusable::Broken(format!("the text of its opening is {}", quoted(other)))),
    }
}

/// The answer to `step` about these calls.
///
/// # Errors
/// What is wrong with it.
pub fn step(fields: &Value, calls: &[ToolCall]) -> Result<Step, Unusable> {
    refuse_misspelt(fields, &["reward", "done"], &[])?;
    let replies = fields["replies"].as_array().ok_or("its answer to a turn has no list of replies")?;
    if replies.len() != calls.len() {
        return Err(Unusable::Broken(format!("answered {} replies to {} calls", replies.len(), calls.len())));
    }
    let replies = replies.iter().zip(calls).map(|(value, call)| reply(value, call));
    let mut replies = replies.collect::<Result<Vec<_>, _>>()?;
    let size: usize = replies.iter_mut().flat_map(|reply| texts(&mut reply.content)).map(|text| text.len()).sum();
    if size > MAX_TURN {
        let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        tracing::warn!("replies of {size} bytes to calls of {names:?}; at most {MAX_TURN} are passed on");
        let mut room = MAX_TURN;
        for text in replies.iter_mut().flat_map(|reply| texts(&mut reply.content)) {
            text.truncate(text.floor_char_boundary(room));
            room -= text.len();
        }
    }
    let done = fields.get("done").map_or(Some(false), Value::as_bool).ok_or("`done` is neither true nor false")?;
    Ok(Step { replies, reward: reward_in(fields)?, done })
}

/// A reply to a call. Its name is that of the call, unless it says another.
fn reply(value: &Value, call: &ToolCall) -> Result<Reply, Unusable> {
    let is_block = |part: &Value| part["type"] == "text" && part["text"].is_string();
    let wrong = |key: &str, why: &str| {
        let found = quoted(&value[key]);
        Unusable::Broken(format!("the `{key}` of a reply is {found}, {why}"))
    };
    let content = value.get("content").ok_or("a reply needs `content`, a text or content blocks with texts")?.clone();
    let fits = content.is_string() || content.as_array().is_some_and(|parts| parts.iter().all(is_block));
    if !fits {
        return Err(wrong("content", "no text and no content blocks with texts"));
    }
    let name = value.get("name").map_or(Some(call.name.as_str()), Value::as_str);
    let name = name.ok_or_else(|| wrong("name", "no text"))?.to_owned();
    let failed = value.get("failed").map_or(Some(false), Value::as_bool);
    let failed = failed.ok_or_else(|| wrong("failed", "neither true nor false"))?;
    Ok(Reply { name, content, failed })
}

/// The texts of a content: itself, or those of its blocks.
fn texts(content: &mut Value) -> Vec<&mut String> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter_mut().filter_map(|part| text_of(part.get_mut("text")?)).collect(),
        _ => Vec::new(),
    }
}

fn text_of(value: &mut Value) -> Option<&mut String> {
    if let Value::String(text) = value { Some(text) } else { None }
}

fn too_long(what: &str, size: usize, most: usize) -> Unusable {
    Unusable::TooLong(format!("{what} has {size} bytes; at most {most} are passed on"))
}

/// The reward of an answer to `score`.
///
/// # Errors
/// What is wrong with it.
pub fn reward(fields: &Value) -> Result<Option<f64>, Unusable> {
    refuse_misspelt(fields, &["reward"], &REWARD_ELSEWHERE)?;
    reward_in(fields)
}

fn reward_in(fields: &Value) -> Result<Option<f64>, Unusable> {
    match &fields["reward"] {
        Value::Null => Ok(None),
        reward => match reward.as_f64().filter(|reward| reward.is_finite()) {
            Some(reward) => Ok(Some(reward)),
            None => Err(Unusable::Broken(format!("its reward is {}", quoted(reward)))),
        },
    }
}

/// Names that other systems have for a reward.
const REWARD_ELSEWHERE: [&str; 5] = ["score", "scores", "value", "return", "returns"];

/// How much alike a misspelt field and the right one are at least.
const ALIKE: f64 = 0.8;

/// Refuses a field that is a misspelt one of these, which the answer lacks. Left out, a reward would count as none.
fn refuse_misspelt(fields: &Value, optional: &[&'static str], elsewhere: &[&str]) -> Result<(), Unusable> {
    let meant = |key: &str| {
        let lower = key.to_lowercase();
        let is_meant = |field: &&&str| {
            let alike = || strsim::normalized_damerau_levenshtein(field, &lower) >= ALIKE;
            elsewhere.contains(&&*lower) || (lower.starts_with(&field[..1]) && alike())
        };
        optional.iter().filter(|field| fields.get(**field).is_none()).find(is_meant).copied()
    };
    let keys = fields.as_object().into_iter().flat_map(|fields| fields.keys());
    match keys.filter_map(|key| Some((key, meant(key)?))).next() {
        Some((key, field)) => {
            Err(Unusable::Broken(format!("its answer has `{key}`, which is no field; did you mean `{field}`?")))
        }
        None => Ok(()),
    }
}

/// The beginning of a value.
fn quoted(value: &Value) -> String {
    value.to_string().chars().take(QUOTED).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(name: &str) -> ToolCall {
        ToolCall { name: name.to_owned(), arguments: json!({}) }
    }

    #[test]
    fn an_answer_says_what_it_is_for_and_how_it_went() {
        let read = |line: &str| read(line, 2.0).unwrap();
        let answer = read(r#"{"id": 7, "text": "hi", "abandoned": 2}"#);
        assert_eq!((answer.id, answer.abandoned, answer.queued), (7, 2, false));
        assert!(read(r#"{"id": 7, "queued": true}"#).queued);
        assert_eq!(opening(&answer.fields.unwrap()), Ok(Opening { text: Some("hi".to_owned()) }));
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
        for line in ["hello", "[1]", r#"{"text": null}"#, r#"{"id": "a"}"#, r#"{"id": "#, r#"{"id": -1}"#, "{1}"] {
            assert!(read(line, 1.0).unwrap_err().contains(line.trim()), "{line}");
        }
        assert!(read(r#"request "id": 5 is NaN"#, 1.0).is_err(), "it is a line of a log");
        let twice = read(r#"{"id": 2, "reward": 0.1, "reward": 9}"#, 1.0).unwrap();
        assert!(twice.id == 2 && twice.fields.is_err(), "only one of them could count");
        assert!(opening(&json!({"text": 5})).is_err());
        assert!(opening(&json!({"reward": 5.0})).is_err() && opening(&json!({"done": true})).is_err());
        assert!(opening(&json!({"reward": null, "done": false})).is_ok());
        assert!(reward(&json!({"reward": "much"})).is_err());
        for replies in [
            json!({}),
            json!({"replies": []}),
            json!({"replies": [{"content": "one"}, {"content": "too many"}]}),
            json!({"replies": [{"name": "a", "failed": false}]}),
            json!({"replies": [{"name": 5, "content": "b"}]}),
            json!({"replies": [{"content": "b", "failed": "no"}]}),
            json!({"replies": [{"name": "a", "content": 5, "failed": false}]}),
            json!({"replies": [{"name": "a", "content": [{"type": "image"}], "failed": false}]}),
            json!({"replies": [{"content": "b"}], "reward": "much"}),
            json!({"replies": [{"content": "b"}], "done": 1}),
        ] {
            assert!(matches!(step(&replies, &[call("a")]), Err(Unusable::Broken(_))), "{replies}");
        }
    }

    #[test]
    fn a_failure_names_the_field_of_a_reply_that_is_wrong() {
        for (reply, words) in [
            (json!({"content": "b", "failed": "no"}), r#"the `failed` of a reply is "no", neither true nor false"#),
            (json!({"content": "b", "name": 5}), "the `name` of a reply is 5, no text"),
            (json!({"content": 5}), "the `content` of a reply is 5, no text and no content blocks with texts"),
            (json!({"name": "a"}), "a reply needs `content`, a text or content blocks with texts"),
            (json!("b"), "a reply needs `content`, a text or content blocks with texts"),
        ] {
            let wrong = step(&json!({"replies": [reply]}), &[call("a")]);
            assert_eq!(wrong, Err(Unusable::Broken(words.to_owned())), "{reply}");
        }
    }

    #[test]
    fn a_field_that_is_meant_as_one_that_is_missing_is_refused() {
        for (answer, words) in [
            (json!({"id": 4, "score": 2}), "has `score`, which is no field; did you mean `reward`?"),
            (json!({"id": 4, "rewrd": 5}), "did you mean `reward`?"),
            (json!({"id": 4, "Reward": 5}), "did you mean `reward`?"),
            (json!({"id": 4, "rewards": 5}), "did you mean `reward`?"),
        ] {
            let Err(Unusable::Broken(reason)) = reward(&answer) else { panic!("{answer}") };
            assert!(reason.contains(words), "{reason}");
        }
        let step_of = |more: Value| {
            let mut answer = json!({"id": 2, "replies": [{"content": "b"}]});
            answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            step(&answer, &[call("a")])
        };
        assert!(step_of(json!({"Done": true})).is_err());
        assert!(step_of(json!({"rewrd": 1.0})).is_err());
        let others = json!({
            "info": {}, "truncated": false, "elapsed": 0.1, "score": 2.0, "next": 1, "date": 1, "one": 1, "queue": [],
            "retries": 0, "rewarded": true,
        });
        assert!(step_of(others.clone()).is_ok(), "it is no mistake");
        assert!(reward(&json!({"reward": 1.0, "score": 2.0})).is_ok(), "the reward is there");
        assert!(reward(&json!({"id": 4, "retries": 0, "rate": 0.1})).is_ok());
        assert!(opening(&json!({"Text": "go"})).is_err());
    }

    #[test]
    fn an_error_without_a_reason_says_so() {
        for line in [r#"{"id": 4, "error": ""}"#, r#"{"id": 4, "error": " \n", "traceback": "a"}"#] {
            let failure = read(line, 1.0).unwrap().fields.unwrap_err().of("e.py:E");
            assert_eq!((failure.kind(), failure.to_string()), ("broken", format!("e.py:E: {NO_REASON}")), "{line}");
        }
        assert_eq!(greeting(r#"{"error": ""}"#).unwrap().unwrap_err().reason, NO_REASON);
    }

    #[test]
    fn an_error_that_is_no_text_is_a_failure_too() {
        for (line, reason) in [
            (r#"{"id": 4, "error": {"message": "gone"}, "replies": []}"#, r#"{"message":"gone"}"#),
            (r#"{"id": 4, "error": true}"#, "true"),
            (r#"{"id": 4, "error": 5}"#, "5"),
        ] {
            let failure = read(line, 1.0).unwrap().fields.unwrap_err().of("e.py:E");
            assert_eq!((failure.kind(), failure.to_string()), ("broken", format!("e.py:E: {reason}")), "{line}");
        }
        for nothing in ["null", "false", "0", "[]", "{}"] {
            let line = format!(r#"{{"id": 4, "error": {nothing}}}"#);
            assert!(read(&line, 1.0).unwrap().fields.is_ok(), "{line}");
        }
    }

    #[test]
    fn a_byte_order_mark_before_a_line_is_passed_over() {
        assert!(greeting("\u{feff}{\"protocol\": 1}").unwrap().is_ok());
        assert_eq!(read("\u{feff}{\"id\": 4}", 1.0).unwrap().id, 4);
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_a_failure_of_its_request() {
        for (line, reason) in [
            (r#"{"id":11,"replies":[{"content":"6"}],"reward":NaN}"#, "its reward is NaN"),
            (r#" {"replies": [], "reward" : -Infinity, "id" : 11}"#, "its reward is -Infinity"),
            (r#"{"id": 11, "text": NaN}"#, r#"its answer is no JSON ("#),
            (
                r#"{"id": 11, "replies": [{"content": "\ud8006"}]}"#,
                r#"): `{"id": 11, "replies": [{"content": "\ud8006"}]}`"#,
            ),
            (r#"{"id": 11, "replies": [{"content": "a line"#, "its answer is no JSON ("),
            (r#"{"id": 11, "reward": 1e999}"#, "its answer is no JSON (number out of range"),
            (r#"{"id": "11", "text": null}"#, r#"the `id` of its answer is "11" and not the number 11"#),
            (r#"{"id": 11.0, "text": null}"#, "the `id` of its answer is 11.0 and not the number 11"),
        ] {
            let answer = read(line, 1.0).unwrap();
            let failure = answer.fields.unwrap_err();
            assert_eq!((answer.id, failure.kind()), (11, "broken"), "{line}");
            assert!(failure.to_string().contains(reason), "{failure}");
        }
        let long = format!(r#"{{"id": 11, "text": "{}"#, "x".repeat(1000));
        assert!(read(&long, 1.0).unwrap().fields.unwrap_err().to_string().len() < 300, "the beginning is quoted");
    }

    #[test]
    fn a_first_line_that_cannot_be_read_is_told_from_lines_before_it() {
        for (line, reason) in [
            (r#"{"protocol": 1, "tools": [NaN]}"#, "is no JSON in one line"),
            ("{'protocol': 1, 'tools': []}", "`{'protocol': 1, 'tools': []}`"),
            ("\u{feff}{\"protocol\": 1, \"tools\": [NaN]}", "is no JSON in one line"),
            ("  \"protocol\": 1,", "is no JSON in one line"),
            (r#"{"tools": []}"#, r#"has no `protocol`; add "protocol": 1: `{"tools": []}`"#),
        ] {
            let refused = greeting(line).unwrap().unwrap_err().reason;
            assert!(refused.contains(reason), "{refused}");
        }
        for line in ["{", "the protocol is 1", "{'level': 'info'}", r#"{"level": "info", "tools": 3}"#, "[1]"] {
            assert_eq!(greeting(line), None, "{line}");
        }
    }

    #[test]
    fn a_reply_needs_its_content_alone() {
        let answer = json!({"replies": [{"content": "5"}, {"name": "other", "content": "", "failed": true}]});
        let found = step(&answer, &[call("a"), call("b")]).unwrap();
        let said: Vec<_> = found.replies.iter().map(|reply| (&*reply.name, reply.failed)).collect();
        assert_eq!((said, found.reward, found.done), (vec![("a", false), ("other", true)], None, false));
        let answer = json!({"replies": [{"content": "5"}], "reward": 0.5, "done": true});
        let found = step(&answer, &[call("a")]).unwrap();
        assert_eq!((found.reward, found.done), (Some(0.5), true));
    }

    #[test]
    fn texts_of_megabytes_are_not_passed_on() {
        let of = |bytes: usize| json!({"content": [{"type": "text", "text": "x".repeat(bytes)}]});
        let replies = |first, second| json!({"replies": [of(first), of(second)]});
        let calls = [call("a"), call("b")];
        assert!(step(&replies(MAX_TEXT, MAX_TEXT), &calls).is_ok());
        let lengths = |first, second| {
            let mut replies = step(&replies(first, second), &calls).unwrap().replies;
            replies.iter_mut().flat_map(|reply| texts(&mut reply.content)).map(|text| text.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(MAX_TEXT, MAX_TEXT), [MAX_TEXT, MAX_TEXT]);
        assert_eq!(lengths(MAX_TEXT - 1, 3 * MAX_TEXT), [MAX_TEXT - 1, MAX_TEXT + 1], "the rest is cut off");
        assert_eq!(lengths(3 * MAX_TEXT, 5), [2 * MAX_TEXT, 0]);
        let wide = json!({"replies": [{"content": "é".repeat(MAX_TEXT)}, {"content": "ab東"}]});
        let wide = step(&wide, &calls).unwrap().replies;
        assert_eq!(
            (text_of(&mut wide[0].content.clone()).unwrap().len(), &wide[1].content),
            (2 * MAX_TEXT, &json!(""))
        );
        let half = json!({"replies": [{"content": "x".repeat(2 * MAX_TEXT - 3)}, {"content": "ab東"}]});
        assert_eq!(step(&half, &calls).unwrap().replies[1].content, "ab", "characters stay whole");
        assert!(opening(&json!({"text": "x".repeat(MAX_TEXT)})).is_ok());
        assert!(matches!(opening(&json!({"text": "x".repeat(MAX_TEXT + 1)})), Err(Unusable::TooLong(_))));
    }

    #[test]
    fn a_first_line_of_another_protocol_is_refused() {
        assert_eq!(greeting("hello"), None);
        assert_eq!(greeting(r#"{"id": 1}"#), None);
        let refused = |line: &str| greeting(line).unwrap().unwrap_err().reason;
        assert!(refused(r#"{"protocol": 2, "tools": []}"#).contains("another protocol, 2; this build speaks 1"));
        for tools in [r#"5"#, r#"[{"name": "a"}]"#, r#"[{"type": "function", "function": {"name": ""}}]"#] {
            let line = format!(r#"{{"protocol": 1, "tools": {tools}}}"#);
            assert!(refused(&line).contains("cannot be read"), "{line}");
        }
        assert!(refused(r#"{"protocol": 1, "rewards": 1}"#).contains("cannot be read"));
        assert_eq!(refused(r#"{"error": "no", "traceback": "t"}"#), "no");
        let line = r#"{"protocol": 1, "ready": true, "tools": [], "environments": []}"#;
        assert_eq!(greeting(line), Some(Ok(Greeting::default())));
        let tool = json!({"type": "function", "function": {"name": "turn"}});
        let said = greeting(&json!({"protocol": 1, "rewards": true, "tools": [tool]}).to_string());
        assert_eq!(said, Some(Ok(Greeting { tools: vec![tool], rewards: true, environments: Vec::new() })));
    }

    #[test]
    fn any_line_is_survived() {
        let seeds = [
            r#"{"protocol": 1, "tools": [], "environments": [{"key": null, "rewards": true, "tools": []}]}"#,
            r#"{"protocol": 1, "rewards": true, "tools": [{"type": "function", "function": {"name": "a"}}]}"#,
            r#"{"id": 1, "text": "hi", "abandoned": 3}"#,
            r#"{"id": 2, "replies": [{"name": "a", "content": "b", "failed": false}], "reward": 0.5, "done": true}"#,
            r#"{"id": 3, "error": "a", "traceback": "b", "late": true}"#,
            r#"{"id": 4, "replies": [{"content": "\ud8006"}], "reward": -Infinity}"#,
        ];
        harness::fuzz::explore("environment_answers", &seeds.map(|line| line.as_bytes().to_vec()), |bytes| {
            let Ok(line) = std::str::from_utf8(bytes) else { return };
            let _ = greeting(line);
            let Ok(Answer { fields: Ok(fields), .. }) = read(line, 1.0) else { return };
            let _ = (opening(&fields), reward(&fields));
            if let Ok(step) = step(&fields, &[call("a")]) {
                let [reply] = step.replies.as_slice() else { panic!("{step:?}") };
                assert!(reply.content.is_string() || reply.content.is_array());
            }
        });
    }
}
