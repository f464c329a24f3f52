//! Messages to text with marks, and text with marks to ids: control tokens come from the template alone.

use serde_json::{Map, Value};
use shared_chat::{ChatTemplate, calls::Format};
use shared_tokenizer::{ControlTokens, Marks};

use super::DialogueError;
use crate::data::{Tokenizer, TokenizerError};

/// A tokenizer with its chat template.
pub(super) struct Script {
    pub tokenizer: Tokenizer,
    pub format: Format,
    pub control: ControlTokens,
}

/// A rendered text whose control tokens from elsewhere are marked.
pub(super) struct Marked {
    pub text: String,
    pub marks: Marks,
}

impl Marked {
    /// The text as the template writes it.
    pub fn plain(&self, from: usize) -> String {
        self.marks.removed_from(&self.text[from..])
    }

    /// The text for a person, who sees no marks of places.
    pub fn shown(&self, from: usize) -> String {
        self.plain(from).replace(self.marks.places, "…")
    }
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
        let control = tokenizer.text_tokenizer().control_tokens(|text| template.writes(text));
        Ok(Self { tokenizer: tokenizer.clone(), format, control })
    }

    fn template(&self) -> &ChatTemplate {
        self.tokenizer.template().expect("`new` has asked for one")
    }

    /// Marks that none of these values has.
    ///
    /// # Errors
    /// When they have all characters that could be marks.
    pub fn marks<'a>(&self, values: impl IntoIterator<Item = &'a Value>) -> Result<Marks, DialogueError> {
        let is_taken = |mark: char| self.template().writes(mark.encode_utf8(&mut [0; 4]));
        let full = || DialogueError::Encode("the messages have every rare character that could mark a place".into());
        Marks::unused_in(values, is_taken).ok_or_else(full)
    }

    /// Renders messages and tools, up to the opening of the assistant's turn. A last message of the assistant is left
    /// open.
    ///
    /// # Errors
    /// Messages that the template refuses.
    pub fn render(&self, messages: &[Value], tools: &[Value], marks: Marks) -> Result<Marked, DialogueError> {
        let marked = |values: &[Value]| values.iter().map(|value| self.control.mark(value, &marks)).collect::<Vec<_>>();
        let mut variables = Map::new();
        if !tools.is_empty() {
            variables.insert("tools".into(), marked(tools).into());
        }
        let text = self.tokenizer.render(&marked(messages), &variables)?;
        Ok(Marked { text, marks })
    }

    /// Ids of a marked text. `begins` says whether it begins a prompt.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub fn encode(&self, text: &str, marks: &Marks, begins: bool) -> Result<Vec<u32>, DialogueError> {
        let ids = self.tokenizer.text_tokenizer().encode_marked(text, marks, &self.control, begins);
        ids.map_err(DialogueError::Encode)
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
