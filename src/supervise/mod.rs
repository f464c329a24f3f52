//! Keeps the pair alive: restarts what dies, tells configuration errors from crashes, ends in order.

mod process;
#[cfg(test)]
mod tests;

use std::{process::ExitStatus, time::Duration};

use anyhow::{Result, bail};
use shared::exit::ENDED_BY_SIGNAL;

pub use process::{Process, Spec, describe};

/// How the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The learner finished.
    Finished,
    /// The user asked for the end, of the launcher or of the learner itself, and the learner stopped in order.
    Interrupted,
    /// The user asked twice: both processes were killed.
    Killed,
}

/// Bounds of the supervision.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Restarts of each process over the whole run.
    pub max_restarts: u32,
    /// A process that exits with an error this soon after its first start, before any step, is not worth a restart.
    pub early: Duration,
    /// Pause before a restart.
    pub pause: Duration,
    /// How long the sampler may take to end by itself after the learner has.
    pub farewell: Duration,
    /// How long a process may take to follow SIGTERM before it is killed.
    pub after_term: Duration,
}

impl Limits {
    /// The bounds of a training run.
    pub fn new(max_restarts: u32, farewell: Duration) -> Self {
        Self {
            max_restarts,
            early: Duration::from_secs(30),
            pause: Duration::from_millis(500),
            farewell,
            after_term: Duration::from_secs(5),
        }
    }
}

/// What the supervisor needs to know of the outside, and whom it tells.
pub trait Watch {
    /// Looks at the progress; returns the number of completed steps.
    fn tick(&mut self) -> u64;
    /// Requests of the user to end the run since the last call.
    fn interrupts(&mut self) -> usize;
    /// Tells the user something.
    fn say(&mut self, line: &str);
}

const TICK: Duration = Duration::from_millis(50);
const SHOWN_LINES: usize = 5;

/// Starts learner and sampler and stays until the run is over.
pub fn supervise(learner: Spec, sampler: Spec, limits: Limits, watch: &mut dyn Watch) -> Result<Outcome> {
    let steps = watch.tick();
    let mut learner = Member::start(learner, steps)?;
    let mut sampler = Member::start(sampler, steps)?;
    let mut stopping = false;
    loop {
        let steps = watch.tick();
        for _ in 0..watch.interrupts() {
            if stopping {
                learner.kill();
                sampler.kill();
                return Ok(Outcome::Killed);
            }
            stopping = true;
            learner.terminate();
            watch.say("stopping in order: the learner writes a checkpoint (Ctrl-C again kills both processes)");
        }
        if let Some(status) = learner.ended()? {
            if status.success() || ended_by_signal(status) {
                let stopped = stopping || ended_by_signal(status);
                let patience = if stopped { limits.after_term } else { limits.farewell };
                sampler.end_within(patience, limits.after_term)?;
                return Ok(if stopped { Outcome::Interrupted } else { Outcome::Finished });
            }
            if stopping {
                sampler.end_within(Duration::ZERO, limits.after_term)?;
                let lines = learner.last_lines();
                learner.show_death(status, &lines, watch);
                bail!("the learner did not stop in order: {}", error_line(&lines, status));
            }
            let verdict = learner.bury(status, steps, &limits, watch);
            if verdict.is_err() {
                sampler.end_within(Duration::ZERO, limits.after_term)?;
            }
            verdict?;
            learner.restart(steps, &limits)?;
            if sampler.process.is_none() {
                sampler.restart(steps, &limits)?;
            }
        }
        if let Some(status) = sampler.ended()? {
            if status.success() || stopping {
                // It has heard from the learner that the run is over.
                sampler.process = None;
            } else {
                let verdict = sampler.bury(status, steps, &limits, watch);
                if verdict.is_err() {
                    learner.end_within(Duration::ZERO, limits.after_term)?;
                }
                verdict?;
                sampler.restart(steps, &limits)?;
            }
        }
        std::thread::sleep(TICK);
    }
}

/// One process of the pair over all its lives.
struct Member {
    spec: Spec,
    process: Option<Process>,
    restarts: u32,
    steps_at_start: u64,
    last_error: Option<String>,
}

impl Member {
    fn start(spec: Spec, steps: u64) -> Result<Self> {
        let process = Some(Process::start(&spec)?);
        Ok(Self { spec, process, restarts: 0, steps_at_start: steps, last_error: None })
    }

    fn restart(&mut self, steps: u64, limits: &Limits) -> Result<()> {
        std::thread::sleep(limits.pause);
        self.process = Some(Process::start(&self.spec)?);
        self.restarts += 1;
        self.steps_at_start = steps;
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.process.as_mut().map_or(Ok(None), Process::poll)
    }

    fn terminate(&mut self) {
        if let Some(process) = &mut self.process {
            process.terminate();
        }
    }

    fn kill(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill();
        }
    }

    fn end_within(&mut self, patience: Duration, after_term: Duration) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.end_within(patience, after_term))
    }

    fn last_lines(&self) -> Vec<String> {
        self.process.as_ref().map(|p| p.last_lines(SHOWN_LINES)).unwrap_or_default()
    }

    fn show_death(&self, status: ExitStatus, lines: &[String], watch: &mut dyn Watch) {
        watch.say(&format!("{} ended: {}; its last log lines:", self.spec.name, describe(status)));
        for line in lines {
            watch.say(&format!("  | {line}"));
        }
    }

    /// Decides whether a process that died is worth a restart; the error says why not.
    fn bury(&mut self, status: ExitStatus, steps: u64, limits: &Limits, watch: &mut dyn Watch) -> Result<()> {
        let name = self.spec.name;
        let log = self.spec.log.display();
        let lines = self.last_lines();
        let advanced = steps > self.steps_at_start;
        // A signal is an accident; any other exit code is a decision of the process, which it would take again.
        let decided = status.code().is_some() && !ended_by_signal(status);
        let error = (decided && !advanced).then(|| error_line(&lines, status));
        let early = self.restarts == 0 && self.process.as_ref().is_some_and(|p| p.age() < limits.early);
        if let Some(error) = &error
            && (early || self.last_error.as_ref() == Some(error))
        {
            bail!("{name}: {error} (log: {log})");
        }
        self.last_error = error;
        self.show_death(status, &lines, watch);
        if self.restarts >= limits.max_restarts {
            bail!(
                "{name} died {} times, last by {}; `max_restarts` is {} (log: {log})",
                self.restarts + 1,
                describe(status),
                limits.max_restarts
            );
        }
        watch.say(&format!("restarting {name} ({} of {} restarts)", self.restarts + 1, limits.max_restarts));
        Ok(())
    }
}

/// Whether a process ended in order because a signal asked it to.
fn ended_by_signal(status: ExitStatus) -> bool {
    status.code() == Some(ENDED_BY_SIGNAL.into())
}

/// What a process gave as the reason of its end: its last `error:` line, else its last line, else its status.
fn error_line(lines: &[String], status: ExitStatus) -> String {
    lines
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix("error: "))
        .or_else(|| lines.last().map(String::as_str))
        .map_or_else(|| describe(status), |line| line.trim().to_owned())
}
