//! What can go wrong between a model directory and an ONNX model.

use std::{io, path::Path};

use shared::model::{manifest::ManifestError, model_dir::ModelDirError};

/// An error of a caller's tensor source.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// A model that cannot be read, exported or written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file or folder cannot be read or written; the message names it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file's content is not what it should be.
    #[error("{path}: {message}")]
    Content {
        /// The file or folder.
        path: String,
        /// What is wrong, and the way out.
        message: String,
    },
    /// The configuration asks for something the graph cannot express.
    #[error("`{key}` = {value} cannot be exported ({hint})")]
    Unsupported {
        /// The key of `config.json` or the option.
        key: String,
        /// Its value.
        value: String,
        /// What is supported.
        hint: String,
    },
    /// A tensor of the caller could not be read; the source says why.
    #[error("tensor {name}")]
    Tensor {
        /// The Hugging Face parameter name.
        name: String,
        /// The error of the caller's source.
        source: SourceError,
    },
    /// A tensor of the export that a version is made of has changed since it was written.
    #[error(
        "tensor {name} of the export is not what was exported; remove the export and start again, and check the disk"
    )]
    Damaged {
        /// The tensor's name.
        name: String,
    },
    /// A tensor's values cannot be stored.
    #[error("tensor {name}: {message}")]
    Values {
        /// The parameter name.
        name: String,
        /// What is wrong, and the way out.
        message: String,
    },
    /// An adapter is for a module that cannot have one.
    #[error("`target_modules`: {target} is no linear layer that can be adapted here; these can: {known}")]
    NoSuchModule {
        /// The name that leads to no linear layer.
        target: String,
        /// Names of the linear layers that there are.
        known: String,
    },
    /// An adapter on LFM3's gates of attention.
    #[error(
        "`target_modules`: {target} is the gate of attention, which has no adapter here: the model's files call it \
         gate_proj, and transformers g_proj; name other layers"
    )]
    ModuleOfGates {
        /// The entry.
        target: String,
    },
    /// An adapter is for experts or their router.
    #[error(
        "`target_modules`: {target} is a part of the experts, which have no adapters here: PEFT has them in one \
         tensor; name layers of attention"
    )]
    ModuleOfExperts {
        /// The name that leads to experts.
        target: String,
    },
    /// An option of a run does not fit the model.
    #[error("`{option}`: {message}")]
    Option {
        /// Its key.
        option: &'static str,
        /// What is wrong, and what to do.
        message: String,
    },
    /// The model directory cannot be used.
    #[error(transparent)]
    ModelDir(#[from] ModelDirError),
    /// The manifest of an export or version cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl ExportError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io(io::Error::new(source.kind(), format!("{}: {source}", path.display())))
    }

    pub(crate) fn values(name: &str, message: impl Into<String>) -> Self {
        Self::Values { name: name.into(), message: message.into() }
    }

    /// Of a tensor that is not read back as it was written.
    pub(crate) fn unlike(name: &str) -> Self {
        Self::values(name, "was not read back as it was written; check the disk")
    }

    pub(crate) fn content(path: &Path, message: impl Into<String>) -> Self {
        Self::Content { path: path.display().to_string(), message: message.into() }
    }
}
