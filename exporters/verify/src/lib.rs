//! Opens exports again, runs them, and compares them with the model that they were made of.
//!
//! A writer that tests itself repeats its own mistakes. So this crate shares no code with the writers of `exporters`:
//! it parses configurations, safetensors, GGUF and ONNX by itself, dequantises by itself, and has a plain forward pass
//! of its own, which golden figures of transformers hold in place.
//!
//! [`huggingface::open`], [`published::open`] and [`gguf::open`] give a [`Model`], which is an [`Architecture`] over
//! [`Weights`]. [`verify`] compares two of them in three ways: all sizes and frequencies, every value of every tensor
//! within the rounding of its type, and log-probs of rows. [`compare`] needs only two [`Reader`]s, so any runtime that
//! gives logits can be one of them: [`genai::verify`] takes one, since a graph is what a runtime makes of it.

#![forbid(unsafe_code)]

mod architecture;
mod comparison;
mod distance;
mod error;
mod file;
mod forward;
pub mod genai;
pub mod gguf;
pub mod huggingface;
mod lora;
mod mixers;
pub mod published;
mod safetensor;
mod tensors;

use std::path::Path;

use ndarray::Array2;

pub use architecture::{Activation, Architecture, Layer, Mixer, Mixture};
pub use comparison::{compare_tensors, values_as_of};
pub use distance::{Distance, compare};
pub use error::VerifyError;
pub use forward::Model;
pub use tensors::{Blocks, Rounding, Tensor, Weights};

/// What gives logits: an export in its runtime, or the model that it was made of.
pub trait Reader {
    /// The logits behind each of the tokens of one sequence: `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// A token beyond the vocabulary, a file that cannot be read, or what a runtime reports.
    fn logits(&mut self, tokens: &[u32]) -> Result<Array2<f32>, VerifyError>;
}

/// Checks that an export is its model: the same sizes and rotary frequencies, tensors that differ by no more than the
/// rounding of their types, and log-probs of the tokens of rows that differ by no more than `bound`. Without a bound
/// the difference is measured alone.
///
/// # Errors
/// The first thing that is not the model's, by name, or a file that cannot be read.
pub fn verify(
    source: &mut Model,
    export: &mut Model,
    rows: &[Vec<u32>],
    bound: Option<f64>,
) -> Result<Distance, VerifyError> {
    if let Some(what) = source.architecture().difference(export.architecture()) {
        return Err(VerifyError::Differs(what));
    }
    compare_tensors(source, export)?;
    let distance = compare(source, export, rows)?;
    bound.map_or(Ok(()), |bound| distance.require(bound))?;
    Ok(distance)
}

/// The size of a file, or of the files in a folder, in bytes.
///
/// # Errors
/// A path that cannot be read.
pub fn size_of(path: &Path) -> Result<u64, VerifyError> {
    let failed = |e| VerifyError::file(path, e);
    let what = std::fs::metadata(path).map_err(failed)?;
    if !what.is_dir() {
        return Ok(what.len());
    }
    let entries = std::fs::read_dir(path).map_err(failed)?;
    entries.map(|entry| size_of(&entry.map_err(failed)?.path())).sum()
}
