//! Groups in the layouts of frame versions 10 to 12, which files of older builds hold. Completions of version 12 have
//! no choices of experts, and their exchanges do not count what an agent asked otherwise. Completions of version 11
//! have no exchange with an environment, and groups of version 10 have no notes either.

use serde::Deserialize;

use crate::generation::{
    episode::Episode,
    group::{self, EpisodeEnd, Messages, Notes, Provenance, RewardOutcome},
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

/// What stands in the place of a completion's exchange in versions 10 and 11: no byte.
#[derive(Debug, Deserialize)]
pub struct NoExchange;

/// The exchange of a completion in version 12.
#[derive(Debug, Deserialize)]
pub struct WithExchange(Option<Box<Exchange>>);

#[derive(Debug, Deserialize)]
struct Exchange {
    messages: Messages,
    opening: Option<String>,
    end: EpisodeEnd,
    failure: Option<String>,
    calls: u32,
    failed_calls: u32,
    rewards: Vec<RewardOutcome>,
    recomputed: u32,
    waited_seconds: f64,
    seconds: f64,
}

impl From<NoExchange> for Option<Box<group::Exchange>> {
    fn from(NoExchange: NoExchange) -> Self {
        None
    }
}

impl From<WithExchange> for Option<Box<group::Exchange>> {
    fn from(WithExchange(before): WithExchange) -> Self {
        let exchange = |before: Exchange| group::Exchange {
            messages: before.messages,
            opening: before.opening,
            end: before.end,
            failure: before.failure,
            calls: before.calls,
            failed_calls: before.failed_calls,
            rewards: before.rewards,
            recomputed: before.recomputed,
            waited_seconds: before.waited_seconds,
            seconds: before.seconds,
            overridden: None,
        };
        before.map(|before| Box::new(exchange(*before)))
    }
}

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

impl<E: Into<Option<Box<group::Exchange>>>> From<Completion<E>> for group::Completion {
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

impl<N: Into<Box<Notes>>, E: Into<Option<Box<group::Exchange>>>> From<Group<N, E>> for group::Group {
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

impl<N: Into<Box<Notes>>, E: Into<Option<Box<group::Exchange>>>> From<Scored<N, E>> for group::Scored {
    fn from(before: Scored<N, E>) -> Self {
        Self { group: before.group.into(), policy_version: before.policy_version }
    }
}

impl<N: Into<Box<Notes>>, E: Into<Option<Box<group::Exchange>>>> From<Placed<N, E>> for group::Placed {
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
