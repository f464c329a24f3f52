//! The states of a group: being filled, whole, and with a place in the run.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::{Completion, Notes};
use crate::generation::{
    episode::Episode,
    ids::{GroupId, PolicyVersion, PromptId},
};

/// A prompt with its finished completions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Position of the prompt in the endless order of prompts; in an evaluation, its row.
    pub position: u64,
    /// Row of the dataset.
    pub prompt_id: PromptId,
    /// The epoch of the dataset that the prompt was drawn in, from 0; one of the keys of its randomness.
    pub epoch: u32,
    /// The prompt's tokens as the model saw them.
    pub prompt_ids: Vec<u32>,
    /// The prompt as text (template applied), for people.
    pub prompt_text: String,
    /// The finished completions, each once; a whole group has all `num_generations`, in order.
    pub completions: Vec<Completion>,
    /// Names of the reward functions, with their weights.
    pub reward_names: Vec<(String, f64)>,
    /// Seconds from admission to the newest token.
    pub generation_seconds: f64,
    /// What it carries for people.
    pub notes: Box<Notes>,
}

impl Group {
    /// Number of sampled tokens.
    #[must_use]
    pub fn sampled_tokens(&self) -> u64 {
        self.completions.iter().map(|completion| completion.episode.sampled() as u64).sum()
    }

    /// The newest version that any of its tokens was sampled from.
    #[must_use]
    pub fn newest(&self) -> Option<PolicyVersion> {
        self.completions.iter().filter_map(|completion| completion.episode.newest()).max()
    }
}

/// A group that is whole: every completion is there, with its rewards if the run has reward functions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Prompt and completions.
    pub group: Group,
    /// The oldest weight version that any token of the group was sampled from.
    pub policy_version: PolicyVersion,
}

impl From<Group> for Scored {
    /// Takes a group with all completions.
    fn from(group: Group) -> Self {
        let episodes = group.completions.iter().map(|completion| &completion.episode);
        let policy_version = episodes.filter_map(Episode::oldest).min().unwrap_or_default();
        Self { group, policy_version }
    }
}

impl Deref for Scored {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}

/// A whole group that dynamic sampling did not use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dropped {
    /// The group.
    pub scored: Scored,
    /// Why: it was older than `max_staleness` allows when a batch had room for it. Otherwise it has no contrast.
    pub stale: bool,
}

impl Deref for Dropped {
    type Target = Scored;

    fn deref(&self) -> &Scored {
        &self.scored
    }
}

/// A whole group with its place in the run: the unit that crosses the channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// Its place in the run.
    pub id: GroupId,
    /// The group.
    pub scored: Scored,
    /// Groups that dynamic sampling made after the preceding group, and dropped.
    pub dropped: Vec<Dropped>,
    /// Whether dynamic sampling put it into the batch although its completions all earn the same, because the step's
    /// budget of attempts was used up.
    pub filler: bool,
}

impl Placed {
    /// Number of dataset positions used up once this group is consumed, including those of `dropped`: where a restarted
    /// sampler continues.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.position.saturating_add(1)
    }

    /// Dataset position at which the group begins, including the groups dropped before it: the cursor of the preceding
    /// group.
    #[must_use]
    pub fn begin(&self) -> u64 {
        self.position.saturating_sub(self.dropped.len() as u64)
    }
}

impl Deref for Placed {
    type Target = Scored;

    fn deref(&self) -> &Scored {
        &self.scored
    }
}
