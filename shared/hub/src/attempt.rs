//! One attempt to download a file. It keeps and completes the bytes of earlier attempts, in the layout of Hugging
//! Face's cache.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use hf_hub::{Cache, Repo};

use crate::{
    repository::RemoteFile,
    request::{Client, RequestError},
};

/// How often to check whether another process has finished with the same file, and the time between two checks.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_secs(1);

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Why a file is not there yet.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// No answer, or an answer that leads nowhere.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A status without content.
    #[error("status {0}")]
    Status(u16),
    /// An error of the connection or of the disk.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Earlier attempts had left as many bytes as the file has, or more.
    #[error("nothing is left to be downloaded")]
    NothingLeft,
    /// Another process downloads it.
    #[error("another process is downloading it")]
    Taken,
}

/// Bytes of a file that have arrived, for the code that watches the attempt.
#[derive(Debug, Clone, Default)]
pub struct Arrived {
    all: Arc<AtomicU64>,
    fresh: Arc<AtomicU64>,
}

impl Arrived {
    /// Bytes of all attempts.
    pub fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Bytes of this attempt.
    pub fn fresh(&self) -> u64 {
        self.fresh.load(Ordering::Relaxed)
    }

    fn begin(&self, before: u64) {
        self.all.store(before, Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.fresh.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// An attempt that has not begun.
#[derive(Debug)]
pub struct Attempt {
    /// The client that asks.
    pub client: Client,
    /// Where the file goes.
    pub cache: Cache,
    /// The repository at its commit.
    pub repo: Repo,
    /// The file.
    pub file: RemoteFile,
    /// Where the attempt reports its progress.
    pub arrived: Arrived,
}

impl Attempt {
    /// Downloads the missing bytes; returns the file's path at its commit. Checking the content is left to the caller.
    ///
    /// # Errors
    /// See [`AttemptError`].
    pub fn run(&self) -> Result<PathBuf, AttemptError> {
        let cached = self.cache.repo(self.repo.clone());
        let blob = cached.blob_path(self.file.hash.text());
        fs::create_dir_all(blob.parent().unwrap_or(Path::new("/")))?;
        let _lock = lock(&blob.with_extension("lock"))?;
        let part = blob.with_extension("part");
        self.complete(&part)?;
        fs::rename(&part, &blob)?;
        let pointer = cached.pointer_path(self.repo.revision()).join(&self.file.name);
        point(&pointer, self.file.hash.text(), Path::new(&self.file.name).components().count())?;
        Ok(pointer)
    }

    /// Adds to the bytes that are there until the file is complete.
    fn complete(&self, part: &Path) -> Result<(), AttemptError> {
        let mut kept = File::options().append(true).create(true).open(part)?;
        let (mut before, size) = (kept.metadata()?.len(), self.file.size);
        if size == 0 && before == 0 {
            return Ok(());
        }
        if before >= size {
            return Err(AttemptError::NothingLeft);
        }
        let (url, revision) = (self.repo.url(), self.repo.url_revision());
        let path = format!("/{url}/resolve/{revision}/{}", escaped(&self.file.name));
        let response = self.client.get(&path, &[("Range", &format!("bytes={before}-"))], None)?;
        match response.status().as_u16() {
            206 => {}
            // The content begins at the beginning, whatever range was asked for.
            200 => {
                kept.set_len(0)?;
                before = 0;
            }
            other => return Err(AttemptError::Status(other)),
        }
        self.arrived.begin(before);
        let mut body = response.into_body().into_reader().take(size - before);
        let (mut piece, mut length) = (vec![0; PIECE], before);
        loop {
            let read = body.read(&mut piece)?;
            if read == 0 {
                break;
            }
            kept.write_all(&piece[..read])?;
            length += read as u64;
            self.arrived.add(read as u64);
        }
        if length < size {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(())
    }
}

/// A name as a part of an address: characters that would end the path there are escaped.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('?', "%3F").replace('#', "%23")
}

/// Waits a moment for another process that has the lock.
fn lock(path: &Path) -> Result<File, AttemptError> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    let mut looks = 0;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if looks < LOOKS => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Err(AttemptError::Taken),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        looks += 1;
    }
}

/// Makes the name of a file, which has `parts` parts, a link to its content.
fn point(pointer: &Path, content: &str, parts: usize) -> io::Result<()> {
    if pointer.exists() {
        return Ok(());
    }
    fs::create_dir_all(pointer.parent().unwrap_or(Path::new("/")))?;
    // A link that leads nowhere.
    if pointer.is_symlink() {
        fs::remove_file(pointer)?;
    }
    symlink(format!("{}blobs/{content}", "../".repeat(parts + 1)), pointer)
}
