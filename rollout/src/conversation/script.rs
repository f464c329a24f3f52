//! The template and the tokenizer of conversations.

use serde_json::{Map, Value};
use shared_chat::calls::Format;
use shared_tokenizer::{ControlTokens, Marks};

use super::DialogueError;
use crate::data::{Marked, Tokenizer, TokenizerError};

/// A tokenizer with its chat template.
pub(super) struct Script {
    pub tokenizer: Tokenizer,
    pub format: Format,
}

impl Script {
    /// Asks a template whether it can hold conversations with tools.
    ///
    /// # Errors
    /// What it lacks.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, DialogueError> {
        let template = tokenizer.template().ok_or(TokenizerError::NoTemplate)?;
        let support = template.tool_support();
        let format = support.format.ok_or_else(|| {
            let known = Format::ALL.map(Format::models).join(", ");
            DialogueError::Format { known }
        })?;
        let lacks = [
            (!support.tools, "writes no tools"),
            (!support.calls, "writes no tool calls"),
            (support.arguments == shared_chat::calls::Arguments::Text, "takes no arguments that are objects"),
            (!support.replies, "writes no messages of the role `tool`"),
        ];
        if let Some((_, what)) = lacks.into_iter().find(|(lacks, _)| *lacks) {
            return Err(DialogueError::Unsupported(what));
        }
        Ok(Self { tokenizer: tokenizer.clone(), format })
    }

    /// The control tokens of tokenizer and template.
    pub fn control(&self) -> &ControlTokens {
        self.tokenizer.control_tokens()
    }

    /// Marks that none of these values has.
    ///
    /// # Errors
    /// When they have all characters that could be marks.
    pub fn marks<'a>(&'a self, values: impl IntoIterator<Item = &'a Value>) -> Result<Marks, DialogueError> {
        Ok(self.tokenizer.marks(values)?)
    }

    /// Renders messages and tools, up to the opening of the assistant's turn. A last message of the assistant is left
    /// open.
    ///
    /// # Errors
    /// Messages that the template refuses.
    pub fn render(&self, messages: &[Value], tools: &[Value], marks: Marks) -> Result<Marked, DialogueError> {
        let mut variables = Map::new();
        if !tools.is_empty() {
            variables.insert("tools".into(), tools.into());
        }
        Ok(self.tokenizer.render_marked(messages, &variables, marks)?)
    }

    /// Ids of a marked text. `begins` says whether it begins a prompt.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub fn encode(&self, text: &str, marks: &Marks, begins: bool) -> Result<Vec<u32>, DialogueError> {
        Ok(self.tokenizer.encode_marked(text, marks, begins)?)
    }

    /// Text of ids, special tokens included.
    ///
    /// # Errors
    /// When the decoder of the tokenizer fails.
    pub fn decode_all(&self, ids: &[u32]) -> Result<String, DialogueError> {
        let text = self.tokenizer.text_tokenizer().decode_all(ids);
        Ok(text.map_err(TokenizerError::Decode)?)
    }
}
