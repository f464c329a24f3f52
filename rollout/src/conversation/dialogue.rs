//! What all conversations of a run share.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Conversation, DialogueError, Limits,
    script::Script,
    suffix::{Ends, Suffix},
};
use crate::data::Tokenizer;

/// Template, tokenizer, ends of turn and limits of all conversations.
pub struct Dialogue {
    pub(super) script: Script,
    ends: Ends,
    pub(super) stop_tokens: Vec<u32>,
    pub(super) limits: Limits,
}

impl Dialogue {
    /// Proves that the template has one suffix for a reply. `stop_tokens` are the ids that end a turn when they are
    /// drawn.
    ///
    /// # Errors
    /// What the template lacks, with the renderings that show it.
    pub fn new(tokenizer: &Tokenizer, stop_tokens: &[u32], limits: Limits) -> Result<Self, DialogueError> {
        let script = Script::new(tokenizer)?;
        let ends = Ends::of(&script, stop_tokens)?;
        Ok(Self { script, ends, stop_tokens: stop_tokens.to_vec(), limits })
    }

    /// Prompt ids of messages with tools, up to the opening of the assistant's turn. Texts of messages and tools
    /// become no control tokens, but for those of docs/templates.md.
    ///
    /// # Errors
    /// Messages that the template refuses or the tokenizer cannot represent.
    pub fn opening(&self, messages: &[Value], tools: &[Value]) -> Result<Vec<u32>, DialogueError> {
        let marks = self.script.marks(messages.iter().chain(tools))?;
        let rendered = self.script.render(messages, tools, marks)?;
        self.script.encode(&rendered.text, &marks, true)
    }

    /// The same, where prompt and conversation have at most so many tokens.
    #[must_use]
    pub fn within(self, max_model_len: usize) -> Self {
        Self { limits: Limits { max_model_len, ..self.limits }, ..self }
    }

    /// Bounds of every conversation.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A conversation after the prompt of these messages.
    #[must_use]
    pub fn begin(&self, messages: Vec<Value>, tools: &[Value], prompt_ids: Arc<[u32]>) -> Conversation {
        Conversation::new(self.limits, messages, tools, prompt_ids)
    }

    /// The suffix of messages that reply to a turn.
    ///
    /// # Errors
    /// Messages that the template refuses or the tokenizer cannot represent.
    pub(super) fn suffix(&self, replies: &[Value]) -> Result<Suffix, DialogueError> {
        self.ends.suffix(&self.script, replies)
    }
}
