//! Whether a process that died is worth a restart.

use std::time::Duration;

use anyhow::{Result, bail};

use super::{Limits, Watch, death::Death};

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
            let how = death.describe();
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
