//! The step loop: listens to the learner, follows its weights, keeps the generator full, and hands groups over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use crossbeam::channel::Select;
use shared::{
    Group, PolicyVersion,
    channel::LearnerStatus,
    process::heartbeat::{self, Phase},
};

use super::{
    evaluation::Evaluation,
    in_flight::{Keeper, Kept, is_of, is_whole},
    link::{Link, LinkEvent, silent},
    order::PromptOrder,
    plan::Plan,
    weights::DirectoryReceiver,
};
use crate::{
    assembly::Assembly,
    data::Dataset,
    engine::{FinishedSequence, Output},
    generate::{Next, PairGenerator, Work, drive, follower::WeightFollower},
    trace::{self, Event},
};

/// Longest wait when nothing can be done: how long a signal may take to be noticed.
const IDLE_WAIT: Duration = Duration::from_millis(20);
/// Wait while a session is being built, rewards are being computed or something is being written, which wake nobody up.
const SHORT_WAIT: Duration = Duration::from_millis(1);

/// Why a sampler has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The learner says that the run is over.
    RunOver,
    /// A signal asked it to.
    BySignal,
}

/// Everything that the step loop works with.
pub struct StepLoop {
    /// Which group comes next.
    pub plan: Plan,
    /// Which prompt a group is made of.
    pub order: PromptOrder,
    /// The prompts.
    pub dataset: Dataset,
    /// Completions per prompt.
    pub num_generations: u32,
    /// Groups in the making.
    pub assembly: Assembly,
    /// The groups that were in flight at the checkpoint from which the run went on, as far as they have not been taken
    /// up.
    pub kept: Kept,
    /// Writes the groups in flight for checkpoints.
    pub keeper: Keeper,
    /// Evaluation between the steps, if it is wanted.
    pub evaluation: Option<Evaluation>,
    /// Keeps the generator on the learner's version.
    pub weights: WeightFollower,
    /// Where that version comes from.
    pub receiver: DirectoryReceiver,
    /// The way to the learner.
    pub link: Link,
    /// Set by a signal: the loop ends.
    pub stop: Arc<AtomicBool>,
}

impl StepLoop {
    /// Works until the learner says that the run is over, or a signal ends it.
    ///
    /// # Errors
    /// When the learner is silent for too long, the channel or the engine fails, or a version cannot be loaded.
    pub fn run(&mut self, generator: &mut dyn PairGenerator) -> anyhow::Result<Ended> {
        drive(generator, self)
    }

    fn listen(&mut self, generator: &dyn PairGenerator) -> anyhow::Result<()> {
        for event in self.link.events().try_iter() {
            match event {
                LinkEvent::Status(status) => {
                    self.receiver.hear(&status);
                    let durable = PolicyVersion(status.durable_step.0);
                    // The learner was restarted. It makes the versions after this one anew, with other weights, or has
                    // given them up. Measurements of versions that were given up stay true.
                    if let Some(newest) = self.plan.observe(status) {
                        self.weights.forget(generator, newest);
                        self.kept.forget(newest);
                        self.evaluation.as_mut().map_or(Ok(()), |evaluation| evaluation.forget(durable))?;
                    }
                }
                LinkEvent::Sent(id) => self.plan.sent(id),
                LinkEvent::Silent(seconds) => return Err(silent(seconds)),
                LinkEvent::Failed(error) => return Err(error).context("hand-over to the learner"),
            }
        }
        self.keeper.answer(&self.link);
        if self.keeper.is_wanted(self.learner()) {
            self.kept.release(self.learner().cursor);
            let groups = self.in_flight();
            let learner = self.plan.learner().expect("the loop starts with the learner's first status");
            self.keeper.write(learner, groups);
        }
        Ok(())
    }

    /// Everything that the learner has not trained on: groups that wait for their step or their place, and the finished
    /// completions of those in the making.
    fn in_flight(&self) -> Vec<Group> {
        let in_the_making = self.assembly.in_the_making().filter_map(|group| {
            let newest = self.plan.counts(group.position)?;
            let mut group = group.clone();
            group.completions.retain(|completion| completion.episode.newest() <= Some(newest));
            Some(group)
        });
        self.plan.untrained().cloned().chain(in_the_making).chain(self.kept.groups().cloned()).collect()
    }

    fn learner(&self) -> &LearnerStatus {
        self.plan.learner().expect("the loop starts with the learner's first status")
    }

    /// Whether nothing is left to do. The last version of a complete run is still evaluated if it is due; a run that
    /// was ended early is not held up by that.
    fn over(&self) -> bool {
        self.learner().finished && !(self.complete() && self.evaluation_due())
    }

    /// Whether every step of the run has been made.
    fn complete(&self) -> bool {
        self.learner().version.0 == self.learner().total_steps
    }

    fn evaluation_due(&self) -> bool {
        let version = self.learner().version;
        self.evaluation.as_ref().is_some_and(|evaluation| evaluation.active() || evaluation.due(version))
    }

    fn evaluating(&self) -> bool {
        self.evaluation.as_ref().is_some_and(Evaluation::active)
    }

    fn collect(&mut self, generator: &mut dyn PairGenerator) -> anyhow::Result<()> {
        while let Some(group) = self.assembly.finished() {
            self.plan.finish(group);
        }
        let distrusted = generator.distrusted();
        if !distrusted.is_empty() {
            self.plan.discard(&distrusted);
        }
        match &mut self.evaluation {
            Some(evaluation) => evaluation.collect(),
            None => Ok(()),
        }
    }

    fn hand_over(&mut self, generator: &mut dyn PairGenerator) {
        while self.link.has_room() {
            let Some(group) = self.plan.send() else {
                return;
            };
            generator.handed_over(&group);
            let fleet = generator.fleet();
            self.link.update(|status| status.fleet = fleet);
            self.link.send(group);
        }
    }

    fn follow(&mut self, generator: &mut dyn PairGenerator) -> anyhow::Result<()> {
        // With the last version no group is made, so without an evaluation it is not loaded.
        if self.evaluating() || (self.complete() && !self.evaluation_due()) {
            return Ok(());
        }
        match self.weights.follow(generator, &mut self.receiver) {
            Err(error) if self.learner().finished => {
                tracing::warn!("the last version is not evaluated: {error:#}");
                self.evaluation = None;
                Ok(())
            }
            result => result,
        }
    }

    /// Keeps the generator full: with the prompts of an evaluation when one is due, else with the plan's groups.
    fn fill(&mut self, generator: &mut dyn PairGenerator) -> anyhow::Result<()> {
        if !self.weights.takes_groups(generator) {
            return Ok(());
        }
        let version = generator.version();
        let newest = version == self.learner().version;
        if let Some(evaluation) = &mut self.evaluation {
            if !evaluation.active() && newest && evaluation.due(version) {
                // Groups that were begun are finished first.
                if !generator.is_idle() || !self.assembly.is_empty() {
                    return Ok(());
                }
                evaluation.begin(version);
            }
            if evaluation.active() {
                return evaluation.feed(generator);
            }
        }
        self.begin_groups(generator)
    }

    fn begin_groups(&mut self, generator: &mut dyn PairGenerator) -> anyhow::Result<()> {
        // One group in waiting is enough to fill the slots of a step.
        let full = generator.capacity() + self.num_generations as usize;
        while generator.running() + generator.waiting() < full {
            let Some(position) = self.plan.admit(generator.version()) else {
                return Ok(());
            };
            self.begin(generator, position)?;
        }
        Ok(())
    }

    /// Begins the group of a position, or goes on with the completions that are kept of it.
    fn begin(&mut self, generator: &mut dyn PairGenerator, position: u64) -> anyhow::Result<()> {
        let (epoch, row) = self.order.at(position);
        let row = &self.dataset.rows()[row];
        let request = match self.kept.take(position, self.plan.oldest()).filter(|kept| is_of(kept, row, epoch)) {
            None => {
                let request = self.assembly.begin(row, epoch, position);
                return Ok(generator.begin_row(request.into(), row)?);
            }
            Some(kept) if is_whole(&kept, self.num_generations) => {
                let has_own_prompt = kept.completions.iter().any(|completion| completion.exchange.is_some());
                let prompt_ids = if has_own_prompt { kept.prompt_ids } else { row.prompt_ids.to_vec() };
                self.plan.finish(Group { prompt_ids, ..kept }.into());
                None
            }
            Some(kept) => self.assembly.go_on(row, epoch, position, kept),
        };
        request.map_or(Ok(()), |request| Ok(generator.begin_rest(request.into(), row)?))
    }

    fn wait(&self, generator: &dyn PairGenerator) {
        // Rewards and environments have deadlines of their own, and wake nobody up.
        let elsewhere = self.assembly.scoring() > 0 || self.evaluating() || generator.waits();
        if elsewhere || !generator.is_here() {
            // A worker may come at any time.
            heartbeat::beat(Phase::Step);
        } else if self.weights.pending() {
            // Another thread makes the new session, and shows no progress until it is ready.
            heartbeat::enter(Phase::Load);
        } else {
            heartbeat::beat(Phase::Wait);
        }
        let wait = if elsewhere || self.weights.pending() || self.keeper.at_work() { SHORT_WAIT } else { IDLE_WAIT };
        let mut select = Select::new();
        select.recv(self.link.events());
        let _ = select.ready_timeout(wait);
    }
}

impl<'g> Work<dyn PairGenerator + 'g> for StepLoop {
    type End = Ended;

    fn feed(&mut self, generator: &mut (dyn PairGenerator + 'g)) -> anyhow::Result<Next<Ended>> {
        if self.stop.load(Ordering::Relaxed) {
            tracing::info!("ended by a signal");
            return Ok(Next::End(Ended::BySignal));
        }
        self.listen(generator)?;
        if self.over() {
            tracing::info!("the run is over");
            return Ok(Next::End(Ended::RunOver));
        }
        self.collect(generator)?;
        self.hand_over(generator);
        self.follow(generator)?;
        self.fill(generator)?;
        let can_start = generator.waiting() > 0 && self.weights.lets_start(generator);
        let is_idle = generator.running() == 0 && !can_start || generator.waits();
        let waiting = is_idle || !generator.is_here();
        self.link.update(|status| status.waiting = waiting);
        Ok(if is_idle { Next::Idle } else { Next::Advance })
    }

    fn take(
        &mut self,
        generator: &mut (dyn PairGenerator + 'g),
        outputs: Vec<Output>,
        begun: Instant,
    ) -> anyhow::Result<()> {
        heartbeat::beat(Phase::Step);
        let mut tokens = 0;
        for sequence in outputs.into_iter().filter_map(Output::ended) {
            tokens += sequence.token_ids.len() as u64;
            let rewards = generator.take_rewards(&sequence);
            let (assembly, sequence) = match &mut self.evaluation {
                // Nobody reads the choices of experts in an evaluation.
                Some(evaluation) if evaluation.active() => {
                    (evaluation.assembly(), FinishedSequence { routing: None, ..sequence })
                }
                _ => (&mut self.assembly, sequence),
            };
            match generator.take_conversation(&sequence) {
                Some(conversed) => assembly.add_conversation(conversed)?,
                None => assembly.add(sequence, rewards)?,
            }
        }
        let busy = begun.elapsed().as_micros() as u64;
        self.link.update(|status| {
            status.busy_micros += busy;
            status.generated_tokens += tokens;
        });
        Ok(())
    }

    fn idle(&mut self, generator: &mut (dyn PairGenerator + 'g)) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.wait(generator);
        trace::span(begun, Instant::now(), Event::Wait);
        let idle = begun.elapsed().as_micros() as u64;
        self.link.update(|status| status.idle_micros += idle);
        Ok(())
    }
}
