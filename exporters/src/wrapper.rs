//! A text model within a model of images and text: its parameters under their names there, and the tensors beside them.

use std::{borrow::Cow, collections::HashMap};

use shared::ModelDir;

use crate::{
    ExportError,
    tensor_file::{Carried, Tensor, TensorFile},
    weight_files::weight_files,
};

/// What stands before the parts of the text model: in files of transformers 5, and in earlier ones.
const PREFIXES: [&str; 2] = ["model.language_model.", "language_model.model."];
/// What the text model is called within the whole, wherever it lies there.
const INNER: &str = "language_model.";
/// The head, where it is no part of the whole but of the text model.
const INNER_HEAD: &str = "language_model.lm_head.";
/// Heads that are a part of the whole, or of a text model alone: of a language model and of a scorer.
const HEADS: [&str; 2] = [HEAD, "score."];
const HEAD: &str = "lm_head.";

/// The text model's own name of a tensor; `None` for a tensor of another part.
pub(crate) fn own_name(stored: &str) -> Option<Cow<'_, str>> {
    if HEADS.iter().any(|head| stored.starts_with(head)) {
        return Some(stored.into());
    }
    if let Some(rest) = stored.strip_prefix(INNER_HEAD) {
        return Some(format!("{HEAD}{rest}").into());
    }
    let rest = PREFIXES.iter().find_map(|prefix| stored.strip_prefix(prefix))?;
    Some(format!("model.{rest}").into())
}

/// The name that transformers 5 has for a text model's parameter within the whole.
pub(crate) fn whole_name(own: &str) -> String {
    match own.strip_prefix("model.") {
        Some(rest) => format!("{}{rest}", PREFIXES[0]),
        None => own.to_owned(),
    }
}

/// The end of a module's name in the whole, or of several modules' names, as the end of the text model's own.
pub(crate) fn own_ending(stored: String) -> String {
    match stored.rsplit_once(INNER) {
        Some((_, rest)) => rest.strip_prefix("model.").unwrap_or(rest).to_owned(),
        None => stored,
    }
}

/// The files of a whole model.
pub(crate) struct Whole {
    files: Vec<TensorFile>,
    /// Names in the files, by the text model's own.
    stored: HashMap<String, String>,
    /// The tensors of other parts, by name, each with its file.
    others: Vec<(String, usize, Tensor)>,
}

impl Whole {
    /// Opens the files of a directory; of one without weights, there are none.
    ///
    /// # Errors
    /// A broken file, by name.
    pub fn open(model: &ModelDir) -> Result<Self, ExportError> {
        let mut whole = Self { files: Vec::new(), stored: HashMap::new(), others: Vec::new() };
        if !model.has_weights() {
            return Ok(whole);
        }
        for path in weight_files(model.path())?.0 {
            let file = TensorFile::open(path)?;
            for (name, tensor) in file.tensors()? {
                match own_name(&name) {
                    Some(own) => drop(whole.stored.insert(own.into_owned(), name)),
                    None => whole.others.push((name, whole.files.len(), tensor)),
                }
            }
            whole.files.push(file);
        }
        whole.others.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        Ok(whole)
    }

    /// The name of a text model's parameter in the files.
    pub fn name_of(&self, own: &str) -> String {
        self.stored.get(own).cloned().unwrap_or_else(|| whole_name(own))
    }

    /// The tensors of other parts.
    pub fn carried(&self) -> impl Iterator<Item = Carried<'_>> {
        self.others.iter().map(|(name, file, tensor)| Carried {
            name,
            dtype: tensor.dtype,
            shape: &tensor.shape,
            bytes: &self.files[*file].map[tensor.bytes.clone()],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_one_name_in_the_text_model_and_others_in_the_whole() {
        for (stored, own) in [
            ("model.language_model.layers.0.mlp.up_proj.weight", Some("model.layers.0.mlp.up_proj.weight")),
            ("language_model.model.embed_tokens.weight", Some("model.embed_tokens.weight")),
            ("language_model.lm_head.weight", Some("lm_head.weight")),
            ("lm_head.weight", Some("lm_head.weight")),
            ("score.weight", Some("score.weight")),
            ("model.vision_tower.patch_conv.weight", None),
            ("multi_modal_projector.linear_1.weight", None),
        ] {
            assert_eq!(own_name(stored).as_deref(), own, "{stored}");
        }
        for own in ["model.norm.weight", "lm_head.weight"] {
            assert_eq!(own_name(&whole_name(own)).as_deref(), Some(own));
        }
        for (stored, own) in [
            ("model.language_model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
            ("language_model.model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
            ("language_model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
            ("mlp.up_proj", "mlp.up_proj"),
        ] {
            assert_eq!(own_ending(stored.to_owned()), own);
        }
    }
}
