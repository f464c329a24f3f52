//! The loop over the steps of a run: collect, train, do what the guard says, publish, keep records.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use shared::{
    Placed, Step,
    channel::RunId,
    process::heartbeat::{self, Phase},
    run::disk_room,
};

use super::{
    Collector, Link, Outcome,
    failures::{self, Failures},
    notices::{self, Seen},
    records::{MadeStep, StepTimes},
    run::Run,
};
use crate::{
    checkpoint,
    error::LearnerError,
    guard::Verdict,
    step::{Before, StepBatch, TrainedStep},
};

/// How a stretch of steps ended.
pub enum Stretch {
    /// With the run, for this process.
    Ended(Outcome),
    /// With a step that the guard answers with a roll-back.
    RollBack,
}

/// A run, and what its steps come through.
pub struct StepLoop<'l, 'a> {
    run: &'l mut Run<'a>,
    collector: &'l mut Collector,
    link: &'l Link,
    /// Set when the process is asked to end.
    stop: &'l AtomicBool,
}

impl<'l, 'a> StepLoop<'l, 'a> {
    /// The loop of a run whose groups come over `link`.
    pub fn new(run: &'l mut Run<'a>, collector: &'l mut Collector, link: &'l Link, stop: &'l AtomicBool) -> Self {
        Self { run, collector, link, stop }
    }

    /// Makes step after step, until the last one is made, evaluations end the run early, the process is asked to end,
    /// or the guard wants to go back.
    ///
    /// # Errors
    /// Whatever ends the run.
    pub fn make_steps(mut self) -> Result<Stretch, LearnerError> {
        loop {
            let start = Instant::now();
            if !self.wait_for_evaluation()? {
                return Ok(Stretch::Ended(Outcome::Stopped));
            }
            if self.run.heed_evaluation()? {
                return Ok(Stretch::Ended(Outcome::Finished));
            }
            let Some(groups) = self.collect()? else {
                return Ok(Stretch::Ended(Outcome::Stopped));
            };
            if self.make(&groups, StepTimes::waited_since(start))? == Verdict::RollBack {
                return Ok(Stretch::RollBack);
            }
            if self.run.state.step.is_multiple_of(self.run.config.save_steps) || self.run.is_complete() {
                self.run.save(self.link)?;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Stretch::Ended(Outcome::Stopped));
            }
        }
    }

    /// Waits for the result of the evaluation that the run depends on, if it depends on one; false when the process is
    /// asked to end first. Meanwhile, refusals of the newest version are answered.
    fn wait_for_evaluation(&mut self) -> Result<bool, LearnerError> {
        let (run, link) = (&mut *self.run, self.link);
        let (step, cursor, is_last) = (run.state.step, run.state.cursor, run.is_complete());
        self.collector.hold((Step(step), cursor), link, self.stop, &mut || {
            if run.evaluations.is_known(step, is_last)? {
                return Ok(true);
            }
            run.answer_refusal(link)?;
            Ok(false)
        })
    }

    /// The groups of the next step; none when the process is asked to end first. Meanwhile, refusals of the newest
    /// version are answered.
    fn collect(&mut self) -> Result<Option<Vec<Placed>>, LearnerError> {
        let (run, link) = (&mut *self.run, self.link);
        let (step, cursor) = (Step(run.state.step), run.state.cursor);
        self.collector.collect(step, cursor, link, self.stop, &mut || run.answer_refusal(link))
    }

    /// Makes a step of its groups; what the guard says of it.
    fn make(&mut self, groups: &[Placed], mut times: StepTimes) -> Result<Verdict, LearnerError> {
        RunId::join(self.run.run_dir, Some(self.run.id))?;
        heartbeat::beat(Phase::Step);
        let failures = failures::of(groups);
        self.look_at_failures(&failures)?;
        self.keep_batch(groups)?;
        let (batch, trained) = self.train(groups)?;
        let verdict = self.follow_guard()?;
        heartbeat::beat(Phase::Save);
        self.make_disk_room()?;
        self.run.advance(&batch);
        if verdict != Verdict::RollBack {
            (times.published, times.gate) = self.run.publish(&batch, self.link)?;
        }
        // The passes over the canaries were progress of a step.
        heartbeat::beat(Phase::Save);
        self.keep_records(&batch, &trained, &failures, times)?;
        Ok(verdict)
    }

    /// Says which reward functions failed in a step, and ends the run where one has failed on everything: what would be
    /// trained on then is not what was asked for. The steps before it are kept.
    fn look_at_failures(&mut self, found: &[Failures]) -> Result<(), LearnerError> {
        let step = self.run.state.step + 1;
        for failures in found {
            if !failures.everywhere() || !self.run.config.reward_failure_stops {
                failures.warn(step);
                continue;
            }
            self.run.save_if_behind(self.link)?;
            return Err(failures.error(step, self.run.config, self.run.run_dir));
        }
        Ok(())
    }

    /// Keeps the groups of a step beside the state before it, where that is asked for.
    fn keep_batch(&mut self, groups: &[Placed]) -> Result<(), LearnerError> {
        if !self.run.config.save_step_batches {
            return Ok(());
        }
        self.run.trainer.ask_for_parts()?;
        let Run { run_dir, model, trainer, state, .. } = &*self.run;
        checkpoint::save_step_batch(run_dir, model, trainer.first(), state, groups)
    }

    /// Trains on the groups of a step, as far as the guard allows it. With its first step, a start makes the journals
    /// of the run its own, and `best.json`, before a checkpoint that the file named may be removed.
    fn train<'g>(&mut self, groups: &'g [Placed]) -> Result<(StepBatch<'g>, TrainedStep), LearnerError> {
        let Run { config, trainer, guard, state, records, evaluations, .. } = &mut *self.run;
        let number = state.step + 1;
        let mut allows = |before: &Before<'_>| guard.allows(before, number);
        let trained = trainer.train(groups, state.step, config, &mut allows)?;
        records.journals.take_over()?;
        evaluations.record()?;
        Ok(trained)
    }

    /// Tells what the guard has seen of a step that was trained, or left out, and does what it says but for a
    /// roll-back, which comes when the step is in the records.
    fn follow_guard(&mut self) -> Result<Verdict, LearnerError> {
        let Run { config, trainer, guard, state, records, .. } = &mut *self.run;
        let (mut verdict, mut notices) = guard.take();
        let finite = trainer.first().is_finite();
        if !finite {
            let (worse, notice) = guard.condemn(state.step + 1);
            verdict = verdict.max(worse);
            notices.push(notice);
        }
        let reason = notices.last().map(ToString::to_string).unwrap_or_default();
        records.journals.tell(notices)?;
        let gone_back = guard.state.roll_backs;
        let error = match verdict {
            Verdict::LowerLearningRate => {
                trainer.lower_learning_rate(config.guard_learning_rate_factor)?;
                return Ok(verdict);
            }
            Verdict::RollBack if gone_back >= config.guard_max_roll_backs => {
                format!("{reason}; it has gone back {gone_back} times, as often as `guard_max_roll_backs` allows")
            }
            Verdict::Stop => reason,
            Verdict::GoOn | Verdict::SkipStep | Verdict::RollBack => return Ok(verdict),
        };
        if finite {
            self.run.save_if_behind(self.link)?;
        }
        Err(LearnerError::Guard(error))
    }

    /// Has files go that can be spared where the disk is short, which is told.
    fn make_disk_room(&mut self) -> Result<(), LearnerError> {
        let Run { run_dir, guard, state, records, evaluations, .. } = &mut *self.run;
        let staying: Vec<u64> = [guard.state.healthy, evaluations.best()].into_iter().flatten().collect();
        let gone = disk_room::make(run_dir, &staying)?;
        records.journals.tell(gone.map(|what| notices::disk_short(state.step, &what)))
    }

    /// Keeps records of a step that was made, and tells what they say of the run.
    fn keep_records(
        &mut self,
        batch: &StepBatch<'_>,
        trained: &TrainedStep,
        failures: &[Failures],
        times: StepTimes,
    ) -> Result<(), LearnerError> {
        let Run { config, guard, state, records, .. } = &mut *self.run;
        let record = records.keep(&MadeStep { batch, trained, state, guard, times }, self.link)?;
        records.journals.look(&Seen { config, record: &record, failures })
    }
}
