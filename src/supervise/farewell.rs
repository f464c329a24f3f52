//! The time between the learner's end and the sampler's, which may have the last version to evaluate.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Limits, TICK, Watch, member::Member};

/// How long the user is left without a word while the sampler ends.
const QUIET: Duration = Duration::from_secs(2);

/// A sampler that is waited for: first patiently, then after SIGTERM, then after SIGKILL.
pub struct Farewell<'a> {
    sampler: &'a mut Member,
    limits: &'a Limits,
    watch: &'a mut dyn Watch,
    /// The user has asked for the end before, and need not wait long.
    asked_before: bool,
    begin: Instant,
    patience: Duration,
    deadline: Instant,
    /// The user knows what is waited for.
    announced: bool,
    /// The sampler has been asked to end.
    terminated: bool,
}

impl<'a> Farewell<'a> {
    /// Of a run that is over, or that the user has asked to end.
    pub fn new(sampler: &'a mut Member, limits: &'a Limits, asked: bool, watch: &'a mut dyn Watch) -> Self {
        let (begin, patience) = (Instant::now(), if asked { limits.after_term } else { limits.farewell });
        Self {
            sampler,
            limits,
            watch,
            asked_before: asked,
            begin,
            patience,
            deadline: begin + patience,
            announced: asked,
            terminated: false,
        }
    }

    /// Waits until the sampler has ended, or ends it.
    pub fn bid(mut self) -> Result<()> {
        while self.is_at_work()? {
            let asked = self.watch.interrupts();
            let over = Instant::now() >= self.deadline;
            let first_request = !self.asked_before && !self.terminated;
            if asked > usize::from(first_request) || (over && self.terminated) {
                self.sampler.kill();
                return Ok(());
            }
            if asked > 0 || over {
                self.terminate();
            }
            if !self.announced && self.begin.elapsed() >= QUIET {
                self.announce();
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Whether the sampler is to be waited for. One that died is started again for the last evaluation.
    fn is_at_work(&mut self) -> Result<bool> {
        let steps = self.watch.tick();
        if self.sampler.is_gone() {
            return Ok(false);
        }
        let Some(status) = self.sampler.ended()? else {
            return Ok(true);
        };
        if status.success() || self.asked_before || self.terminated || !self.limits.evaluates {
            return Ok(false);
        }
        if let Err(reason) = self.sampler.bury(status, steps, self.limits, self.watch) {
            self.watch.say(&format!("{reason:#}; the last evaluation is missing"));
            return Ok(false);
        }
        self.sampler.restart(steps, self.limits)?;
        Ok(true)
    }

    fn terminate(&mut self) {
        self.sampler.terminate();
        let lost = if self.limits.evaluates { "; an evaluation in progress is lost" } else { "" };
        self.watch.say(&format!("{} is still at work and is ended{lost}", self.sampler.spec.who()));
        (self.announced, self.terminated) = (true, true);
        self.deadline = Instant::now() + self.limits.after_term;
    }

    fn announce(&mut self) {
        self.announced = true;
        let evaluating = if self.limits.evaluates { ", which may be evaluating" } else { "" };
        self.watch.say(&format!(
            "the learner is done; waiting up to {:.0} s for {}{evaluating} (Ctrl-C ends it)",
            self.patience.as_secs_f64(),
            self.sampler.spec.who()
        ));
    }
}
