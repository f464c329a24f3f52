//! Whether a folder that the user names as an output can be written as a whole: it replaces what has its name.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};
use thiserror::Error;

/// Why a folder is not written.
#[derive(Debug, Error)]
pub enum OutputDirError {
    /// It holds something, which would be lost.
    #[error(
        "{}: the folder {} (it has `{found}`); choose another folder, or move away what it holds",
        path.display(),
        if *replaceable { "is not an earlier output" } else { "is not empty" }
    )]
    Content {
        /// The folder.
        path: PathBuf,
        /// What it has.
        found: String,
        /// Some content would have been replaced.
        replaceable: bool,
    },
    /// It cannot be made or written.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The folder, or the one above it that is in the way.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
}

/// Checks that a folder is absent, or holds nothing but files of the `known` names, and can be written; touches
/// nothing.
///
/// # Errors
/// What it holds, or what is in the way.
pub fn check(path: &Path, known: &[&str]) -> Result<(), OutputDirError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |reason| OutputDirError::Io { path, reason }
    };
    match fs::read_dir(path) {
        Ok(mut entries) => {
            let unknown = entries.find_map(|entry| match entry {
                Ok(entry) if known.iter().any(|name| entry.file_name() == *name) => None,
                other => Some(other.map(|entry| entry.file_name().to_string_lossy().into_owned())),
            });
            if let Some(found) = unknown {
                let found = found.map_err(io(path))?;
                return Err(OutputDirError::Content { path: path.to_owned(), found, replaceable: !known.is_empty() });
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => (),
        Err(e) => return Err(io(path)(e)),
    }
    // The folder itself is renamed, so that the one above has to be writable.
    let absolute = std::path::absolute(path).map_err(io(path))?;
    let above = absolute.ancestors().skip(1).find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    access(above, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| io(above)(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_written_where_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        check(&path("new/deep"), &[]).unwrap();
        assert!(!path("new").exists(), "nothing is touched");
        fs::create_dir(path("empty")).unwrap();
        check(&path("empty"), &[]).unwrap();
        fs::write(path("empty/model.onnx"), "").unwrap();
        check(&path("empty"), &["model.onnx"]).unwrap();
        fs::write(path("empty/notes.txt"), "").unwrap();
        let text = |path: &Path, known: &[&str]| check(path, known).unwrap_err().to_string();
        assert!(text(&path("empty"), &["model.onnx"]).contains("is not an earlier output (it has `notes.txt`)"));
        assert!(text(&path("empty"), &[]).contains("the folder is not empty (it has `"));
        fs::write(path("file"), "").unwrap();
        for name in ["file", "file/out"] {
            assert!(text(&path(name), &[]).ends_with(&format!("{name}: Not a directory (os error 20)")), "{name}");
        }
    }
}
