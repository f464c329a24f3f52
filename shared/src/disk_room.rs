//! Room on the disk of a run: nothing is removed while there is enough, nor where it would not be enough, and then what is
//! oldest first.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    atomic::{self, named},
    leftovers,
    run_dir::RunDir,
};

/// Newest steps whose completions stay.
const COMPLETIONS: usize = 100;
/// Newest kept steps, and newest checkpoints, that stay: the one before the last is there should the last be damaged.
const STAYING: usize = 2;
/// Room for records and logs.
const RECORDS: u64 = 16 << 20;

/// Makes room for the next checkpoint of a run, and says what had to go: completions of steps, kept steps, and checkpoints, each
/// from the oldest on, as far as needed.
///
/// # Errors
/// When a folder cannot be listed, or an entry cannot be removed.
pub fn make(run_dir: &RunDir) -> io::Result<Option<String>> {
    let newest = run_dir.checkpoints()?.last().map_or(0, |step| leftovers::size(&run_dir.checkpoint(*step)));
    make_with(run_dir, newest + RECORDS, || atomic::free_space(run_dir.root()))
}

fn make_with(run_dir: &RunDir, needed: u64, free: impl Fn() -> io::Result<u64>) -> io::Result<Option<String>> {
    if free()? >= needed {
        return Ok(None);
    }
    let candidates = candidates(run_dir)?;
    let paths = candidates.iter().flat_map(|(_, steps, path)| steps.iter().map(|step| path(run_dir, *step)));
    if free()?.saturating_add(paths.map(|path| leftovers::size(&path)).sum()) < needed {
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

/// What it is called, the steps whose may go, and where that of one is.
type Candidates = (&'static str, Vec<u64>, fn(&RunDir, u64) -> PathBuf);

fn candidates(run_dir: &RunDir) -> io::Result<[Candidates; 3]> {
    let but_newest = |mut steps: Vec<u64>, staying: usize| {
        steps.truncate(steps.len().saturating_sub(staying));
        steps
    };
    Ok([
        ("completions of step", but_newest(run_dir.logged_steps()?, COMPLETIONS), RunDir::step_completions),
        ("kept step", but_newest(run_dir.step_batches()?, STAYING), RunDir::step_batch),
        ("checkpoint", but_newest(run_dir.checkpoints()?, STAYING), RunDir::checkpoint),
    ])
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { atomic::remove_dir(path) } else { fs::remove_file(path).map_err(named(path)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run directory with completions of 103 steps of 10 bytes, and with checkpoints and kept steps of 100 bytes each.
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

    /// What goes when so many bytes are needed on a disk on which `disk` bytes are left with everything there.
    fn make(run: &RunDir, needed: u64, disk: u64) -> Option<String> {
        let all = leftovers::size(run.root());
        make_with(run, needed, || Ok(disk + all - leftovers::size(run.root()))).unwrap()
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
}
