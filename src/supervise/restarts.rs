//! The death of a process of the pair: what the user is told of it, and whether the process is worth a restart.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use anyhow::{Result, bail};
use shared::process::exit::{ENDED_BY_SIGNAL, HOPELESS};

use super::{Limits, Watch};
use crate::programs::describe;

/// Lines of the log that are shown.
pub const SHOWN_LINES: usize = 5;

/// The end of a process that should have lived.
#[derive(Debug)]
pub struct Death {
    /// What the process is to the user.
    pub who: &'static str,
    /// How it ended.
    pub status: ExitStatus,
    /// Why the process was ended from here, or ended as it should not.
    pub ended_for: Option<String>,
    /// What it wrote last.
    pub lines: Vec<String>,
}

impl Death {
    /// How the process ended, in words.
    pub fn describe(&self) -> String {
        self.ended_for.as_ref().map_or_else(|| describe(self.status), |reason| format!("{} {reason}", self.who))
    }

    /// What the process gave as the reason of its end: its last `error:` line, else its last line, else its status. One
    /// that was killed from here has nothing to say about that.
    pub fn error_line(&self) -> String {
        let lines = &self.lines;
        let said =
            lines.iter().rev().find_map(|line| line.strip_prefix("error: ")).or(lines.last().map(String::as_str));
        said.filter(|_| self.ended_for.is_none()).map_or_else(|| self.describe(), |line| line.trim().to_owned())
    }

    /// How the process ended, with the error that it gave as the reason, if it ended by a decision of its own.
    fn with_reason(&self) -> String {
        let error = self.lines.iter().rev().find_map(|line| line.strip_prefix("error: "));
        match error.filter(|_| self.is_decided() && self.ended_for.is_none()) {
            Some(error) => format!("{}: {}", self.describe(), error.trim()),
            None => self.describe(),
        }
    }

    /// Shows the user how it ended and what it wrote last.
    pub fn show(&self, watch: &mut dyn Watch) {
        watch.say(&format!("{} ended: {}; its last log lines:", self.who, self.describe()));
        for line in &self.lines {
            watch.say(&format!("  | {line}"));
        }
    }

    /// Whether somebody else killed it: the kernel does so where memory is short.
    pub fn is_a_kill(&self) -> bool {
        self.status.signal() == Some(libc::SIGKILL) && self.ended_for.is_none()
    }

    /// Whether the process says that its error would come again.
    pub fn is_hopeless(&self) -> bool {
        self.status.code() == Some(HOPELESS.into())
    }

    /// Whether the process ended by a decision of its own, which it would take again. A signal is an accident.
    pub fn is_decided(&self) -> bool {
        self.status.code().is_some_and(|code| code != 0) && !ended_by_signal(self.status)
    }
}

/// Whether a process ended because a signal asked it to: in order, or before it could listen to signals.
pub fn ended_by_signal(status: ExitStatus) -> bool {
    status.code() == Some(ENDED_BY_SIGNAL.into()) || status.signal() == Some(libc::SIGTERM)
}

/// What the next decision about a process rests on.
#[derive(Debug)]
pub struct Restarts {
    /// Restarts so far, but for those that were chaos' doing.
    made: u32,
    /// Completed steps when the present life began.
    steps_at_start: u64,
    /// The reason that the last life gave for its end, if it decided on that without a step.
    last_error: Option<String>,
}

impl Restarts {
    /// Of a process that is started when so many steps are complete.
    pub fn new(steps: u64) -> Self {
        Self { made: 0, steps_at_start: steps, last_error: None }
    }

    /// Decides about a process that died at this age, when so many steps were complete; the error says why it is not
    /// started again, and where its log is.
    pub fn decide(
        &mut self,
        death: &Death,
        log: &str,
        (age, steps): (Duration, u64),
        limits: &Limits,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let who = death.who;
        let advanced = steps > self.steps_at_start;
        let hopeless = death.is_hopeless();
        let error = (hopeless || death.is_decided() && !advanced).then(|| death.error_line());
        let early = self.made == 0 && age < limits.early;
        if let Some(error) = &error
            && (hopeless || early || self.last_error.as_ref() == Some(error))
        {
            bail!("{who}: {error} (log: {log})");
        }
        self.last_error = error;
        death.show(watch);
        let (next, most) = (self.made + 1, limits.max_restarts);
        if self.made >= most {
            let how = death.with_reason();
            bail!("{who} died {next} times, last by {how}; `max_restarts` is {most} (log: {log})");
        }
        watch.say(&format!("restarting {who} ({next} of {most} restarts)"));
        Ok(())
    }

    /// Counts a restart.
    pub fn count(&mut self) {
        self.made += 1;
    }

    /// Takes note of a life that begins when so many steps are complete.
    pub fn begin(&mut self, steps: u64) {
        self.steps_at_start = steps;
    }
}
