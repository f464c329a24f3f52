//! Room on the disk of a run. Nothing is removed while there is enough room, nor if removal could not make enough;
//! otherwise the oldest files go first.

mod records_limit;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime},
};

use crate::files::{
    atomic::{self, named},
    run_dir::RunDir,
};

pub use records_limit::{EVENTS_PREFIX, Gone, RecordsLimit};

/// Newest steps whose completions stay.
const COMPLETIONS: usize = 100;
/// Newest kept steps, and newest checkpoints, that stay: two, so that a damaged last one has a predecessor.
const STAYING: usize = 2;
/// How long an unused folder of a cache stays.
const UNUSED: Duration = Duration::from_secs(24 * 3600);
/// Room for records and logs.
const RECORDS: u64 = 16 << 20;

/// Makes room for the next checkpoint of a run, and names what was removed: completions of steps, kept steps, and
/// checkpoints, each from the oldest on, as far as needed. The checkpoints `staying` stay.
///
/// # Errors
/// When a folder cannot be listed, or an entry cannot be removed.
pub fn make(run_dir: &RunDir, staying: &[u64]) -> io::Result<Option<String>> {
    let newest = run_dir.checkpoints()?.last().map_or(0, |step| size(&run_dir.checkpoint(*step)));
    make_with(run_dir, staying, newest + RECORDS, || atomic::free_space(run_dir.root()))
}

fn make_with(
    run_dir: &RunDir,
    staying: &[u64],
    needed: u64,
    free: impl Fn() -> io::Result<u64>,
) -> io::Result<Option<String>> {
    if free()? >= needed {
        return Ok(None);
    }
    let candidates = candidates(run_dir, staying)?;
    let paths = candidates.iter().flat_map(|(_, steps, path)| steps.iter().map(|step| path(run_dir, *step)));
    if free()?.saturating_add(paths.map(|path| size(&path)).sum()) < needed {
        return Ok(None);
    }
    let mut gone = Vec::new();
    for (name, steps, path) in candidates {
        let mut removed = Vec::new();
        for step in steps {
            if free()? >= needed {
                break;
            }
            remove(&path(run_dir, step))?;
            removed.push(step);
        }
        gone.extend(match removed[..] {
            [] => None,
            [one] => Some(format!("{name} {one}")),
            [first, .., last] => Some(format!("{name} {first} to {last}")),
        });
    }
    Ok((!gone.is_empty()).then(|| gone.join(", ")))
}

/// Makes room for `needed` bytes in a cache: it removes folders that no process holds and none has begun to use for a
/// day, the least recently used first, as far as needed. Returns the removed folders.
///
/// # Errors
/// As [`make`].
pub fn make_in_cache(cache: &Path, needed: u64) -> io::Result<Vec<PathBuf>> {
    make_in_cache_with(cache, needed, || atomic::free_space(cache))
}

fn make_in_cache_with(cache: &Path, needed: u64, free: impl Fn() -> io::Result<u64>) -> io::Result<Vec<PathBuf>> {
    let age = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok()?.elapsed().ok();
    let entries = fs::read_dir(cache).map_err(named(cache))?.flatten().map(|entry| entry.path());
    let mut unused: Vec<_> = entries.filter_map(|path| Some((age(&path).filter(|age| *age > UNUSED)?, path))).collect();
    unused.sort_unstable();
    let mut gone = Vec::new();
    while free()? < needed
        && let Some((_, path)) = unused.pop()
    {
        let Some(_lock) = File::open(&path).ok().filter(|folder| folder.try_lock().is_ok()) else { continue };
        atomic::remove_dir(&path)?;
        gone.push(path);
    }
    Ok(gone)
}

/// Keeps a folder of a cache for as long as this process lives, and records that it is in use.
pub fn hold(folder: &Path) {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    // In a cache that cannot be locked, or that belongs to somebody else, nothing is removed either.
    let Ok(file) = File::open(folder) else { return };
    let _ = file.set_modified(SystemTime::now());
    if file.try_lock_shared().is_ok() {
        HELD.lock().expect("no holder of the lock panics").push(file);
    }
}

/// Their name, the steps whose files may be removed, and the path for a step.
type Candidates = (&'static str, Vec<u64>, fn(&RunDir, u64) -> PathBuf);

fn candidates(run_dir: &RunDir, staying: &[u64]) -> io::Result<[Candidates; 3]> {
    let but_newest = |mut steps: Vec<u64>, staying: usize| {
        steps.truncate(steps.len().saturating_sub(staying));
        steps
    };
    let mut checkpoints = but_newest(run_dir.checkpoints()?, STAYING);
    checkpoints.retain(|step| !staying.contains(step));
    Ok([
        ("completions of step", but_newest(run_dir.logged_steps()?, COMPLETIONS), RunDir::step_completions),
        ("kept step", but_newest(run_dir.step_batches()?, STAYING), RunDir::step_batch),
        ("checkpoint", checkpoints, RunDir::checkpoint),
    ])
}

/// Bytes of a file, or of all files below a folder; 0 if it is gone.
#[must_use]
pub fn size(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum()
}

fn remove(path: &Path) -> io::Result<()> {
    if !path.is_symlink() && path.is_dir() {
        atomic::remove_dir(path)
    } else {
        fs::remove_file(path).map_err(named(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run directory with completions of 103 steps of 10 bytes, and with checkpoints and kept steps of 100 bytes
    /// each.
    fn run() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        run.create().unwrap();
        (1..=103).for_each(|step| fs::write(run.step_completions(step), [0; 10]).unwrap());
        for step in [5, 10, 15, 20] {
            for folder in [run.checkpoint(step), run.step_batch(step)] {
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("data"), [0; 100]).unwrap();
            }
        }
        (dir, run)
    }

    /// The result when `needed` bytes are needed on a disk that has `disk` bytes left with all files present.
    fn make(run: &RunDir, needed: u64, disk: u64) -> Option<String> {
        make_beside(run, &[], needed, disk)
    }

    fn make_beside(run: &RunDir, staying: &[u64], needed: u64, disk: u64) -> Option<String> {
        let all = size(run.root());
        make_with(run, staying, needed, || Ok(disk + all - size(run.root()))).unwrap()
    }

    #[test]
    fn what_is_oldest_goes_as_far_as_needed() {
        let (_dir, run) = run();
        assert_eq!(make(&run, 500, 500), None);
        assert_eq!(make(&run, 515, 500).unwrap(), "completions of step 1 to 2");
        assert_eq!(make(&run, 600, 500).unwrap(), "completions of step 3, kept step 5");
        assert_eq!(run.checkpoints().unwrap(), [5, 10, 15, 20]);
        assert_eq!(make(&run, 801, 500), None, "all that may go would not be enough");
        assert_eq!(make(&run, 800, 500).unwrap(), "kept step 10, checkpoint 5 to 10");
        assert_eq!((run.checkpoints().unwrap(), run.step_batches().unwrap()), (vec![15, 20], vec![15, 20]));
        assert_eq!(run.logged_steps().unwrap().len(), COMPLETIONS);
        assert_eq!(make(&run, 501, 500), None, "the last ones never go");
    }

    #[test]
    fn the_checkpoint_that_the_guard_would_go_back_to_stays() {
        let (_dir, run) = run();
        assert_eq!(make_beside(&run, &[5], 700, 500).as_deref(), Some("completions of step 1 to 3, kept step 5 to 10"));
        assert_eq!(make_beside(&run, &[5], 600, 500).as_deref(), Some("checkpoint 10"));
        assert_eq!(run.checkpoints().unwrap(), [5, 15, 20]);
    }

    #[test]
    fn of_a_cache_goes_what_was_used_longest_ago_and_nothing_that_is_in_use() {
        let cache = tempfile::tempdir().unwrap();
        let path = |name: &str| cache.path().join(name);
        for (name, days) in [("new", 0), ("old", 2), ("older", 9), ("oldest", 99), ("used", 100)] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("data"), [0; 100]).unwrap();
            let then = SystemTime::now() - UNUSED * days;
            File::open(path(name)).unwrap().set_modified(then).unwrap();
        }
        hold(&path("used"));
        File::open(path("used")).unwrap().set_modified(SystemTime::now() - UNUSED * 100).unwrap();
        let make = |needed| {
            let free = || Ok(600 - size(cache.path()));
            make_in_cache_with(cache.path(), needed, free).unwrap()
        };
        assert_eq!(make(100), Vec::<PathBuf>::new());
        assert_eq!(make(250), [path("oldest"), path("older")]);
        assert_eq!(make(600), [path("old")]);
        assert!(path("new").exists() && path("used").exists());
    }
}
