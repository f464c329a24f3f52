//! The folder beside its target in which a fetch gathers its files, over several runs of a program if need be.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use shared::files::atomic;

use crate::{
    Index, IndexedFile, StoreError,
    error::{of_file, on_disk},
    read::read_at,
    store::PIECE_BYTES,
};

/// The part of a fetch that has arrived.
pub struct Download<'a> {
    folder: PathBuf,
    into: &'a Path,
    /// Locks the folder against other fetches as long as it is open.
    _lock: File,
}

impl<'a> Download<'a> {
    /// Makes the folder, or takes up one that exists; then it has every file of the index and no other.
    pub fn open(into: &'a Path, index: &Index) -> Result<Self, StoreError> {
        let folder = part_of(into);
        fs::create_dir_all(&folder).map_err(|e| of_file(&folder, e))?;
        let part = Self { _lock: lock(&folder)?, folder, into };
        part.keep_only(index)?;
        for file in &index.files {
            part.prepare(file).map_err(|e| of_file(&part.folder.join(&file.name), e))?;
        }
        Ok(part)
    }

    fn keep_only(&self, index: &Index) -> Result<(), StoreError> {
        let wrong = |e| of_file(&self.folder, e);
        for entry in fs::read_dir(&self.folder).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let is_file = entry.file_type().map_err(wrong)?.is_file();
            if is_file && index.files.iter().any(|file| entry.file_name() == *file.name) {
                continue;
            }
            let path = entry.path();
            let removed = if entry.path().is_dir() && !entry.path().is_symlink() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.map_err(|e| of_file(&path, e))?;
        }
        Ok(())
    }

    fn prepare(&self, file: &IndexedFile) -> io::Result<()> {
        let options = File::options().create(true).truncate(false).write(true).open(self.folder.join(&file.name))?;
        if options.metadata()?.len() > file.length { options.set_len(file.length) } else { Ok(()) }
    }

    /// Checks that the disk has room for the missing bytes, as far as file lengths tell.
    pub fn require_space(&self, index: &Index) -> Result<(), StoreError> {
        let there = |file: &IndexedFile| fs::metadata(self.folder.join(&file.name)).map_or(0, |what| what.len());
        let missing = index.files.iter().map(|file| file.length.saturating_sub(there(file))).sum();
        atomic::require_space(&self.folder, missing).map_err(on_disk)
    }

    /// Whether a chunk has arrived.
    pub fn has(&self, file: &IndexedFile, chunk: usize, buffer: &mut Vec<u8>) -> bool {
        has(&self.folder, file, chunk, buffer)
    }

    /// Writes a chunk.
    pub fn write(&self, file: &IndexedFile, chunk: usize, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.folder.join(&file.name);
        let written = File::options().write(true).open(&path).and_then(|opened| {
            let places = (file.offset(chunk)..).step_by(PIECE_BYTES);
            bytes.chunks(PIECE_BYTES).zip(places).try_for_each(|(piece, place)| opened.write_all_at(piece, place))
        });
        written.map_err(|e| of_file(&path, e))
    }

    /// Moves the folder to its target.
    pub fn place(self) -> Result<(), StoreError> {
        atomic::place_dir(&self.folder, self.into).map_err(on_disk)
    }
}

/// Whether a folder has a chunk.
pub fn has(folder: &Path, file: &IndexedFile, chunk: usize, buffer: &mut Vec<u8>) -> bool {
    let start = file.offset(chunk);
    let range = start..start + file.chunk_bytes(chunk) as u64;
    let read = File::open(folder.join(&file.name)).and_then(|f| {
        // Most files are empty when a fetch begins.
        if f.metadata()?.len() < range.end {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            read_at(&f, range, buffer)
        }
    });
    read.is_ok() && file.is_chunk(chunk, buffer)
}

/// Throws away the arrived part of a fetch that is no longer wanted.
///
/// # Errors
/// Any error of the file system, with the path.
pub fn forget(into: &Path) -> Result<(), StoreError> {
    let folder = part_of(into);
    match fs::remove_dir_all(&folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(of_file(&folder, e)),
        _ => Ok(()),
    }
}

fn part_of(into: &Path) -> PathBuf {
    let mut name = into.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn lock(folder: &Path) -> Result<File, StoreError> {
    let opened = File::open(folder).map_err(|e| of_file(folder, e))?;
    match opened.try_lock() {
        Err(TryLockError::WouldBlock) => Err(StoreError::Busy { folder: folder.to_owned() }),
        // On a file system without locks, the user sees to it that nobody else fetches.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(opened),
    }
}
