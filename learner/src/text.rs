//! Rows of JSONL files, and token ids of their fields: given as ids, or as text for the model's tokenizer.

use std::{fs, path::Path};

use shared::ModelDir;
use tokenizers::Tokenizer;

use crate::error::LearnerError;

/// Every line of a file that is not blank, as `read` makes it.
///
/// # Errors
/// A file that cannot be read or has no rows, or the first unusable row, with file, line number and reason.
pub fn rows<Row>(path: &Path, read: impl Fn(&str) -> Result<Row, String>) -> Result<Vec<Row>, LearnerError> {
    let text = fs::read_to_string(path).map_err(|e| LearnerError::content(path, format!("cannot be read: {e}")))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let rows: Vec<Row> = lines
        .map(|(i, line)| read(line).map_err(|e| LearnerError::content(path, format!("line {}: {e}", i + 1))))
        .collect::<Result<_, _>>()?;
    if rows.is_empty() {
        return Err(LearnerError::content(path, "has no rows"));
    }
    Ok(rows)
}

/// Turns fields of JSONL rows into token ids.
#[derive(Debug)]
pub struct TextIds {
    tokenizer: Option<Tokenizer>,
    vocabulary: u32,
}

impl TextIds {
    /// With the model's tokenizer; without one, rows must carry token ids.
    ///
    /// # Errors
    /// A tokenizer that cannot be read.
    pub fn open(model: &ModelDir) -> Result<Self, LearnerError> {
        let tokenizer = model
            .tokenizer()
            .ok()
            .map(|path| Tokenizer::from_file(&path).map_err(|e| LearnerError::content(&path, e.to_string())))
            .transpose()?;
        Ok(Self { tokenizer, vocabulary: model.config().vocab_size as u32 })
    }

    /// The ids of the field `key`: `ids` as they are, else `text` tokenised, with special tokens if `special`.
    ///
    /// # Errors
    /// The reason why there are none, or an id outside the vocabulary.
    pub fn ids(
        &self,
        ids: Option<Vec<u32>>,
        text: Option<String>,
        key: &str,
        special: bool,
    ) -> Result<Vec<u32>, String> {
        let ids = match (ids, text, &self.tokenizer) {
            (Some(ids), _, _) => ids,
            (None, Some(text), Some(tokenizer)) => {
                let encoding = tokenizer.encode_fast(text, special).map_err(|e| e.to_string())?;
                encoding.get_ids().to_vec()
            }
            (None, Some(_), None) => return Err(format!("`{key}` is text and the model has no tokenizer.json")),
            (None, None, _) => return Err(format!("neither `{key}` nor `{key}_ids`")),
        };
        match ids.iter().find(|&&token| token >= self.vocabulary) {
            None => Ok(ids),
            Some(token) => Err(format!("token {token} is outside the model's vocabulary of {}", self.vocabulary)),
        }
    }
}
