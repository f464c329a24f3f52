//! DAPO's dynamic sampling (arXiv:2503.14476, section 3.2): groups whose rewards do not differ are replaced by groups of
//! further prompts until the batch is full.
//!
//! What is begun here is a *candidate*: a position in the endless order of prompts. Candidates get their place in the
//! run, (step, index), in order of their positions, each one once all before it are known. So a batch is the first
//! `groups_per_step` usable groups in prompt order, whichever are finished first. A candidate is begun only when a place
//! is left for it should everything in work turn out usable: each failure leads to one replacement, at once, and no
//! usable group is left over.
//!
//! A step may use up a budget of positions. A group without contrast is passed over as long as the rest of the budget
//! could still fill the step, and put into the batch otherwise.

use std::{collections::BTreeMap, ops::RangeBounds};

use shared::{Contrast, GroupId, PolicyVersion, RolloutGroup, Step, config::RewardFailure};

use super::{EVERY, newer_than};

/// Settings of dynamic sampling.
#[derive(Debug, Clone, Copy)]
pub struct DynamicSampling {
    /// A step uses up at most this many times its groups in positions.
    pub max_attempts: u32,
    /// What has to differ for a group to be usable.
    pub contrast: Contrast,
    /// What a reward function that failed does to a completion.
    pub failure: RewardFailure,
}

/// Where the next group goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// Its place in the run.
    pub id: GroupId,
    /// Position from which on nothing is given away yet.
    pub cursor: u64,
    /// Position at which the step of `id` begins.
    pub step_begin: u64,
}

impl Place {
    /// The place after a group that ends at `cursor`.
    pub(super) fn after(self, cursor: u64, groups_per_step: u32) -> Self {
        if self.id.index + 1 < groups_per_step {
            return Self { id: GroupId { index: self.id.index + 1, ..self.id }, cursor, ..self };
        }
        Self { id: GroupId { step: self.id.step.next(), index: 0 }, cursor, step_begin: cursor }
    }
}

#[derive(Debug)]
enum Candidate {
    /// In the engine, or being scored; see [`super::State::InWork`].
    InWork(PolicyVersion),
    /// Its rewards differ.
    Usable(RolloutGroup),
    /// Its rewards do not differ.
    Flat(RolloutGroup),
}

/// Candidates that have no place in the run yet, and the place that is given away next.
#[derive(Debug)]
pub(super) struct Candidates {
    sampling: DynamicSampling,
    groups_per_step: u32,
    max_staleness: u64,
    next: Place,
    pool: BTreeMap<u64, Candidate>,
}

impl Candidates {
    pub(super) fn new(sampling: DynamicSampling, groups_per_step: u32, max_staleness: u64) -> Self {
        Self { sampling, groups_per_step, max_staleness, next: Place::default(), pool: BTreeMap::new() }
    }

    /// The place that is given away next.
    pub(super) fn next(&self) -> Place {
        self.next
    }

    /// Goes on from a place that the learner's status and the groups already placed lead to.
    pub(super) fn go_on_from(&mut self, place: Place) {
        self.next = place;
        self.pool.retain(|position, candidate| match candidate {
            // Also what is no longer needed, so that it is not begun a second time should the learner fall back.
            Candidate::InWork(_) => true,
            Candidate::Usable(group) | Candidate::Flat(group) => *position >= place.cursor && !too_new(group, place),
        });
    }

    /// The versions after `newest` are lost: what was made with them is made again.
    pub(super) fn forget(&mut self, newest: PolicyVersion) {
        self.pool.retain(|_, candidate| match candidate {
            Candidate::InWork(counts) => {
                *counts = newest.min(*counts);
                true
            }
            Candidate::Usable(group) | Candidate::Flat(group) => !newer_than(group, newest),
        });
    }

    /// The position to begin next, if one is needed for the places of the steps before `end`.
    pub(super) fn wanted(&self, end: Step) -> Option<u64> {
        let position = (self.next.cursor..).find(|position| !self.pool.contains_key(position))?;
        let open = self.places(end);
        let mut before = self.taking(self.next.cursor..position);
        if position >= self.step_end() {
            // What is left of the budget of this step fills it, one way or the other.
            let filled = self.places(self.next.id.step.next().min(end));
            before = before.max(filled + self.taking(self.step_end()..position));
        }
        (before < open).then_some(position)
    }

    /// Places still to be given away in steps before `end`.
    pub(super) fn places(&self, end: Step) -> u64 {
        let id = self.next.id;
        let groups = u64::from(self.groups_per_step);
        (end.0.saturating_sub(id.step.0) * groups).saturating_sub(u64::from(id.index))
    }

    /// Candidates that are usable, or may yet turn out to be.
    pub(super) fn taking(&self, positions: impl RangeBounds<u64>) -> u64 {
        let takes = |candidate: &Candidate| match candidate {
            Candidate::InWork(_) => true,
            Candidate::Usable(group) => !self.too_old(group),
            Candidate::Flat(_) => false,
        };
        self.pool.range(positions).filter(|(_, candidate)| takes(candidate)).count() as u64
    }

    /// Usable groups that wait for the ones before them.
    pub(super) fn waiting(&self) -> usize {
        let waits = |candidate: &&Candidate| matches!(candidate, Candidate::Usable(group) if !self.too_old(group));
        self.pool.values().filter(waits).count()
    }

    fn too_old(&self, group: &RolloutGroup) -> bool {
        group.policy_version.0 + self.max_staleness < self.next.id.step.0
    }

    /// Position at which the budget of the step ends. Should a group that an earlier sampler has left at the learner have
    /// used up too much of it, then as much is added as the step needs.
    fn step_end(&self) -> u64 {
        let Place { cursor, step_begin, .. } = self.next;
        let budget = u64::from(self.sampling.max_attempts) * u64::from(self.groups_per_step);
        (step_begin + budget).max(cursor + self.open())
    }

    /// Places of the step that are not given away.
    fn open(&self) -> u64 {
        u64::from(self.groups_per_step - self.next.id.index)
    }

    /// A position is in work.
    pub(super) fn begin(&mut self, position: u64) {
        self.pool.insert(position, Candidate::InWork(EVERY));
    }

    /// A position will not be completed: it is begun again later.
    pub(super) fn give_up(&mut self, position: u64) {
        if matches!(self.pool.get(&position), Some(Candidate::InWork(_))) {
            self.pool.remove(&position);
        }
    }

    /// The group of a position is complete.
    pub(super) fn finish(&mut self, position: u64, group: RolloutGroup) {
        let Some(candidate) = self.pool.get_mut(&position) else {
            return;
        };
        let Candidate::InWork(newest) = *candidate else {
            return;
        };
        if position < self.next.cursor || too_new(&group, self.next) || newer_than(&group, newest) {
            self.pool.remove(&position);
        } else if group.has_contrast(self.sampling.contrast, self.sampling.failure) {
            *candidate = Candidate::Usable(group);
        } else {
            *candidate = Candidate::Flat(group);
        }
    }

    /// The next group that can be given its place, with its id, its cursor and what was dropped on the way to it.
    pub(super) fn place(&mut self) -> Option<RolloutGroup> {
        let mut dropped = Vec::new();
        let mut position = self.next.cursor;
        loop {
            let (group, usable) = match self.pool.get(&position)? {
                Candidate::InWork(_) => return None,
                Candidate::Usable(group) => (group, true),
                Candidate::Flat(group) => (group, false),
            };
            let stale = self.too_old(group);
            if (stale || !usable) && self.can_pass(position) {
                dropped.push(group.as_dropped(stale, self.sampling.failure));
                position += 1;
            } else if stale {
                // The step needs this position: it is made again, of newer weights.
                self.pool.remove(&position);
                return None;
            } else {
                break;
            }
        }
        let (group, filler) = match self.pool.remove(&position)? {
            Candidate::InWork(_) => return None,
            Candidate::Usable(group) => (group, false),
            Candidate::Flat(group) => (group, true),
        };
        let group = RolloutGroup { id: self.next.id, cursor: position + 1, dropped, filler, ..group };
        self.go_on_from(self.next.after(group.cursor, self.groups_per_step));
        Some(group)
    }

    /// Whether the positions after this one could still fill the step.
    fn can_pass(&self, position: u64) -> bool {
        position + 1 + self.open() <= self.step_end()
    }
}

/// Whether a group was made of weights that the learner has fallen back behind. It is made again.
fn too_new(group: &RolloutGroup, place: Place) -> bool {
    group.policy_version.0 > place.id.step.0
}
