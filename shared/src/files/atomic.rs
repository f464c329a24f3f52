//! Files that are either absent or whole: write beside the target, fsync, rename, fsync the folder.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};

use super::leftovers;

/// Writes a file of the program's own in one visible step. A link, a pipe or a device in its place is refused: in a
/// folder that somebody else has made, it may lead anywhere. What the user names as an output is written by
/// [`write_output`].
///
/// # Errors
/// Any error of the file system, with the path in its message; the target is then unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, |file| file.write_all(bytes).map_err(named(path)))
}

/// As [`write()`], with the bytes produced by a closure.
///
/// # Errors
/// As [`write()`], and any error of `fill` as it stands.
pub fn write_with<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&mut io::BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    shared_bounds::require_replaceable(path).map_err(named(path))?;
    replace(path, fill)
}

/// Writes a file that the user has named in one visible step. A link stays, and its target is replaced. A device or a
/// pipe is written to as it is.
///
/// # Errors
/// As [`write()`].
pub fn write_output(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_output_with(path, |file| file.write_all(bytes).map_err(named(path)))
}

/// As [`write_output`], with the bytes produced by a closure.
///
/// # Errors
/// As [`write_with`].
pub fn write_output_with<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&mut io::BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    let target = path.canonicalize();
    let path = target.as_deref().unwrap_or(path);
    if is_special(path) {
        let mut file = io::BufWriter::new(File::options().write(true).open(path).map_err(named(path))?);
        fill(&mut file)?;
        return file.flush().map_err(|e| named(path)(e).into());
    }
    replace(path, fill)
}

fn replace<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&mut io::BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    let (temporary, file) = temporary_file(path).map_err(named(path))?;
    let result = fill_file(file, path, fill).and_then(|()| {
        fs::rename(&temporary, path).and_then(|()| sync_parent(path)).map_err(|e| named(path)(e).into())
    });
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// Has a file written under a temporary name by code that opens it by that name, perhaps more than once: to write it
/// and to check it. Then the file gets its name in one visible step; whatever file had it is replaced.
///
/// # Errors
/// Any error of the file system or of `fill`; nothing is then visible under `path` that was not there before.
pub fn write_checked<E: From<io::Error>>(path: &Path, fill: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
    shared_bounds::require_replaceable(path).map_err(named(path))?;
    let (temporary, _) = temporary_file(path).map_err(named(path))?;
    let _held = leftovers::hold(&temporary);
    let result = fill(&temporary).and_then(|()| {
        let synced = File::open(&temporary).and_then(|file| file.sync_all());
        let placed = synced.and_then(|()| fs::rename(&temporary, path)).and_then(|()| sync_parent(path));
        placed.map_err(|e| named(path)(e).into())
    });
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// As [`write()`], without waiting for the disk: for a file that is soon written again, and that nobody needs any more
/// once the machine has stopped.
///
/// # Errors
/// As [`write()`].
pub fn write_passing(path: &Path, bytes: &[u8]) -> io::Result<()> {
    shared_bounds::require_replaceable(path).map_err(named(path))?;
    let (temporary, mut file) = temporary_file(path).map_err(named(path))?;
    let result = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result.map_err(named(path))
}

/// Opens a file of the program's own to append lines or events to it; [`shared_bounds::append`] says what is refused.
///
/// # Errors
/// Any error of the file system, with the path in its message.
pub fn append(path: &Path) -> io::Result<File> {
    shared_bounds::append(path).map_err(named(path))
}

/// Whether a path leads to something that is neither a file nor a folder: a device or a pipe.
#[must_use]
pub fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|what| !what.is_file() && !what.is_dir())
}

/// Fills a folder under a temporary name and renames it into place; an existing folder of that name is replaced
/// (processes that map its files keep their mapping).
///
/// # Errors
/// Any error of the file system or of `fill`; nothing is then visible under `path` that was not there before.
pub fn write_dir<E: From<io::Error>>(path: &Path, fill: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
    fill_dir(path, fill, sync_tree, sync_parent)
}

/// As [`write_dir`], without waiting for the disk: for what nobody needs any more once the machine has stopped.
///
/// # Errors
/// As [`write_dir`].
pub fn write_passing_dir<E: From<io::Error>>(path: &Path, fill: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
    fill_dir(path, fill, |_| Ok(()), |_| Ok(()))
}

fn fill_dir<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
    sync: fn(&Path) -> io::Result<()>,
    sync_parent: fn(&Path) -> io::Result<()>,
) -> Result<(), E> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(named(path))?;
    }
    let (temporary, ()) = make_temporary(path, |temporary| fs::create_dir(temporary)).map_err(named(path))?;
    let _held = leftovers::hold(&temporary);
    let result = fill(&temporary).and_then(|()| {
        sync(&temporary)
            .and_then(|()| put_in_place(&temporary, path))
            .and_then(|()| sync_parent(path))
            .map_err(|e| named(path)(e).into())
    });
    // After an exchange, this is the replaced folder.
    let _ = fs::remove_dir_all(&temporary);
    result
}

/// Gives a folder that was filled beside its place, over several runs of a program perhaps, its name in one visible
/// step, as [`write_dir`] does; a folder that had the name is gone then. Both are on one file system.
///
/// # Errors
/// Any error of the file system; `filled` is then still there, and so is what had the name.
pub fn place_dir(filled: &Path, path: &Path) -> io::Result<()> {
    let placed = sync_tree(filled).and_then(|()| put_in_place(filled, path)).and_then(|()| sync_parent(path));
    placed.map_err(named(path))?;
    // After an exchange, this is the replaced folder.
    match fs::remove_dir_all(filled) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(named(filled)(e)),
        _ => Ok(()),
    }
}

/// Makes a link to `target` under a temporary name and renames it into place. An existing link of that name is
/// replaced, and so is a file.
///
/// # Errors
/// Any error of the file system, with the path in its message; what had the name is then unchanged.
pub fn link(path: &Path, target: &Path) -> io::Result<()> {
    let (temporary, ()) = make_temporary(path, |temporary| symlink(target, temporary)).map_err(named(path))?;
    let placed = fs::rename(&temporary, path).and_then(|()| sync_parent(path));
    if placed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    placed.map_err(named(path))
}

/// Removes a folder in one visible step: a reader finds it whole or not at all.
///
/// # Errors
/// Any error of the file system, with the path in its message.
pub fn remove_dir(path: &Path) -> io::Result<()> {
    let temporary = temporary_beside(path)?;
    fs::rename(path, &temporary).and_then(|()| fs::remove_dir_all(&temporary)).map_err(named(path))
}

/// Removes a file, if it is there.
///
/// # Errors
/// Any error of the file system, with the path in its message.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(named(path)(e)),
        _ => Ok(()),
    }
}

/// Checks that the file system of `path` has room for `bytes` bytes.
///
/// # Errors
/// [`io::ErrorKind::StorageFull`] with both figures when it has not.
pub fn require_space(path: &Path, bytes: u64) -> io::Result<()> {
    let absolute = std::path::absolute(path)?;
    let lasting = |p: &&Path| p.exists() && p.file_name().is_none_or(|n| !is_temporary(&n.to_string_lossy()));
    let folder = absolute.ancestors().find(lasting).unwrap_or(Path::new("/"));
    let free = free_space(folder)?;
    if bytes <= free {
        return Ok(());
    }
    let mib = |n: u64| n as f64 / f64::from(1 << 20);
    let message = format!(
        "{}: {:.1} MiB are needed, the file system has {:.1} MiB free; free some space or choose another folder",
        folder.display(),
        mib(bytes),
        mib(free)
    );
    Err(io::Error::new(io::ErrorKind::StorageFull, message))
}

/// Bytes that the file system of a folder can still take.
///
/// # Errors
/// When the folder is missing.
pub fn free_space(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder).map_err(|e| named(folder)(e.into()))?;
    // A file system that reports no blocks has no bound.
    Ok(if stat.f_blocks == 0 { u64::MAX } else { stat.f_bavail * stat.f_frsize })
}

/// Removes temporary files and folders of dead processes from a folder that any process may write in.
///
/// # Errors
/// Any error of the file system; an entry that another process removes meanwhile is no error.
pub fn remove_abandoned(dir: &Path) -> io::Result<()> {
    let ended = |process: u32| !Path::new("/proc").join(process.to_string()).exists();
    remove_if(dir, |name| writer_of(name).is_some_and(ended))
}

/// Removes every temporary file and folder of a folder that nobody else writes in. Unlike [`remove_abandoned`], this
/// finds what a process left whose number is in use again, which in a container is the rule.
///
/// # Errors
/// As [`remove_abandoned`].
pub fn remove_temporary(dir: &Path) -> io::Result<()> {
    remove_if(dir, is_temporary)
}

fn remove_if(dir: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(dir).map_err(named(dir))? {
        let entry = entry?;
        if !wanted(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let removed =
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        match removed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(named(&entry.path())(e)),
            _ => (),
        }
    }
    Ok(())
}

/// The process in a temporary name.
fn writer_of(name: &str) -> Option<u32> {
    name.strip_prefix(".tmp-")?.split('-').next()?.parse().ok()
}

/// Whether a file name is one of this module's temporary names.
#[must_use]
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(".tmp-")
}

/// A name beside `path` that no other writer has: process id and a count within the process.
fn temporary_beside(path: &Path) -> io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{}: not the name of a file or folder", path.display()))
    })?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(path.with_file_name(format!(".tmp-{}-{count}-{}", std::process::id(), name.to_string_lossy())))
}

/// Makes a file or folder with a temporary name beside `path`. If the name is taken, by a file of an earlier process
/// with the same number or by a link, nothing is written through it, and the next name is tried.
fn make_temporary<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    loop {
        let temporary = temporary_beside(path)?;
        match make(&temporary) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (temporary, made)),
        }
    }
}

fn temporary_file(path: &Path) -> io::Result<(PathBuf, File)> {
    make_temporary(path, |temporary| File::create_new(temporary))
}

fn fill_file<E: From<io::Error>>(
    file: File,
    path: &Path,
    fill: impl FnOnce(&mut io::BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    let mut writer = io::BufWriter::new(file);
    fill(&mut writer)?;
    let synced = writer.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all());
    synced.map_err(|e| named(path)(e).into())
}

fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()
}

/// Gives the folder `temporary` the name `path`. If the name is taken, both folders are exchanged in one step, so that
/// one whole folder has the name at every instant.
pub(crate) fn put_in_place(temporary: &Path, path: &Path) -> io::Result<()> {
    loop {
        let exchange = fs::symlink_metadata(path).is_ok();
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(CWD, temporary, CWD, path, flags) {
            Ok(()) => return Ok(()),
            // Another writer was faster, or took the folder away: try again.
            Err(Errno::EXIST) if !exchange => {}
            Err(Errno::NOENT) if exchange && temporary.exists() => {}
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if exchange => return swap_in_two_steps(temporary, path),
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => return fs::rename(temporary, path),
            Err(e) => return Err(e.into()),
        }
    }
}

/// For file systems without an exchange: for an instant nothing has the name. If the new folder cannot take it, the old
/// one gets it back.
fn swap_in_two_steps(temporary: &Path, path: &Path) -> io::Result<()> {
    let mut aside = temporary.as_os_str().to_owned();
    aside.push(".old");
    fs::rename(path, &aside)?;
    if let Err(error) = fs::rename(temporary, path) {
        fs::rename(&aside, path)?;
        return Err(error);
    }
    fs::rename(&aside, temporary)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// Copies what a folder holds, the folders in it included, into one that is there: a part of a larger [`write_dir`].
///
/// # Errors
/// Any error of the file system, with the path.
pub fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from).map_err(named(from))? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            fs::create_dir(&target).map_err(named(&target))?;
            copy_files(&source, &target)?;
        } else {
            copy_file(&source, &target)?;
        }
    }
    Ok(())
}

/// Copies one file. Errors of reading name the original, errors of writing the copy.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = shared_bounds::open(from).map_err(named(from))?;
    let mut target = File::create_new(to).map_err(named(to))?;
    target.set_permissions(source.metadata().map_err(named(from))?.permissions()).map_err(named(to))?;
    io::copy(&mut source, &mut target).map(drop).map_err(|error| {
        let is_of_target = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        named(if is_of_target { to } else { from })(error)
    })
}

/// Puts the path before the system's words for an error.
pub fn named(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_content_and_no_litter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        write(&path, b"old").unwrap();
        let failed = write_with(&path, |f| {
            f.write_all(b"half")?;
            Err(io::Error::other("disk full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "disk full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_checked_appears_after_the_check_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let failed = write_checked(&path, |temporary| {
            fs::write(temporary, b"wrong")?;
            assert!(!path.exists());
            Err(io::Error::other("is not the model"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "is not the model");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        write_checked(&path, |temporary| write(temporary, b"right")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"right");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_passing_file_is_replaced_and_leaves_no_litter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        write_passing(&path, b"old").unwrap();
        write_passing(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::create_dir(dir.path().join("folder")).unwrap();
        let error = write_passing(&dir.path().join("folder"), b"x").unwrap_err().to_string();
        assert!(error.contains("folder"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn links_and_pipes_that_the_user_names_stay_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link, pipe) = (dir.path().join("real"), dir.path().join("link"), dir.path().join("pipe"));
        write(&real, b"old").unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        write_output(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");

        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(is_special(&pipe) && !is_special(&link) && !is_special(dir.path()));
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write_output(&pipe, b"through").unwrap();
        assert!(is_special(&pipe), "it was replaced by a file");
        assert_eq!(reader.join().unwrap(), b"through");
    }

    /// In a folder made by somebody else, a link may lead to a file of the user's, and a pipe never ends.
    #[test]
    fn what_stands_in_the_place_of_an_own_file_is_refused_by_name_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("private"), "of the user").unwrap();
        std::os::unix::fs::symlink("private", at("link")).unwrap();
        std::os::unix::fs::symlink("absent", at("dangling")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, at("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for name in ["link", "dangling", "pipe", "folder"] {
            let errors = [write(&at(name), b"x"), write_passing(&at(name), b"x"), append(&at(name)).map(drop)];
            for error in errors {
                let error = error.unwrap_err().to_string();
                assert!(error.starts_with(&at(name).display().to_string()), "{name}: {error}");
            }
        }
        assert_eq!(fs::read_to_string(at("private")).unwrap(), "of the user");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5, "nothing was made");
    }

    #[test]
    fn a_temporary_name_that_somebody_has_laid_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let (private, path) = (dir.path().join("private"), dir.path().join("state.json"));
        fs::write(&private, "of the user").unwrap();
        let own = |count: u64| format!(".tmp-{}-{count}-state.json", std::process::id());
        (0..2_000).for_each(|count| std::os::unix::fs::symlink(&private, dir.path().join(own(count))).unwrap());
        write(&path, b"new").unwrap();
        write_passing(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&private).unwrap(), "of the user");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn errors_name_the_file_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("absent").join("state.json");
        let error = write(&path, b"x").unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        let error = write_dir::<io::Error>(Path::new(".."), |_| Ok(())).unwrap_err().to_string();
        assert!(error.starts_with(".."), "{error}");
    }

    #[test]
    fn space_is_checked_with_figures_even_below_a_folder_to_come() {
        let dir = tempfile::tempdir().unwrap();
        require_space(&dir.path().join("a/b"), 1).unwrap();
        let error = require_space(&dir.path().join("a/b"), u64::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("MiB free"), "{error}");
    }

    #[test]
    fn readers_find_a_whole_folder_at_every_instant_of_a_replacement() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v1");
        write_dir::<io::Error>(&path, |d| fs::write(d.join("data"), "0")).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0..200 {
                    write_dir::<io::Error>(&path, |d| fs::write(d.join("data"), n.to_string())).unwrap();
                }
            });
            while !writer.is_finished() {
                assert!(path.is_dir(), "the folder was gone for an instant");
            }
        });
        assert_eq!(fs::read_to_string(path.join("data")).unwrap(), "199");
    }

    #[test]
    fn writers_of_one_process_do_not_meet_in_a_temporary_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v1");
        std::thread::scope(|scope| {
            for n in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..20 {
                        write_dir::<io::Error>(path, |d| fs::write(d.join("data"), n.to_string())).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(path.join("data")).unwrap().len(), 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_what_dead_processes_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let own = format!(".tmp-{}-0-a", std::process::id());
        // Process ids end at 2^22.
        let entries = [own.as_str(), ".tmp-4194305-0-a", ".tmp-4194305-1-b", "a", ".tmp-notes"];
        for name in &entries[..4] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join(entries[4]), "").unwrap();
        fs::write(dir.path().join(".tmp-4194306-0-file"), "").unwrap();
        remove_abandoned(dir.path()).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let mut expected = vec![own.as_str(), ".tmp-notes", "a"];
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn the_way_without_an_exchange_replaces_too() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("v1"), dir.path().join(".tmp-x"));
        for (path, content) in [(&old, "old"), (&new, "new")] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("data"), content).unwrap();
        }
        swap_in_two_steps(&new, &old).unwrap();
        assert_eq!(fs::read_to_string(old.join("data")).unwrap(), "new");
        assert_eq!(fs::read_to_string(new.join("data")).unwrap(), "old");

        fs::remove_dir_all(&new).unwrap();
        assert!(swap_in_two_steps(&new, &old).is_err());
        assert_eq!(fs::read_to_string(old.join("data")).unwrap(), "new", "nothing could take its place");
    }

    #[test]
    fn readers_never_find_a_part_of_a_folder_that_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v1");
        let files = 300;
        for _ in 0..20 {
            fs::create_dir(&path).unwrap();
            (0..files).for_each(|n| fs::write(path.join(n.to_string()), "").unwrap());
            std::thread::scope(|scope| {
                let remover = scope.spawn(|| remove_dir(&path).unwrap());
                while !remover.is_finished() {
                    let whole = path.join("0").exists() && path.join((files - 1).to_string()).exists();
                    assert!(whole || !path.exists(), "a part of the folder is there");
                }
            });
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
        let error = remove_dir(&path).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
    }

    #[test]
    fn a_folder_that_was_filled_elsewhere_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let (path, filled) = (dir.path().join("v1"), dir.path().join("v1.part"));
        for content in ["a", "b"] {
            fs::create_dir(&filled).unwrap();
            fs::write(filled.join("data"), content).unwrap();
            place_dir(&filled, &path).unwrap();
            assert_eq!(fs::read_to_string(path.join("data")).unwrap(), content);
            assert!(!filled.exists());
        }
        let error = place_dir(&filled, &path).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert_eq!(fs::read_to_string(path.join("data")).unwrap(), "b");
    }

    #[test]
    fn a_folder_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v1");
        for content in ["a", "b"] {
            write_dir::<io::Error>(&path, |d| fs::write(d.join("data"), content)).unwrap();
            assert_eq!(fs::read_to_string(path.join("data")).unwrap(), content);
        }
        let failed = write_dir::<io::Error>(&path, |d| {
            fs::write(d.join("data"), "c")?;
            Err(io::Error::other("boom"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(path.join("data")).unwrap(), "b");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
