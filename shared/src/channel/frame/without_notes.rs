//! Groups in the layout of frame version 10, which files of older builds hold: without notes. A completion is the same.

use serde::Deserialize;

use crate::generation::{
    group::{self, Completion},
    ids::{GroupId, PolicyVersion, PromptId},
};

/// A group in the making.
#[derive(Debug, Deserialize)]
pub struct Group {
    position: u64,
    prompt_id: PromptId,
    epoch: u32,
    prompt_ids: Vec<u32>,
    prompt_text: String,
    completions: Vec<Completion>,
    reward_names: Vec<(String, f64)>,
    generation_seconds: f64,
}

/// A group that is whole.
#[derive(Debug, Deserialize)]
pub struct Scored {
    group: Group,
    policy_version: PolicyVersion,
}

/// A group that dynamic sampling did not use.
#[derive(Debug, Deserialize)]
struct Dropped {
    scored: Scored,
    stale: bool,
}

/// A group with its place in the run.
#[derive(Debug, Deserialize)]
pub struct Placed {
    id: GroupId,
    scored: Scored,
    dropped: Vec<Dropped>,
    filler: bool,
}

impl From<Group> for group::Group {
    fn from(before: Group) -> Self {
        Self {
            position: before.position,
            prompt_id: before.prompt_id,
            epoch: before.epoch,
            prompt_ids: before.prompt_ids,
            prompt_text: before.prompt_text,
            completions: before.completions,
            reward_names: before.reward_names,
            generation_seconds: before.generation_seconds,
            notes: Box::default(),
        }
    }
}

impl From<Scored> for group::Scored {
    fn from(before: Scored) -> Self {
        Self { group: before.group.into(), policy_version: before.policy_version }
    }
}

impl From<Placed> for group::Placed {
    fn from(before: Placed) -> Self {
        let dropped = |dropped: Dropped| group::Dropped { scored: dropped.scored.into(), stale: dropped.stale };
        Self {
            id: before.id,
            scored: before.scored.into(),
            dropped: before.dropped.into_iter().map(dropped).collect(),
            filler: before.filler,
        }
    }
}
