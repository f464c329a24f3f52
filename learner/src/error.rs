//! What can go wrong in the learner.
//!
//! libtorch may refuse any operation, for want of memory above all. A function that computes then returns
//! [`LearnerError::Torch`] or panics as [`crate::refusal`] says. Its `# Errors` name only further errors.

use std::io;

/// An error of the learner's library.
#[derive(Debug, thiserror::Error)]
pub enum LearnerError {
    /// A parameter has another number of values than the architecture says.
    #[error("parameter {name} has {found} values, the architecture needs {expected}")]
    Shape {
        /// Hugging Face name.
        name: String,
        /// Values needed.
        expected: usize,
        /// Values found.
        found: usize,
    },
    /// A parameter that the architecture does not have.
    #[error("the architecture has no parameter {0}")]
    Parameter(String),
    /// A configuration that the learner cannot honour.
    #[error("{0}")]
    Config(String),
    /// The compute device cannot be used.
    #[error("{0}")]
    Device(String),
    /// A file's content is not what it should be.
    #[error("{path}: {message}")]
    Content {
        /// The file.
        path: String,
        /// What is wrong, and the way out.
        message: String,
    },
    /// The sampler breaks the contract, or is gone.
    #[error("{0}")]
    Peer(String),
    /// A reward function fails on everything. It would do so again, so that starting again is of no use.
    #[error("{0}")]
    Reward(String),
    /// `guard` ends the run. Starting again would lead to the same step.
    #[error("{0}")]
    Guard(String),
    /// The published weights are not the trained ones, again and again.
    #[error("{0}")]
    Conformity(String),
    /// The model computes values that are not finite. Starting again would lead to the same step.
    #[error("{0}")]
    Diverged(String),
    /// libtorch refused an operation. Most of its refusals are panics, which [`crate::refusal`] reports in the same
    /// way.
    #[error("{}", crate::refusal::one_line(.0))]
    Torch(String),
    /// Reading or writing a model failed.
    #[error(transparent)]
    Export(#[from] exporters::ExportError),
    /// The model directory cannot be used.
    #[error(transparent)]
    ModelDir(#[from] shared::model::model_dir::ModelDirError),
    /// The model's tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] shared_tokenizer::OpenError),
    /// The checkpoint does not belong to the run.
    #[error(transparent)]
    Resume(#[from] shared::run::resume::ResumeError),
    /// A dataset cannot be used.
    #[error(transparent)]
    Data(#[from] shared_data::DataError),
    /// A name on the Hugging Face Hub that cannot be used.
    #[error(transparent)]
    Hub(#[from] shared_hub::HubError),
    /// The run directory is another run's by now.
    #[error(transparent)]
    Run(#[from] shared::channel::RunIdError),
    /// The channel to the sampler failed.
    #[error(transparent)]
    Channel(#[from] shared::channel::ChannelError),
    /// Any error of the file system; the message names the path.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<tch::TchError> for LearnerError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.to_string())
    }
}

impl LearnerError {
    /// Whether it would come again, so that starting again is of no use.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        matches!(self, Self::Reward(_) | Self::Guard(_) | Self::Conformity(_) | Self::Diverged(_) | Self::Run(_))
    }

    /// A [`Self::Content`].
    pub(crate) fn content(path: &std::path::Path, message: impl Into<String>) -> Self {
        Self::Content { path: path.display().to_string(), message: message.into() }
    }
}
