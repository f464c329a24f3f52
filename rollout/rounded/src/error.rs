//! Errors of rounded versions.

use std::{io, path::Path};

use exporters::ExportError;
use shared::model::manifest::ManifestError;

/// A version that cannot be rounded, packed or unpacked.
#[derive(Debug, thiserror::Error)]
pub enum RoundedError {
    /// A file or folder cannot be read or written; the message names it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A version directory cannot be read or written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The version is no full set of fp32 weights: an adapter, half precision for devices, or rounded already.
    #[error("{path} {what}; it travels as it is")]
    AsItIs {
        /// Its folder.
        path: String,
        /// Its actual kind.
        what: &'static str,
    },
    /// A version whose tensors are not those that its manifest or the learner names.
    #[error("{path} is not what the learner published: {}", tensors.join(", "))]
    Unlike {
        /// Its folder.
        path: String,
        /// The tensors.
        tensors: Vec<String>,
    },
    /// The index is of another version of this program.
    #[error("{path}: format {found} is not the format {known} of this program; the same build must run on both sides")]
    UnknownFormat {
        /// The index.
        path: String,
        /// Its format.
        found: u32,
        /// The one that can be read.
        known: u32,
    },
    /// The index cannot be read, or does not fit the manifest.
    #[error("{path}: {message}")]
    Index {
        /// The index.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// The difference is to another version than the one at hand. Either the whole version helps, or a difference to
    /// the version at hand.
    #[error("is a difference to the weights {needed}, not to {}", found.as_deref().unwrap_or("none"))]
    WrongBase {
        /// Hash of the version that the difference is to ([`data_blake3`](shared::WeightManifest::data_blake3)).
        needed: String,
        /// The hash of the version at hand.
        found: Option<String>,
    },
    /// Two versions are of different models, or rounded differently.
    #[error("{path} and {other} have different tensors")]
    OtherModel {
        /// The folder of one.
        path: String,
        /// The folder of the other one.
        other: String,
    },
    /// A difference was given where a whole version is needed.
    #[error("{path} is a difference; a whole version is needed")]
    NotWhole {
        /// Its folder.
        path: String,
    },
    /// The data has another length than the index says.
    #[error("{path} is {found} bytes long, the index says {needed}")]
    Truncated {
        /// The file.
        path: String,
        /// Its length.
        found: u64,
        /// The length that it has to have.
        needed: u64,
    },
    /// A tensor is not what was packed.
    #[error("{path}: tensor {tensor} is damaged")]
    Damaged {
        /// The folder.
        path: String,
        /// The tensor.
        tensor: String,
    },
}

impl RoundedError {
    pub(crate) fn damaged(path: &Path, tensor: &str) -> Self {
        Self::Damaged { path: path.display().to_string(), tensor: tensor.to_owned() }
    }

    pub(crate) fn as_it_is(path: &Path, what: &'static str) -> Self {
        Self::AsItIs { path: path.display().to_string(), what }
    }

    pub(crate) fn other_model(path: &Path, other: &Path) -> Self {
        Self::OtherModel { path: path.display().to_string(), other: other.display().to_string() }
    }
}
