//! Errors between a folder and a store.

use std::{fmt, io, path::PathBuf};

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Reading an object.
    Reading,
    /// Writing an object.
    Writing,
    /// Listing objects.
    Listing,
    /// Removing an object.
    Removing,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reading => "reading",
            Self::Writing => "writing",
            Self::Listing => "listing",
            Self::Removing => "removing",
        })
    }
}

/// A store, or an object in it, that cannot be used. Places are named without credentials.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The text is no place of a store.
    #[error(
        "`{place}` cannot be used for weights: {reason}; give a folder, or s3://bucket/…, gs://bucket/…, \
         az://container/… or https://host/…"
    )]
    Address {
        /// The text.
        place: String,
        /// Why not.
        reason: String,
    },
    /// No such bucket.
    #[error("{place}: there is no such bucket or container; make it first, or correct its name")]
    NoBucket {
        /// The store.
        place: String,
    },
    /// There are no credentials.
    #[error("{place}: no credentials ({reason}); give them in {variables}")]
    NoCredentials {
        /// The store.
        place: String,
        /// What happened.
        reason: String,
        /// The variables that give them.
        variables: &'static str,
    },
    /// The store refuses the credentials.
    #[error("{place}: {doing} {object} is denied ({reason}); see that {variables} allow it")]
    Denied {
        /// The store.
        place: String,
        /// The operation that failed.
        doing: Doing,
        /// The object.
        object: String,
        /// The store's words.
        reason: String,
        /// The variables that give credentials.
        variables: &'static str,
    },
    /// No such object.
    #[error(
        "{place}: {object} is not there; it was removed meanwhile, or the store is another one than that of the run"
    )]
    NotFound {
        /// The store.
        place: String,
        /// The object.
        object: String,
    },
    /// An object is not as it was published.
    #[error("{place}: {object} is damaged: {what}; it has to be published again")]
    Corrupted {
        /// The store.
        place: String,
        /// The object.
        object: String,
        /// The difference.
        what: String,
    },
    /// No room in the store.
    #[error(
        "{place}: no room for {object} ({reason}); free some space there, or keep fewer versions (`store_versions`)"
    )]
    Full {
        /// The store.
        place: String,
        /// The object.
        object: String,
        /// What the store says.
        reason: String,
    },
    /// No answer in time.
    #[error(
        "{place}: {doing} {object} took too long ({reason}); see that the store is up and the network to it is not too \
         slow"
    )]
    TimedOut {
        /// The store.
        place: String,
        /// The operation that failed.
        doing: Doing,
        /// The object.
        object: String,
        /// The event that did not come.
        reason: String,
    },
    /// No connection, or none that lasts.
    #[error(
        "{place}: cannot be reached, {doing} {object} ({reason}); see that its address is right and the store is up"
    )]
    Unreachable {
        /// The store.
        place: String,
        /// The operation that failed.
        doing: Doing,
        /// The object.
        object: String,
        /// What happened.
        reason: String,
    },
    /// A web server, which takes no writes.
    #[error("{place}: is only read; publish into the folder that the server shows, or into a store of objects")]
    ReadOnly {
        /// The store.
        place: String,
    },
    /// Another refusal.
    #[error("{place}: {doing} {object}: {reason}")]
    Other {
        /// The store.
        place: String,
        /// The operation that failed.
        doing: Doing,
        /// The object.
        object: String,
        /// The store's words.
        reason: String,
    },
    /// A file or folder that cannot be published.
    #[error("{}: {reason}", path.display())]
    Unpublishable {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// No room on this host.
    #[error("no room for what is fetched ({0}); what has arrived is kept, and the next try goes on from there")]
    DiskFull(io::Error),
    /// A file of this host, which the error names.
    #[error(transparent)]
    File(io::Error),
    /// Somebody else is fetching into the same folder.
    #[error("{}: another process is fetching into it; give each a folder of its own", folder.display())]
    Busy {
        /// The folder.
        folder: PathBuf,
    },
    /// The watcher wants the transfer to end.
    #[error("the transfer was given up; what has arrived is kept")]
    GaveUp,
}

impl StoreError {
    /// Whether another try may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Corrupted { .. } | Self::Unreachable { .. } | Self::Other { .. })
    }
}

/// An error about a file of this host.
pub(crate) fn of_file(path: &std::path::Path, error: io::Error) -> StoreError {
    let named = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    on_disk(named)
}

/// An error of this host's disk whose message contains the path.
pub(crate) fn on_disk(error: io::Error) -> StoreError {
    if is_full(error.kind()) { StoreError::DiskFull(error) } else { StoreError::File(error) }
}

/// Whether the disk is full, or has no room for so large a file.
pub(crate) fn is_full(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge)
}
