//! The journals of a run, and when a start of it makes them its own.

use shared::{
    RunDir,
    checkpoints::Damage,
    disk_room::{Gone, RecordsLimit},
    journal,
    ledger::{LedgerEvent, LedgerFile, LedgerLine},
    metrics::{MetricRecord, MetricsFile},
    notices::Notice,
    records, session,
};

use super::{
    Run,
    notices::{self, Notices},
};
use crate::{checkpoint, error::LearnerError};

/// `metrics.jsonl`, `ledger.jsonl` and `notices.jsonl`, and what they may take together with the completions.
pub struct Journals {
    pub metrics: MetricsFile,
    pub ledger: LedgerFile,
    pub notices: Notices,
    limit: RecordsLimit,
}

/// What a run that goes on from a checkpoint has to say of it, once its first step is made.
pub struct Resumed {
    /// Of what has changed since, and of a checkpoint that nothing vouches for.
    pub news: Vec<Notice>,
    /// Newer checkpoints that are damaged.
    pub damaged: Vec<(u64, Damage)>,
}

impl Run<'_> {
    /// The journals. Until a start that goes on from a checkpoint has made its first step, it leaves the run as it was,
    /// so that one that fails has changed nothing; then what is behind the checkpoint is cut off, as it is made again.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub(super) fn journals(&mut self) -> Result<&mut Journals, LearnerError> {
        if self.journals.is_none() {
            let opened = self.take_over()?;
            self.journals = Some(opened);
        }
        Ok(self.journals.as_mut().expect("they were just opened"))
    }

    fn take_over(&mut self) -> Result<Journals, LearnerError> {
        let (run_dir, config, step) = (self.run_dir, self.config, self.state.step);
        session::take_over(run_dir)?;
        let (metrics, of_metrics) = MetricsFile::open_and_look(&run_dir.metrics(), 0, step)?;
        run_dir.remove_completions_after(step)?;
        let (mut notices, of_notices) = Notices::open(&run_dir.notices(), config, step)?;
        journal::for_each::<MetricRecord>(&run_dir.metrics(), |record| notices.recall(config, &record))?;
        notices.tell(shared::notices::learning_rate(config, self.model.config().parameter_count()))?;
        notices.tell(shared::notices::model_length(config, self.model.config().max_position_embeddings))?;
        let (mut ledger, of_ledger) = LedgerFile::open_and_look(&run_dir.ledger(), 0, step)?;
        if let Some(resumed) = self.resumed.take() {
            ledger.append(&[LedgerLine::Event { step, event: LedgerEvent::Resumed }])?;
            notices.tell(resumed.news)?;
            let aside = checkpoint::set_aside(run_dir, &resumed.damaged)?;
            notices.tell(aside.into_iter().map(|what| notices::damaged(step, what)))?;
            let logged = run_dir.logged_steps()?.first().copied();
            let mut found = records::of_steps(&of_metrics, &of_ledger, logged, step);
            found.extend((!of_notices.is_empty()).then(|| format!("notices.jsonl: {of_notices}")));
            notices.tell(notices::records_damaged(step, &found))?;
        }
        let limit = RecordsLimit::new(config.records_size_limit);
        Ok(Journals { metrics, ledger, notices, limit })
    }

    /// Has the oldest records go where they have outgrown `records_size_limit`, and says so the first time.
    pub(super) fn bound_records(&mut self, written: u64) -> Result<(), LearnerError> {
        let (run_dir, step) = (self.run_dir, self.state.step);
        let journals = self.journals()?;
        let Gone { completions, records_before } = journals.limit.keep(run_dir, written)?;
        let limit = journals.limit.size();
        if let Some(first) = records_before {
            journals.cut_before(run_dir, first, step)?;
        }
        let records = records_before.map(|first| format!("records of the steps before {first}"));
        let completions = completions.map(|gone| format!("completions of step {} to {}", gone.start(), gone.end()));
        for (subject, what) in [("completions", completions), ("records", records)] {
            journals.notices.tell(what.map(|what| notices::records_removed(step, limit, subject, &what)))?;
        }
        Ok(())
    }
}

impl Journals {
    /// The ledger is cut before the metrics, by which what is missing from either is known.
    fn cut_before(&mut self, run_dir: &RunDir, first: u64, completed: u64) -> Result<(), LearnerError> {
        self.ledger = LedgerFile::open_and_look(&run_dir.ledger(), first, completed)?.0;
        self.metrics = MetricsFile::open_and_look(&run_dir.metrics(), first, completed)?.0;
        Ok(())
    }
}
