//! Keeps the pair alive: restarts what dies, tells configuration errors from crashes, ends in order.
//!
//! The launcher looks at both processes twenty times a second. It reads their heartbeats from memory that it has made
//! for them, so no disk can hold these up. It asks the system whether a process is stopped. It ends a process that is
//! silent for longer than its phase allows, and starts it again. If both wait for each other, it restarts the sampler,
//! which has nothing to lose. Time in which the launcher itself was stopped does not count.
//!
//! A process that crashed is started again, up to `max_restarts` times. One that refuses its configuration, or says
//! that its error would come again ([`HOPELESS`](shared::process::exit::HOPELESS)), is not. A process that SIGTERM or
//! SIGINT ended says so by its exit code: a sampler is then started again, and a learner has ended the run in order. A
//! process that was asked to end and is stuck kills itself by the same deadlines, so nothing outlives a killed launcher
//! for ever.
//!
//! The launcher learns everything from files of the run directory and from the heartbeats. So it can be killed without
//! harm to what is on disk.

mod chaos;
mod farewell;
mod faults;
mod kills;
mod logs;
mod member;
mod restarts;
#[cfg(test)]
mod tests;

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use anyhow::{Error, Result, bail};
use shared::{
    config::TrainConfig,
    process::heartbeat::{Beat, Deadlines},
};

pub use chaos::Chaos;
use chaos::Mischief;
use farewell::Farewell;
pub use kills::{Kills, Shortage};
use logs::Logs;
use member::Member;
use restarts::ended_by_signal;

use crate::programs::Spec;

/// How often both processes are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a sampler that has nothing left to do may take to end.
const IDLE_FAREWELL: Duration = Duration::from_secs(10);

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
    /// Whether it may have the last version to evaluate then.
    pub evaluates: bool,
    /// How long a process may take to follow SIGTERM before it is killed.
    pub after_term: Duration,
    /// How long a process may go without progress before it is killed.
    pub deadlines: Deadlines,
    /// Faults on purpose.
    pub chaos: Option<Chaos>,
}

impl Limits {
    /// The bounds of a training run.
    pub fn new(config: &TrainConfig) -> Self {
        let evaluates = config.eval_steps.is_some() && config.eval_dataset.is_some();
        let deadlines = Deadlines::of(config);
        Self {
            max_restarts: config.max_restarts,
            early: Duration::from_secs(30),
            pause: Duration::from_millis(500),
            farewell: if evaluates { deadlines.peer } else { IDLE_FAREWELL },
            evaluates,
            after_term: Duration::from_secs(5),
            deadlines,
            chaos: None,
        }
    }
}

/// What the supervisor needs to know of the outside, and whom it tells.
pub trait Watch {
    /// Looks at the progress; returns the number of completed steps.
    fn tick(&mut self) -> u64;
    /// Shows what the main loops of learner and sampler are at.
    fn at_work(&mut self, learner: Beat, sampler: Beat);
    /// Requests of the user to end the run since the last call.
    fn interrupts(&mut self) -> usize;
    /// Tells the user something.
    fn say(&mut self, line: &str);
    /// Whether the learner has left word that every step is made.
    fn is_over(&self) -> bool;
    /// For what lack of memory the kernel has killed a process since the last call, if it has.
    fn memory_ran_out(&mut self) -> Option<Shortage>;
}

/// Starts learner and sampler and stays until the run is over.
pub fn supervise(learner: Spec, sampler: Spec, limits: Limits, watch: &mut dyn Watch) -> Result<Outcome> {
    let steps = watch.tick();
    let learner = Member::start(learner, steps)?;
    let sampler = Member::start(sampler, steps)?;
    Pair {
        learner,
        sampler,
        watch,
        first_step: steps,
        mischief: Mischief::new(limits.chaos, steps),
        logs: Logs::default(),
        stopping: false,
        given_up: None,
        limits,
    }
    .run()
}

/// Both processes and what has been decided about them.
struct Pair<'a> {
    learner: Member,
    sampler: Member,
    limits: Limits,
    watch: &'a mut dyn Watch,
    /// Steps that were completed before this session.
    first_step: u64,
    /// What chaos asks for.
    mischief: Mischief,
    logs: Logs,
    /// Whether the user asked for the end, of the launcher or of the learner itself.
    stopping: bool,
    /// Why the sampler is not started again; the learner is then ending in order.
    given_up: Option<Error>,
}

impl Pair<'_> {
    fn run(mut self) -> Result<Outcome> {
        loop {
            let steps = self.watch.tick();
            if self.is_killed() {
                return self.given_up.map_or(Ok(Outcome::Killed), Err);
            }
            if let Some(status) = self.learner.ended()?
                && let Some(outcome) = self.learner_ended(status, steps)?
            {
                return Ok(outcome);
            }
            if let Some(status) = self.sampler.ended()? {
                self.sampler_ended(status, steps)?;
            }
            self.do_mischief(steps);
            self.end_silent();
            self.logs.turn_over([&self.learner.spec.log, &self.sampler.spec.log], self.watch);
            std::thread::sleep(TICK);
        }
    }

    /// Follows the user: the first request ends the learner in order, the second kills both processes.
    fn is_killed(&mut self) -> bool {
        for _ in 0..self.watch.interrupts() {
            if self.stopping {
                self.learner.kill();
                self.sampler.kill();
                return true;
            }
            self.stopping = true;
            self.learner.terminate();
            self.watch.say("stopping in order: the learner writes a checkpoint (Ctrl-C again kills both processes)");
        }
        false
    }

    /// How the run ends with the learner; nothing when it goes on with a new one.
    fn learner_ended(&mut self, status: ExitStatus, steps: u64) -> Result<Option<Outcome>> {
        let asked = ended_by_signal(status);
        if let Some(reason) = self.given_up.take().filter(|_| !status.success()) {
            if !asked {
                self.learner.death(status).show(self.watch);
            }
            return Err(reason);
        }
        if status.success() || asked {
            self.stopping |= asked;
            return self.end_in_order(status).map(Some);
        }
        if self.stopping {
            self.sampler.end(self.limits.after_term)?;
            let death = self.learner.death(status);
            death.show(self.watch);
            bail!("the learner did not stop in order: {}", death.error_line());
        }
        if let Err(reason) = self.learner.bury(status, steps, &self.limits, self.watch) {
            self.sampler.end(self.limits.after_term)?;
            return Err(reason);
        }
        self.learner.restart(steps, &self.limits)?;
        if self.sampler.is_gone() {
            self.sampler.restart(steps, &self.limits)?;
        }
        Ok(None)
    }

    /// Ends the sampler of a learner that has ended in order.
    fn end_in_order(&mut self, status: ExitStatus) -> Result<Outcome> {
        if status.signal().is_some() {
            // It could not tell the sampler of the end.
            self.sampler.end(self.limits.after_term)?;
        } else {
            Farewell::new(&mut self.sampler, &self.limits, self.stopping, self.watch).bid()?;
        }
        Ok(if self.stopping { Outcome::Interrupted } else { Outcome::Finished })
    }

    fn sampler_ended(&mut self, status: ExitStatus, steps: u64) -> Result<()> {
        if self.stopping || status.success() && self.watch.is_over() {
            // It has heard from the learner that the run is over.
            self.sampler.let_go();
            return Ok(());
        }
        if status.success() {
            // Whatever it has heard, the learner would wait for it.
            self.sampler.blame("ended as if the run were over, while the learner goes on");
        }
        let Err(reason) = self.sampler.bury(status, steps, &self.limits, self.watch) else {
            return self.sampler.restart(steps, &self.limits);
        };
        self.sampler.let_go();
        if steps == self.first_step {
            // There is no step to lose.
            self.learner.end(self.limits.after_term)?;
            return Err(reason);
        }
        // It looks up between two steps only, and may be writing a checkpoint: it takes the time that it needs.
        self.learner.terminate();
        self.watch.say(&format!(
            "{reason:#}; waiting for the learner, which ends its step and writes a checkpoint (Ctrl-C twice kills it)"
        ));
        self.given_up = Some(reason);
        Ok(())
    }

    /// Does what chaos asks for after the steps that are new, one deed at a time, to a run that is to go on.
    fn do_mischief(&mut self, steps: u64) {
        let mut members = [&mut self.learner, &mut self.sampler];
        members.iter_mut().for_each(|member| member.recover_in_time());
        if self.stopping || self.given_up.is_some() {
            return;
        }
        let Some((step, deed)) = self.mischief.due(steps) else { return };
        for member in members.into_iter().filter(|member| deed.victim().is(member.spec.name)) {
            let what = member.suffer(deed);
            self.watch.say(&format!("chaos after step {step}: {} {what}", member.spec.name));
        }
    }

    /// Ends the process that makes no progress; its end is then seen like that of any other.
    fn end_silent(&mut self) {
        let deadlines = &self.limits.deadlines;
        for member in [&mut self.learner, &mut self.sampler] {
            member.look(deadlines, self.watch);
        }
        self.watch.at_work(self.learner.beat(), self.sampler.beat());
        // Each waits for the other, so something between them was lost. The sampler has no state of its own to lose.
        let both = self.learner.waiting().min(self.sampler.waiting());
        if both >= deadlines.peer {
            let reason = format!(
                "and the learner have been waiting for each other for {:.0} s (`peer_timeout`)",
                both.as_secs_f64()
            );
            self.sampler.end_for(reason, self.watch);
        }
    }
}
