//! A run in progress: how it is opened, moved on by a step, saved, taken back, and accounted for at its end.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use shared::{
    ModelDir, PolicyVersion, RunDir, Step,
    channel::{LearnerStatus, RunId, in_flight::read_groups},
    config::TrainConfig,
    files::run_dir::IN_FLIGHT_FILE,
    process::heartbeat::{self, Phase},
    run::{
        checkpoints::{self, Depth},
        ledger::LedgerLine,
    },
};
use tch::Device;

use super::{
    Collector, Link,
    distributed::DistributedTrainer,
    evaluations::Evaluations,
    in_flight::{self, Request},
    journals::Resumed,
    ledger, notices,
    published::{PublishedVersions, is_due},
    records::Records,
    refusals::Refusals,
};
use crate::{
    checkpoint::{self, Found, Origin, Retention, TrainerState},
    crew::Crew,
    error::LearnerError,
    guard::Guard,
    step::{BatchRow, StepBatch},
};

/// A run in progress.
pub struct Run<'a> {
    /// Its options.
    pub config: &'a TrainConfig,
    /// Where it is written.
    pub run_dir: &'a RunDir,
    /// The id of the run, which the directory must have as long as anything is written there.
    pub id: RunId,
    /// The model that it began with.
    pub model: ModelDir,
    /// The policy, and what trains it.
    pub trainer: DistributedTrainer,
    versions: PublishedVersions,
    refusals: Refusals,
    /// What looks for trouble between gradients and optimiser.
    pub guard: Guard,
    /// Where the run is.
    pub state: TrainerState,
    durable: Durable,
    /// What it keeps of its steps.
    pub records: Records<'a>,
    /// What its evaluations say.
    pub evaluations: Evaluations<'a>,
}

/// What a restart goes on from.
#[derive(Debug, Clone, Copy)]
struct Durable {
    /// Steps whose state is in a checkpoint.
    step: u64,
    /// Whether that checkpoint has what was in flight at the sampler, and that fits the run.
    in_flight: bool,
}

impl<'a> Run<'a> {
    /// Opens the run with this id at its newest checkpoint, or at its beginning.
    ///
    /// # Errors
    /// An unusable model, configuration or run directory; ranks that do not come before `stop` is set.
    pub fn open(
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
        let version = PolicyVersion(state.step);
        let versions = PublishedVersions::open(config, run_dir, &model, version, trainer.policy().model())?;
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
        let evaluations = Evaluations::open(run_dir, config, state.step)?;
        let mut records = Records::open(run_dir, config, model.config(), state.step, resumed)?;
        // A run that begins has nothing to lose.
        if found.is_none() {
            records.journals.take_over()?;
        }
        Ok(Self {
            config,
            run_dir,
            id,
            model,
            trainer: DistributedTrainer::new(trainer, crew),
            versions,
            refusals: Refusals::default(),
            guard,
            durable: Durable { step: state.step, in_flight },
            state,
            records,
            evaluations,
        })
    }

    /// The status that a run is announced with, here and after a roll-back; the collector learns what it leaves out.
    pub fn begin(&self, collector: &mut Collector) -> LearnerStatus {
        // Nothing older than this can arrive any more.
        let matters = |&(_, through): &(u64, u64)| self.state.step <= through + self.config.max_staleness + 1;
        let versions = |(after, through)| (PolicyVersion(after), PolicyVersion(through));
        let given_up = self.state.guard.given_up.filter(matters).map(versions);
        collector.give_up(given_up);
        LearnerStatus {
            version: self.versions.newest(),
            step: Step(self.state.step),
            cursor: self.state.cursor,
            durable_step: Step(self.durable.step),
            total_steps: self.state.total_steps,
            next_cursor: self.state.cursor,
            given_up,
            in_flight: self.durable.in_flight,
            ..LearnerStatus::begun()
        }
    }

    /// Whether every step is made.
    pub fn is_complete(&self) -> bool {
        self.state.step >= self.state.total_steps
    }

    /// Moves the run on by the step that was made of a batch.
    pub fn advance(&mut self, batch: &StepBatch<'_>) {
        self.state.step += 1;
        self.state.cursor = batch.cursor();
        self.state.carried = self.trainer.first().carried();
        self.state.guard = self.guard.state.clone();
        let tokens = |row: &BatchRow<'_>| row.group.prompt_ids.len() + row.completion.episode.sampled();
        self.state.num_tokens += batch.valid().map(tokens).sum::<usize>() as u64;
    }

    /// Publishes the version of the step that was made, if it is one that is to be published, and says where the run
    /// is. Returns what that took, and what of it were the canaries.
    ///
    /// # Errors
    /// A version that cannot be written.
    pub fn publish(&mut self, batch: &StepBatch<'_>, link: &Link) -> Result<(Duration, Duration), LearnerError> {
        let start = Instant::now();
        let (step, mut gate) = (self.state.step, Duration::ZERO);
        if is_due(step, self.state.total_steps, self.config) {
            let sampler = link.sampler();
            gate = self.versions.publish(PolicyVersion(step), self.trainer.policy(), batch, sampler.as_ref())?;
        }
        link.announce(|status| {
            status.version = self.versions.newest();
            status.step = Step(step);
            status.cursor = self.state.cursor;
            status.received.clear();
            status.next_cursor = self.state.cursor;
        });
        Ok((start.elapsed(), gate))
    }

    /// Publishes the version again that the sampler has refused.
    ///
    /// # Errors
    /// Too many refusals in a row, after a checkpoint; any error of the file system.
    pub fn answer_refusal(&mut self, link: &Link) -> Result<(), LearnerError> {
        let refusal = link.sampler().and_then(|sampler| sampler.refusal);
        let Some(refused) = self.refusals.hear(refusal, self.config.max_refusals) else { return Ok(()) };
        self.records.journals.tell([refused.notice(self.state.step)])?;
        if refused.is_last() {
            self.save_if_behind(link)?;
            return Err(refused.error());
        }
        if refused.is_of(&link.status()) {
            self.versions.publish_again(PolicyVersion(self.state.step), self.trainer.policy())?;
            link.announce(|status| {
                status.version = self.versions.newest();
                status.publication += 1;
            });
        }
        Ok(())
    }

    /// Writes a checkpoint unless there is one of where the run is.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn save_if_behind(&mut self, link: &Link) -> Result<(), LearnerError> {
        if self.durable.step < self.state.step { self.save(link) } else { Ok(()) }
    }

    /// Writes a checkpoint of where the run is.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn save(&mut self, link: &Link) -> Result<(), LearnerError> {
        if self.guard.is_calm() {
            self.guard.state.healthy = Some(self.state.step);
            self.state.guard.healthy = self.guard.state.healthy;
        }
        heartbeat::beat(Phase::Save);
        // A synchronous run samples lost completions again as they were.
        let request = (self.config.max_staleness > 0).then(|| Request::make(self.run_dir, link)).transpose()?;
        self.records.sync()?;
        let mut in_flight = false;
        let more = |dir: &Path| {
            in_flight = request.map_or(Ok(false), |request| request.take(self.run_dir, link, dir))?;
            Ok(())
        };
        self.trainer.ask_for_parts()?;
        let (publisher, trainer) = (self.versions.publisher(), self.trainer.first());
        checkpoint::save(self.run_dir, &self.model, publisher, trainer, &self.state, more)?;
        self.remove_surplus()?;
        self.durable = Durable { step: self.state.step, in_flight };
        link.announce(|status| {
            status.durable_step = Step(self.durable.step);
            status.in_flight = in_flight;
            status.saving = false;
        });
        tracing::info!("saved {}", self.run_dir.checkpoint(self.durable.step).display());
        Ok(())
    }

    /// Removes the checkpoints that do not stay: a new one takes the place of the oldest, and an evaluation may name
    /// another one the best.
    fn remove_surplus(&self) -> Result<(), LearnerError> {
        let Self { config, run_dir, evaluations, guard, .. } = self;
        Retention { limit: config.save_total_limit, best: evaluations.best(), healthy: guard.state.healthy }
            .remove_surplus(run_dir)
    }

    /// Goes on with the weights of the last healthy checkpoint, or with those that the run began with, behind the step
    /// that was made last.
    ///
    /// # Errors
    /// A checkpoint that cannot be written, or a run that cannot be opened again.
    pub fn go_back(self, device: Device, stop: &AtomicBool) -> Result<Self, LearnerError> {
        let Self { config, run_dir, id, model, trainer, versions, mut state, guard, mut records, .. } = self;
        trainer.give_way()?;
        let whole = |path: &PathBuf| checkpoints::check(path, Depth::Contents).is_ok();
        let healthy = guard.state.healthy.map(|step| run_dir.checkpoint(step)).filter(whole);
        let after = guard.state.healthy.filter(|_| healthy.is_some()).unwrap_or(0);
        records.roll_back(state.step, after)?;
        state.guard = guard.state;
        state.guard.gone_back(after, state.step - 1);
        if let Some(path) = &healthy {
            checkpoint::go_back(run_dir, path, state)?;
        } else {
            let first = checkpoint::find_first(config.resume_from_checkpoint.as_deref())?;
            let first = first.map(|(path, _)| path);
            let (trainer, _) = checkpoint::open_trainer(config, &model, first.as_deref(), device)?;
            state.carried = trainer.carried().at(&state.carried);
            checkpoint::save(run_dir, &model, versions.publisher(), &trainer, &state, |_| Ok(()))?;
        }
        let mut run = Self::open((run_dir, id), config, device, stop)?;
        // The sampler has lived on, so its counters have.
        run.records.sampler = records.sampler;
        run.records.journals.take_over()?;
        Ok(run)
    }

    /// Takes in what the evaluation of the last step says; whether the run ends with that step.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn heed_evaluation(&mut self) -> Result<bool, LearnerError> {
        let (step, total_steps) = (self.state.step, self.state.total_steps);
        self.evaluations.judge(step)?;
        // A start that has made no step leaves the run as it was.
        if self.records.journals.are_taken_over() {
            self.evaluations.record()?;
            self.remove_surplus()?;
            self.records.journals.tell(self.evaluations.failed(step))?;
        }
        if self.is_complete() {
            return Ok(true);
        }
        let Some(notice) = self.evaluations.stops(step, total_steps) else { return Ok(false) };
        self.records.journals.tell([notice])?;
        Ok(true)
    }

    /// Records the best checkpoint of a run that has ended, and makes it the run's model where that is asked for. As
    /// many others stay as the options say.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn choose_model(&mut self) -> Result<(), LearnerError> {
        self.evaluations.judge(self.state.step)?;
        self.evaluations.record()?;
        if self.config.load_best_model_at_end {
            self.evaluations.link_model(self.state.step);
        }
        // The link of an earlier end may have led to one of these.
        self.remove_surplus()
    }

    /// Puts into the ledger what is in flight when the run ends.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn record_left(&mut self, collector: &Collector) -> Result<(), LearnerError> {
        let is_last = self.durable.in_flight && self.durable.step == self.state.step;
        let path = self.run_dir.checkpoint(self.durable.step).join(IN_FLIGHT_FILE);
        let read = |path: &Path| {
            let problem = |error| tracing::warn!("{} {error}: the ledger lacks what was in flight", path.display());
            read_groups(path).map_err(problem).unwrap_or_default()
        };
        let at_sampler = if is_last { read(&path) } else { Vec::new() };
        let from = (self.state.step + 1, self.state.cursor);
        let left = ledger::left(collector, &at_sampler, from, self.config.num_generations as usize);
        let lines: Vec<LedgerLine> = left.into_iter().map(LedgerLine::Group).collect();
        self.records.journals.append(&lines)
    }
}
