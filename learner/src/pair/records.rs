//! What a run keeps of each step: completions and tokens, its part of the ledger, and a line of metrics.

use std::time::{Duration, Instant};

use shared::{
    Completion, Exchange, LedgerGroup, ModelConfig, Placed, RunDir,
    config::TrainConfig,
    files::atomic,
    metrics::{self, Figure, Metric, MetricRecord},
    run::ledger::{LedgerEvent, LedgerLine, check_balance},
};

use super::{
    Link, completions, dynamic_sampling,
    journals::{Journals, Resumed},
    ledger,
    sampler::SamplerCounters,
    tokens,
    writer::Writer,
};
use crate::{
    checkpoint::TrainerState,
    error::LearnerError,
    guard::Guard,
    step::{StepBatch, TrainedStep, record},
};

/// Bytes that the journals and TensorBoard's events grow by with a step, about.
const JOURNAL_BYTES_A_STEP: u64 = 8 << 10;

/// Everything that a run writes of its steps.
pub struct Records<'a> {
    config: &'a TrainConfig,
    run_dir: &'a RunDir,
    /// Metrics, ledger and notices.
    pub journals: Journals<'a>,
    /// Writes completions and tokens.
    writer: Writer,
    /// Rows of the dataset, for `epoch`.
    prompts: u64,
    /// Of the sampler, at the last record.
    pub sampler: SamplerCounters,
}

/// A step that was made.
pub struct MadeStep<'a> {
    /// What it was made of.
    pub batch: &'a StepBatch<'a>,
    /// What came of it.
    pub trained: &'a TrainedStep,
    /// Where the run is with it.
    pub state: &'a TrainerState,
    /// What has been done about signs of trouble.
    pub guard: &'a Guard,
    /// How long it took so far.
    pub times: StepTimes,
}

/// Times of a step that are known only to the loop.
#[derive(Debug, Clone, Copy)]
pub struct StepTimes {
    start: Instant,
    waited: Duration,
    /// What publishing a version took.
    pub published: Duration,
    /// What of it were the canaries.
    pub gate: Duration,
}

impl StepTimes {
    /// Of a step that has waited for its groups since `start`.
    pub fn waited_since(start: Instant) -> Self {
        Self { start, waited: start.elapsed(), published: Duration::ZERO, gate: Duration::ZERO }
    }

    fn record_parts(&self, line: &mut MetricRecord) {
        line.set(metrics::PERF_ROLLOUT_WAIT_S, self.waited.as_secs_f64());
        line.set(metrics::PERF_PUBLISH_S, self.published.as_secs_f64());
        line.set(metrics::PERF_GATE_S, self.gate.as_secs_f64());
    }

    fn record_whole(&self, line: &mut MetricRecord) {
        let step_time = self.start.elapsed().as_secs_f64();
        line.set(metrics::PERF_IDLE_SHARE, self.waited.as_secs_f64() / step_time);
        line.set(metrics::STEP_TIME, step_time);
    }
}

impl<'a> Records<'a> {
    /// Those of a run of `model` that begins or goes on after so many steps.
    ///
    /// # Errors
    /// When the system has no room for a thread, or the rows of the dataset cannot be counted.
    pub fn open(
        run_dir: &'a RunDir,
        config: &'a TrainConfig,
        model: &ModelConfig,
        step: u64,
        resumed: Option<Resumed>,
    ) -> Result<Self, LearnerError> {
        Ok(Self {
            config,
            run_dir,
            journals: Journals::new(run_dir, config, model, step, resumed),
            writer: Writer::start()?,
            prompts: prompts(config)?,
            sampler: SamplerCounters::default(),
        })
    }

    /// Keeps what is known of a step, and returns its metrics.
    ///
    /// # Errors
    /// A ledger that does not balance; any error of the file system.
    pub fn keep(&mut self, made: &MadeStep<'_>, link: &Link) -> Result<MetricRecord, LearnerError> {
        let MadeStep { batch, trained, state, times, .. } = made;
        let began = Instant::now();
        let groups = self.account(batch, trained, state.step)?;
        let written = JOURNAL_BYTES_A_STEP + self.write_texts(batch, trained, &groups, state.step)?;
        let mut line = self.figures(made, &groups);
        let survivals = batch.groups().flat_map(|group| ledger::survivals(group, state.step));
        let lines: Vec<LedgerLine> = groups.into_iter().map(LedgerLine::Group).chain(survivals).collect();
        self.journals.append(&lines)?;
        line.set(metrics::PERF_LEDGER_S, began.elapsed().as_secs_f64());
        times.record_parts(&mut line);
        if let Some(now) = link.sampler() {
            self.sampler.record(now, &mut line);
        }
        times.record_whole(&mut line);
        self.journals.append_metrics(&line)?;
        self.journals.bound(written, state.step)?;
        log(&line, state);
        Ok(line)
    }

    /// What became of every completion of a step.
    fn account(
        &self,
        batch: &StepBatch<'_>,
        trained: &TrainedStep,
        step: u64,
    ) -> Result<Vec<LedgerGroup>, LearnerError> {
        let groups = ledger::groups(batch, &trained.metrics.fates, step);
        let used_up = batch.groups().next().map_or(0, Placed::begin)..batch.cursor();
        check_balance(&groups, used_up, self.config.num_generations as usize)
            .map_err(|problem| LearnerError::Peer(format!("the ledger of step {step} does not balance: {problem}")))?;
        Ok(groups)
    }

    /// Has completions and tokens of a step written; their bytes.
    fn write_texts(
        &self,
        batch: &StepBatch<'_>,
        trained: &TrainedStep,
        groups: &[LedgerGroup],
        step: u64,
    ) -> Result<u64, LearnerError> {
        let mut written = 0;
        if self.config.log_completions {
            let text = completions::text(step, batch, &trained.inputs.advantages, groups)?;
            written += text.len() as u64;
            let path = self.run_dir.step_completions(step);
            self.writer.write(move || atomic::write(&path, &text))?;
        }
        if let Some(notes) = &trained.metrics.notes {
            let text = tokens::text(batch, &trained.inputs, notes)?;
            written += text.len() as u64;
            let (run_dir, kept) = (self.run_dir.clone(), self.config.token_records);
            self.writer.write(move || tokens::write(&run_dir, step, kept, &text))?;
        }
        Ok(written)
    }

    /// The metrics of a step, but for its times and the sampler's.
    fn figures(&self, made: &MadeStep<'_>, groups: &[LedgerGroup]) -> MetricRecord {
        let MadeStep { batch, trained, state, guard, .. } = made;
        let mut line = MetricRecord::default();
        line.count(metrics::STEP, state.step).count(metrics::TOTAL_STEPS, state.total_steps);
        line.set(metrics::EPOCH, state.cursor as f64 / self.prompts.max(1) as f64);
        line.count(metrics::NUM_TOKENS, state.num_tokens);
        line.extend(record(batch, &trained.inputs, &trained.metrics));
        callers(batch.rows.iter().map(|row| row.completion), &mut line);
        guard.record(state.carried.rate_factor.unwrap_or(1.0), &mut line);
        line.extend(dynamic_sampling::record(batch, self.config, state.step));
        ledger::record(groups, &mut line);
        line
    }

    /// Notes that a run that has made `step` steps gives up those after step `after`, and waits until that is on disk.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn roll_back(&mut self, step: u64, after: u64) -> Result<(), LearnerError> {
        let event = LedgerEvent::RolledBack { from: after + 1 };
        self.journals.append(&[LedgerLine::Event { step, event }])?;
        self.sync()
    }

    /// Waits until everything is on disk, so that no checkpoint outlives its records.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn sync(&mut self) -> Result<(), LearnerError> {
        self.writer.settle()?;
        self.journals.sync()
    }
}

/// Rows of the training prompts; those that the sampler leaves out for their length are counted.
fn prompts(config: &TrainConfig) -> Result<u64, LearnerError> {
    config.dataset.iter().map(|path| Ok(shared_data::count(path, config.train_part())?)).sum()
}

/// The conversations that called a tool and are left: with none, nothing that was trained on has called one.
fn callers<'c>(completions: impl Iterator<Item = &'c Completion>, line: &mut MetricRecord) {
    let exchanges: Vec<&Exchange> = completions.filter_map(|completion| completion.exchange.as_deref()).collect();
    if exchanges.is_empty() {
        return;
    }
    let kept = exchanges.iter().filter(|exchange| exchange.calls > 0 && !exchange.end.is_failure());
    line.count(metrics::TOOLS_CALLERS_KEPT, kept.count() as u64);
}

/// A step in a line of the log.
fn log(line: &MetricRecord, state: &TrainerState) {
    let shown = |metric: &'static Metric| Figure(line.get(metric).unwrap_or(f64::NAN));
    tracing::info!(
        "step {}/{}: reward {:.4}, loss {:.5}, grad norm {:.4}, entropy {:.4}, mismatch kl {:.2e}, {:.2} s",
        state.step,
        state.total_steps,
        shown(metrics::REWARD),
        shown(metrics::LOSS),
        shown(metrics::GRAD_NORM),
        shown(metrics::ENTROPY),
        shown(metrics::MISMATCH_KL).0,
        shown(metrics::STEP_TIME),
    );
}

#[cfg(test)]
mod tests {
    use shared::{EpisodeEnd, generation::testing};

    use super::*;

    #[test]
    fn only_callers_that_kept_their_environment_are_counted() {
        let conversation = |(calls, end): (u32, EpisodeEnd)| {
            let exchange = Exchange { calls, ..Exchange::new(&[], end) };
            Completion { exchange: Some(Box::new(exchange)), ..testing::completion(0, vec![1]) }
        };
        let kept = |list: &[(u32, EpisodeEnd)]| {
            let completions: Vec<Completion> = list.iter().copied().map(conversation).collect();
            let mut line = MetricRecord::default();
            callers(completions.iter(), &mut line);
            line.get(metrics::TOOLS_CALLERS_KEPT)
        };
        use EpisodeEnd::{Deadline, EnvironmentFailed, Stop, TurnLimit};
        assert_eq!(kept(&[(1, EnvironmentFailed), (0, Stop), (2, Deadline)]), Some(0.0));
        assert_eq!(kept(&[(1, Stop), (0, Stop), (3, TurnLimit), (1, EnvironmentFailed)]), Some(2.0));
        assert_eq!(kept(&[]), None, "a run without tools has no such figure");
    }
}
