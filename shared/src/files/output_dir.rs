//! Checks an output folder that the user names: writing it replaces the folder that has its name.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};
use thiserror::Error;

/// Why the folder cannot be written.
#[derive(Debug, Error)]
pub enum OutputDirError {
    /// It is not empty, and its content would be lost.
    #[error(
        "{}: the folder {} (it has `{found}`); choose another folder, or move away what it holds",
        path.display(),
        if *replaceable { "is not an earlier output" } else { "is not empty" }
    )]
    Content {
        /// The folder.
        path: PathBuf,
        /// An entry in it.
        found: String,
        /// Whether some other content could have been replaced.
        replaceable: bool,
    },
    /// It cannot be created or written.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The folder, or the one above it that causes the error.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
}

/// Checks that a folder is absent, or holds nothing but files of the `known` names, and can be written; it leaves
/// everything as it was.
///
/// # Errors
/// Its content, or the obstacle.
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
    // The folder is renamed as a whole, so the folder above it must be writable.
    let absolute = std::path::absolute(path).map_err(io(path))?;
    let above = absolute.ancestors().skip(1).find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    takes_folders(above).map_err(|e| {
        let obstacle = format!("cannot be made in {}: {e}", above.display());
        io(path)(io::Error::new(e.kind(), obstacle))
    })
}

/// File systems of the kernel's own, which grant root access and take no folder: /proc, /sys and /dev/pts.
const OF_THE_KERNEL: [i64; 3] = [0x9fa0, 0x6265_6572, 0x1cd1];

/// Checks that a folder can be made within another one, and makes none.
///
/// # Errors
/// The obstacle.
pub fn takes_folders(folder: &Path) -> io::Result<()> {
    access(folder, Access::WRITE_OK | Access::EXEC_OK)?;
    let kind = rustix::fs::statfs(folder)?.f_type;
    if OF_THE_KERNEL.contains(&kind) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a file system of the kernel takes no folder"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_written_where_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        check(&path("new/deep"), &[]).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
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
        let refused = text(Path::new("/proc/out"), &[]);
        assert!(refused.starts_with("/proc/out: cannot be made in /proc: "), "{refused}");
    }
}
