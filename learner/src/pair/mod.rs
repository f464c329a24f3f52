//! The learner's half of the pair: collect the groups of a step, train, publish, announce, keep records.
//!
//! A thread of its own owns the channel. Another writes completions and tokens to disk while the next step is made;
//! each checkpoint waits for it. Metrics and ledger are flushed before a checkpoint too, so no checkpoint outlives its
//! records. A learner that goes on from a checkpoint cuts `metrics.jsonl`, `notices.jsonl` and `ledger.jsonl` back to
//! it, with its first step. A version between two published ones exists in checkpoints only; a run that goes on from
//! such a checkpoint publishes it.
//!
//! A checkpoint takes in what is in flight at the sampler: the learner moves the sampler's file there before the
//! checkpoint is visible. The learner waits for that file for seconds at most, and rather goes without it than stands
//! still.
//!
//! The guard looks at a step between its gradients and the optimiser. A roll-back writes a checkpoint of the present
//! step with the weights of an earlier one, without anything in flight, and goes on from that as after a restart.
//!
//! A version that the sampler refuses is published again while the learner waits for groups. The gate is no part of the
//! training: no checkpoint holds anything of it.

mod collector;
mod completions;
mod dynamic_sampling;
mod failures;
mod fleet;
mod gate;
mod in_flight;
mod journals;
mod ledger;
mod link;
mod notices;
mod records;
mod save;
mod tokens;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use shared::{
    ModelDir, Placed, PolicyVersion, RunDir, Step, WeightSender, atomic,
    channel::{LearnerEnd, LearnerStatus, RunId, SamplerStatus, incarnation},
    checkpoints::{self, Depth},
    config::{RewardsOn, TrainConfig},
    disk_room,
    heartbeat::{self, Deadlines, Phase},
    ledger::{LedgerEvent, LedgerLine, check_balance},
    metrics::{self, Metric, MetricRecord},
};
use tch::Device;

pub use collector::Collector;
use failures::Failures;
use gate::Gate;
use journals::{Journals, Resumed};
pub use link::Link;
use notices::Seen;
use records::Records;

use crate::{
    checkpoint::{self, Found, Origin, TrainerState},
    crew::Crew,
    error::LearnerError,
    guard::{Guard, Verdict},
    publish::{NewVersion, Publisher, export_options},
    step::{Before, StepBatch, TrainedStep, Trainer, record},
};

/// Bytes that the journals and TensorBoard's events grow by with a step, about.
const JOURNAL_BYTES_A_STEP: u64 = 8 << 10;
/// Most groups that wait for the trainer in its own memory; more wait in the channel.
const MAX_QUEUED: u64 = 1 << 16;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every step is done.
    Finished,
    /// It was asked to stop; the last completed step is in a checkpoint.
    Stopped,
}

/// How a stretch of steps ended.
enum Stretch {
    /// With the run, for this process.
    Ended(Outcome),
    /// With a step that the guard answers with a roll-back.
    RollBack,
}

/// A run in progress.
struct Run<'a> {
    config: &'a TrainConfig,
    run_dir: &'a RunDir,
    /// The id of the run, which the directory must have as long as anything is written there.
    id: RunId,
    model: ModelDir,
    trainer: Trainer,
    /// Its further ranks.
    crew: Option<Crew>,
    publisher: Publisher,
    state: TrainerState,
    /// The newest version that is published.
    newest: PolicyVersion,
    gate: Gate,
    /// Opened with the first step of this start.
    journals: Option<Journals>,
    /// What is to be told then; none of a run that begins.
    resumed: Option<Resumed>,
    /// Completions and tokens of the steps.
    records: Records,
    guard: Guard,
    /// Rows of the dataset, for `epoch`.
    prompts: u64,
    /// Steps whose state is in a checkpoint.
    durable: u64,
    /// Whether that checkpoint has what was in flight at the sampler, and that fits the run.
    in_flight: bool,
    /// The sampler's counters at the last record.
    sampler: SamplerStatus,
}

/// Trains until the last step, or until `stop` is set: the run with this id, as long as its directory has that.
///
/// # Errors
/// An unusable model, configuration or run directory; a sampler that breaks the contract or falls silent.
pub fn run(
    (run_dir, id): (&RunDir, RunId),
    config: &TrainConfig,
    device: Device,
    end: impl LearnerEnd + 'static,
    stop: &AtomicBool,
) -> Result<Outcome, LearnerError> {
    run_dir.create()?;
    run_dir.remove_litter()?;
    let mut run = match Run::open((run_dir, id), config, device, stop) {
        // It has waited for the other ranks, and no step was made.
        Err(LearnerError::Peer(_)) if stop.load(Ordering::Relaxed) => return Ok(Outcome::Stopped),
        opened => opened?,
    };
    let mut collector = Collector::new(config, run.model.config().vocab_size);
    let status = run.begin(&mut collector);
    let link = Link::start(end, status, queue_capacity(config), Deadlines::of(config).silence_of_peer());
    let outcome = loop {
        match run.all_steps(&mut collector, &link, stop)? {
            Stretch::Ended(outcome) => break outcome,
            Stretch::RollBack => {
                run = run.go_back(device, stop)?;
                let status = run.begin(&mut collector);
                link.announce(|known| *known = status);
            }
        }
    };
    RunId::join(run_dir, Some(id))?;
    if run.durable < run.state.step {
        run.save(&link)?;
    }
    if outcome == Outcome::Finished || run.journals.is_some() {
        run.record_left(&collector)?;
    }
    if let Some(Err(error)) = run.crew.take().map(|crew| crew.end(true)) {
        tracing::warn!("the run is over, and not all ranks have heard of it: {error}");
    }
    if outcome == Outcome::Finished {
        LearnerStatus { finished: true, ..link.status() }.leave(run_dir, id)?;
    }
    link.finish();
    // An answer that came too late for its checkpoint.
    atomic::remove_file(&run_dir.in_flight())?;
    Ok(outcome)
}

impl<'a> Run<'a> {
    fn open(
        (run_dir, id): (&'a RunDir, RunId),
        config: &'a TrainConfig,
        device: Device,
        stop: &AtomicBool,
    ) -> Result<Self, LearnerError> {
        let model = ModelDir::of_run(config)?;
        let Found { path: found, unchecked, damaged } =
            checkpoint::find(run_dir, config.resume_from_checkpoint.as_deref())?;
        let (among, crew) = Crew::start(config, run_dir, stop)?;
        let (trainer, state) = checkpoint::open_rank(config, &model, found.as_deref(), device, &among)?;
        let options = export_options(config, model.config())?;
        let mut publisher = Publisher::new(run_dir.clone(), model.clone(), options)?;
        let gate = Gate::new(config, PolicyVersion(state.step), model.config().vocab_size);
        publisher.rewind(PolicyVersion(state.step), trainer.policy().model(), gate.token_ids())?;
        let origin = Origin::of(config);
        let resumed = found.as_ref().map(|path| {
            tracing::info!("going on from {} after step {}", path.display(), state.step);
            let mut news = notices::since_checkpoint(&state, config, &origin);
            news.extend(unchecked.then(|| notices::unchecked(state.step)));
            Resumed { news, damaged }
        });
        let guard = Guard::new(config, state.guard.clone())?;
        let in_flight = found.as_ref().is_some_and(|path| in_flight::fits(run_dir, path, &state, config, &origin));
        let state = TrainerState { config: TrainerState::start(config, state.total_steps).config, origin, ..state };
        let mut run = Self {
            in_flight,
            journals: None,
            resumed,
            records: Records::start()?,
            guard,
            prompts: prompts(config)?,
            durable: state.step,
            newest: PolicyVersion(state.step),
            gate,
            sampler: SamplerStatus::default(),
            config,
            run_dir,
            id,
            model,
            trainer,
            crew,
            publisher,
            state,
        };
        // A run that begins has nothing to lose.
        if found.is_none() {
            run.journals()?;
        }
        Ok(run)
    }

    /// The status that a run is announced with, here and after a roll-back; the collector learns what it leaves out.
    fn begin(&self, collector: &mut Collector) -> LearnerStatus {
        // Nothing older than this can arrive any more.
        let matters = |&(_, through): &(u64, u64)| self.state.step <= through + self.config.max_staleness + 1;
        let versions = |(after, through)| (PolicyVersion(after), PolicyVersion(through));
        let given_up = self.state.guard.given_up.filter(matters).map(versions);
        collector.give_up(given_up);
        LearnerStatus {
            incarnation: incarnation(),
            version: self.newest,
            step: Step(self.state.step),
            cursor: self.state.cursor,
            durable_step: Step(self.durable),
            total_steps: self.state.total_steps,
            next_cursor: self.state.cursor,
            given_up,
            in_flight: self.in_flight,
            ..LearnerStatus::default()
        }
    }

    fn all_steps(
        &mut self,
        collector: &mut Collector,
        link: &Link,
        stop: &AtomicBool,
    ) -> Result<Stretch, LearnerError> {
        while self.state.step < self.state.total_steps {
            let start = Instant::now();
            let step = Step(self.state.step);
            let cursor = self.state.cursor;
            let Some(groups) = collector.collect(step, cursor, link, stop, &mut || self.answer_refusal(link))? else {
                return Ok(Stretch::Ended(Outcome::Stopped));
            };
            let waited = start.elapsed();
            RunId::join(self.run_dir, Some(self.id))?;
            heartbeat::beat(Phase::Step);
            let failures = failures::of(&groups);
            self.look_at_failures(&failures, link)?;
            if self.config.save_step_batches {
                self.ask_for_parts()?;
                checkpoint::save_step_batch(self.run_dir, &self.model, &self.trainer, &self.state, &groups)?;
            }
            if let Some(crew) = &mut self.crew {
                crew.train(self.state.step, &groups)?;
            }
            let batch = StepBatch::new(&groups, self.config, PolicyVersion(self.state.step));
            let (guard, number) = (&mut self.guard, self.state.step + 1);
            let mut allows = |before: &Before<'_>| guard.allows(before, number);
            let trained = self.trainer.step_if(&batch, self.state.step, &mut allows)?;
            self.journals()?;
            let verdict = self.follow_guard(link)?;
            heartbeat::beat(Phase::Save);
            let gone = disk_room::make(self.run_dir, self.guard.state.healthy)?;
            let short = gone.map(|what| notices::disk_short(self.state.step, &what));
            self.journals()?.notices.tell(short)?;
            self.advance(&batch);
            let (published, gate) = match verdict {
                Verdict::RollBack => (Duration::ZERO, Duration::ZERO),
                _ => self.publish(&batch, link)?,
            };
            // The passes over the canaries were progress of a step.
            heartbeat::beat(Phase::Save);
            let durations = Durations { start, waited, published, gate };
            let record = self.keep_records(&batch, &trained, link, durations)?;
            let seen = Seen { config: self.config, record: &record, failures: &failures };
            self.journals()?.notices.look(&seen)?;
            if verdict == Verdict::RollBack {
                return Ok(Stretch::RollBack);
            }
            if self.state.step.is_multiple_of(self.config.save_steps) || self.state.step == self.state.total_steps {
                self.save(link)?;
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(Stretch::Ended(Outcome::Stopped));
            }
        }
        Ok(Stretch::Ended(Outcome::Finished))
    }

    /// Tells what the guard has seen of a step that was trained, or left out, and does what it says but for a
    /// roll-back, which comes when the step is in the records.
    fn follow_guard(&mut self, link: &Link) -> Result<Verdict, LearnerError> {
        let (mut verdict, mut notices) = self.guard.take();
        if !self.trainer.is_finite() {
            let (worse, notice) = self.guard.condemn(self.state.step + 1);
            verdict = verdict.max(worse);
            notices.push(notice);
        }
        let reason = notices.last().map(ToString::to_string).unwrap_or_default();
        self.journals()?.notices.tell(notices)?;
        let gone_back = self.guard.state.roll_backs;
        let error = match verdict {
            Verdict::LowerLearningRate => {
                self.trainer.lower_learning_rate(self.config.guard_learning_rate_factor);
                if let Some(crew) = &mut self.crew {
                    crew.lower_learning_rate(self.config.guard_learning_rate_factor)?;
                }
                return Ok(verdict);
            }
            Verdict::RollBack if gone_back >= self.config.guard_max_roll_backs => {
                format!("{reason}; it has gone back {gone_back} times, as often as `guard_max_roll_backs` allows")
            }
            Verdict::Stop => reason,
            Verdict::GoOn | Verdict::SkipStep | Verdict::RollBack => return Ok(verdict),
        };
        if self.durable < self.state.step && self.trainer.is_finite() {
            self.save(link)?;
        }
        Err(LearnerError::Guard(error))
    }

    /// Goes on with the weights of the last healthy checkpoint, or with those that the run began with, behind the step
    /// that was made last.
    fn go_back(self, device: Device, stop: &AtomicBool) -> Result<Self, LearnerError> {
        let Self {
            config,
            run_dir,
            id,
            model,
            trainer,
            crew,
            publisher,
            mut state,
            guard,
            journals,
            records,
            sampler,
            ..
        } = self;
        let Journals { metrics, mut ledger, .. } = journals.expect("a step was made");
        // Its memory is needed for the one that takes its place.
        drop(trainer);
        crew.map_or(Ok(()), |crew| crew.end(false))?;
        let whole = |path: &PathBuf| checkpoints::check(path, Depth::Contents).is_ok();
        let healthy = guard.state.healthy.map(|step| run_dir.checkpoint(step)).filter(whole);
        let after = guard.state.healthy.filter(|_| healthy.is_some()).unwrap_or(0);
        let event = LedgerEvent::RolledBack { from: after + 1 };
        ledger.append(&[LedgerLine::Event { step: state.step, event }])?;
        records.settle()?;
        metrics.sync()?;
        ledger.sync()?;
        state.guard = guard.state;
        state.guard.gone_back(after, state.step - 1);
        if let Some(path) = &healthy {
            checkpoint::go_back(run_dir, path, state)?;
        } else {
            let first = checkpoint::find_first(config.resume_from_checkpoint.as_deref())?;
            let first = first.map(|(path, _)| path);
            let (trainer, _) = checkpoint::open_trainer(config, &model, first.as_deref(), device)?;
            state.carried = trainer.carried().at(&state.carried);
            checkpoint::save(run_dir, &model, &publisher, &trainer, &state, None, |_| Ok(()))?;
        }
        let mut run = Self { sampler, ..Self::open((run_dir, id), config, device, stop)? };
        run.journals()?;
        Ok(run)
    }

    /// Says which reward functions failed in a step, and ends the run where one has failed on everything: what would be
    /// trained on then is not what was asked for. The steps before it are kept.
    fn look_at_failures(&mut self, found: &[Failures], link: &Link) -> Result<(), LearnerError> {
        let step = self.state.step + 1;
        for failures in found {
            let Failures { name, failed, asked, reason } = failures;
            if !failures.everywhere() || !self.config.reward_failure_stops {
                tracing::warn!(
                    "step {step}: reward function `{name}` failed on {failed} of {asked} completions, the last: \
                     {reason}"
                );
                continue;
            }
            if self.durable < self.state.step {
                self.save(link)?;
            }
            let log = match self.config.rewards_on {
                RewardsOn::Run => self.run_dir.log("rollout").display().to_string(),
                RewardsOn::Workers => "the log of the worker that called it".to_owned(),
            };
            return Err(LearnerError::Reward(format!(
                "reward function `{name}` failed on all {asked} completions of step {step}, the last: {reason}; what \
                 it printed is in {log}; correct it, or set `reward_failure_stops` to false to train without it"
            )));
        }
        Ok(())
    }

    fn advance(&mut self, batch: &StepBatch<'_>) {
        self.state.step += 1;
        self.state.cursor = batch.cursor();
        self.state.carried = self.trainer.carried();
        self.state.guard = self.guard.state.clone();
        let tokens = |row: &crate::step::Row<'_>| row.group.prompt_ids.len() + row.completion.episode.sampled();
        self.state.num_tokens += batch.valid().map(tokens).sum::<usize>() as u64;
    }

    /// Publishes the version of the step that was made, if it is one that is to be published, and says where the run
    /// is. Returns what that took, and what of it were the canaries.
    fn publish(&mut self, batch: &StepBatch<'_>, link: &Link) -> Result<(Duration, Duration), LearnerError> {
        let start = Instant::now();
        let (step, mut gate) = (self.state.step, Duration::ZERO);
        if is_published(step, self.state.total_steps, self.config) {
            if let Some(sampler) = link.sampler() {
                self.publisher.let_go(self.newest, &[sampler.oldest_in_use])?;
            }
            self.newest = PolicyVersion(step);
            self.gate.choose(batch);
            let (policy, canaries) = (self.trainer.policy().model(), self.gate.token_ids());
            gate = self.publisher.publish(NewVersion { version: self.newest, policy, canaries })?.gate;
        }
        link.announce(|status| {
            status.version = self.newest;
            status.step = Step(step);
            status.cursor = self.state.cursor;
            status.received.clear();
            status.next_cursor = self.state.cursor;
        });
        Ok((start.elapsed(), gate))
    }

    fn keep_records(
        &mut self,
        batch: &StepBatch<'_>,
        trained: &TrainedStep,
        link: &Link,
        durations: Durations,
    ) -> Result<MetricRecord, LearnerError> {
        let step = self.state.step;
        let began = Instant::now();
        let groups = ledger::groups(batch, &trained.metrics.fates, step);
        let used_up = batch.groups().next().map_or(0, Placed::begin)..batch.cursor();
        check_balance(&groups, used_up, self.config.num_generations as usize)
            .map_err(|problem| LearnerError::Peer(format!("the ledger of step {step} does not balance: {problem}")))?;
        let mut written = JOURNAL_BYTES_A_STEP;
        if self.config.log_completions {
            let text = completions::text(step, batch, &trained.inputs.advantages, &groups)?;
            written += text.len() as u64;
            let path = self.run_dir.step_completions(step);
            self.records.write(move || atomic::write(&path, &text))?;
        }
        if let Some(notes) = &trained.metrics.notes {
            let text = tokens::text(batch, &trained.inputs, notes)?;
            written += text.len() as u64;
            let (run_dir, kept) = (self.run_dir.clone(), self.config.token_records);
            self.records.write(move || tokens::write(&run_dir, step, kept, &text))?;
        }
        let mut line = MetricRecord::default();
        line.count(metrics::STEP, step).count(metrics::TOTAL_STEPS, self.state.total_steps);
        line.set(metrics::EPOCH, self.state.cursor as f64 / self.prompts.max(1) as f64);
        line.count(metrics::NUM_TOKENS, self.state.num_tokens);
        line.extend(record(batch, &trained.inputs, &trained.metrics));
        self.guard.record(self.state.carried.rate_factor.unwrap_or(1.0), &mut line);
        line.extend(dynamic_sampling::record(batch, self.config, step));
        ledger::record(&groups, &mut line);
        let survivals = batch.groups().flat_map(|group| ledger::survivals(group, step));
        let lines: Vec<LedgerLine> = groups.into_iter().map(LedgerLine::Group).chain(survivals).collect();
        self.journals()?.ledger.append(&lines)?;
        line.set(metrics::PERF_LEDGER_S, began.elapsed().as_secs_f64());
        line.set(metrics::PERF_ROLLOUT_WAIT_S, durations.waited.as_secs_f64());
        line.set(metrics::PERF_PUBLISH_S, durations.published.as_secs_f64());
        line.set(metrics::PERF_GATE_S, durations.gate.as_secs_f64());
        if let Some(now) = link.sampler() {
            rollout_metrics(&self.sampler, &now, &mut line);
            fleet::record(&self.sampler, &now, &mut line);
            self.sampler = now;
        }
        let step_time = durations.start.elapsed().as_secs_f64();
        line.set(metrics::PERF_IDLE_SHARE, durations.waited.as_secs_f64() / step_time);
        line.set(metrics::STEP_TIME, step_time);
        self.journals()?.metrics.append(&line)?;
        self.bound_records(written)?;
        let shown = |metric: &'static Metric| line.get(metric).unwrap_or(f64::NAN);
        tracing::info!(
            "step {step}/{}: reward {:.4}, loss {:.5}, grad norm {:.4}, entropy {:.4}, mismatch kl {:.2e}, {:.2} s",
            self.state.total_steps,
            shown(metrics::REWARD),
            shown(metrics::LOSS),
            shown(metrics::GRAD_NORM),
            shown(metrics::ENTROPY),
            shown(metrics::MISMATCH_KL),
            shown(metrics::STEP_TIME),
        );
        Ok(line)
    }
}

/// Times of a step that are known only to the loop.
struct Durations {
    start: Instant,
    waited: Duration,
    published: Duration,
    gate: Duration,
}

/// Whether the version after so many steps is published: every `publish_every`-th, those that are evaluated, and the
/// last.
fn is_published(step: u64, total_steps: u64, config: &TrainConfig) -> bool {
    let every = |n: u64| step.is_multiple_of(n);
    every(config.publish_every) || config.eval_steps.is_some_and(every) || step == total_steps
}

/// Groups that wait for the trainer: as many as the sampler may be ahead, so that it is held back by `max_staleness`
/// before it is by the channel. The queue's memory is taken at once, which is why there is a bound.
fn queue_capacity(config: &TrainConfig) -> usize {
    let steps = config.max_staleness.saturating_add(1);
    u64::from(config.groups_per_step()).saturating_mul(steps).min(MAX_QUEUED) as usize
}

/// Rows of the training prompts; those that the sampler leaves out for their length are counted.
fn prompts(config: &TrainConfig) -> Result<u64, LearnerError> {
    config.dataset.iter().map(|path| Ok(shared_data::count(path, config.train_part())?)).sum()
}

/// What the sampler did since the last record.
fn rollout_metrics(before: &SamplerStatus, now: &SamplerStatus, line: &mut MetricRecord) {
    let zero = SamplerStatus::default();
    let before = if before.incarnation == now.incarnation { before } else { &zero };
    let since = |pick: fn(&SamplerStatus) -> u64| pick(now).saturating_sub(pick(before)) as f64;
    let busy = since(|s| s.busy_micros) / 1e6;
    line.set(metrics::ROLLOUT_SWAP_S, now.swap_micros as f64 / 1e6);
    line.set(metrics::ROLLOUT_GATE_S, now.gate_micros as f64 / 1e6);
    line.set(metrics::ROLLOUT_SWAP_STALL_S, now.swap_stall_micros as f64 / 1e6);
    let idle = since(|s| s.idle_micros) / 1e6;
    line.set(metrics::ROLLOUT_BUSY_S, busy);
    line.set(metrics::ROLLOUT_IDLE_S, idle);
    line.set(metrics::ROLLOUT_IDLE_SHARE, idle / (busy + idle));
    line.set(metrics::ROLLOUT_TOKENS_PER_S, since(|s| s.generated_tokens) / busy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_published_when_it_is_due_to_be_evaluated_or_the_last() {
        let published = |publish_every, eval_steps| -> Vec<u64> {
            let config = TrainConfig { publish_every, eval_steps, ..TrainConfig::default() };
            (1..=8).filter(|&step| is_published(step, 8, &config)).collect()
        };
        assert_eq!(published(1, None), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(published(3, None), [3, 6, 8]);
        assert_eq!(published(3, Some(4)), [3, 4, 6, 8]);
    }

    #[test]
    fn the_queue_holds_what_the_sampler_may_be_ahead_within_bounds() {
        let of = |batch, max_staleness| {
            let config = TrainConfig { generation_batch_size: Some(batch), max_staleness, ..TrainConfig::default() };
            queue_capacity(&config)
        };
        assert_eq!((of(64, 0), of(64, 3)), (8, 32));
        for (batch, max_staleness) in [(64, 1_000_000), (u32::MAX, 0), (u32::MAX, u64::MAX)] {
            assert_eq!(of(batch, max_staleness), MAX_QUEUED as usize);
        }
    }
}
