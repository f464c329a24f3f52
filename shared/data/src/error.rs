//! What can be wrong with a dataset.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{Location, Row};

/// A dataset that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be read.
    #[error("{path}: cannot be read: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A file is damaged, or not what it should be.
    #[error("{path}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault, and the way out.
        reason: String,
    },
    /// A row is unusable.
    #[error("{place}: {reason}")]
    Row {
        /// Where it is.
        place: Location,
        /// The fault.
        reason: String,
    },
    /// No rows.
    #[error("{path}: holds no rows; a dataset has at least one, for instance the line {{\"prompt\": \"2 + 3 =\"}}")]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
    /// A known format that is not read.
    #[error("{path}: is {what}, which is not read; {remedy}")]
    Unread {
        /// The file.
        path: PathBuf,
        /// The format.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A split that a folder does not have.
    #[error(
        "{path}: has no split `{wanted}`, but {}; `dataset_train_split` and `dataset_test_split` (--split of generate, \
         eval and tune) choose one, or name the files of one", found.join(", ")
    )]
    Split {
        /// The folder.
        path: PathBuf,
        /// The split that was asked for.
        wanted: String,
        /// The splits that it has, quoted.
        found: Vec<String>,
    },
}

impl DataError {
    /// [`Self::File`] of a path.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |reason| Self::File { path: path.to_owned(), reason }
    }

    /// [`Self::Split`] of a folder that has others.
    pub(crate) fn no_split(folder: &Path, wanted: &str, found: &[String]) -> Self {
        let found = found.iter().map(|name| format!("`{name}`")).collect();
        Self::Split { path: folder.to_owned(), wanted: wanted.to_owned(), found }
    }

    /// [`Self::Content`].
    pub(crate) fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), reason: reason.into() }
    }
}

impl Row {
    /// An error about this row.
    #[must_use]
    pub fn error(&self, reason: String) -> DataError {
        DataError::Row { place: self.place.clone(), reason }
    }
}
