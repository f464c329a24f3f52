//! What interrupted programs have left of a file or folder that the user named: a temporary name beside it, as
//! [`atomic`](super::atomic) makes them.
//!
//! The number of a process says little where several machines or containers share a folder. So a writer keeps a lock on
//! what it fills, and what is locked stays.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use super::atomic::named;

/// Locks what is being filled, until the lock is dropped. File systems without locks have none.
pub(super) fn hold(temporary: &Path) -> Option<File> {
    let file = File::open(temporary).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// Removes what interrupted programs have left of `path`. What another process may be filling stays.
///
/// # Errors
/// Any error of the file system, with the path in its message.
pub fn remove(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let entries = match fs::read_dir(folder) {
        // Whoever writes there says so.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        entries => entries.map_err(named(folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(named(folder))?;
        let writer = writer_of(&entry.file_name().to_string_lossy(), &name.to_string_lossy());
        let kind = entry.file_type().map_err(named(&entry.path()))?;
        let is_written = kind.is_file() || kind.is_dir();
        if !is_written || !writer.is_some_and(has_ended) || !is_free(&entry.path()) {
            continue;
        }
        let removed = if kind.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        removed.map_err(named(&entry.path()))?;
    }
    Ok(())
}

/// The process in a temporary name of `name`, or of a temporary name of it: a file that is checked before it has its
/// name may itself be written in one step.
fn writer_of(temporary: &str, name: &str) -> Option<u32> {
    let (process, rest) = temporary.strip_prefix(".tmp-")?.split_once('-')?;
    let (count, of) = rest.split_once('-')?;
    let _: u64 = count.parse().ok()?;
    process.parse().ok().filter(|_| of == name || writer_of(of, name).is_some())
}

/// Whether a process writes no more. This one has not begun: in a container, an earlier one had the same number.
fn has_ended(process: u32) -> bool {
    process == std::process::id() || !Path::new("/proc").join(process.to_string()).exists()
}

/// Whether nobody holds it.
fn is_free(temporary: &Path) -> bool {
    File::open(temporary).is_ok_and(|file| file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::{super::atomic, *};

    #[test]
    fn what_an_interrupted_program_has_left_of_a_name_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        // Process ids end at 2^22, and 1 lives.
        let own = format!(".tmp-{}-900000-out", std::process::id());
        let held = ".tmp-4194306-0-out";
        let stays = [held, ".tmp-1-0-out", ".tmp-4194305-0-other", ".tmp-notes", "out"];
        for name in [&stays[..], &[".tmp-4194305-0-out", &own]].concat() {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join(".tmp-4194305-1-out"), "a file").unwrap();
        fs::write(dir.path().join(".tmp-4194305-3-.tmp-4194305-2-out"), "a file").unwrap();
        let lock = hold(&dir.path().join(held)).unwrap();
        remove(&dir.path().join("out")).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        let mut expected = stays;
        expected.sort_unstable();
        assert_eq!(left, expected);
        drop(lock);
        remove(&dir.path().join("out")).unwrap();
        assert!(!dir.path().join(held).exists());
        remove(&dir.path().join("no/such/folder")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        remove(&dir.path().join("file/below")).unwrap();
    }

    #[test]
    fn what_is_being_filled_stays() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        atomic::write_dir::<io::Error>(&out, |temporary| {
            remove(&out)?;
            fs::write(temporary.join("data"), "whole")
        })
        .unwrap();
        assert_eq!(fs::read_to_string(out.join("data")).unwrap(), "whole");
        let out = dir.path().join("file");
        atomic::write_checked::<io::Error>(&out, |temporary| {
            remove(&out)?;
            assert!(temporary.exists(), "it is being written");
            fs::write(temporary, "whole")
        })
        .unwrap();
        assert_eq!(fs::read_to_string(&out).unwrap(), "whole");
    }
}
