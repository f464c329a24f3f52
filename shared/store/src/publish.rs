//! Publishing a folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path as FilePath, PathBuf},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use object_store::{MultipartUpload, ObjectStoreExt as _, path::Path};

use crate::{
    Doing, Index, IndexedFile, Store, StoreError, Watch,
    error::of_file,
    index::{CHUNK_BYTES, INDEX_FILE, plain},
    parallel::in_parallel,
    read::read_at,
    store::{About, TRANSFERS, index_path, payload},
    watch::Briefly,
};

/// Most parts of an object, a limit of S3.
const MOST_PARTS: u64 = 10_000;

/// The result of a publication.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// Hash of the index, which stands for the whole folder and is the argument of [`Store::fetch`].
    pub blake3: [u8; 32],
    /// Bytes that were sent, without the index and without bytes that the store had already.
    pub bytes: u64,
    /// Bytes of all files.
    pub total: u64,
    /// How long it took.
    pub seconds: f64,
}

/// A publication under way.
struct Publication<'a> {
    store: &'a Store,
    folder: Path,
    total: u64,
    done: AtomicU64,
    watch: &'a dyn Watch,
}

/// The parts of an object that is being sent.
struct Parts {
    upload: Box<dyn MultipartUpload>,
    /// Where the next part begins.
    next: u64,
}

impl Store {
    /// Publishes the files of a folder; files whose names begin with a dot are left out. Bytes that the store has
    /// already are not sent again.
    ///
    /// # Errors
    /// [`StoreError`]; nothing new is published then.
    pub fn publish(&self, prefix: &str, dir: &FilePath, watch: &dyn Watch) -> Result<Published, StoreError> {
        self.publish_files(prefix, &files_of(dir)?, watch)
    }

    /// As [`Store::publish`], for files that may lie in several folders. They keep their names.
    ///
    /// # Errors
    /// As [`Store::publish`].
    pub fn publish_files(&self, prefix: &str, files: &[PathBuf], watch: &dyn Watch) -> Result<Published, StoreError> {
        let begin = Instant::now();
        self.writable()?;
        self.checked(prefix)?;
        let index = index_of(files, watch)?;
        let (bytes, total) = (index.to_bytes(), index.total());
        let blake3 = *blake3::hash(&bytes).as_bytes();
        let folder = self.folder(prefix, &blake3);
        let publication = Publication { store: self, folder, total, done: AtomicU64::new(0), watch };
        let sent = publication.send(&index, files, bytes)?;
        Ok(Published { blake3, bytes: sent, total, seconds: begin.elapsed().as_secs_f64() })
    }
}

impl Publication<'_> {
    /// Sends the missing objects, the index last, and returns the number of bytes.
    fn send(&self, index: &Index, files: &[PathBuf], bytes: Vec<u8>) -> Result<u64, StoreError> {
        let there = self.store.lengths(&self.folder, self.watch)?;
        let mut sent = Vec::new();
        for (file, path) in index.files.iter().zip(files) {
            if there.get(&file.name) == Some(&file.length) {
                self.progress(file.length);
                continue;
            }
            sent.push(file);
            if let Err(error) = self.file(file, path) {
                self.clear(&error, &sent);
                return Err(error);
            }
        }
        self.index(&there, bytes).inspect_err(|error| self.clear(error, &sent))?;
        Ok(sent.iter().map(|file| file.length).sum())
    }

    fn index(&self, there: &BTreeMap<String, u64>, bytes: Vec<u8>) -> Result<(), StoreError> {
        let object = index_path(&self.folder);
        if there.get(INDEX_FILE) == Some(&(bytes.len() as u64))
            && self.store.read_whole(&object, bytes.len(), self.watch)? == bytes
        {
            return Ok(());
        }
        self.store.write_whole(&object, bytes, self.watch)
    }

    /// If there is no room, removes the sent objects, which only take more of it.
    fn clear(&self, error: &StoreError, sent: &[&IndexedFile]) {
        if matches!(error, StoreError::Full { .. }) {
            for file in sent {
                // The first error is the one to report.
                let _ = self.store.delete(&self.object(file), &Briefly::begin());
            }
        }
    }

    fn object(&self, file: &IndexedFile) -> Path {
        self.folder.clone().join(file.name.as_str())
    }

    fn progress(&self, bytes: u64) {
        self.watch.progress(self.done.fetch_add(bytes, Ordering::Relaxed) + bytes, self.total);
    }

    fn file(&self, file: &IndexedFile, path: &FilePath) -> Result<(), StoreError> {
        let opened = File::open(path).map_err(|e| of_file(path, e))?;
        if file.length > CHUNK_BYTES {
            return self.in_parts(file, path, &opened);
        }
        let mut bytes = Vec::new();
        read_at(&opened, 0..file.length, &mut bytes).map_err(|e| of_file(path, e))?;
        self.store.write_whole(&self.object(file), bytes, self.watch)?;
        self.progress(file.length);
        Ok(())
    }

    fn in_parts(&self, file: &IndexedFile, path: &FilePath, opened: &File) -> Result<(), StoreError> {
        let object = self.object(file);
        let about = About { doing: Doing::Writing, object: &object };
        let upload = self.store.ask(about, self.watch, self.store.objects().put_multipart(&object))?;
        let parts = Mutex::new(Parts { upload, next: 0 });
        let part_bytes = part_bytes(file.length);
        let count = file.length.div_ceil(part_bytes) as usize;
        let sent = in_parallel(TRANSFERS, count, |_, _| {
            // Parts are numbered by the order in which they are handed over.
            let (bytes, request) = {
                let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
                let range = parts.next..(parts.next + part_bytes).min(file.length);
                parts.next = range.end;
                let (mut part, bytes) = (Vec::new(), range.end - range.start);
                read_at(opened, range, &mut part).map_err(|e| of_file(path, e))?;
                (bytes, parts.upload.put_part(payload(part)))
            };
            self.store.ask(about, self.watch, request)?;
            self.progress(bytes);
            Ok(())
        });
        let mut upload = parts.into_inner().unwrap_or_else(PoisonError::into_inner).upload;
        let complete = sent.and_then(|()| self.store.ask(about, self.watch, upload.complete()).map(drop));
        match complete {
            Ok(()) => Ok(()),
            // Only the answer may have been lost, and then a second request finds no upload.
            Err(_) if self.is_there(file) => Ok(()),
            Err(error) => {
                let _ = self.store.ask(about, &Briefly::begin(), upload.abort());
                Err(error)
            }
        }
    }

    fn is_there(&self, file: &IndexedFile) -> bool {
        let object = self.object(file);
        let about = About { doing: Doing::Reading, object: &object };
        let found = self.store.ask(about, self.watch, self.store.objects().head(&object));
        found.is_ok_and(|meta| meta.size == file.length)
    }
}

/// Bytes of a part of an object: a chunk, or several chunks if there would be too many parts otherwise.
fn part_bytes(length: u64) -> u64 {
    length.div_ceil(MOST_PARTS).next_multiple_of(CHUNK_BYTES).max(CHUNK_BYTES)
}

/// The files of a folder, by name. Links are followed: a cache of models consists of them.
fn files_of(dir: &FilePath) -> Result<Vec<PathBuf>, StoreError> {
    let entries = fs::read_dir(dir).map_err(|e| of_file(dir, e))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(|e| of_file(dir, e)));
    let hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| !hidden(path));
    paths.sort();
    Ok(paths)
}

/// The index of files, whose names must be plain and different.
fn index_of(files: &[PathBuf], watch: &dyn Watch) -> Result<Index, StoreError> {
    let mut index = Index { files: files.iter().map(|path| unhashed(path)).collect::<Result<_, _>>()? };
    let mut names = BTreeSet::new();
    if let Some(twice) = index.files.iter().position(|file| !names.insert(&file.name)) {
        return Err(unpublishable(&files[twice], "another file has the same name"));
    }
    let jobs: Vec<_> = (0..files.len()).flat_map(|n| (0..index.files[n].chunks.len()).map(move |c| (n, c))).collect();
    let hashes: Vec<OnceLock<[u8; 32]>> = jobs.iter().map(|_| OnceLock::new()).collect();
    in_parallel(TRANSFERS, jobs.len(), |buffer, job| {
        if watch.give_up() {
            return Err(StoreError::GaveUp);
        }
        let (file, chunk) = (&index.files[jobs[job].0], jobs[job].1);
        let (path, start) = (&files[jobs[job].0], file.offset(chunk));
        let range = start..start + file.chunk_bytes(chunk) as u64;
        File::open(path).and_then(|f| read_at(&f, range, buffer)).map_err(|e| of_file(path, e))?;
        hashes[job].get_or_init(|| blake3::hash(buffer).into());
        Ok(())
    })?;
    for (job, hash) in jobs.into_iter().zip(hashes) {
        index.files[job.0].chunks[job.1] = hash.into_inner().expect("every chunk was hashed");
    }
    // An index that readers would refuse is not sent.
    let first = files.first().map_or(FilePath::new(""), |path| path.parent().unwrap_or(path));
    Index::parse(&index.to_bytes())
        .map_err(|reason| unpublishable(first, &format!("its index would be refused: {reason}")))
}

fn unhashed(path: &FilePath) -> Result<IndexedFile, StoreError> {
    let what = fs::metadata(path).map_err(|e| of_file(path, e))?;
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| plain(name) && *name != INDEX_FILE);
    match name {
        _ if !what.is_file() => Err(unpublishable(path, "is not a file, and folders are published flat")),
        None => Err(unpublishable(path, "cannot be published under this name; letters, digits, `.`, `_` and `-` can")),
        Some(name) => {
            let chunks = vec![[0; 32]; what.len().div_ceil(CHUNK_BYTES) as usize];
            Ok(IndexedFile { name: name.to_owned(), length: what.len(), chunks })
        }
    }
}

fn unpublishable(path: &FilePath, reason: &str) -> StoreError {
    StoreError::Unpublishable { path: path.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chunks_until_there_would_be_too_many() {
        for (length, bytes) in [
            (CHUNK_BYTES + 1, CHUNK_BYTES),
            (MOST_PARTS * CHUNK_BYTES, CHUNK_BYTES),
            (MOST_PARTS * CHUNK_BYTES + 1, 2 * CHUNK_BYTES),
            (1 << 40, 14 * CHUNK_BYTES),
        ] {
            assert_eq!(part_bytes(length), bytes, "{length}");
            assert!(length.div_ceil(bytes) <= MOST_PARTS);
        }
    }
}
