//! Tool calls in the text of a turn, each family of models in its own format.
//!
//! A template tells the model which tools there are, and the model answers in the format of its family: a [`Format`] is
//! found by the words of the template. [`parse`] reads a whole turn, as transformers' `parse_response` does with the
//! response templates of TRL. A [`Reader`] reads a turn as it is drawn: it gives the text that is certainly no part of
//! a call at once, and the calls at the end. All work takes time in proportion to the text.
//!
//! Two rules keep half a call from being taken for a whole one. A turn with a call that cannot be read is text, and so,
//! for a [`Reader`], is a turn that did not end by itself: in formats without JSON, half a call reads as a call.
//!
//! | room | subject |
//! |---|---|
//! | `format` | families: their words in a template, and their marks in a turn |
//! | `scan` | text, thinking and calls of a turn, as its text comes |
//! | `body` | the inside of a call to its name and arguments |
//! | `pythonic` | calls in the form of Python |
//! | `schema` | arguments that are texts, to the types that a tool's schema gives them |
//! | `reader` | a turn as it is drawn |
//! | `grammar` | turns that must call, as a grammar |
//! | `support` | which parts of a conversation with tools a template writes |

mod body;
mod format;
mod grammar;
mod pythonic;
mod reader;
mod scan;
mod schema;
mod support;
#[cfg(test)]
mod tests;

use std::ops::Range;

use serde_json::{Map, Value, json};

pub use format::Format;
pub use grammar::MustCall;
pub use reader::{End, Reader};
pub use schema::Tools;
pub use support::{Arguments, ToolSupport};

use scan::{Piece, Scanner};

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The name that the model wrote; there may be no such tool.
    pub name: String,
    /// Usually an object. The formats in JSON allow the model to write any value here.
    pub arguments: Value,
    /// Whatever else the model wrote into the object of a call in JSON.
    pub more: Map<String, Value>,
}

impl Call {
    /// A call with nothing but a name and arguments.
    #[must_use]
    pub fn new(name: impl Into<String>, arguments: Value) -> Self {
        Self { name: name.into(), arguments, more: Map::new() }
    }

    /// The arguments as an object. Some models write the object as a text of JSON.
    #[must_use]
    pub fn object(&self) -> Option<Map<String, Value>> {
        match &self.arguments {
            Value::Object(object) => Some(object.clone()),
            Value::String(text) => serde_json::from_str(text).ok(),
            _ => None,
        }
    }
}

/// A turn of the assistant that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// The last thoughts, stripped; none if they are empty.
    pub reasoning: Option<String>,
    /// The last text beside thoughts and calls, stripped: transformers keeps no other. A [`Reader`] gives all of it.
    pub content: String,
    /// The calls, in order.
    pub calls: Vec<Call>,
    /// Whether each call has its end and all of its arguments.
    pub whole: bool,
    /// The bytes of the turn that are calls, with their marks.
    spans: Vec<Range<usize>>,
}

impl Turn {
    /// The turn as a message of the family, in the form of transformers' `parse_response`.
    #[must_use]
    pub fn into_message(self, format: Format) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content});
        if let Some(reasoning) = self.reasoning {
            message[format.reasoning_key()] = reasoning.into();
        }
        let call = |call: Call| {
            let mut function = Map::new();
            function.insert("name".into(), call.name.into());
            function.insert("arguments".into(), call.arguments);
            function.extend(call.more);
            json!({"type": "function", "function": function})
        };
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into_iter().map(call).collect();
        }
        message
    }
}

/// Reads a turn that goes on after a prompt: a template may have written the beginning of the turn. Special tokens are
/// part of both texts. None if a call cannot be read: the turn is text then, and calls nothing.
#[must_use]
pub fn parse(format: Format, prompt: &str, text: &str, tools: &Tools) -> Option<Turn> {
    let mut scanner = Scanner::new(format, prompt);
    scanner.push(text);
    scanner.finish(false);
    read(&scanner, tools)
}

/// The turn of a scanner that has come to its end.
fn read(scanner: &Scanner, tools: &Tools) -> Option<Turn> {
    let mut turn = Turn { reasoning: None, content: String::new(), calls: Vec::new(), whole: true, spans: Vec::new() };
    let beside = |turn: &mut Turn, text: &str| {
        if !text.is_empty() {
            text.trim().clone_into(&mut turn.content);
        }
    };
    for piece in scanner.pieces() {
        match piece {
            Piece::Text(range) => beside(&mut turn, &scanner.text()[range.clone()]),
            Piece::Thinking(range) => {
                let thoughts = scanner.text()[range.clone()].trim();
                turn.reasoning = (!thoughts.is_empty()).then(|| thoughts.to_owned());
            }
            Piece::Call { span, name, body, closed } => {
                let text = scanner.text();
                let name = name.as_ref().map(|name| &text[name.clone()]);
                let found = body::read(scanner.format(), name, &text[body.clone()], *closed, tools)?;
                if found.calls.is_empty() {
                    // A block that was cut before its first call.
                    beside(&mut turn, &text[span.clone()]);
                    continue;
                }
                turn.whole &= found.whole;
                turn.calls.extend(found.calls);
                beside(&mut turn, found.rest);
                turn.spans.push(scanner.in_turn(span));
            }
        }
    }
    Some(turn)
}
