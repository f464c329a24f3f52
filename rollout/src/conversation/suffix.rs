//! The suffix of a reply: what a template writes after the end of a turn, up to the opening of the next one.
//!
//! Many templates drop or move earlier parts of a conversation when a message comes, so the suffix is no difference of
//! two renderings. Instead a conversation of a question, a turn and the reply is rendered once, and cut behind the last
//! end of turn before the reply. The turn has a call and no text: Gemma 4 writes a text after the reply. In the
//! template's text, marks show where the turn and the reply are.

use std::ops::Range;

use serde_json::{Value, json};
use shared_tokenizer::Marks;

use super::{DialogueError, script::Script};
use crate::data::Marked;

/// What is given after a turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Suffix {
    /// Ids of the end of the turn, for a turn that was drawn without one.
    pub closing: Vec<u32>,
    /// Ids behind the end of the turn.
    pub ids: Vec<u32>,
    /// The text of these ids.
    pub text: String,
}

/// Where a template ends a turn.
pub(super) struct Ends {
    /// Texts of the ends, longest first.
    texts: Vec<String>,
    /// Ends between a call and the reply to it.
    after_call: usize,
    /// Ends between a turn of text and a message of the user, if the template writes any.
    after_text: Option<usize>,
}

/// The turn before a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    Call,
    Text,
}

/// Circumstances in which a reply must have one suffix: turns before, thoughts, and words for a person.
const CIRCUMSTANCES: [(usize, bool, &str); 3] = [
    (0, true, "after a turn with thoughts"),
    (2, false, "after three turns"),
    (2, true, "after three turns with thoughts"),
];

impl Ends {
    /// Finds how the template ends a turn, and proves that a reply has one suffix. `stop_tokens` are the ids that end a
    /// turn when it is drawn.
    ///
    /// # Errors
    /// A template that writes no end of turn, or a reply in two ways.
    pub fn of(script: &Script, stop_tokens: &[u32]) -> Result<Self, DialogueError> {
        let drawn = stop_tokens.iter().filter_map(|&id| script.control().text(id));
        let written = script.format.ends_in_history().iter().copied().filter(|text| script.control().contains(text));
        let mut texts: Vec<String> = drawn.chain(written).map(str::to_owned).collect();
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        let mut ends = Self { texts, after_call: 0, after_text: None };
        let rendered = Self::dummy(script, Lead::Call, 0, false)?;
        ends.after_call = ends.before_reply(&rendered).unwrap_or_default();
        if ends.after_call == 0 {
            return Err(DialogueError::NoEnd { rendering: rendered.shown(0) });
        }
        let first = ends.shown(&rendered)?;
        for (turns, thoughts, circumstance) in CIRCUMSTANCES {
            let second = ends.shown(&Self::dummy(script, Lead::Call, turns, thoughts)?)?;
            if second != first {
                return Err(DialogueError::TwoSuffixes { circumstance, first, second });
            }
        }
        let of_user = Self::dummy(script, Lead::Text, 0, false).ok();
        ends.after_text = of_user.and_then(|rendered| ends.before_reply(&rendered)).filter(|count| *count > 0);
        Ok(ends)
    }

    /// The suffix of messages that reply to a turn: of tools, or of a user.
    ///
    /// # Errors
    /// Messages that the template refuses or the tokenizer cannot represent.
    pub fn suffix(&self, script: &Script, replies: &[Value]) -> Result<Suffix, DialogueError> {
        let lead = if replies.first().is_some_and(|reply| reply["role"] == "tool") { Lead::Call } else { Lead::Text };
        let name = replies.first().map_or(&Value::Null, |reply| &reply["name"]).as_str().unwrap_or(NAME);
        let marks = script.marks(replies)?;
        let mut messages = vec![question(), turn(lead, name, marks.places[0])];
        messages.extend(replies.iter().cloned());
        let rendered = script.render(&messages, &[tool(name)], marks)?;
        let end = self.cut(&rendered, lead).ok_or_else(|| DialogueError::NoEnd { rendering: rendered.shown(0) })?;
        let closing = script.encode(&rendered.text[end.clone()], &marks, false)?;
        let ids = script.encode(&rendered.text[end.start..], &marks, false)?;
        let ids = ids.strip_prefix(&closing[..]).ok_or_else(|| {
            DialogueError::Encode(format!("{:?} is no token of its own", &rendered.text[end.clone()]))
        })?;
        Ok(Suffix { ids: ids.to_vec(), closing, text: rendered.plain(end.end) })
    }

    /// A conversation with turns and replies before the last ones, of which the reply is a mark.
    fn dummy(script: &Script, lead: Lead, turns: usize, thoughts: bool) -> Result<Marked, DialogueError> {
        let marks = script.marks([])?;
        let key = thoughts.then(|| script.format.reasoning_key());
        let with_thoughts = |mut turn: Value| {
            if let Some(key) = key {
                turn[key] = "I think.".into();
            }
            turn
        };
        let reply = |content: &str| match lead {
            Lead::Call => json!({"role": "tool", "name": NAME, "content": content}),
            Lead::Text => json!({"role": "user", "content": content}),
        };
        let mut messages = vec![question()];
        for _ in 0..turns {
            messages.extend([with_thoughts(turn(lead, NAME, 'a')), reply("a")]);
        }
        let [at_turn, at_reply] = marks.places;
        messages.extend([with_thoughts(turn(lead, NAME, at_turn)), reply(&at_reply.to_string())]);
        script.render(&messages, &[tool(NAME)], marks)
    }

    /// Ends of turn between the marks of turn and reply.
    fn before_reply(&self, rendered: &Marked) -> Option<usize> {
        let [at_turn, at_reply] = rendered.marks.places;
        let turn = rendered.text.find(at_turn)?;
        let reply = turn + rendered.text[turn..].find(at_reply)?;
        Some(self.found(&rendered.text, turn, &rendered.marks).take_while(|end| end.end <= reply).count())
    }

    /// The suffix of a dummy, for a comparison.
    fn shown(&self, rendered: &Marked) -> Result<String, DialogueError> {
        let end = self.cut(rendered, Lead::Call);
        let end = end.ok_or_else(|| DialogueError::NoEnd { rendering: rendered.shown(0) })?;
        Ok(rendered.shown(end.end))
    }

    /// The end of the turn that is marked.
    fn cut(&self, rendered: &Marked, lead: Lead) -> Option<Range<usize>> {
        let turn = rendered.text.find(rendered.marks.places[0])?;
        let count = if lead == Lead::Call { self.after_call } else { self.after_text? };
        self.found(&rendered.text, turn, &rendered.marks).nth(count - 1)
    }

    /// The ends of turn that the template wrote from a place on.
    fn found<'a>(&'a self, text: &'a str, from: usize, marks: &'a Marks) -> impl Iterator<Item = Range<usize>> + 'a {
        let mut at = from;
        std::iter::from_fn(move || {
            while let Some(first) = text[at..].chars().next() {
                let end = self.texts.iter().find(|end| text[at..].starts_with(end.as_str()));
                let begin = at;
                at += end.map_or(first.len_utf8(), String::len);
                if end.is_some() && !marks.surround(text, begin, at) {
                    return Some(begin..at);
                }
            }
            None
        })
    }
}

/// The name of a tool that does not exist.
const NAME: &str = "look_up";

fn question() -> Value {
    json!({"role": "user", "content": "a"})
}

/// A turn with a mark in it.
fn turn(lead: Lead, name: &str, mark: char) -> Value {
    let mark = mark.to_string();
    match lead {
        Lead::Call => {
            let function = json!({"name": name, "arguments": {"a": mark}});
            json!({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]})
        }
        Lead::Text => json!({"role": "assistant", "content": mark}),
    }
}

/// A tool of that name.
fn tool(name: &str) -> Value {
    let properties = json!({"a": {"type": "string", "description": "a"}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["a"]});
    json!({"type": "function", "function": {"name": name, "description": "a", "parameters": parameters}})
}
