//! Where the published versions of a run lie: in shared memory where they fit ([`crate::run::memory_plan`]), so that
//! publishing costs a copy, else on disk.
//!
//! `weights` in the run directory is then a link to a folder in shared memory. That folder lives as long as the
//! processes of its run: the launcher locks it, and the processes that it starts inherit the lock. A folder that no
//! process holds was left by killed processes, and the next start removes it, whichever run it belonged to. Nothing is
//! lost with it: checkpoints are on disk, and the version that a run resumes from is made again.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, symlink},
    path::{Path, PathBuf},
};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::{
    RunDir,
    channel::incarnation,
    files::{
        atomic::{self, named},
        run_dir::VERSIONS_PREFIX,
    },
    system::memory::SHARED_MEMORY,
};

/// The place of a run's versions. Dropping it removes them, since checkpoints hold everything that must stay.
#[derive(Debug)]
pub struct VersionPlace {
    run_dir: RunDir,
    /// The folder in shared memory, if versions lie there, and the lock on it.
    shared: Option<(PathBuf, File)>,
}

impl VersionPlace {
    /// Makes an empty place for a run's versions, for the process that holds the run: a folder in shared memory with
    /// `weights` as a link to it, or the folder of that name in the run directory. Removes what killed processes left
    /// behind, of this run and of others.
    ///
    /// # Errors
    /// Any error of the file system, with the path.
    pub fn open(run_dir: &RunDir, in_shared_memory: bool) -> io::Result<Self> {
        Self::open_in(Path::new(SHARED_MEMORY), run_dir, in_shared_memory)
    }

    fn open_in(folder: &Path, run_dir: &RunDir, in_shared_memory: bool) -> io::Result<Self> {
        let weights = run_dir.weights();
        if fs::symlink_metadata(&weights).is_ok() {
            // If it is a link, only the link is removed: in a copied run directory it leads to another run's folder.
            fs::remove_dir_all(&weights).map_err(named(&weights))?;
        }
        remove_abandoned(folder);
        let shared = in_shared_memory.then(|| make_folder(folder)).transpose()?;
        let place = Self { run_dir: run_dir.clone(), shared };
        match &place.shared {
            Some((path, _)) => symlink(path, &weights).map_err(named(&weights))?,
            None => fs::create_dir(&weights).map_err(named(&weights))?,
        }
        Ok(place)
    }
}

impl Drop for VersionPlace {
    fn drop(&mut self) {
        let weights = self.run_dir.weights();
        for path in self.shared.iter().map(|(path, _)| path).chain([&weights]) {
            match fs::remove_dir_all(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("{}: published versions cannot be removed: {e}", path.display());
                }
                _ => (),
            }
        }
    }
}

/// Moves a run's versions to disk, when shared memory turned out to be too small. `write` writes the first one into the
/// given run directory; the versions before it are removed. Returns none if they are on disk already.
///
/// # Errors
/// Any error of `write` or the file system.
pub fn move_to_disk<T, E: From<io::Error>>(
    run_dir: &RunDir,
    write: impl FnOnce(&RunDir) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let weights = run_dir.weights();
    let Ok(shared) = fs::read_link(&weights) else { return Ok(None) };
    // A run directory within this one; its folder of versions replaces the link.
    let aside = RunDir::new(run_dir.root().join(format!(".tmp-{}-versions", std::process::id())));
    fs::create_dir_all(aside.weights()).map_err(named(aside.root()))?;
    let written = write(&aside).and_then(|written| {
        atomic::put_in_place(&aside.weights(), &weights)?;
        Ok(Some(written))
    });
    let _ = fs::remove_dir_all(aside.root());
    if written.is_ok() {
        let versions = fs::read_dir(&shared).into_iter().flatten().flatten();
        versions.for_each(|version| drop(fs::remove_dir_all(version.path())));
    }
    written
}

/// A new folder that no other process removes.
fn make_folder(parent: &Path) -> io::Result<(PathBuf, File)> {
    loop {
        let path = parent.join(format!("{VERSIONS_PREFIX}{:016x}", incarnation()));
        DirBuilder::new().mode(0o700).create(&path).map_err(named(&path))?;
        // Until it is locked, another start may consider it abandoned.
        let Ok(lock) = File::open(&path) else { continue };
        lock.lock().map_err(named(&path))?;
        if path.exists() {
            // Without the flag that closes it, children inherit the lock.
            fcntl_setfd(&lock, FdFlags::empty())?;
            return Ok((path, lock));
        }
    }
}

/// The folders of runs without a living process, of this user.
#[must_use]
pub fn abandoned() -> Vec<PathBuf> {
    unlocked(Path::new(SHARED_MEMORY))
}

/// Removes the folders of runs without a living process. Folders of other users stay.
fn remove_abandoned(parent: &Path) {
    for path in unlocked(parent) {
        tracing::debug!("removing {}, left by killed processes", path.display());
        let _ = fs::remove_dir_all(&path);
    }
}

fn unlocked(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(VERSIONS_PREFIX));
    ours.map(|entry| entry.path())
        .filter(|path| File::open(path).is_ok_and(|folder| folder.try_lock().is_ok()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PolicyVersion;

    /// A run directory and a folder that stands for shared memory.
    fn places() -> (tempfile::TempDir, PathBuf, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let (shared, run) = (dir.path().join("shm"), RunDir::new(dir.path().join("run")));
        fs::create_dir(&shared).unwrap();
        run.create().unwrap();
        (dir, shared, run)
    }

    fn entries(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    fn write(run: &RunDir, version: u64) -> io::Result<()> {
        atomic::write_passing_dir(&run.version(PolicyVersion(version)), |dir| fs::write(dir.join("data"), "x"))
    }

    #[test]
    fn a_run_reads_its_versions_by_the_same_names_and_leaves_nothing() {
        let (_dir, shared, run) = places();
        for in_shared_memory in [true, false] {
            let place = VersionPlace::open_in(&shared, &run, in_shared_memory).unwrap();
            write(&run, 3).unwrap();
            assert_eq!(run.versions().unwrap(), [PolicyVersion(3)]);
            assert_eq!((run.weights().is_symlink(), entries(&shared)), (in_shared_memory, in_shared_memory.into()));
            // As a run's processes do when they start.
            run.create().unwrap();
            drop(place);
            assert!(fs::symlink_metadata(run.weights()).is_err() && entries(&shared) == 0);
            assert!(run.versions().unwrap().is_empty());
        }
    }

    #[test]
    fn what_killed_processes_left_goes_at_the_next_start_of_any_run_and_what_is_in_use_stays() {
        let (dir, shared, run) = places();
        let mut place = VersionPlace::open_in(&shared, &run, true).unwrap();
        write(&run, 1).unwrap();
        // The copy of a run directory has its link.
        let copy = RunDir::new(dir.path().join("copy"));
        fs::create_dir(copy.root()).unwrap();
        symlink(fs::read_link(run.weights()).unwrap(), copy.weights()).unwrap();
        assert_eq!(copy.versions().unwrap(), [PolicyVersion(1)]);
        let other = VersionPlace::open_in(&shared, &copy, true).unwrap();
        assert!(copy.versions().unwrap().is_empty());
        assert_eq!(run.versions().unwrap(), [PolicyVersion(1)], "it is in use");
        drop(other);
        assert_eq!(run.versions().unwrap(), [PolicyVersion(1)]);

        // A killed process releases its lock and does nothing else.
        drop(place.shared.take());
        std::mem::forget(place);
        fs::create_dir(shared.join(format!("{VERSIONS_PREFIX}left"))).unwrap();
        fs::create_dir(shared.join("another-program")).unwrap();
        drop(VersionPlace::open_in(&shared, &copy, false).unwrap());
        assert_eq!(entries(&shared), 1, "only the other program's folder stays");
    }

    #[test]
    fn a_link_whose_folder_is_gone_is_no_obstacle() {
        let (_dir, shared, run) = places();
        fs::remove_dir(run.weights()).unwrap();
        symlink(shared.join("gone"), run.weights()).unwrap();
        assert!(run.versions().unwrap().is_empty());
        run.remove_litter().unwrap();
        drop(VersionPlace::open_in(&shared, &run, true).unwrap());
        symlink(shared.join("gone"), run.weights()).unwrap();
        run.create().unwrap();
        write(&run, 1).unwrap();
        assert_eq!(run.versions().unwrap(), [PolicyVersion(1)]);
    }

    #[test]
    fn a_run_goes_on_on_disk_with_the_version_that_did_not_fit() {
        let (_dir, shared, run) = places();
        let place = VersionPlace::open_in(&shared, &run, true).unwrap();
        write(&run, 1).unwrap();
        let failed: io::Result<Option<()>> = move_to_disk(&run, |_| Err(io::Error::other("no room there either")));
        assert!(failed.is_err() && run.weights().is_symlink() && run.versions().unwrap() == [PolicyVersion(1)]);
        assert!(move_to_disk(&run, |run| write(run, 2)).unwrap().is_some());
        assert!(!run.weights().is_symlink() && run.versions().unwrap() == [PolicyVersion(2)]);
        assert!(move_to_disk(&run, |run| write(run, 3)).unwrap().is_none(), "it is there");
        let folder = fs::read_dir(&shared).unwrap().next().unwrap().unwrap().path();
        assert_eq!(entries(&folder), 0, "the memory is free");
        assert_eq!(entries(run.root()), 3, "its folders and nothing else");
        drop(place);
        assert!(entries(&shared) == 0 && !run.weights().exists());
    }
}
