//! A store: its objects, and a runtime for its requests.

use std::{env, future::Future, time::Duration};

use bytes::Bytes;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload, path::Path};
use tokio::runtime::{Builder, Runtime};

use crate::{
    Doing, StoreError, Watch,
    index::{INDEX_FILE, folder_of, plain},
    provider::{self, OpenStore, Provider},
    understand::understand,
};

/// How long a request may take, all tries included.
const DEADLINE: Duration = Duration::from_secs(300);
/// Time between two checks whether a transfer is still wanted.
const POLL: Duration = Duration::from_millis(50);
/// Bytes that are written at a time. For more, ext4 asks for so much memory at once that finding it costs several times
/// the copy.
pub const PIECE_BYTES: usize = 128 << 10;
/// Transfers at a time; each holds one chunk.
pub const TRANSFERS: usize = 8;

/// A store of weights for other processes.
pub struct Store {
    pub(crate) place: OpenStore,
    runtime: Runtime,
}

/// The subject of a request, for errors.
#[derive(Clone, Copy)]
pub struct About<'a> {
    pub doing: Doing,
    pub object: &'a Path,
}

impl Store {
    /// Opens a store: a folder, which is made if it is missing, or a URL (`file://`, `s3://`, `gs://`, `az://`,
    /// `http://`, `https://`). Options and credentials come from the usual environment variables: `AWS_…`, `GOOGLE_…`,
    /// `AZURE_…`. No request is sent yet.
    ///
    /// # Errors
    /// [`StoreError::Address`] with the reason.
    pub fn open(place: &str) -> Result<Self, StoreError> {
        Self::open_with(place, env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))))
    }

    /// As [`Store::open`], with variables other than those of the environment.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(place: &str, variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, StoreError> {
        let variables: Vec<_> = variables.into_iter().collect();
        let no_runtime = |e| StoreError::Address { place: place.to_owned(), reason: format!("no threads for it: {e}") };
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(2).max_blocking_threads(TRANSFERS).thread_name("store").enable_all();
        let runtime = threads.build().map_err(no_runtime)?;
        // Clients must be made inside the runtime that they will run in.
        let place = runtime.block_on(async { provider::open(place, &variables) })?;
        Ok(Self { place, runtime })
    }

    /// Its name for people, without credentials.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place.shown
    }

    pub(crate) fn objects(&self) -> &dyn ObjectStore {
        &*self.place.objects
    }

    /// Folder of the objects of a publication. The prefix has been checked.
    pub(crate) fn folder(&self, prefix: &str, blake3: &[u8; 32]) -> Path {
        self.place.root.clone().join(folder_of(prefix, blake3))
    }

    /// Checks a prefix.
    pub(crate) fn checked(&self, prefix: &str) -> Result<(), StoreError> {
        if plain(prefix) {
            return Ok(());
        }
        let reason = "has other characters than letters, digits, `.`, `_` and `-`, or is empty or too long".into();
        Err(StoreError::Unpublishable { path: prefix.into(), reason })
    }

    /// Refuses to write to a store that can only be read.
    pub(crate) fn writable(&self) -> Result<(), StoreError> {
        match self.place.kind {
            Provider::Http => Err(StoreError::ReadOnly { place: self.place.shown.clone() }),
            _ => Ok(()),
        }
    }

    /// Waits for an answer of the store, until the deadline passes or the watcher gives up.
    pub(crate) fn ask<T>(
        &self,
        about: About<'_>,
        watch: &dyn Watch,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, StoreError> {
        let in_time = async {
            match tokio::time::timeout(DEADLINE, request).await {
                Ok(answer) => answer.map_err(|error| self.understood(about, &error)),
                Err(_) => Err(self.timed_out(about)),
            }
        };
        self.runtime.block_on(async {
            tokio::select! {
                answer = in_time => answer,
                () = given_up(watch) => Err(StoreError::GaveUp),
            }
        })
    }

    fn timed_out(&self, About { doing, object }: About<'_>) -> StoreError {
        let (place, object) = (self.place.shown.clone(), object.to_string());
        StoreError::TimedOut { place, doing, object, reason: format!("more than {} s", DEADLINE.as_secs()) }
    }

    pub(crate) fn understood(&self, about: About<'_>, error: &object_store::Error) -> StoreError {
        understand(&self.place, about.doing, about.object.as_ref(), error)
    }

    /// The error of an object that is not as it should be.
    pub(crate) fn corrupted(&self, object: &Path, what: impl Into<String>) -> StoreError {
        StoreError::Corrupted { place: self.place.shown.clone(), object: object.to_string(), what: what.into() }
    }

    /// Writes an object that fits into one request.
    pub(crate) fn write_whole(&self, object: &Path, bytes: Vec<u8>, watch: &dyn Watch) -> Result<(), StoreError> {
        let write = self.objects().put(object, payload(bytes));
        self.ask(About { doing: Doing::Writing, object }, watch, write).map(drop)
    }

    /// Removes an object. A missing object is no error.
    pub(crate) fn delete(&self, object: &Path, watch: &dyn Watch) -> Result<(), StoreError> {
        match self.ask(About { doing: Doing::Removing, object }, watch, self.objects().delete(object)) {
            Err(StoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}

/// Path of the index in a folder.
pub fn index_path(folder: &Path) -> Path {
    folder.clone().join(INDEX_FILE)
}

/// Bytes in pieces, as stores take them.
pub fn payload(bytes: Vec<u8>) -> PutPayload {
    let bytes = Bytes::from(bytes);
    (0..bytes.len()).step_by(PIECE_BYTES).map(|at| bytes.slice(at..bytes.len().min(at + PIECE_BYTES))).collect()
}

/// Returns when nobody wants the answer any more.
async fn given_up(watch: &dyn Watch) {
    while !watch.give_up() {
        tokio::time::sleep(POLL).await;
    }
}
