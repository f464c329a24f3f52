//! What runs leave behind whose processes were all killed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{channel::iox, versions};

/// A file or folder in shared memory or in the temporary folder that no living process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Where it is.
    pub path: PathBuf,
    /// What it takes.
    pub bytes: u64,
}

/// The leftovers of this user on this machine.
#[must_use]
pub fn find() -> Vec<Leftover> {
    let paths = versions::abandoned().into_iter().chain(iox::abandoned());
    paths.map(|path| Leftover { bytes: size(&path), path }).collect()
}

impl Leftover {
    /// Removes it.
    ///
    /// # Errors
    /// Any error of the file system; that it is gone is none.
    pub fn remove(&self) -> io::Result<()> {
        let removed = if self.path.is_dir() { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) };
        removed.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
    }
}

/// Bytes of a file, or of all files below a folder; 0 for what is gone.
pub(crate) fn size(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum()
}
