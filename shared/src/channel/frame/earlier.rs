//! Groups in the layouts of frame versions 10 and 11, which files of older builds hold. Their completions have no
//! exchange with an environment. Groups of version 10 have no notes either.

use serde::Deserialize;

use crate::generation::{
    episode::Episode,
    group::{self, Notes, Provenance, RewardOutcome},
    ids::{GroupId, PolicyVersion, PromptId},
};

/// What stands in the place of a group's notes in version 10: no byte.
#[derive(Debug, Deserialize)]
pub struct NoNotes;

impl From<NoNotes> for Box<Notes> {
    fn from(NoNotes: NoNotes) -> Self {
        Self::default()
    }
}

/// One continuation of a prompt.
#[derive(Debug, Deserialize)]
struct Completion {
    sample: u32,
    episode: Episode,
    text: String,
    rewards: Vec<RewardOutcome>,
    provenance: Provenance,
}

/// A group in the making, with notes of the type `N`.
#[derive(Debug, Deserialize)]
pub struct Group<N> {
    position: u64,
    prompt_id: PromptId,
    epoch: u32,
    prompt_ids: Vec<u32>,
    prompt_text: String,
    completions: Vec<Completion>,
    reward_names: Vec<(String, f64)>,
    generation_seconds: f64,
    notes: N,
}

/// A group that is whole.
#[derive(Debug, Deserialize)]
pub struct Scored<N> {
    group: Group<N>,
    policy_version: PolicyVersion,
}

/// A group that dynamic sampling did not use.
#[derive(Debug, Deserialize)]
struct Dropped<N> {
    scored: Scored<N>,
    stale: bool,
}

/// A group with its place in the run.
#[derive(Debug, Deserialize)]
pub struct Placed<N> {
    id: GroupId,
    scored: Scored<N>,
    dropped: Vec<Dropped<N>>,
    filler: bool,
}

impl From<Completion> for group::Completion {
    fn from(before: Completion) -> Self {
        Self {
            sample: before.sample,
            episode: before.episode,
            text: before.text,
            rewards: before.rewards,
            provenance: before.provenance,
            exchange: None,
        }
    }
}

impl<N: Into<Box<Notes>>> From<Group<N>> for group::Group {
    fn from(before: Group<N>) -> Self {
        Self {
            position: before.position,
            prompt_id: before.prompt_id,
            epoch: before.epoch,
            prompt_ids: before.prompt_ids,
            prompt_text: before.prompt_text,
            completions: before.completions.into_iter().map(group::Completion::from).collect(),
            reward_names: before.reward_names,
            generation_seconds: before.generation_seconds,
            notes: before.notes.into(),
        }
    }
}

impl<N: Into<Box<Notes>>> From<Scored<N>> for group::Scored {
    fn from(before: Scored<N>) -> Self {
        Self { group: before.group.into(), policy_version: before.policy_version }
    }
}

impl<N: Into<Box<Notes>>> From<Placed<N>> for group::Placed {
    fn from(before: Placed<N>) -> Self {
        let dropped = |dropped: Dropped<N>| group::Dropped { scored: dropped.scored.into(), stale: dropped.stale };
        Self {
            id: before.id,
            scored: before.scored.into(),
            dropped: before.dropped.into_iter().map(dropped).collect(),
            filler: before.filler,
        }
    }
}
