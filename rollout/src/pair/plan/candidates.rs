//! From positions in the endless order of prompts to places in the run.
//!
//! A position whose group was begun is a *candidate*. Candidates get their place, (step, index), in order of their
//! positions, each one once all before it are known. So a batch is the first `groups_per_step` usable groups in prompt
//! order, whichever are finished first. A candidate is begun only when a place is left for it should everything in work
//! turn out usable: each failure leads to one replacement, at once, and no usable group is left over.
//!
//! With DAPO's dynamic sampling (arXiv:2503.14476, section 3.2), groups that teach nothing are replaced by groups of
//! further prompts until the batch is full. A step may use up a budget of positions: such a group is passed over as
//! long as the rest of the budget could still fill the step, and put into the batch otherwise. Without dynamic sampling
//! every group is usable, and a step uses up as many positions as it has groups.

use std::{collections::BTreeMap, ops::Range};

use shared::{Contrast, Dropped, GroupId, Placed, PolicyVersion, Scored, Step, config::RewardFailure};

use super::newer_than;

/// Settings of dynamic sampling.
#[derive(Debug, Clone, Copy)]
pub struct DynamicSampling {
    /// A step uses up at most this many times its groups in positions.
    pub max_attempts: u32,
    /// The difference among its completions that makes a group usable.
    pub contrast: Contrast,
    /// How a failed reward function affects the reward of a completion.
    pub failure: RewardFailure,
}

/// The place of the next group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Its place in the run.
    pub id: GroupId,
    /// The first position that is not given away.
    pub cursor: u64,
    /// Position at which the step of `id` begins.
    pub step_begin: u64,
}

impl Place {
    /// The first place of a step that begins at `cursor`.
    pub(super) fn first(step: Step, cursor: u64) -> Self {
        Self { id: GroupId { step, index: 0 }, cursor, step_begin: cursor }
    }

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
    /// In the engine, or being scored. Tokens of versions after the given one come from weights that the learner has
    /// lost since then.
    InWork(PolicyVersion),
    /// Finished. It is worth training on if it is usable, that is, has contrast.
    Finished { group: Scored, usable: bool },
}

/// Newest version whose tokens count: every one, until the learner loses some.
const EVERY: PolicyVersion = PolicyVersion(u64::MAX);

/// Candidates that have no place in the run yet, and the place that is given away next.
#[derive(Debug)]
pub(super) struct Candidates {
    sampling: Option<DynamicSampling>,
    groups_per_step: u32,
    max_staleness: u64,
    next: Place,
    pool: BTreeMap<u64, Candidate>,
}

impl Candidates {
    pub(super) fn new(sampling: Option<DynamicSampling>, groups_per_step: u32, max_staleness: u64) -> Self {
        let next = Place::first(Step(0), 0);
        Self { sampling, groups_per_step, max_staleness, next, pool: BTreeMap::new() }
    }

    /// Goes on from a place that follows from the learner's status and the groups already placed.
    pub(super) fn go_on_from(&mut self, place: Place) {
        self.next = place;
        self.pool.retain(|position, candidate| match candidate {
            // Positions that are no longer needed stay too, so that they are not begun a second time should the learner
            // fall back.
            Candidate::InWork(_) => true,
            Candidate::Finished { group, .. } => *position >= place.cursor && !too_new(group, place),
        });
    }

    /// Forgets groups that were made with versions after `newest`, which are lost: they are made again.
    pub(super) fn forget(&mut self, newest: PolicyVersion) {
        self.pool.retain(|_, candidate| match candidate {
            Candidate::InWork(counts) => {
                *counts = newest.min(*counts);
                true
            }
            Candidate::Finished { group, .. } => !newer_than(group, newest),
        });
    }

    /// Forgets finished groups: they are begun again.
    pub(super) fn discard(&mut self, goes: impl Fn(&Scored) -> bool) {
        self.pool.retain(|_, candidate| match candidate {
            Candidate::InWork(_) => true,
            Candidate::Finished { group, .. } => !goes(group),
        });
    }

    /// Groups without a place that are finished.
    pub(super) fn finished(&self) -> impl Iterator<Item = &Scored> {
        self.pool.range(self.next.cursor..).filter_map(|(_, candidate)| match candidate {
            Candidate::Finished { group, .. } => Some(group),
            Candidate::InWork(_) => None,
        })
    }

    /// For a position in work that is still needed, the newest version whose tokens count.
    pub(super) fn counts(&self, position: u64) -> Option<PolicyVersion> {
        match self.pool.get(&position)? {
            Candidate::InWork(newest) if position >= self.next.cursor => Some(*newest),
            _ => None,
        }
    }

    /// The position to begin next, if one is needed for the places of the steps before `end`.
    pub(super) fn wanted(&self, end: Step) -> Option<u64> {
        let position = (self.next.cursor..).find(|position| !self.pool.contains_key(position))?;
        let open = self.places(end);
        let mut before = self.taking_before(position);
        if position >= self.step_end() {
            // The rest of this step's budget fills the step, one way or the other.
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

    /// Candidates before a position that are usable, or may yet turn out to be.
    pub(super) fn taking_before(&self, position: u64) -> u64 {
        self.taking(self.next.cursor..position)
    }

    fn taking(&self, positions: Range<u64>) -> u64 {
        let takes = |candidate: &Candidate| match candidate {
            Candidate::InWork(_) => true,
            Candidate::Finished { group, usable } => *usable && !self.too_old(group),
        };
        self.pool.range(positions).filter(|(_, candidate)| takes(candidate)).count() as u64
    }

    fn too_old(&self, group: &Scored) -> bool {
        group.policy_version.0 + self.max_staleness < self.next.id.step.0
    }

    /// Position at which the budget of the step ends. A group that an earlier sampler has left at the learner may have
    /// used up too much of the budget. Then as much is added as the step needs.
    fn step_end(&self) -> u64 {
        let Place { cursor, step_begin, .. } = self.next;
        let attempts = self.sampling.map_or(1, |sampling| sampling.max_attempts);
        let budget = u64::from(attempts) * u64::from(self.groups_per_step);
        (step_begin + budget).max(cursor + self.open())
    }

    /// Places of the step that are not given away.
    fn open(&self) -> u64 {
        u64::from(self.groups_per_step - self.next.id.index)
    }

    /// Puts a position into work.
    pub(super) fn begin(&mut self, position: u64) {
        self.pool.insert(position, Candidate::InWork(EVERY));
    }

    /// Takes the complete group of a position.
    pub(super) fn finish(&mut self, group: Scored) {
        let position = group.position;
        let Some(Candidate::InWork(newest)) = self.pool.remove(&position) else {
            return;
        };
        if position < self.next.cursor || too_new(&group, self.next) || newer_than(&group, newest) {
            return;
        }
        let usable = self.sampling.is_none_or(|sampling| group.has_contrast(sampling.contrast, sampling.failure));
        self.pool.insert(position, Candidate::Finished { group, usable });
    }

    /// The next group that can be given its place, with the groups that were dropped on the way to it.
    pub(super) fn place(&mut self) -> Option<Placed> {
        let mut position = self.next.cursor;
        loop {
            let Some(Candidate::Finished { group, usable }) = self.pool.get(&position) else { return None };
            let stale = self.too_old(group);
            if (stale || !usable) && self.can_pass(position) {
                position += 1;
            } else if stale {
                // The step needs this position: it is made again, of newer weights.
                self.pool.remove(&position);
                return None;
            } else {
                break;
            }
        }
        let mut dropped = Vec::new();
        for passed in self.next.cursor..position {
            if let Some(Candidate::Finished { group, .. }) = self.pool.remove(&passed) {
                dropped.push(Dropped { stale: self.too_old(&group), scored: group });
            }
        }
        let Some(Candidate::Finished { group, usable }) = self.pool.remove(&position) else { return None };
        let group = Placed { id: self.next.id, scored: group, dropped, filler: !usable };
        self.go_on_from(self.next.after(group.cursor(), self.groups_per_step));
        Some(group)
    }

    /// Whether the positions after this one could still fill the step.
    fn can_pass(&self, position: u64) -> bool {
        position + 1 + self.open() <= self.step_end()
    }
}

/// Whether a group was made from weights that the learner no longer has after a fall-back. It is made again.
fn too_new(group: &Scored, place: Place) -> bool {
    group.policy_version.0 > place.id.step.0
}
