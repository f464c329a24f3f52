//! Which group is made next, which is handed over next, and which is kept: the sampler's half of the hand-over
//! contract, without engine, channel or clock.
//!
//! A group's identity, (step, index), and its dataset position follow from the learner's status and from which groups
//! are usable ([`candidates`] decides), so a plan can be thrown away and built again from the next status: that is all
//! a restarted sampler does.

mod candidates;

use std::{collections::BTreeMap, sync::Arc};

use shared::{Group, GroupId, Placed, PolicyVersion, PromptId, Scored, Step, channel::LearnerStatus};

pub use candidates::DynamicSampling;
use candidates::{Candidates, Place};

/// Sizes that a plan works with.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions {
    /// Groups of one step.
    pub groups_per_step: u32,
    /// How many versions older than its step a group's weights may be; 0 = exactly the step's version.
    pub max_staleness: u64,
    /// Placed groups that may wait for the learner before no new ones are begun. How many wait for a place,
    /// `max_staleness` bounds.
    pub max_unsent: usize,
    /// Bytes of groups that are kept although the learner has trained on them, in case it falls back to a checkpoint.
    /// Groups that do not fit are made again in that case.
    pub kept_bytes: usize,
    /// Which groups are replaced by those of further prompts; without it every group is usable.
    pub dynamic_sampling: Option<DynamicSampling>,
}

/// How far the hand-over of a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Finished, to be handed over.
    Unsent,
    /// With the thread that sends.
    Sending,
    /// In the channel or at the learner.
    Sent,
}

/// A group that has its place in the run, and how far it is.
#[derive(Debug)]
struct Held {
    group: Arc<Placed>,
    progress: Progress,
}

/// The groups of a run as the sampler sees them.
#[derive(Debug)]
pub struct Plan {
    options: PlanOptions,
    learner: Option<LearnerStatus>,
    candidates: Candidates,
    placed: BTreeMap<GroupId, Held>,
    /// Bytes of all groups that are placed.
    kept_bytes: usize,
}

impl Plan {
    /// An empty plan: nothing is admitted before the first status of the learner.
    #[must_use]
    pub fn new(options: PlanOptions) -> Self {
        let candidates = Candidates::new(options.dynamic_sampling, options.groups_per_step, options.max_staleness);
        Self { options, learner: None, candidates, placed: BTreeMap::new(), kept_bytes: 0 }
    }

    /// The learner's newest status.
    #[must_use]
    pub fn learner(&self) -> Option<&LearnerStatus> {
        self.learner.as_ref()
    }

    /// Takes the learner's newest status. After a restart of the learner, every group that is not known to have reached
    /// the new process is handed over again. Groups of durable steps are dropped.
    ///
    /// Returns the newest version that a restarted learner has kept, where the versions after it will have other
    /// weights when they are made again. A synchronous run repeats them to the last bit; a run with `max_staleness`
    /// does not. After a roll-back, it is at most the version before those that were given up.
    pub fn observe(&mut self, status: LearnerStatus) -> Option<PolicyVersion> {
        let restarted = self.learner.as_ref().is_some_and(|old| old.incarnation != status.incarnation);
        let durable = status.durable_step;
        let kept = PolicyVersion(durable.0);
        let kept = status.given_up.map_or(kept, |(after, _)| kept.min(after));
        let newest = (restarted && self.options.max_staleness > 0).then_some(kept);
        if let Some(newest) = newest {
            self.candidates.forget(newest);
        }
        self.release(|group| group.id.step < durable || newest.is_some_and(|newest| newer_than(group, newest)));
        for (id, placed) in &mut self.placed {
            let arrived = id.step == status.step && status.received.binary_search(&id.index).is_ok();
            placed.progress = match placed.progress {
                // One that is being sent right now reaches the new process: its place in the channel came first.
                Progress::Sent if restarted && !arrived => Progress::Unsent,
                Progress::Unsent if arrived => Progress::Sent,
                as_before => as_before,
            };
        }
        let next = self.next_place(&status);
        self.release(|group| group.id >= next.id);
        self.candidates.go_on_from(next);
        self.learner = Some(status);
        self.place();
        newest
    }

    /// The first place without a group: behind the groups that the learner has received and the placed ones that follow
    /// on from them. A group's place depends on those before it, so placed groups that do not follow on are of no use.
    fn next_place(&self, status: &LearnerStatus) -> Place {
        let size = self.options.groups_per_step;
        let mut place = Place::first(status.step, status.cursor);
        if let Some(last) = status.received.last() {
            place.id.index = *last;
            place = place.after(status.next_cursor, size);
        }
        while let Some(Held { group, .. }) = self.placed.get(&place.id)
            && group.begin() == place.cursor
        {
            place = place.after(group.cursor(), size);
        }
        place
    }

    /// Gives candidates their places as far as they are known.
    fn place(&mut self) {
        while let Some(group) = self.candidates.place() {
            self.kept_bytes += size_placed(&group);
            self.placed.insert(group.id, Held { group: Arc::new(group), progress: Progress::Unsent });
        }
        self.fit();
    }

    /// The position of the next prompt, in the endless sequence of prompts, if a group of it may be begun with weights
    /// of the given version. The position counts as in work until [`Plan::finish`].
    pub fn admit(&mut self, version: PolicyVersion) -> Option<u64> {
        // Weights that the learner does not have come from before its restart: nothing new is made from them.
        let status = self.learner.as_ref().filter(|s| !s.finished && version <= s.version)?;
        let end = Step((version.0 + self.options.max_staleness + 1).min(status.total_steps));
        let position = self.candidates.wanted(end)?;
        // The step that the learner waits for is never held up, or both would wait for each other.
        let urgent = self.candidates.taking_before(position) < self.candidates.places(status.step.next());
        if !urgent && self.unsent() >= self.options.max_unsent {
            return None;
        }
        self.candidates.begin(position);
        Some(position)
    }

    /// Takes a complete group that was in work. The group gets its id when all groups before it are known, together
    /// with the groups that were dropped on the way to it.
    pub fn finish(&mut self, group: Scored) {
        self.candidates.finish(group);
        self.place();
    }

    /// The next group to hand over; it counts as being sent until [`Plan::sent`].
    ///
    /// Groups go in order of their ids. A group from weights that the learner does not have, or does not have again
    /// yet, waits until it has them.
    pub fn send(&mut self) -> Option<Arc<Placed>> {
        let status = self.learner.as_ref()?;
        let waiting = self.placed.range_mut(GroupId { step: status.step, index: 0 }..).map(|(_, placed)| placed);
        let known = |placed: &&mut Held| !newer_than(&placed.group, status.version);
        let next = waiting.filter(known).find(|placed| placed.progress == Progress::Unsent)?;
        next.progress = Progress::Sending;
        Some(next.group.clone())
    }

    /// The channel has taken a group.
    pub fn sent(&mut self, id: GroupId) {
        if let Some(placed) = self.placed.get_mut(&id)
            && placed.progress == Progress::Sending
        {
            placed.progress = Progress::Sent;
        }
        self.fit();
    }

    /// Finished groups that the learner could take and has not.
    #[must_use]
    pub fn unsent(&self) -> usize {
        let Some(status) = &self.learner else {
            return 0;
        };
        let waits = |placed: &Held| placed.progress != Progress::Sent && !newer_than(&placed.group, status.version);
        let first = GroupId { step: status.step, index: 0 };
        self.placed.range(first..).filter(|(_, placed)| waits(placed)).count()
    }

    /// Groups that the learner has not trained on, with a place or without, and the groups that were dropped on the way
    /// to them.
    pub fn untrained(&self) -> impl Iterator<Item = &Group> {
        let first = GroupId { step: self.learner.as_ref().map_or(Step(0), |status| status.step), index: 0 };
        let placed = self.placed.range(first..).flat_map(|(_, placed)| {
            let dropped = placed.group.dropped.iter().map(|dropped| &dropped.scored.group);
            dropped.chain([&placed.group.scored.group])
        });
        placed.chain(self.candidates.finished().map(|scored| &scored.group))
    }

    /// The oldest version from which a group of the learner's step may be sampled.
    #[must_use]
    pub fn oldest(&self) -> PolicyVersion {
        let step = self.learner.as_ref().map_or(0, |status| status.step.0);
        PolicyVersion(step.saturating_sub(self.options.max_staleness))
    }

    /// For a position that is in work and still needed, the newest version whose tokens count.
    #[must_use]
    pub fn counts(&self, position: u64) -> Option<PolicyVersion> {
        self.candidates.counts(position)
    }

    /// Forgets finished groups of these prompts, by row and epoch, that have not been handed over. They are made again,
    /// and so are groups with a place behind them.
    pub fn discard(&mut self, prompts: &[(PromptId, u32)]) {
        let Some(status) = self.learner.clone() else { return };
        let is_of = |group: &Scored| prompts.contains(&(group.prompt_id, group.epoch));
        let kept_bytes = &mut self.kept_bytes;
        self.placed.retain(|_, placed| {
            let goes = placed.progress == Progress::Unsent && is_of(&placed.group);
            *kept_bytes -= if goes { size_placed(&placed.group) } else { 0 };
            !goes
        });
        self.candidates.discard(is_of);
        let next = self.next_place(&status);
        // Groups that are on their way already are not taken back.
        let first =
            self.placed.range(next.id..).find(|(_, placed)| placed.progress == Progress::Unsent).map(|(id, _)| *id);
        self.release(|group| first.is_some_and(|first| group.id >= first));
        let next = self.next_place(&status);
        self.candidates.go_on_from(next);
        self.place();
    }

    fn release(&mut self, goes: impl Fn(&Placed) -> bool) {
        let kept_bytes = &mut self.kept_bytes;
        self.placed.retain(|_, placed| {
            let goes = goes(&placed.group);
            *kept_bytes -= if goes { size_placed(&placed.group) } else { 0 };
            !goes
        });
    }

    /// Drops groups that were trained on, the oldest first, until the rest fits.
    fn fit(&mut self) {
        let Some(step) = self.learner.as_ref().map(|status| status.step) else {
            return;
        };
        while self.kept_bytes > self.options.kept_bytes {
            let trained = self.placed.range(..GroupId { step, index: 0 });
            let Some(id) = trained.filter(|(_, placed)| placed.progress != Progress::Sending).map(|(id, _)| *id).next()
            else {
                return;
            };
            self.release(|group| group.id == id);
        }
    }
}

/// Whether any of a group's tokens were sampled from weights after `newest`.
fn newer_than(group: &Scored, newest: PolicyVersion) -> bool {
    group.policy_version.max(group.newest().unwrap_or_default()) > newest
}

/// Memory of a placed group, with the groups that were dropped on the way to it, near enough for a budget.
fn size_placed(placed: &Placed) -> usize {
    let dropped = placed.dropped.iter().map(|dropped| size(dropped));
    size_of_val(placed) - size_of::<Group>() + size(placed) + dropped.sum::<usize>()
}

/// Memory of a group, near enough for a budget.
pub(super) fn size(group: &Group) -> usize {
    let of_completion = |c: &shared::Completion| {
        let exchange = c.exchange.as_ref().map_or(0, |exchange| exchange.bytes());
        let routing = c.routing.as_ref().map_or(0, |routing| size_of_val(&**routing) + size_of_val(&*routing.choices));
        size_of_val(c) + c.text.len() + c.episode.bytes() + size_of_val(c.rewards.as_slice()) + exchange + routing
    };
    let completions: usize = group.completions.iter().map(of_completion).sum();
    size_of_val(group)
        + group.prompt_text.len()
        + size_of_val(group.prompt_ids.as_slice())
        + completions
        + group.notes.bytes()
}

#[cfg(test)]
mod dynamic_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world_tests;
