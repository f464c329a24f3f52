//! The progress that the user sees: a bar on a terminal, plain lines elsewhere.

mod lines;

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
};

use indicatif::ProgressBar;
use shared::{
    RunDir,
    channel::{LearnerStatus, RunId},
    config::TrainConfig,
    metrics::{self, MetricRecord},
    process::{
        heartbeat::{Beat, Phase},
        pace::Pace,
    },
    run::{disk_room::RecordsLimit, prompts::LongPrompts},
};
use shared_bounds::Shown;

pub(super) use self::lines::short;
use self::lines::{announcement, bar, evaluation_line, figures, fitting, plain_line, room, work};
use super::{directory::OwnedRun, printed::Printed, workers::WorkersFollower};
use crate::{
    records::{
        notices::Board,
        tail::{Tail, step_of},
    },
    supervise::{Kills, Shortage, Watch},
    tensorboard::Follower,
    terminal::{output, signals},
};

/// Follows the metrics and shows them.
pub struct Progress {
    tail: Tail,
    /// None after it could not be written.
    tensorboard: Option<Follower>,
    board: Board,
    completions: Printed,
    bar: Option<ProgressBar>,
    total: u64,
    every: u64,
    shown: u64,
    /// When to report the steps, where there is no bar.
    pace: Pace,
    /// The present work of the two halves, in words.
    work: String,
    evaluations: Tail,
    /// Evaluations up to this step have been reported.
    evaluated: Option<u64>,
    /// Number of processes killed for lack of memory at the last check.
    memory_kills: Kills,
    /// The sampler's file about prompts that are too long, until they have been reported.
    long_prompts: Option<PathBuf>,
    /// The content of that file from an earlier start, which is no news.
    known_long_prompts: Vec<LongPrompts>,
    /// Whether both halves work at once, so that the waiting time of each one matters.
    overlaps: bool,
    /// Completions of a step.
    per_step: u64,
    /// The workers of a run that samples with workers.
    workers: Option<WorkersFollower>,
    dir: RunDir,
    id: RunId,
}

impl Progress {
    /// Reads what the run directory already holds.
    pub fn new(config: &TrainConfig, OwnedRun { dir, id, .. }: &OwnedRun) -> Self {
        let mut tail = Tail::new(dir.metrics());
        tail.poll();
        let mut evaluations = Tail::new(dir.eval());
        evaluations.poll();
        let total = config.max_steps.unwrap_or(0);
        let shown = tail.steps();
        let bar = io::stderr().is_terminal().then(|| bar(total, shown));
        let memory_kills = Kills::now();
        let mut progress = Self {
            tail,
            tensorboard: None,
            board: Board::new(dir.notices()),
            completions: Printed::new(config, dir.clone(), shown),
            bar,
            total,
            every: config.logging_steps.max(1),
            shown,
            pace: Pace::default(),
            work: String::new(),
            evaluated: evaluations.records().last().map(|_| evaluations.steps()),
            evaluations,
            memory_kills,
            long_prompts: Some(dir.prompts()),
            known_long_prompts: LongPrompts::read(&dir.prompts()),
            overlaps: config.max_staleness > 0,
            per_step: config.completions_per_step().into(),
            workers: WorkersFollower::of(config, dir),
            dir: dir.clone(),
            id: *id,
        };
        let limit = RecordsLimit::new(config.records_size_limit).of_events();
        match Follower::new(dir.clone(), shown, total) {
            Ok(follower) => progress.tensorboard = Some(follower.with_limit(limit)),
            Err(error) => progress.tell_of_lost_events(&error),
        }
        progress
    }

    /// Completed steps.
    pub fn steps(&self) -> u64 {
        self.tail.steps()
    }

    /// One line on the start: a new run, or one that resumes from the checkpoint of a step; the records may go beyond
    /// that step, and those steps are made again.
    pub fn announce(&mut self, config: &TrainConfig, from: Option<u64>) {
        self.say(&announcement(config, from));
    }

    /// The run goes on: its records hold everything from which events are made.
    fn tell_of_lost_events(&mut self, error: &io::Error) {
        self.say(&format!(
            "warning: TensorBoard's events beside metrics.jsonl are not written any more, the run goes on: {error}"
        ));
    }

    /// Reports once the prompts that the model does not get.
    fn tell_of_long_prompts(&mut self) {
        // When the sampler begins its first completion, it has checked the prompts of this start.
        let known = |path: &mut PathBuf| path.exists() && LongPrompts::read(path) != self.known_long_prompts;
        let Some(path) = self.long_prompts.take_if(known) else { return };
        LongPrompts::read(&path)
            .iter()
            .flat_map(LongPrompts::lines)
            .for_each(|line| self.say(&format!("warning: {line}")));
    }

    /// Leaves the display in its last state.
    pub fn finish(&mut self) {
        self.tick();
        for news in self.workers.as_mut().map(WorkersFollower::last_news).unwrap_or_default() {
            self.say(&news);
        }
        if let Some(bar) = &self.bar {
            bar.set_message(fitting(figures(self.tail.records(), self.overlaps), room(self.total)));
            bar.abandon();
        }
    }

    /// Reports new evaluations; a resumed run reports those again that it makes again.
    fn tell_of_evaluations(&mut self) {
        let steps = self.evaluations.steps();
        self.evaluated =
            self.evaluated.map(|known| known.min(steps)).filter(|_| !self.evaluations.records().is_empty());
        let is_new = |record: &&MetricRecord| self.evaluated.is_none_or(|known| step_of(record) > known);
        let lines: Vec<String> = self.evaluations.records().iter().filter(is_new).map(evaluation_line).collect();
        self.evaluated = self.evaluations.records().last().map(|_| steps);
        lines.iter().for_each(|line| self.say(line));
    }

    fn show(&mut self) {
        let records = self.tail.records();
        let steps = self.tail.steps();
        if let Some(bar) = &self.bar {
            bar.set_position(steps);
            self.shown = steps;
            return;
        }
        self.pace.said();
        // After a restart from an earlier checkpoint, the steps go back, and are shown again when they are made again.
        self.shown = self.shown.min(steps);
        let from = records.partition_point(|r| r.get(metrics::STEP).is_some_and(|s| s as u64 <= self.shown));
        let lines: Vec<String> = (from..records.len())
            .filter(|i| {
                let step = step_of(&records[*i]);
                step.is_multiple_of(self.every) || step == self.total
            })
            .map(|i| plain_line(&records[..=i], self.total, self.overlaps))
            .collect();
        self.shown = steps;
        lines.iter().for_each(output::tell);
    }
}

impl Watch for Progress {
    fn tick(&mut self) -> u64 {
        self.tell_of_long_prompts();
        self.tail.poll();
        self.evaluations.poll();
        if let Some(follower) = &mut self.tensorboard
            && let Err(error) = follower.poll(self.tail.records(), self.evaluations.records())
        {
            self.tensorboard = None;
            self.tell_of_lost_events(&error);
        }
        if self.tail.steps() != self.shown {
            self.show();
        }
        if let Some(text) = self.completions.poll(self.tail.steps()) {
            self.say(&text);
        }
        self.tell_of_evaluations();
        for notice in self.board.news() {
            self.say(&format!("notice: {notice}"));
        }
        for news in self.workers.as_mut().map(WorkersFollower::news).unwrap_or_default() {
            self.say(&news);
        }
        if let Some(bar) = &self.bar {
            bar.tick();
        }
        self.tail.steps()
    }

    fn at_work(&mut self, learner: Beat, sampler: Beat) {
        let waits = learner.main.is_some_and(|(phase, _)| phase == Phase::Wait);
        let work = work(learner, sampler, self.per_step);
        self.work = match &self.workers {
            Some(workers) => workers.words(work, waits),
            None => work,
        };
        let steps = self.tail.steps();
        match &self.bar {
            Some(bar) => {
                let parts = [self.work.clone()].into_iter().chain(figures(self.tail.records(), self.overlaps));
                bar.set_message(fitting(parts.collect(), room(self.total)));
            }
            None if steps < self.total && self.pace.is_due() => {
                output::tell(format_args!("step {}/{}  {}", steps + 1, self.total, self.work));
            }
            None => (),
        }
    }

    fn interrupts(&mut self) -> usize {
        signals::requests()
    }

    fn is_over(&self) -> bool {
        LearnerStatus::left(&self.dir, self.id).is_some()
    }

    fn memory_ran_out(&mut self) -> Option<Shortage> {
        let kills = Kills::now();
        kills.since(std::mem::replace(&mut self.memory_kills, kills))
    }

    fn say(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(Shown(line).to_string()),
            None => output::tell(line),
        }
    }
}
