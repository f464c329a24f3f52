//! Greedy evaluation of weight versions on a dataset of its own, between two steps.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Context;
use shared::{
    PolicyVersion, RunDir, Scored,
    metrics::{self, Figure, Metric, MetricRecord, MetricsFile},
};

use crate::{
    assembly::Assembly,
    data::Dataset,
    evaluation::{self, Judging},
    generate::PairGenerator,
};

/// Evaluates a version every so many steps and appends the metrics to `eval.jsonl`.
pub struct Evaluation {
    dataset: Dataset,
    assembly: Assembly,
    judging: Judging,
    every: u64,
    total_steps: u64,
    path: PathBuf,
    file: MetricsFile,
    last: Option<u64>,
    round: Option<Round>,
}

struct Round {
    version: PolicyVersion,
    next_row: usize,
    done: Vec<Scored>,
    begun: Instant,
    /// Whether the learner has lost the version meanwhile.
    lost: bool,
}

impl Evaluation {
    /// An evaluation every `every` of `total_steps` steps. Versions up to `newest` that `eval.jsonl` already has are
    /// not evaluated again, and later ones are forgotten.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn new(
        run_dir: &RunDir,
        dataset: Dataset,
        assembly: Assembly,
        judging: Judging,
        every: u64,
        total_steps: u64,
        newest: PolicyVersion,
    ) -> anyhow::Result<Self> {
        let path = run_dir.eval();
        let (file, last) = open(&path, newest)?;
        Ok(Self { dataset, assembly, judging, every: every.max(1), total_steps, path, file, last, round: None })
    }

    /// The learner was restarted and makes the versions after `newest` anew: they are evaluated again.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn forget(&mut self, newest: PolicyVersion) -> anyhow::Result<()> {
        (self.file, self.last) = open(&self.path, newest)?;
        if let Some(round) = &mut self.round {
            round.lost |= round.version > newest;
        }
        Ok(())
    }

    /// Whether a version is to be evaluated; see [`due`].
    #[must_use]
    pub fn due(&self, version: PolicyVersion) -> bool {
        due(self.last, version.0, self.every, self.total_steps)
    }

    /// Whether an evaluation is going on.
    #[must_use]
    pub fn active(&self) -> bool {
        self.round.is_some()
    }

    /// Begins the evaluation of the version that the (idle) generator holds.
    pub fn begin(&mut self, version: PolicyVersion) {
        let done = Vec::with_capacity(self.dataset.len());
        self.round = Some(Round { version, next_row: 0, done, begun: Instant::now(), lost: false });
    }

    /// Gives the generator prompts as long as it has room for them.
    ///
    /// # Errors
    /// When it refuses one.
    pub fn feed(&mut self, generator: &mut dyn PairGenerator) -> anyhow::Result<()> {
        let Some(round) = &mut self.round else {
            return Ok(());
        };
        while generator.running() + generator.waiting() < generator.capacity() {
            let Some(row) = self.dataset.rows().get(round.next_row) else {
                break;
            };
            generator.begin_row(self.assembly.begin(row, 0, round.next_row as u64).into(), row)?;
            round.next_row += 1;
        }
        Ok(())
    }

    /// Where its completions become groups.
    pub fn assembly(&mut self) -> &mut Assembly {
        &mut self.assembly
    }

    /// Takes scored completions; the last one ends the evaluation and appends its record.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn collect(&mut self) -> anyhow::Result<()> {
        let Some(round) = &mut self.round else {
            return Ok(());
        };
        round.done.extend(std::iter::from_fn(|| self.assembly.finished()));
        if round.done.len() < self.dataset.len() {
            return Ok(());
        }
        let mut round = self.round.take().expect("it was just looked at");
        round.done.sort_unstable_by_key(|group| group.position);
        let mut record = MetricRecord::default();
        record.count(metrics::STEP, round.version.0);
        // With one greedy completion for each prompt there are no votes to count.
        record.extend(evaluation::record(&round.done, None, self.judging, round.begun.elapsed().as_secs_f64()));
        if round.lost {
            tracing::info!("the evaluation of v{} is dropped: the learner has lost that version", round.version);
            return Ok(());
        }
        self.file.append(&record).and_then(|()| self.file.sync()).context("eval.jsonl")?;
        self.last = Some(round.version.0);
        let shown = |metric: &'static Metric| Figure(record.get(metric).unwrap_or(f64::NAN));
        tracing::info!(
            "evaluation of v{}: reward {:.4}, accuracy {:.4}",
            round.version,
            shown(metrics::EVAL_REWARD),
            shown(metrics::EVAL_ACCURACY)
        );
        Ok(())
    }
}

/// The file without versions after `newest`, and the last version in it.
fn open(path: &Path, newest: PolicyVersion) -> anyhow::Result<(MetricsFile, Option<u64>)> {
    let failed = || format!("{}", path.display());
    let file = MetricsFile::open(path, newest.0).with_context(failed)?;
    let records = metrics::read(path).with_context(failed)?;
    Ok((file, records.iter().filter_map(|r| r.get(metrics::STEP)).map(|step| step as u64).max()))
}

/// Whether a version is to be evaluated, given the `last` one that was: it is the first, a multiple of the interval was
/// reached since, or the run ends with it.
fn due(last: Option<u64>, version: u64, every: u64, total_steps: u64) -> bool {
    last.is_none_or(|last| version > last && (version / every > last / every || version == total_steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_every_so_many_and_the_last_are_evaluated() {
        let mut last = None;
        let evaluated: Vec<u64> = (0..=7).filter(|&v| due(last, v, 3, 7) && last.replace(v) != Some(v)).collect();
        assert_eq!(evaluated, [0, 3, 6, 7]);
        assert!(!due(Some(7), 7, 3, 7), "once");
        assert!(due(Some(2), 4, 3, 7) && !due(Some(7), 8, 3, 20) && due(Some(7), 9, 3, 20));
    }
}
