//! Prompt/completion rows for the supervised warm start.

use std::path::Path;

use serde::Deserialize;
use shared::ModelDir;

use crate::{
    error::LearnerError,
    text::{self, TextIds},
};

/// A tokenised row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Completion tokens, which alone carry loss.
    pub completion: Vec<u32>,
}

/// A row: texts, or token ids that are taken as they are.
#[derive(Debug, Deserialize)]
struct Row {
    prompt: Option<String>,
    completion: Option<String>,
    prompt_ids: Option<Vec<u32>>,
    completion_ids: Option<Vec<u32>>,
}

/// Turns rows into examples.
#[derive(Debug)]
pub struct Encoder {
    text: TextIds,
    /// Every end-of-sequence id; the first is appended to completion texts that have none at their end.
    eos: Vec<u32>,
}

impl Encoder {
    /// An encoder with the model's tokenizer; without one, rows must carry token ids.
    ///
    /// # Errors
    /// A tokenizer that cannot be read, or `append_eos` for a model that names no end-of-sequence token.
    pub fn new(model: &ModelDir, append_eos: bool) -> Result<Self, LearnerError> {
        let text = TextIds::open(model)?;
        let eos = if append_eos { model.generation().eos_token_ids.clone() } else { Vec::new() };
        if append_eos && eos.is_empty() {
            return Err(LearnerError::content(
                model.path(),
                "neither generation_config.json nor config.json names an `eos_token_id`, nor tokenizer_config.json an \
                 `eos_token`; add one, or pass --no-append-eos",
            ));
        }
        Ok(Self { text, eos })
    }

    /// Reads a dataset.
    ///
    /// # Errors
    /// A dataset that cannot be read, or the first unusable row, with its place and the reason.
    pub fn read(&self, path: &Path) -> Result<Vec<Example>, LearnerError> {
        text::rows(path, |row| self.encode(row))
    }

    fn encode(&self, row: Row) -> Result<Example, String> {
        // A plain text prompt is tokenised with special tokens, as the sampler does; a completion goes on from it.
        let prompt = self.text.ids(row.prompt_ids, row.prompt, "prompt", true)?;
        let from_text = row.completion_ids.is_none();
        let mut completion = self.text.ids(row.completion_ids, row.completion, "completion", false)?;
        if let Some(&eos) = self.eos.first()
            && from_text
            && !completion.last().is_some_and(|last| self.eos.contains(last))
        {
            completion.push(eos);
        }
        if prompt.is_empty() || completion.is_empty() {
            return Err("prompt and completion must have at least one token each".into());
        }
        Ok(Example { prompt, completion })
    }
}
