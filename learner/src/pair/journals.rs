//! The journals of a run, and when a start of it makes them its own.

use shared::{
    ModelConfig, RunDir,
    config::TrainConfig,
    files::journal,
    metrics::{MetricRecord, MetricsFile},
    process::session,
    run::{
        checkpoints::Damage,
        disk_room::{Gone, RecordsLimit},
        ledger::{LedgerEvent, LedgerFile, LedgerLine},
        notices::Notice,
        records,
    },
};

use super::notices::{self, Notices, Seen};
use crate::{checkpoint, error::LearnerError};

/// `metrics.jsonl`, `ledger.jsonl` and `notices.jsonl`.
///
/// Until a start that goes on from a checkpoint has made its first step, it leaves the run as it was, so that one that
/// fails has changed nothing. With the first line that is written, what is behind the checkpoint is cut off, as it is
/// made again. A start that finds every step made may write lines too, and its options are none of the run's.
pub struct Journals<'a> {
    run_dir: &'a RunDir,
    config: &'a TrainConfig,
    /// Steps that are done when the run begins or goes on.
    step: u64,
    /// What is told of the configuration then.
    remarks: Vec<Notice>,
    /// What is told then of a run that goes on.
    resumed: Option<Resumed>,
    /// Whether the run is this start's.
    taken_over: bool,
    files: Option<Files>,
}

/// What a run that goes on from a checkpoint has to say of it, once its first step is made.
pub struct Resumed {
    /// Of what has changed since, and of a checkpoint that nothing vouches for.
    pub news: Vec<Notice>,
    /// Newer checkpoints that are damaged.
    pub damaged: Vec<(u64, Damage)>,
}

/// The files, and what they may take together with the completions.
struct Files {
    metrics: MetricsFile,
    ledger: LedgerFile,
    notices: Notices,
    limit: RecordsLimit,
    /// What was damaged in them.
    damaged: Vec<String>,
}

impl<'a> Journals<'a> {
    /// Those of a run of `model` that begins or goes on after so many steps, and touches none of them yet.
    pub fn new(
        run_dir: &'a RunDir,
        config: &'a TrainConfig,
        model: &ModelConfig,
        step: u64,
        resumed: Option<Resumed>,
    ) -> Self {
        let rate = shared::run::notices::learning_rate(config, model.parameter_count());
        let length = shared::run::notices::model_length(config, model.max_position_embeddings);
        let remarks = rate.into_iter().chain(length).collect();
        Self { run_dir, config, step, remarks, resumed, taken_over: false, files: None }
    }

    /// Whether they are this start's.
    pub fn are_taken_over(&self) -> bool {
        self.taken_over
    }

    /// Makes them this start's, with its options and what is told of these, unless they are.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn take_over(&mut self) -> Result<(), LearnerError> {
        if self.taken_over {
            return Ok(());
        }
        let (run_dir, step) = (self.run_dir, self.step);
        session::take_over(run_dir)?;
        self.taken_over = true;
        let (remarks, resumed) = (std::mem::take(&mut self.remarks), self.resumed.take());
        let files = self.files()?;
        files.notices.tell(remarks)?;
        if let Some(resumed) = resumed {
            files.ledger.append(&[LedgerLine::Event { step, event: LedgerEvent::Resumed }])?;
            files.notices.tell(resumed.news)?;
            let aside = checkpoint::set_aside(run_dir, &resumed.damaged)?;
            files.notices.tell(aside.into_iter().map(|what| notices::damaged(step, what)))?;
            files.notices.tell(notices::records_damaged(step, &files.damaged))?;
        }
        Ok(())
    }

    /// Tells what is new of these notices.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn tell(&mut self, notices: impl IntoIterator<Item = Notice>) -> Result<(), LearnerError> {
        self.files()?.notices.tell(notices)
    }

    /// Looks at a step for signs that the run does not learn, and tells what is new.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn look(&mut self, seen: &Seen<'_>) -> Result<(), LearnerError> {
        self.files()?.notices.look(seen)
    }

    /// Adds lines to the ledger.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn append(&mut self, lines: &[LedgerLine]) -> Result<(), LearnerError> {
        Ok(self.files()?.ledger.append(lines)?)
    }

    /// Adds the metrics of a step.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn append_metrics(&mut self, line: &MetricRecord) -> Result<(), LearnerError> {
        Ok(self.files()?.metrics.append(line)?)
    }

    /// Waits until metrics and ledger are on disk.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn sync(&mut self) -> Result<(), LearnerError> {
        let files = self.files()?;
        files.metrics.sync()?;
        Ok(files.ledger.sync()?)
    }

    /// Has the oldest records go where they have outgrown `records_size_limit` with what was `written` of a step, and
    /// says so the first time. `completed` is the number of steps completed with it.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn bound(&mut self, written: u64, completed: u64) -> Result<(), LearnerError> {
        let run_dir = self.run_dir;
        let files = self.files()?;
        let Gone { completions, records_before } = files.limit.keep(run_dir, written)?;
        let limit = files.limit.size();
        if let Some(first) = records_before {
            files.cut_before(run_dir, first, completed)?;
        }
        let records = records_before.map(|first| format!("records of the steps before {first}"));
        let completions = completions.map(|gone| format!("completions of step {} to {}", gone.start(), gone.end()));
        for (subject, what) in [("completions", completions), ("records", records)] {
            files.notices.tell(what.map(|what| notices::records_removed(completed, limit, subject, &what)))?;
        }
        Ok(())
    }

    fn files(&mut self) -> Result<&mut Files, LearnerError> {
        if self.files.is_none() {
            self.files = Some(self.open()?);
        }
        Ok(self.files.as_mut().expect("they were just opened"))
    }

    fn open(&self) -> Result<Files, LearnerError> {
        let (run_dir, config, step) = (self.run_dir, self.config, self.step);
        let (metrics, of_metrics) = MetricsFile::open_and_look(&run_dir.metrics(), 0, step)?;
        run_dir.remove_completions_after(step)?;
        let (mut notices, of_notices) = Notices::open(&run_dir.notices(), config, step)?;
        journal::for_each::<MetricRecord>(&run_dir.metrics(), |record| notices.recall(config, &record))?;
        let (ledger, of_ledger) = LedgerFile::open_and_look(&run_dir.ledger(), 0, step)?;
        let logged = run_dir.logged_steps()?.first().copied();
        let mut damaged = records::of_steps(&of_metrics, &of_ledger, logged, step);
        damaged.extend((!of_notices.is_empty()).then(|| format!("notices.jsonl: {of_notices}")));
        let limit = RecordsLimit::new(config.records_size_limit);
        Ok(Files { metrics, ledger, notices, limit, damaged })
    }
}

impl Files {
    /// The ledger is cut before the metrics, by which what is missing from either is known.
    fn cut_before(&mut self, run_dir: &RunDir, first: u64, completed: u64) -> Result<(), LearnerError> {
        self.ledger = LedgerFile::open_and_look(&run_dir.ledger(), first, completed)?.0;
        self.metrics = MetricsFile::open_and_look(&run_dir.metrics(), first, completed)?.0;
        Ok(())
    }
}
