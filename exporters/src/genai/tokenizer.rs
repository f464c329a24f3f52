//! Whether ONNX Runtime GenAI can read a model's tokenizer, which it does with code of its own.

use serde::Deserialize;
use shared::{ModelDir, model::model_dir::MOST_TOKENIZER_BYTES};
use shared_bounds::read_text;

use crate::ExportError;

const CONFIG_FILE: &str = "tokenizer_config.json";

/// The part of `tokenizer.json` that decides.
#[derive(Deserialize)]
struct Tokenizer {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    /// Older files have none, and are of the kind `BPE`.
    r#type: Option<String>,
}

/// Refuses a tokenizer that GenAI cannot read. GenAI 0.18 fails without `tokenizer_config.json`. Of a `tokenizer.json`
/// of another kind than BPE, it gives an error without a reason, or ends its process.
///
/// # Errors
/// A missing file, or another kind of tokenizer.
pub(super) fn check(model: &ModelDir) -> Result<(), ExportError> {
    let path = model.tokenizer()?;
    let text = read_text(&path, MOST_TOKENIZER_BYTES).map_err(|e| ExportError::io(&path, e))?;
    let tokenizer: Tokenizer =
        serde_json::from_str(&text).map_err(|e| ExportError::content(&path, format!("is no tokenizer: {e}")))?;
    if let Some(kind) = tokenizer.model.r#type.filter(|kind| kind != "BPE") {
        let message = format!("the tokenizer is of the kind {kind}; onnxruntime-genai reads BPE alone of this file");
        return Err(ExportError::content(&path, message));
    }
    if !model.companions().iter().any(|path| path.ends_with(CONFIG_FILE)) {
        let message = format!("has no {CONFIG_FILE}, which onnxruntime-genai needs; `{{}}` is enough");
        return Err(ExportError::content(model.path(), message));
    }
    Ok(())
}
