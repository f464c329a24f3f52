//! Which group is made next, which is handed over next, and which is kept: the sampler's half of the hand-over contract,
//! without engine, channel or clock.
//!
//! A group's identity, (step, index), and its dataset position follow from the learner's status alone, so a plan can be
//! thrown away and built again from the next status: that is all a restarted sampler does. With dynamic sampling they
//! follow from the status and from which groups are usable: then [`candidates`] decides.

mod candidates;

use std::{collections::BTreeMap, sync::Arc};

use shared::{GroupId, PolicyVersion, RolloutGroup, Step, channel::LearnerStatus};

pub use candidates::DynamicSampling;
use candidates::{Candidates, Place};

/// Sizes that a plan works with.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions {
    /// Groups of one step.
    pub groups_per_step: u32,
    /// How many versions older than its step a group's weights may be; 0 = exactly the step's version.
    pub max_staleness: u64,
    /// Finished groups that may wait for the learner before no new ones are begun.
    pub max_unsent: usize,
    /// Bytes of groups that are kept although the learner has trained on them, for the case that it falls back to a
    /// checkpoint. What does not fit is made again in that case.
    pub kept_bytes: usize,
    /// Replace groups whose rewards do not differ.
    pub dynamic_sampling: Option<DynamicSampling>,
}

/// A group to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Its place in the run; with dynamic sampling the first one that is open, and the group gets its own when it is
    /// known to be usable.
    pub id: GroupId,
    /// Its position in the endless sequence of prompts, from 0.
    pub position: u64,
}

/// Newest version whose tokens count: every one, until the learner loses some.
const EVERY: PolicyVersion = PolicyVersion(u64::MAX);

#[derive(Debug)]
enum State {
    /// In the engine, or being scored. Tokens of versions after the given one come from weights that the learner has
    /// lost since then.
    InWork(PolicyVersion),
    /// Finished, to be handed over.
    Unsent(Arc<RolloutGroup>),
    /// With the thread that sends.
    Sending(Arc<RolloutGroup>),
    /// In the channel or at the learner.
    Sent(Arc<RolloutGroup>),
}

/// The groups of a run as the sampler sees them.
#[derive(Debug)]
pub struct Plan {
    options: PlanOptions,
    learner: Option<LearnerStatus>,
    groups: BTreeMap<GroupId, State>,
    kept_bytes: usize,
    candidates: Option<Candidates>,
}

impl Plan {
    /// An empty plan: nothing is admitted before the first status of the learner.
    #[must_use]
    pub fn new(options: PlanOptions) -> Self {
        let candidates = options
            .dynamic_sampling
            .map(|sampling| Candidates::new(sampling, options.groups_per_step, options.max_staleness));
        Self { options, learner: None, groups: BTreeMap::new(), kept_bytes: 0, candidates }
    }

    /// The learner's newest status.
    #[must_use]
    pub fn learner(&self) -> Option<&LearnerStatus> {
        self.learner.as_ref()
    }

    /// Takes the learner's newest status. After a restart of the learner every group that is not known to have reached
    /// the new process is handed over again; groups of durable steps are dropped.
    ///
    /// Returns the newest version that a restarted learner has kept, where those after it will be other weights when it
    /// has made them again: a synchronous run repeats them to the last bit, one with `max_staleness` does not.
    pub fn observe(&mut self, status: LearnerStatus) -> Option<PolicyVersion> {
        let restarted = self.learner.as_ref().is_some_and(|old| old.incarnation != status.incarnation);
        let durable = PolicyVersion(status.durable_step.0);
        let newest = (restarted && self.options.max_staleness > 0).then_some(durable);
        if let Some(newest) = newest {
            self.forget(newest);
        }
        for (id, state) in &mut self.groups {
            let arrived = received(&status, *id);
            match state {
                // One that is being sent right now reaches the new process: its place in the channel came first.
                State::Sent(group) if restarted && !arrived => *state = State::Unsent(group.clone()),
                State::Unsent(group) if arrived => *state = State::Sent(group.clone()),
                _ => {}
            }
        }
        let durable = GroupId { step: status.durable_step, index: 0 };
        let kept = self.groups.split_off(&durable);
        for (id, state) in std::mem::replace(&mut self.groups, kept) {
            match state {
                State::InWork(_) => drop(self.groups.insert(id, state)),
                State::Unsent(group) | State::Sending(group) | State::Sent(group) => self.release(&group),
            }
        }
        if self.candidates.is_some() {
            self.follow(&status);
        }
        self.learner = Some(status);
        self.fit();
        newest
    }

    /// The versions after `newest` are lost: what was made with them is made again.
    fn forget(&mut self, newest: PolicyVersion) {
        if let Some(candidates) = &mut self.candidates {
            candidates.forget(newest);
        }
        let mut released = 0;
        self.groups.retain(|_, state| match state {
            State::InWork(counts) => {
                *counts = newest.min(*counts);
                true
            }
            State::Unsent(group) | State::Sending(group) | State::Sent(group) => {
                let lost = newer_than(group, newest);
                released += if lost { size(group) } else { 0 };
                !lost
            }
        });
        self.kept_bytes -= released;
    }

    /// With dynamic sampling, a group's place depends on those before it. What the learner has received is what counts:
    /// placed groups that do not follow on from it are forgotten.
    fn follow(&mut self, status: &LearnerStatus) {
        let arrived = status.received.len() as u32;
        let mut place = Place { id: GroupId { step: status.step, index: 0 }, ..Place::default() };
        (place.cursor, place.step_begin) = (status.cursor, status.cursor);
        if arrived > 0 {
            place.id.index = arrived - 1;
            place = place.after(status.next_cursor, self.options.groups_per_step);
        }
        while let Some(State::Unsent(group) | State::Sending(group) | State::Sent(group)) = self.groups.get(&place.id)
            && group.begin() == place.cursor
        {
            place = place.after(group.cursor, self.options.groups_per_step);
        }
        for state in self.groups.split_off(&place.id).into_values() {
            if let State::Unsent(group) | State::Sending(group) | State::Sent(group) = state {
                self.release(&group);
            }
        }
        if let Some(candidates) = &mut self.candidates {
            candidates.go_on_from(place);
        }
        self.place();
    }

    /// Gives candidates their places as far as they are known.
    fn place(&mut self) {
        while let Some(group) = self.candidates.as_mut().and_then(Candidates::place) {
            self.kept_bytes += size(&group);
            self.groups.insert(group.id, State::Unsent(Arc::new(group)));
        }
    }

    /// The next group to begin with weights of the given version, if one may be begun. It counts as in work until
    /// [`Plan::finish`] or [`Plan::give_up`].
    pub fn admit(&mut self, version: PolicyVersion) -> Option<Admission> {
        let Some(candidates) = &self.candidates else {
            let admission = self.next(version)?;
            self.groups.insert(admission.id, State::InWork(EVERY));
            return Some(admission);
        };
        let admission = self.next_candidate(candidates, version)?;
        self.candidates.as_mut()?.begin(admission.position);
        Some(admission)
    }

    fn next_candidate(&self, candidates: &Candidates, version: PolicyVersion) -> Option<Admission> {
        let status = self.learner.as_ref().filter(|s| !s.finished && version <= s.version)?;
        let end = Step((version.0 + self.options.max_staleness + 1).min(status.total_steps));
        let position = candidates.wanted(end)?;
        let Place { id, cursor, .. } = candidates.next();
        // As without dynamic sampling: only what is beyond the step that the learner waits for may be held up.
        let urgent = candidates.taking(cursor..position) < candidates.places(status.step.next());
        let held = self.unsent() + candidates.waiting();
        (urgent || held < self.options.max_unsent).then_some(Admission { id, position })
    }

    fn next(&self, version: PolicyVersion) -> Option<Admission> {
        // Weights that the learner does not have come from before its restart: nothing new is made from them.
        let status = self.learner.as_ref().filter(|s| !s.finished && version <= s.version)?;
        let first = status.step.0.max(version.0);
        let end = (version.0 + self.options.max_staleness + 1).min(status.total_steps);
        (first..end)
            .flat_map(|step| (0..self.options.groups_per_step).map(move |index| GroupId { step: Step(step), index }))
            .find(|id| !self.groups.contains_key(id) && !received(status, *id))
            // The step that the learner waits for is never held up, or both would wait for each other.
            .filter(|id| id.step == status.step || self.unsent() < self.options.max_unsent)
            .map(|id| Admission { id, position: self.position(status, id) })
    }

    fn position(&self, status: &LearnerStatus, id: GroupId) -> u64 {
        let steps = id.step.0 - status.step.0;
        status.cursor + steps * u64::from(self.options.groups_per_step) + u64::from(id.index)
    }

    /// A group in work is complete and waits to be handed over.
    pub fn finish(&mut self, group: RolloutGroup) {
        if let Some(candidates) = &mut self.candidates {
            candidates.finish(group.cursor - 1, group);
            self.place();
            self.fit();
            return;
        }
        let id = group.id;
        let Some(state) = self.groups.get_mut(&id) else {
            return;
        };
        let lost = matches!(state, State::InWork(newest) if newer_than(&group, *newest));
        if lost || self.learner.as_ref().is_some_and(|s| id.step < s.durable_step) {
            self.groups.remove(&id);
            return;
        }
        self.kept_bytes += size(&group);
        *state = State::Unsent(Arc::new(group));
        self.fit();
    }

    /// A group in work will not be completed: it is admitted again later.
    pub fn give_up(&mut self, admission: Admission) {
        if let Some(candidates) = &mut self.candidates {
            candidates.give_up(admission.position);
        } else if matches!(self.groups.get(&admission.id), Some(State::InWork(_))) {
            self.groups.remove(&admission.id);
        }
    }

    /// The next group to hand over; it counts as being sent until [`Plan::sent`].
    ///
    /// Groups go in order of their ids. One made from weights that the learner does not have (again) waits until it has
    /// them.
    pub fn send(&mut self) -> Option<Arc<RolloutGroup>> {
        let status = self.learner.as_ref()?;
        let first = GroupId { step: status.step, index: 0 };
        let state = self
            .groups
            .range_mut(first..)
            .map(|(_, state)| state)
            .find(|state| matches!(state, State::Unsent(group) if group.policy_version <= status.version))?;
        let State::Unsent(group) = state else {
            return None;
        };
        let group = group.clone();
        *state = State::Sending(group.clone());
        Some(group)
    }

    /// The channel has taken a group.
    pub fn sent(&mut self, id: GroupId) {
        if let Some(state) = self.groups.get_mut(&id)
            && let State::Sending(group) = state
        {
            *state = State::Sent(group.clone());
        }
        self.fit();
    }

    /// Finished groups that the learner could take and has not.
    #[must_use]
    pub fn unsent(&self) -> usize {
        let Some(status) = &self.learner else {
            return 0;
        };
        let first = GroupId { step: status.step, index: 0 };
        self.groups
            .range(first..)
            .filter(|(_, state)| match state {
                State::Unsent(group) | State::Sending(group) => group.policy_version <= status.version,
                State::InWork(_) | State::Sent(_) => false,
            })
            .count()
    }

    /// Bytes of all finished groups that are held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.kept_bytes
    }

    fn release(&mut self, group: &RolloutGroup) {
        self.kept_bytes -= size(group);
    }

    /// Drops groups that were trained on, the oldest first, until the rest fits.
    fn fit(&mut self) {
        let Some(step) = self.learner.as_ref().map(|s| s.step) else {
            return;
        };
        while self.kept_bytes > self.options.kept_bytes {
            let trained =
                |(id, state): &(&GroupId, &State)| id.step < step && matches!(state, State::Sent(_) | State::Unsent(_));
            let Some(id) = self.groups.iter().find(trained).map(|(id, _)| *id) else {
                return;
            };
            if let Some(State::Sent(group) | State::Unsent(group)) = self.groups.remove(&id) {
                self.release(&group);
            }
        }
    }
}

fn received(status: &LearnerStatus, id: GroupId) -> bool {
    id.step == status.step && status.received.binary_search(&id.index).is_ok()
}

/// Whether any of a group's tokens were sampled from weights after `newest`.
fn newer_than(group: &RolloutGroup, newest: PolicyVersion) -> bool {
    let tokens = group.completions.iter().flat_map(|completion| &completion.versions);
    group.policy_version > newest || tokens.into_iter().any(|(_, version)| *version > newest)
}

/// Memory of a group, near enough for a budget.
fn size(group: &RolloutGroup) -> usize {
    let completions: usize = group
        .completions
        .iter()
        .map(|c| {
            size_of_val(c)
                + c.text.len()
                + size_of_val(c.token_ids.as_slice())
                + size_of_val(c.logprobs.as_slice())
                + size_of_val(c.rewards.as_slice())
        })
        .sum();
    size_of_val(group) + group.prompt_text.len() + size_of_val(group.prompt_ids.as_slice()) + completions
}

#[cfg(test)]
mod dynamic_tests;
#[cfg(test)]
mod tests;
