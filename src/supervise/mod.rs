//! Keeps the pair alive: restarts what dies, tells configuration errors from crashes, ends in order.
//!
//! The launcher looks at both processes twenty times a second. It reads their heartbeats from memory that it has made
//! for them, so no disk can hold these up. It asks the system whether a process is stopped. It ends a process that is
//! silent for longer than its phase allows, and starts it again. If both wait for each other, it restarts the sampler,
//! which has nothing to lose. Time in which the launcher itself was stopped does not count.
//!
//! A process that crashed is started again, up to `max_restarts` times. One that refuses its configuration, or says
//! that its error would come again ([`HOPELESS`]), is not. A process that SIGTERM or SIGINT ended says so by its exit
//! code: a sampler is then started again, and a learner has ended the run in order. A process that was asked to end and
//! is stuck kills itself by the same deadlines, so nothing outlives a killed launcher for ever.
//!
//! The launcher learns everything from files of the run directory and from the heartbeats. So it can be killed without
//! harm to what is on disk.

mod chaos;
mod logs;
#[cfg(test)]
mod tests;

use std::{
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    time::{Duration, Instant},
};

use anyhow::{Error, Result, bail};
use rustix::process::Rlimit;
use shared::{
    config::TrainConfig,
    exit::{ENDED_BY_SIGNAL, HOPELESS},
    heartbeat::{Beat, Deadlines},
    memory::Shortage,
};

use crate::programs::{Process, Spec, Verdict, describe};
pub use chaos::Chaos;
use chaos::Deed;

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

const TICK: Duration = Duration::from_millis(50);
/// How long a sampler that has nothing left to do may take to end.
const IDLE_FAREWELL: Duration = Duration::from_secs(10);
/// How long the user is left without a word while the sampler ends.
const QUIET: Duration = Duration::from_secs(2);
const SHOWN_LINES: usize = 5;
/// Bytes of a file where chaos has filled the disk: the memory that a process shows its progress in is one as well.
const FULL_DISK: u64 = 4096;

/// Starts learner and sampler and stays until the run is over.
pub fn supervise(learner: Spec, sampler: Spec, limits: Limits, watch: &mut dyn Watch) -> Result<Outcome> {
    let steps = watch.tick();
    let learner = Member::start(learner, steps)?;
    let sampler = Member::start(sampler, steps)?;
    let mischief_until = steps;
    Pair {
        learner,
        sampler,
        limits,
        watch,
        first_step: steps,
        mischief_until,
        log_told: false,
        stopping: false,
        given_up: None,
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
    /// The last step after which chaos has done what it asks for.
    mischief_until: u64,
    /// That a log cannot be kept has been told of.
    log_told: bool,
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
            self.turn_logs_over();
            std::thread::sleep(TICK);
        }
    }

    /// Kills the process that makes no progress; its end is then seen like that of any other.
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

    /// Does what chaos asks for after the steps that are new, one deed at a time, to a run that is to go on.
    fn do_mischief(&mut self, steps: u64) {
        for member in [&mut self.learner, &mut self.sampler] {
            member.go_on_in_time();
        }
        let Some(chaos) = self.limits.chaos.filter(|_| !self.stopping && self.given_up.is_none()) else { return };
        let mut new = self.mischief_until + 1..=steps;
        let Some((step, deed)) = new.find_map(|step| Some((step, chaos.after(step)?))) else {
            self.mischief_until = self.mischief_until.max(steps);
            return;
        };
        self.mischief_until = step;
        let (Deed::Kill(victim) | Deed::Stop(victim, _) | Deed::FillDisk(victim, _)) = deed;
        for member in [&mut self.learner, &mut self.sampler] {
            if !victim.is(member.spec.name) {
                continue;
            }
            let what = match deed {
                Deed::Kill(_) => member.kill_for_fun(),
                Deed::Stop(_, time) => member.stop_for(time),
                Deed::FillDisk(_, time) => member.fill_disk_for(time),
            };
            self.watch.say(&format!("chaos after step {step}: {} {what}", member.spec.name));
        }
    }

    fn turn_logs_over(&mut self) {
        for log in [&self.learner.spec.log, &self.sampler.spec.log] {
            let lost = match logs::turn_over(log) {
                Ok(lost) => lost.then(|| "its older lines are lost, since they could not be copied".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(what) = lost.filter(|_| !std::mem::replace(&mut self.log_told, true)) {
                self.watch.say(&format!("warning: {}: {what}", log.display()));
            }
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
                self.learner.show_death(status, &self.learner.last_lines(), self.watch);
            }
            return Err(reason);
        }
        if status.success() || asked {
            self.stopping |= asked;
            if status.signal().is_some() {
                // It could not tell the sampler of the end.
                self.sampler.end_within(Duration::ZERO, self.limits.after_term)?;
            } else {
                self.bid_farewell(if self.stopping { self.limits.after_term } else { self.limits.farewell })?;
            }
            return Ok(Some(if self.stopping { Outcome::Interrupted } else { Outcome::Finished }));
        }
        if self.stopping {
            self.sampler.end_within(Duration::ZERO, self.limits.after_term)?;
            let lines = self.learner.last_lines();
            self.learner.show_death(status, &lines, self.watch);
            bail!("the learner did not stop in order: {}", self.learner.error_line(&lines, status));
        }
        if let Err(reason) = self.learner.bury(status, steps, &self.limits, self.watch) {
            self.sampler.end_within(Duration::ZERO, self.limits.after_term)?;
            return Err(reason);
        }
        self.learner.restart(steps, &self.limits)?;
        if self.sampler.process.is_none() {
            self.sampler.restart(steps, &self.limits)?;
        }
        Ok(None)
    }

    fn sampler_ended(&mut self, status: ExitStatus, steps: u64) -> Result<()> {
        if self.stopping || status.success() && self.watch.is_over() {
            // It has heard from the learner that the run is over.
            self.sampler.process = None;
            return Ok(());
        }
        if status.success() {
            // Whatever it has heard, the learner would wait for it.
            self.sampler.ended_for = Some("ended as if the run were over, while the learner goes on".to_owned());
        }
        let Err(reason) = self.sampler.bury(status, steps, &self.limits, self.watch) else {
            return self.sampler.restart(steps, &self.limits);
        };
        self.sampler.process = None;
        if steps == self.first_step {
            // There is no step to lose.
            self.learner.end_within(Duration::ZERO, self.limits.after_term)?;
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

    /// Waits for the sampler after the learner's end, first patiently, then after SIGTERM, then after SIGKILL. Who asks
    /// for the end need not wait.
    fn bid_farewell(&mut self, patience: Duration) -> Result<()> {
        let who = self.sampler.spec.who();
        let begin = Instant::now();
        let mut deadline = begin + patience;
        let (mut announced, mut terminated) = (self.stopping, false);
        while self.is_sampler_at_work(terminated)? {
            let asked = self.watch.interrupts();
            let over = Instant::now() >= deadline;
            let first_request = !self.stopping && !terminated;
            if asked > usize::from(first_request) || (over && terminated) {
                self.sampler.kill();
                return Ok(());
            }
            if asked > 0 || over {
                self.sampler.terminate();
                let lost = if self.limits.evaluates { "; an evaluation in progress is lost" } else { "" };
                self.watch.say(&format!("{who} is still at work and is ended{lost}"));
                (announced, terminated) = (true, true);
                deadline = Instant::now() + self.limits.after_term;
            }
            if !announced && begin.elapsed() >= QUIET {
                announced = true;
                let evaluating = if self.limits.evaluates { ", which may be evaluating" } else { "" };
                self.watch.say(&format!(
                    "the learner is done; waiting up to {:.0} s for {who}{evaluating} (Ctrl-C ends it)",
                    patience.as_secs_f64()
                ));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Whether the sampler is to be waited for after the learner's end. One that died is started again for the last
    /// evaluation.
    fn is_sampler_at_work(&mut self, terminated: bool) -> Result<bool> {
        let steps = self.watch.tick();
        if self.sampler.process.is_none() {
            return Ok(false);
        }
        let Some(status) = self.sampler.ended()? else {
            return Ok(true);
        };
        if status.success() || self.stopping || terminated || !self.limits.evaluates {
            return Ok(false);
        }
        if let Err(reason) = self.sampler.bury(status, steps, &self.limits, self.watch) {
            self.watch.say(&format!("{reason:#}; the last evaluation is missing"));
            return Ok(false);
        }
        self.sampler.restart(steps, &self.limits)?;
        Ok(true)
    }
}

/// One process of the pair over all its lives.
struct Member {
    spec: Spec,
    process: Option<Process>,
    restarts: u32,
    steps_at_start: u64,
    last_error: Option<String>,
    /// Why the process was killed from here.
    ended_for: Option<String>,
    /// Chaos has ended it, which is no fault of its own.
    for_fun: bool,
    /// Until when chaos has stopped it.
    stopped_until: Option<Instant>,
    /// Until when chaos lets it write no files, and what limit there was before.
    disk_full_until: Option<(Instant, Rlimit)>,
    /// Chaos has let it write no files at some time of its life: an error of it may come from that.
    had_full_disk: bool,
}

impl Member {
    fn start(spec: Spec, steps: u64) -> Result<Self> {
        let process = Some(Process::start(&spec)?);
        Ok(Self {
            spec,
            process,
            restarts: 0,
            steps_at_start: steps,
            last_error: None,
            ended_for: None,
            for_fun: false,
            stopped_until: None,
            disk_full_until: None,
            had_full_disk: false,
        })
    }

    fn beat(&self) -> Beat {
        self.process.as_ref().map_or_else(Beat::default, Process::beat)
    }

    fn look(&mut self, deadlines: &Deadlines, watch: &mut dyn Watch) {
        match self.process.as_mut().map_or(Verdict::Fine, |process| process.look(deadlines)) {
            Verdict::Fine => (),
            Verdict::Tell(what) => watch.say(&format!("{} {what}", self.spec.who())),
            Verdict::End(reason) => self.end_for(reason, watch),
        }
    }

    fn kill_for_fun(&mut self) -> &'static str {
        self.for_fun = self.process.is_some();
        self.kill();
        "is killed"
    }

    fn stop_for(&mut self, time: Duration) -> &'static str {
        if let Some(process) = &mut self.process {
            process.stop();
            self.stopped_until = Some(Instant::now() + time);
        }
        "is stopped"
    }

    fn fill_disk_for(&mut self, time: Duration) -> &'static str {
        if self.disk_full_until.is_some() {
            return "finds the disk full still";
        }
        let limit = Rlimit { current: Some(FULL_DISK), maximum: None };
        let Some(before) = self.process.as_ref().and_then(|process| process.limit_files(limit)) else {
            return "is left alone: the size of its files cannot be limited";
        };
        self.disk_full_until = Some((Instant::now() + time, before));
        self.had_full_disk = true;
        "finds the disk full"
    }

    fn go_on_in_time(&mut self) {
        if self.stopped_until.take_if(|until| Instant::now() >= *until).is_some()
            && let Some(process) = &mut self.process
        {
            process.go_on();
        }
        if let Some((_, before)) = self.disk_full_until.take_if(|(until, _)| Instant::now() >= *until)
            && let Some(process) = &self.process
        {
            process.limit_files(before);
        }
    }

    fn waiting(&self) -> Duration {
        self.process.as_ref().map_or(Duration::ZERO, Process::waiting)
    }

    fn end_for(&mut self, reason: String, watch: &mut dyn Watch) {
        watch.say(&format!("{} {reason}, and is ended", self.spec.who()));
        self.ended_for = Some(reason);
        self.kill();
    }

    fn restart(&mut self, steps: u64, limits: &Limits) -> Result<()> {
        if !std::mem::take(&mut self.for_fun) {
            std::thread::sleep(limits.pause);
            self.restarts += 1;
        }
        self.process = Some(Process::start(&self.spec)?);
        self.steps_at_start = steps;
        self.ended_for = None;
        self.disk_full_until = None;
        self.had_full_disk = false;
        Ok(())
    }

    /// How the process ended, in words.
    fn describe(&self, status: ExitStatus) -> String {
        self.ended_for.as_ref().map_or_else(|| describe(status), |reason| format!("{} {reason}", self.spec.who()))
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
        watch.say(&format!("{} ended: {}; its last log lines:", self.spec.who(), self.describe(status)));
        for line in lines {
            watch.say(&format!("  | {line}"));
        }
    }

    /// Decides whether a process that died is worth a restart; the error says why not.
    fn bury(&mut self, status: ExitStatus, steps: u64, limits: &Limits, watch: &mut dyn Watch) -> Result<()> {
        self.for_fun = self.is_due_to_chaos(status);
        if self.for_fun {
            return Ok(());
        }
        let who = self.spec.who();
        let log = self.process.as_ref().map_or_else(|| self.spec.log.clone(), Process::log);
        let log = match self.process.as_ref().is_some_and(Process::is_moved) {
            true => format!(
                "{}; {} was moved, removed or replaced while the run was at work",
                log.display(),
                self.spec.log.parent().unwrap_or(&self.spec.log).display()
            ),
            false => log.display().to_string(),
        };
        let lines = self.last_lines();
        let killed = status.signal() == Some(libc::SIGKILL) && self.ended_for.is_none();
        if let Some(shortage) = watch.memory_ran_out().filter(|_| killed) {
            // It would take as much again.
            bail!("{who} was {shortage}; {} (log: {log})", self.spec.smaller);
        }
        let advanced = steps > self.steps_at_start;
        // A signal is an accident; any other exit code is a decision of the process, which it would take again.
        let decided = status.code().is_some_and(|code| code != 0) && !ended_by_signal(status);
        let hopeless = status.code() == Some(HOPELESS.into());
        let error = (hopeless || decided && !advanced).then(|| self.error_line(&lines, status));
        let early = self.restarts == 0 && self.process.as_ref().is_some_and(|p| p.age() < limits.early);
        if let Some(error) = &error
            && (hopeless || early || self.last_error.as_ref() == Some(error))
        {
            bail!("{who}: {error} (log: {log})");
        }
        self.last_error = error;
        self.show_death(status, &lines, watch);
        if self.restarts >= limits.max_restarts {
            bail!(
                "{who} died {} times, last by {}; `max_restarts` is {} (log: {log})",
                self.restarts + 1,
                self.describe(status),
                limits.max_restarts
            );
        }
        watch.say(&format!("restarting {who} ({} of {} restarts)", self.restarts + 1, limits.max_restarts));
        Ok(())
    }

    fn is_due_to_chaos(&self, status: ExitStatus) -> bool {
        self.for_fun && status.signal() == Some(libc::SIGKILL) || self.had_full_disk && self.ended_for.is_none()
    }

    /// What a process gave as the reason of its end: its last `error:` line, else its last line, else its status. One
    /// that was killed from here has nothing to say about that.
    fn error_line(&self, lines: &[String], status: ExitStatus) -> String {
        let said =
            lines.iter().rev().find_map(|line| line.strip_prefix("error: ")).or(lines.last().map(String::as_str));
        said.filter(|_| self.ended_for.is_none()).map_or_else(|| self.describe(status), |line| line.trim().to_owned())
    }
}

/// Whether a process ended because a signal asked it to: in order, or before it could listen to signals.
fn ended_by_signal(status: ExitStatus) -> bool {
    status.code() == Some(ENDED_BY_SIGNAL.into()) || status.signal() == Some(libc::SIGTERM)
}
