//! Groups in the layouts of frame versions 10 to 12, which files of older builds hold. Completions of version 12 have
//! no choices of experts, those before have no exchange with an environment either, and groups of version 10 have no
//! notes.

use serde::Deserialize;

use crate::generation::{
    episode::Episode,
    group::{self, Exchange, Notes, Provenance, RewardOutcome},
    ids::{GroupId, PolicyVersion, PromptId},
};

/// What stands in the place of a group's notes in version 10, and in that of an exchange before version 12: no byte.
#[derive(Debug, Default, Deserialize)]
pub struct Nothing;

impl From<Nothing> for Box<Notes> {
    fn from(Nothing: Nothing) -> Self {
        Self::default()
    }
}

impl From<Nothing> for Option<Box<Exchange>> {
    fn from(Nothing: Nothing) -> Self {
        None
    }
}

/// What a completion has of an exchange with an environment in version 12.
pub type MayExchange = Option<Box<Exchange>>;

/// One continuation of a prompt, with an exchange of the type `E`.
#[derive(Debug, Deserialize)]
struct Completion<E> {
    sample: u32,
    episode: Episode,
    text: String,
    rewards: Vec<RewardOutcome>,
    provenance: Provenance,
    exchange: E,
}

/// A group in the making, with notes of the type `N`.
#[derive(Debug, Deserialize)]
pub struct Group<N, E> {
    position: u64,
    prompt_id: PromptId,
    epoch: u32,
    prompt_ids: Vec<u32>,
    prompt_text: String,
    completions: Vec<Completion<E>>,
    reward_names: Vec<(String, f64)>,
    generation_seconds: f64,
    notes: N,
}

/// A group that is whole.
#[derive(Debug, Deserialize)]
pub struct Scored<N, E> {
    group: Group<N, E>,
    policy_version: PolicyVersion,
}

/// A group that dynamic sampling did not use.
#[derive(Debug, Deserialize)]
struct Dropped<N, E> {
    scored: Scored<N, E>,
    stale: bool,
}

/// A group with its place in the run.
#[derive(Debug, Deserialize)]
pub struct Placed<N, E> {
    id: GroupId,
    scored: Scored<N, E>,
    dropped: Vec<Dropped<N, E>>,
    filler: bool,
}

impl<E: Into<Option<Box<Exchange>>>> From<Completion<E>> for group::Completion {
    fn from(before: Completion<E>) -> Self {
        Self {
            sample: before.sample,
            episode: before.episode,
            text: before.text,
            rewards: before.rewards,
            provenance: before.provenance,
            exchange: before.exchange.into(),
            routing: None,
        }
    }
}

impl<N: Into<Box<Notes>>, E: Into<Option<Box<Exchange>>>> From<Group<N, E>> for group::Group {
    fn from(before: Group<N, E>) -> Self {
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

impl<N: Into<Box<Notes>>, E: Into<Option<Box<Exchange>>>> From<Scored<N, E>> for group::Scored {
    fn from(before: Scored<N, E>) -> Self {
        Self { group: before.group.into(), policy_version: before.policy_version }
    }
}

impl<N: Into<Box<Notes>>, E: Into<Option<Box<Exchange>>>> From<Placed<N, E>> for group::Placed {
    fn from(before: Placed<N, E>) -> Self {
        let dropped = |dropped: Dropped<N, E>| group::Dropped { scored: dropped.scored.into(), stale: dropped.stale };
        Self {
            id: before.id,
            scored: before.scored.into(),
            dropped: before.dropped.into_iter().map(dropped).collect(),
            filler: before.filler,
        }
    }
}
