//! What can be wrong with an export.

use std::{fmt::Display, path::Path};

/// An export that cannot be opened, or is not its model.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A file cannot be read, or its content is not what it should be.
    #[error("{path}: {message}")]
    File {
        /// The file or folder.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// The export opens, but is not the model.
    #[error("the export is not the model: {0}")]
    Differs(String),
    /// The log-prob of a token differs by more than a bound.
    #[error("the log-prob of a token differs from the model's by {difference:.3e}, the bound is {bound:.0e}")]
    TooFar {
        /// The largest difference, in nats.
        difference: f64,
        /// The bound, in nats.
        bound: f64,
    },
    /// What a runtime reports.
    #[error("the export cannot be run: {0}")]
    Runtime(String),
    /// A row that a reader cannot take.
    #[error("a row has the token {token}, but the vocabulary has {vocabulary} tokens")]
    Token {
        /// The token.
        token: u32,
        /// The number of tokens.
        vocabulary: usize,
    },
}

impl VerifyError {
    /// An error of a file, with its path.
    pub fn file(path: &Path, message: impl Display) -> Self {
        Self::File { path: path.display().to_string(), message: message.to_string() }
    }
}
