//! Weights in a folder or a store of objects: published once, fetched by many.
//!
//! What is published is a flat folder. Its files become objects `PREFIX-HASH8/FILE`, and an [`Index`] beside them,
//! written last, has their lengths and the hash of every chunk. The hash of the index stands for everything, so whoever
//! has it from somebody they trust can fetch from a store that they do not trust. A thing without an index is not
//! there.
//!
//! Everything waits for a bounded time only, and gives up when its [`Watch`] says so. The functions block; they are not
//! for threads that run asynchronous code.

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
