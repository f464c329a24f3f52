//! Groups as small as the channel carries them, for tests, examples and benchmarks of all crates. Whatever a case is about
//! is said by struct update: `RolloutGroup { cursor: 5, ..group(id, completions) }`.

use crate::{Completion, FinishReason, GroupId, PolicyVersion, PromptId, Provenance, RolloutGroup, TokenLogprob};

/// A group of version 0 with a prompt of one token and no reward functions, at the begin of the dataset.
#[must_use]
pub fn group(id: GroupId, completions: Vec<Completion>) -> RolloutGroup {
    RolloutGroup {
        id,
        prompt_id: PromptId(0),
        epoch: 0,
        prompt_ids: vec![1],
        prompt_text: String::new(),
        completions,
        reward_names: Vec::new(),
        policy_version: PolicyVersion(0),
        cursor: 1,
        dropped: Vec::new(),
        filler: false,
        generation_seconds: 0.0,
    }
}

/// A completion of version 0 that has ended by itself. Its tokens were certain (log-prob 0), and nobody has scored it.
#[must_use]
pub fn completion(sample: u32, token_ids: Vec<u32>) -> Completion {
    Completion {
        sample,
        logprobs: vec![TokenLogprob::default(); token_ids.len()],
        versions: vec![(0, PolicyVersion(0))],
        text: String::new(),
        finish_reason: FinishReason::Stop,
        rewards: Vec::new(),
        provenance: Provenance::New,
        token_ids,
    }
}
