//! Rows of datasets, and token ids of their fields: given as ids, or as text for the model's tokenizer.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::ModelDir;
use shared_data::{Columns, DataError, Row};
use shared_hub::locate_dataset;
use shared_tokenizer::TextTokenizer;

use crate::error::LearnerError;

/// Every row of a dataset, converted by `read`. A folder with splits gives its rows for training.
///
/// # Errors
/// A dataset that cannot be read, or the first unusable row, with its place and the reason.
pub fn rows<Fields: DeserializeOwned, Item>(
    path: &Path,
    read: impl Fn(Fields) -> Result<Item, String>,
) -> Result<Vec<Item>, LearnerError> {
    let path = locate_dataset(path, TRAIN.into())?;
    let table = shared_data::read(&path, TRAIN)?;
    tracing::info!("{}: {}", path.display(), table.about);
    for warning in table.warnings(&Columns::default()) {
        tracing::warn!("{}: {warning}", path.display());
    }
    let item = |Row { values, place }: Row| {
        let columns: Vec<String> = values.keys().map(|key| format!("`{key}`")).collect();
        let fields = serde_json::from_value(Value::Object(values)).map_err(|error| error.to_string());
        fields.and_then(&read).map_err(|mut reason| {
            if reason.starts_with(MISSING) {
                reason = format!("has {reason}, but {}", columns.join(", "));
            }
            DataError::Row { place, reason }.into()
        })
    };
    table.rows.into_iter().map(item).collect()
}

/// Beginning of an error about columns that a row does not have. The columns that it has are appended.
pub const MISSING: &str = "neither ";

/// The split of rows to train on.
const TRAIN: &str = "train";

/// A field of a row: token ids, or a text.
pub type Field = (Option<Vec<u32>>, Option<String>);

/// Turns fields of rows into token ids.
#[derive(Debug)]
pub struct TextIds {
    tokenizer: Option<TextTokenizer>,
    vocabulary: u32,
}

impl TextIds {
    /// With the model's tokenizer; without one, rows must carry token ids.
    ///
    /// # Errors
    /// A tokenizer that cannot be read.
    pub fn open(model: &ModelDir) -> Result<Self, LearnerError> {
        let tokenizer = model.tokenizer().is_ok().then(|| TextTokenizer::of_model(model)).transpose()?;
        tokenizer.iter().flat_map(TextTokenizer::remarks).for_each(|remark| tracing::warn!("{remark}"));
        Ok(Self { tokenizer, vocabulary: model.config().vocab_size as u32 })
    }

    /// The ids of a prompt and of the completion `key` behind it, as a row has them. Texts are tokenised with special
    /// tokens at their beginning, as the sampler does, and together. A completion that is a text ends with the first of
    /// `eos`, unless it ends with any of them.
    ///
    /// # Errors
    /// As [`TextIds::ids`].
    pub fn prompt_and_completion(
        &self,
        prompt: Field,
        completion: Field,
        key: &str,
        eos: &[u32],
    ) -> Result<(Vec<u32>, Vec<u32>), String> {
        let from_text = completion.0.is_none();
        let (prompt, mut completion) = match (prompt, completion) {
            ((None, Some(prompt)), (None, Some(completion))) => self.joined(prompt, completion, key, true)?,
            ((prompt_ids, prompt), (ids, completion)) => {
                (self.ids(prompt_ids, prompt, "prompt", true)?, self.ids(ids, completion, key, false)?)
            }
        };
        if let Some(&end) = eos.first()
            && from_text
            && !completion.last().is_some_and(|last| eos.contains(last))
        {
            completion.push(end);
        }
        Ok((prompt, completion))
    }

    /// The ids of a prompt, and those of the completion `key` that goes on from it, with special tokens at the
    /// beginning if `special`. Both texts are tokenised together, as in TRL's trainers: many a tokenizer puts a blank
    /// before a text, and a completion alone would begin with a token that never follows a prompt.
    ///
    /// # Errors
    /// As [`TextIds::ids`].
    pub fn joined(
        &self,
        prompt: String,
        completion: String,
        key: &str,
        special: bool,
    ) -> Result<(Vec<u32>, Vec<u32>), String> {
        let mut whole = self.ids(None, Some(format!("{prompt}{completion}")), key, special)?;
        let prompt = self.ids(None, Some(prompt), "prompt", special)?;
        // If a token reaches over the end of the prompt, the model has to go on from the prompt's own tokens.
        let completion = match whole.starts_with(&prompt) {
            true => whole.split_off(prompt.len()),
            false => self.ids(None, Some(completion), key, false)?,
        };
        Ok((prompt, completion))
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
            (None, Some(text), Some(tokenizer)) => tokenizer.encode(&text, special)?,
            (None, Some(_), None) => return Err(format!("`{key}` is text and the model has no tokenizer.json")),
            (None, None, _) => return Err(format!("{MISSING}`{key}` nor `{key}_ids`")),
        };
        match ids.iter().find(|&&token| token >= self.vocabulary) {
            None => Ok(ids),
            Some(token) => Err(format!("token {token} is outside the model's vocabulary of {}", self.vocabulary)),
        }
    }
}
