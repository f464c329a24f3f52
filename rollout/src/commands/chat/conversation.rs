//! The messages of a conversation, and their tokens.

use serde_json::{Map, Value};

use crate::data::{Tokenizer, TokenizerError, adapters::message};

/// Messages in turns, and the system prompt before them.
pub struct Conversation {
    tokenizer: Tokenizer,
    system: Option<String>,
    turns: Vec<Value>,
}

impl Conversation {
    /// Without any turn.
    pub fn new(tokenizer: Tokenizer, system: Option<String>) -> Self {
        Self { tokenizer, system, turns: Vec::new() }
    }

    /// The tokenizer that makes its tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Replaces the system prompt.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// Forgets all turns; the system prompt stays.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Adds a question.
    pub fn ask(&mut self, question: &str) {
        self.turns.push(message("user", question));
    }

    /// Adds the answer to the last question.
    pub fn answer(&mut self, answer: &str) {
        self.turns.push(message("assistant", answer));
    }

    /// Takes the last question back.
    pub fn take_back(&mut self) {
        self.turns.pop();
    }

    /// The tokens of everything so far, up to the beginning of an answer.
    ///
    /// # Errors
    /// Messages that the template refuses, with the way out.
    pub fn ids(&self) -> Result<Vec<u32>, String> {
        let system = self.system.iter().map(|system| message("system", system));
        let messages: Vec<Value> = system.chain(self.turns.iter().cloned()).collect();
        let prompt = self.tokenizer.prompt(&messages, &Map::new());
        let encoded = prompt.and_then(|prompt| self.tokenizer.prompt_ids(&prompt));
        encoded.map_err(|error| {
            if self.system.is_some() && self.render(&self.turns).is_ok() {
                return format!("{error}; without the system prompt it can: `/system` alone takes that away");
            }
            error.to_string()
        })
    }

    fn render(&self, messages: &[Value]) -> Result<String, TokenizerError> {
        self.tokenizer.render(messages, &Map::new())
    }

    /// Whether the template leaves out the system prompt.
    pub fn loses_system(&self) -> bool {
        let Some(system) = &self.system else { return false };
        let messages = [message("system", system), message("user", "?")];
        let Some(template) = self.tokenizer.template() else { return false };
        self.render(&messages).is_ok_and(|text| template.lost(&messages, &text) == Some(0))
    }
}
