//! What can go wrong in the engine.

use shared::{PolicyVersion, model::manifest::ManifestError};

use crate::sampling::RowError;

/// An engine that cannot start, a request it refuses, or a step that failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The ONNX Runtime library, or the part of it for the wanted device, is not there.
    #[error("{0}")]
    Library(String),
    /// ONNX Runtime or the CUDA runtime reported an error.
    #[error("{doing}: {message}")]
    Runtime {
        /// What the engine was doing, or the function of the CUDA runtime that it called.
        doing: String,
        /// What the runtime said.
        message: String,
    },
    /// The folder of weights cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The folder of weights does not belong to the model or to this engine.
    #[error("{path}: {message}")]
    Weights {
        /// The folder.
        path: String,
        /// What does not fit.
        message: String,
    },
    /// The options make no sense.
    #[error("{0}")]
    Options(String),
    /// The memory plan does not fit.
    #[error("{0}")]
    Memory(String),
    /// A request that the engine refuses; nothing was queued.
    #[error("prompt {prompt}: {message}")]
    Request {
        /// The prompt's id.
        prompt: u64,
        /// What is wrong with the request.
        message: String,
    },
    /// No token can be drawn from a row of logits.
    #[error("prompt {prompt}, sample {sample}, weights v{version}: {reason}")]
    Row {
        /// The prompt's id.
        prompt: u64,
        /// The sample within its group.
        sample: u32,
        /// The weights in use.
        version: PolicyVersion,
        /// What is wrong with the row.
        reason: RowError,
    },
    /// Weights that are not what the learner published.
    #[error("weights v{version} are refused: {reason}")]
    Refused {
        /// The version.
        version: PolicyVersion,
        /// What differs.
        reason: String,
    },
    /// Weights that do not get to those who are to sample from them, although it was tried again and again.
    #[error("weights v{version} do not get into the store: {reason}")]
    Unsent {
        /// The version.
        version: PolicyVersion,
        /// What is in the way.
        reason: String,
    },
    /// New weights could not be taken into use; the old ones stay.
    #[error("weights v{version}: {message}")]
    Swap {
        /// The version asked for.
        version: PolicyVersion,
        /// Why.
        message: String,
    },
}

impl EngineError {
    /// Why weights are refused that are there and are not what they should be; nothing for any other error.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::Refused { reason, .. } => Some(reason.clone()),
            Self::Manifest(error @ ManifestError::Content { .. }) => Some(error.to_string()),
            _ => None,
        }
    }

    /// For `map_err`: names what was being done when ONNX Runtime failed.
    pub(crate) fn runtime<E: std::fmt::Display>(doing: &str) -> impl FnOnce(E) -> Self + '_ {
        move |error| {
            // Messages of ONNX Runtime may span lines; an error of ours is one line.
            let message = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            Self::Runtime { doing: doing.to_owned(), message }
        }
    }
}
