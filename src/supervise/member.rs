//! One process of the pair over all its lives.

use std::{process::ExitStatus, time::Duration};

use anyhow::{Result, bail};
use shared::process::heartbeat::{Beat, Deadlines};

use super::{
    Limits, Watch,
    chaos::Deed,
    faults::Faults,
    restarts::{Death, Restarts, SHOWN_LINES},
};
use crate::programs::{Process, Spec, Verdict};

/// A process, and what is remembered of it from life to life.
#[derive(Debug)]
pub struct Member {
    /// What is started, and where its output goes.
    pub spec: Spec,
    /// The present process, or the last one until it is let go.
    process: Option<Process>,
    restarts: Restarts,
    /// Why the process was ended from here, or ended as it should not.
    ended_for: Option<String>,
    faults: Faults,
}

impl Member {
    /// Starts the process, when so many steps are complete.
    pub fn start(spec: Spec, steps: u64) -> Result<Self> {
        let process = Some(Process::start(&spec)?);
        Ok(Self { spec, process, restarts: Restarts::new(steps), ended_for: None, faults: Faults::default() })
    }

    /// Starts the process again.
    pub fn restart(&mut self, steps: u64, limits: &Limits) -> Result<()> {
        if !self.faults.take_excuse() {
            std::thread::sleep(limits.pause);
            self.restarts.count();
        }
        self.process = Some(Process::start(&self.spec)?);
        self.restarts.begin(steps);
        self.ended_for = None;
        self.faults.forget_disk();
        Ok(())
    }

    /// What its main loop last showed.
    pub fn beat(&self) -> Beat {
        self.process.as_ref().map_or_else(Beat::default, Process::beat)
    }

    /// How long it has had nothing to do but wait for the other one.
    pub fn waiting(&self) -> Duration {
        self.process.as_ref().map_or(Duration::ZERO, Process::waiting)
    }

    /// Ends the process if it makes no progress; its end is then seen like that of any other.
    pub fn look(&mut self, deadlines: &Deadlines, watch: &mut dyn Watch) {
        match self.process.as_mut().map_or(Verdict::Fine, |process| process.look(deadlines)) {
            Verdict::Fine => (),
            Verdict::Tell(what) => watch.say(&format!("{} {what}", self.spec.who())),
            Verdict::End(reason) => self.end_for(reason, watch),
        }
    }

    /// Does to it what chaos asks for; in words.
    pub fn suffer(&mut self, deed: Deed) -> &'static str {
        self.faults.inject(deed, self.process.as_mut())
    }

    /// Ends what chaos has done to it for a while.
    pub fn recover_in_time(&mut self) {
        self.faults.end_in_time(self.process.as_mut());
    }

    /// Kills it for a reason, which is told.
    pub fn end_for(&mut self, reason: String, watch: &mut dyn Watch) {
        watch.say(&format!("{} {reason}, and is ended", self.spec.who()));
        self.ended_for = Some(reason);
        self.kill();
    }

    /// Blames the process for an end that looks like one in order.
    pub fn blame(&mut self, reason: &str) {
        self.ended_for = Some(reason.to_owned());
    }

    /// How the process ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.process.as_mut().map_or(Ok(None), Process::poll)
    }

    /// Whether the last process was let go, and none was started since.
    pub fn is_gone(&self) -> bool {
        self.process.is_none()
    }

    /// Lets the last life be the last.
    pub fn let_go(&mut self) {
        self.process = None;
    }

    /// Asks the process to end in order.
    pub fn terminate(&mut self) {
        if let Some(process) = &mut self.process {
            process.terminate();
        }
    }

    /// Kills the process and everything that it has started.
    pub fn kill(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill();
        }
    }

    /// Asks the process to end in order, and kills it where it does not in time.
    pub fn end(&mut self, after_term: Duration) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.end(after_term))
    }

    /// How the process died.
    pub fn death(&self, status: ExitStatus) -> Death {
        let lines = self.process.as_ref().map(|process| process.last_lines(SHOWN_LINES)).unwrap_or_default();
        Death { who: self.spec.who(), status, ended_for: self.ended_for.clone(), lines }
    }

    /// Decides whether the process, which died, is worth a restart; the error says why not.
    pub fn bury(&mut self, status: ExitStatus, steps: u64, limits: &Limits, watch: &mut dyn Watch) -> Result<()> {
        if self.faults.excuse(status, self.ended_for.is_some()) {
            return Ok(());
        }
        let (death, log) = (self.death(status), self.log());
        if let Some(shortage) = watch.memory_ran_out().filter(|_| death.is_a_kill()) {
            // It would take as much again.
            bail!("{} was {shortage}; {} (log: {log})", death.who, self.spec.smaller);
        }
        let age = self.process.as_ref().map_or(Duration::MAX, Process::age);
        self.restarts.decide(&death, &log, (age, steps), limits, watch)
    }

    /// Where its log is, in words.
    fn log(&self) -> String {
        let log = self.process.as_ref().map_or_else(|| self.spec.log.clone(), Process::log);
        match self.process.as_ref().is_some_and(Process::is_moved) {
            true => format!(
                "{}; {} was moved, removed or replaced while the run was at work",
                log.display(),
                self.spec.log.parent().unwrap_or(&self.spec.log).display()
            ),
            false => log.display().to_string(),
        }
    }
}
