//! What can go wrong between a folder and a store.

use std::{fmt, io, path::PathBuf};

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Reading an object.
    Reading,
    /// Writing an object.
    Writing,
    /// Asking what is there.
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

/// A store that cannot be used, or a thing in it. Places are named without credentials.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// What was given is no place.
    #[error(
        "`{place}` cannot be used for weights: {reason}; give a folder, or s3://bucket/…, gs://bucket/…, \
         az://container/… or https://host/…"
    )]
    Address {
        /// What was given.
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
    /// Nothing says who is asking.
    #[error("{place}: no credentials ({reason}); give them in {variables}")]
    NoCredentials {
        /// The store.
        place: String,
        /// What happened.
        reason: String,
        /// Where they are given.
        variables: &'static str,
    },
    /// The store refuses who is asking.
    #[error("{place}: {doing} {object} is denied ({reason}); see that {variables} allow it")]
    Denied {
        /// The store.
        place: String,
        /// What was being done.
        doing: Doing,
        /// The object.
        object: String,
        /// The store's words.
        reason: String,
        /// Where credentials are given.
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
    /// What is there is not what was published.
    #[error("{place}: {object} is damaged: {what}; it has to be published again")]
    Corrupted {
        /// The store.
        place: String,
        /// The object.
        object: String,
        /// In which way.
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
        /// What was being done.
        doing: Doing,
        /// The object.
        object: String,
        /// What was waited for.
        reason: String,
    },
    /// No connection, or none that lasts.
    #[error(
        "{place}: cannot be reached, {doing} {object} ({reason}); see that its address is right and the store is up"
    )]
    Unreachable {
        /// The store.
        place: String,
        /// What was being done.
        doing: Doing,
        /// The object.
        object: String,
        /// What happened.
        reason: String,
    },
    /// A web server.
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
        /// What was being done.
        doing: Doing,
        /// The object.
        object: String,
        /// The store's words.
        reason: String,
    },
    /// What cannot be published.
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
    /// The one who watches wants no more.
    #[error("the transfer was given up; what has arrived is kept")]
    GaveUp,
}

impl StoreError {
    /// Whether another try may end otherwise.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Corrupted { .. } | Self::Unreachable { .. } | Self::Other { .. })
    }
}

/// An error of a file of this host.
pub(crate) fn of_file(path: &std::path::Path, error: io::Error) -> StoreError {
    let named = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    on_disk(named)
}

/// An error of this host's disk whose message has the path.
pub(crate) fn on_disk(error: io::Error) -> StoreError {
    if is_full(error.kind()) { StoreError::DiskFull(error) } else { StoreError::File(error) }
}

/// Whether there is no room, or none for a file as large.
pub(crate) fn is_full(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge)
}
