//! GGUF files: a parser written from the format's description, and the models in them.
//!
//! A file has metadata, the places of its tensors, and their values. Numbers are little-endian; a text has its length
//! before it. Source: `docs/gguf.md` of the ggml project, version 3.

mod blocks;
mod families;
mod layers;
mod metadata;
mod model;
mod names;
mod parse;
mod positions;
mod weights;

use std::path::Path;

use crate::{Model, VerifyError};

pub use metadata::{Metadata, Value};
pub use parse::{Gguf, Place};

/// Opens the model of a file, run as llama.cpp runs it: the architecture is that of the metadata alone.
///
/// # Errors
/// A file that is no whole GGUF file, or a model that this crate does not know.
pub fn open(path: &Path) -> Result<Model, VerifyError> {
    model::open(Gguf::open(path)?)
}
