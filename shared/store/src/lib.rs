//! Weights in a folder or a store of objects: published once, fetched by many.
//!
//! A publication is a flat folder. Its files become objects `PREFIX-HASH8/FILE`. An [`Index`] beside them, written
//! last, has their lengths and the hash of every chunk. The hash of the index stands for the whole folder, so a reader
//! that has it from a trusted source can fetch from a store that it does not trust. A folder without an index does not
//! exist for readers.
//!
//! All waits are bounded, and end when the [`Watch`] says so. The functions block; do not call them on threads that run
//! asynchronous code.

mod download;
mod error;
mod fetch;
mod holdings;
mod index;
mod parallel;
mod probe;
mod provider;
mod publish;
mod read;
mod store;
mod understand;
mod watch;

pub use download::forget;
pub use error::{Doing, StoreError};
pub use fetch::Fetched;
pub use holdings::Held;
pub use index::{CHUNK_BYTES, INDEX_FILE, Index, IndexedFile};
pub use probe::Probe;
pub use publish::Published;
pub use store::Store;
pub use watch::Watch;
