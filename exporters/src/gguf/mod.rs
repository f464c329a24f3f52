//! GGUF: a model as the one file that llama.cpp, Ollama and LM Studio open.
//!
//! The file has what llama.cpp's `convert_hf_to_gguf.py` writes for the same directory: its keys, its names of tensors,
//! the order of rows that its rotary positions need, and its tokenizers. A model that llama.cpp would run otherwise is
//! refused, with the key that it has no place for.
//!
//! Norms, biases and tables of one dimension are fp32 in every file. All matrices have the type that is asked for, with
//! two exceptions. A matrix whose rows are no whole blocks is fp16. In a file of `Q4_0`, the output layer is `Q8_0`,
//! and so is an embedding that is the output layer too: llama.cpp's quantiser keeps them finer as well, as `Q6_K`.

mod file;
mod gemma4;
mod hyperparameters;
mod layout;
mod merges;
mod metadata;
mod names;
mod positions;
mod quantise;
mod refusals;
mod splits;
mod states;
mod tensors;
mod tokenizer;

use std::{fmt, path::Path};

use shared::{Head, ModelDir};

use crate::{ExportError, TensorSource};

/// The type of the matrices in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32 bytes with a scale in fp16: 8.5 bits a value.
    Q8_0,
    /// Blocks of 32 half bytes with a scale in fp16: 4.5 bits a value.
    Q4_0,
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
        })
    }
}

impl GgufType {
    /// The number of the type in ggml.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }

    /// The number of llama.cpp's type of file, whose matrices mostly have this type.
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Values and bytes of a block.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (quantise::BLOCK, quantise::BYTES_OF_8),
            Self::Q4_0 => (quantise::BLOCK, quantise::BYTES_OF_4),
        }
    }
}

/// Writes the model of a directory as a file, with the parameters that `read` gives one by one.
///
/// # Errors
/// A model or tokenizer that llama.cpp would take for another one, by key; an error of `read` or of the file system;
/// a value out of the range of the type.
pub fn write_gguf(
    model: &ModelDir,
    path: &Path,
    kind: GgufType,
    read: TensorSource<'_, '_>,
) -> Result<(), ExportError> {
    if let Head::Score { .. } = model.config().head {
        return Err(refused("architectures", "...ForSequenceClassification", "language models"));
    }
    let mut metadata = hyperparameters::of(model.config(), kind)?;
    tokenizer::add(model, &mut metadata)?;
    file::write(path, &metadata, &tensors::of(model.config(), kind), read)
}

/// Something that a file of this format cannot say.
fn refused(key: &str, value: impl fmt::Display, supported: &str) -> ExportError {
    let hint = format!("llama.cpp would run another model; supported in GGUF: {supported}");
    ExportError::Unsupported { key: key.into(), value: value.to_string(), hint }
}
