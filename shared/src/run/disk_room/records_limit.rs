//! A bound on the records of a run on disk, for long runs: completions go first, from the oldest step on, then the
//! oldest steps of the journals. Counts that accumulate from step to step are in each record, and stay.

use std::{
    fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use crate::{
    files::{
        atomic::{self, named},
        run_dir::RunDir,
    },
    system::memory::Size,
};

/// Newest steps whose completions stay.
const STAYING: usize = 2;
/// The sizes are checked each time that this part of the limit was written.
const LOOKS: u64 = 64;
/// Journals are shortened if they take more than this part of the limit.
const SHARE: u64 = 4;
/// Prefix by which TensorBoard recognises event files.
pub const EVENTS_PREFIX: &str = "events.out.tfevents.";

/// Bounds the records of a run.
#[derive(Debug)]
pub struct RecordsLimit {
    /// Bytes; 0 = none.
    limit: u64,
    /// Bytes written since the last check.
    written: u64,
}

/// What has been or must be removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Steps whose completions were removed.
    pub completions: Option<RangeInclusive<u64>>,
    /// The first step whose records may stay in the journals; the caller cuts older ones off.
    pub records_before: Option<u64>,
}

impl RecordsLimit {
    /// A bound of `gib` GiB; none if 0.
    #[must_use]
    pub fn new(gib: f64) -> Self {
        let limit = (gib * f64::from(1 << 30)) as u64;
        Self { limit, written: limit }
    }

    /// The bound, for people.
    #[must_use]
    pub fn size(&self) -> Size {
        Size(self.limit)
    }

    /// The part of the bound for TensorBoard's events; none without a bound.
    #[must_use]
    pub fn of_events(&self) -> Option<u64> {
        (self.limit > 0).then_some(self.limit / SHARE)
    }

    /// Removes the oldest records when they exceed the bound. `written` bytes were added since the last call.
    ///
    /// # Errors
    /// When a folder cannot be listed, or a file not removed.
    pub fn keep(&mut self, run_dir: &RunDir, written: u64) -> io::Result<Gone> {
        self.written += written;
        if self.limit == 0 || self.written < self.limit / LOOKS {
            return Ok(Gone::default());
        }
        self.written = 0;
        let journals = size_of(&[run_dir.metrics(), run_dir.ledger(), run_dir.eval()]);
        let mut total = journals + sizes(run_dir.root(), |name| name.starts_with(EVENTS_PREFIX))?;
        total += sizes(&run_dir.completions(), |_| true)?;
        if total <= self.limit {
            return Ok(Gone::default());
        }
        // Removes more than necessary, so that removal is rare.
        let aim = self.limit - self.limit / LOOKS;
        let steps = run_dir.logged_steps()?;
        let mut gone = Gone::default();
        for &step in &steps[..steps.len().saturating_sub(STAYING)] {
            if total <= aim {
                break;
            }
            for path in [run_dir.step_completions(step), run_dir.step_tokens(step)] {
                total = total.saturating_sub(size_of(std::slice::from_ref(&path)));
                atomic::remove_file(&path)?;
            }
            let first = gone.completions.map_or(step, |gone| *gone.start());
            gone.completions = Some(first..=step);
        }
        if total > aim && journals > self.limit / SHARE {
            gone.records_before = middle(run_dir)?;
        }
        Ok(gone)
    }
}

/// The middle one of the steps in the metrics.
fn middle(run_dir: &RunDir) -> io::Result<Option<u64>> {
    let mut steps = crate::files::journal::Steps::default();
    crate::files::journal::for_each::<crate::metrics::MetricRecord>(&run_dir.metrics(), |record| steps.add(&record))?;
    Ok(steps.first().zip(steps.last()).map(|(first, last)| first + (last - first).div_ceil(2)).filter(|step| *step > 0))
}

fn size_of(paths: &[PathBuf]) -> u64 {
    paths.iter().filter_map(|path| fs::symlink_metadata(path).ok()).map(|file| file.len()).sum()
}

fn sizes(folder: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(folder).map_err(named(folder))? {
        let entry = entry.map_err(named(folder))?;
        if wanted(&entry.file_name().to_string_lossy()) {
            // The file may be removed at this moment.
            total += entry.metadata().map_or(0, |file| if file.is_file() { file.len() } else { 0 });
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1.0 / 1024.0;

    fn run(steps: u64) -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        run.create().unwrap();
        (1..=steps).for_each(|step| fs::write(run.step_completions(step), vec![b'x'; 100 << 10]).unwrap());
        fs::write(run.step_tokens(steps), vec![b'x'; 100 << 10]).unwrap();
        (dir, run)
    }

    #[test]
    fn the_oldest_completions_go_when_the_bound_is_reached_and_nothing_before() {
        let (_dir, run) = run(9);
        let mut limit = RecordsLimit::new(MIB);
        assert_eq!(limit.keep(&run, 0).unwrap(), Gone::default());
        fs::write(run.step_completions(10), vec![b'x'; 100 << 10]).unwrap();
        assert_eq!(limit.keep(&run, 1000).unwrap(), Gone::default(), "it is not looked after each step");
        assert_eq!(limit.keep(&run, 100 << 10).unwrap(), Gone { completions: Some(1..=1), records_before: None });
        assert_eq!(run.logged_steps().unwrap(), (2..=10).collect::<Vec<_>>());
        assert_eq!(RecordsLimit::new(0.0).keep(&run, 1 << 40).unwrap(), Gone::default(), "without a bound all stays");
    }

    #[test]
    fn checkpoints_and_logs_are_not_counted_and_events_are() {
        let (_dir, run) = run(9);
        fs::create_dir(run.checkpoint(3)).unwrap();
        for path in [run.checkpoint(3).join("model.safetensors"), run.log("learner")] {
            fs::write(path, vec![0; 4 << 20]).unwrap();
        }
        assert_eq!(RecordsLimit::new(MIB).keep(&run, 0).unwrap(), Gone::default());
        fs::write(run.root().join(format!("{EVENTS_PREFIX}1.host.2")), vec![0; 200 << 10]).unwrap();
        assert_eq!(RecordsLimit::new(MIB).keep(&run, 0).unwrap().completions, Some(1..=2));
    }

    #[test]
    fn journals_give_way_when_completions_have() {
        let (_dir, run) = run(4);
        let record = |step: u64| format!("{{\"step\":{step},\"text\":\"{}\"}}\n", "x".repeat(10 << 10));
        fs::write(run.metrics(), (1..=100).map(record).collect::<String>()).unwrap();
        let gone = RecordsLimit::new(MIB).keep(&run, 0).unwrap();
        assert_eq!(gone, Gone { completions: Some(1..=2), records_before: Some(51) });
        assert_eq!(run.logged_steps().unwrap(), [3, 4], "the newest stay");
    }
}
