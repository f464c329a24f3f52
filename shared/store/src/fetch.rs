//! Fetching a published folder.

use std::{
    collections::BTreeSet,
    fs,
    path::Path as FilePath,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use object_store::{ObjectStoreExt as _, path::Path};

use crate::{
    Doing, Index, IndexedFile, Store, StoreError, Watch,
    download::{self, Download},
    index::MOST_INDEX_BYTES,
    parallel::in_parallel,
    store::{About, TRANSFERS, index_path},
};

/// Tries for an object that does not arrive as it should.
const ATTEMPTS: usize = 3;

/// The result of a fetch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fetched {
    /// Bytes that came from the store, without the index and without bytes that were on the disk already.
    pub bytes: u64,
    /// Bytes of all files.
    pub total: u64,
    /// How long it took.
    pub seconds: f64,
}

/// A fetch that goes on.
struct Fetch<'a> {
    store: &'a Store,
    folder: Path,
    part: Download<'a>,
    total: u64,
    done: AtomicU64,
    fetched: AtomicU64,
    watch: &'a dyn Watch,
}

impl Store {
    /// Fetches the folder with this prefix and hash, and moves it to `into` in one visible step: a folder that was
    /// there is replaced. Arriving files are gathered beside it, in `INTO.part`; the next try, also of another process,
    /// does not fetch them again; [`crate::forget`] throws it away. If `into` has the content already, nothing is done.
    ///
    /// # Errors
    /// [`StoreError`]. The arrived files are kept then, and `into` is unchanged.
    pub fn fetch(
        &self,
        prefix: &str,
        blake3: &[u8; 32],
        into: &FilePath,
        watch: &dyn Watch,
    ) -> Result<Fetched, StoreError> {
        let begin = Instant::now();
        self.checked(prefix)?;
        let folder = self.folder(prefix, blake3);
        let index = self.index(&folder, blake3, watch)?;
        let done = |bytes| Fetched { bytes, total: index.total(), seconds: begin.elapsed().as_secs_f64() };
        if is_whole(into, &index, watch)? {
            download::forget(into)?;
            watch.progress(index.total(), index.total());
            return Ok(done(0));
        }
        let part = Download::open(into, &index)?;
        part.require_space(&index)?;
        let (total, done_bytes, fetched) = (index.total(), AtomicU64::new(0), AtomicU64::new(0));
        let fetch = Fetch { store: self, folder, part, total, done: done_bytes, fetched, watch };
        let chunks = index.chunks();
        in_parallel(TRANSFERS, chunks.len(), |buffer, n| fetch.chunk(chunks[n].0, chunks[n].1, buffer))?;
        fetch.part.place()?;
        Ok(done(fetched_bytes(&fetch.fetched)))
    }

    /// The index with this hash.
    pub(crate) fn index(&self, folder: &Path, blake3: &[u8; 32], watch: &dyn Watch) -> Result<Index, StoreError> {
        let object = index_path(folder);
        let bytes = persistently(|| {
            let bytes = self.read_whole(&object, MOST_INDEX_BYTES, watch)?;
            let right = blake3::hash(&bytes).as_bytes() == blake3;
            if right { Ok(bytes) } else { Err(self.corrupted(&object, "it does not have the hash that is asked for")) }
        })?;
        Index::parse(&bytes).map_err(|what| self.corrupted(&object, what))
    }
}

fn fetched_bytes(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Fetch<'_> {
    /// Puts a chunk into the buffer: from the disk if it is there, else from the store.
    fn chunk(&self, file: &IndexedFile, chunk: usize, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        if self.watch.give_up() {
            return Err(StoreError::GaveUp);
        }
        if !self.part.has(file, chunk, buffer) {
            persistently(|| self.ask(file, chunk, buffer))?;
            self.part.write(file, chunk, buffer)?;
            self.fetched.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        }
        let bytes = file.chunk_bytes(chunk) as u64;
        self.watch.progress(self.done.fetch_add(bytes, Ordering::Relaxed) + bytes, self.total);
        Ok(())
    }

    fn ask(&self, file: &IndexedFile, chunk: usize, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        let object = self.folder.clone().join(file.name.as_str());
        let start = file.offset(chunk);
        let range = start..start + file.chunk_bytes(chunk) as u64;
        let length = match self.store.read_range(&object, range, buffer, self.watch) {
            // Stores have many words for a range beyond the end.
            Err(error @ StoreError::Other { .. }) => self.length(&object).filter(|n| *n != file.length).ok_or(error)?,
            other => other?,
        };
        if length != file.length {
            let what = format!("it has {length} bytes, and {} by its index", file.length);
            return Err(self.store.corrupted(&object, what));
        }
        if !file.is_chunk(chunk, buffer) {
            let what = format!("bytes {start} to {} do not have the hash of the index", start + buffer.len() as u64);
            return Err(self.store.corrupted(&object, what));
        }
        Ok(())
    }

    fn length(&self, object: &Path) -> Option<u64> {
        let about = About { doing: Doing::Reading, object };
        self.store.ask(about, self.watch, self.store.objects().head(object)).ok().map(|meta| meta.size)
    }
}

fn persistently<T>(mut attempt: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(error) if error.may_pass() => tracing::debug!("{error}; asked for again"),
            other => return other,
        }
    }
    attempt()
}

/// Whether a folder matches an index: its files with their bytes, and no others.
fn is_whole(folder: &FilePath, index: &Index, watch: &dyn Watch) -> Result<bool, StoreError> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(false) };
    let lengths: Option<BTreeSet<_>> = entries
        .map(|entry| {
            let entry = entry.ok()?;
            let what = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((entry.file_name().into_string().ok()?, what.len()))
        })
        .collect();
    let wanted = index.files.iter().map(|file| (file.name.clone(), file.length)).collect();
    if lengths != Some(wanted) {
        return Ok(false);
    }
    let chunks = index.chunks();
    let looked = in_parallel(TRANSFERS, chunks.len(), |buffer, n| match chunks[n] {
        _ if watch.give_up() => Err(Some(StoreError::GaveUp)),
        (file, chunk) if download::has(folder, file, chunk, buffer) => Ok(()),
        _ => Err(None),
    });
    match looked {
        Ok(()) => Ok(true),
        Err(None) => Ok(false),
        Err(Some(error)) => Err(error),
    }
}
