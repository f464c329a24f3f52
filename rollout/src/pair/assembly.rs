//! Groups in the making: from the engine's sequences over text and rewards to a [`RolloutGroup`].

use std::{collections::HashMap, sync::Arc};

use anyhow::Context;
use rollout_rewards::{RewardPool, ScoredGroup};
use shared::{Completion, GroupId, PolicyVersion, RolloutGroup, SamplingParams};

use crate::{
    data::{PromptRow, Tokenizer, stop::StopCriterionFactory},
    engine::{FinishedSequence, GroupRequest},
};

/// One prompt that is to become a group.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// Its place in the run.
    pub id: GroupId,
    /// The prompt.
    pub row: &'a PromptRow,
    /// The epoch that the prompt was drawn in.
    pub epoch: u32,
    /// Dataset positions used up once this group is consumed.
    pub cursor: u64,
    /// Number of completions.
    pub num_generations: u32,
}

/// Collects sequences, decodes them, has complete groups scored while the engine goes on, and hands them out.
pub struct Assembly {
    tokenizer: Tokenizer,
    sampling: Arc<SamplingParams>,
    stop_criterion: Option<StopCriterionFactory>,
    rewards: RewardPool,
    reward_names: Vec<(String, f64)>,
    open: HashMap<u64, Open>,
    next_tag: u64,
}

struct Open {
    group: RolloutGroup,
    row: PromptRow,
    missing: u32,
}

impl Assembly {
    /// An empty assembly. `reward_names` are the pool's functions with their weights.
    #[must_use]
    pub fn new(
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        rewards: RewardPool,
        reward_names: Vec<(String, f64)>,
    ) -> Self {
        let stop_criterion = tokenizer.stop_criterion(&sampling.stop);
        let sampling = Arc::new(sampling);
        Self { tokenizer, sampling, stop_criterion, rewards, reward_names, open: HashMap::new(), next_tag: 0 }
    }

    /// Begins a group; the request is for the engine.
    pub fn begin(&mut self, order: Order<'_>) -> GroupRequest {
        let tag = self.next_tag;
        self.next_tag += 1;
        let Order { id, row, epoch, cursor, num_generations } = order;
        let group = RolloutGroup {
            id,
            prompt_id: row.prompt_id,
            epoch,
            prompt_ids: row.prompt_ids.to_vec(),
            prompt_text: row.prompt_text.clone(),
            completions: Vec::with_capacity(num_generations as usize),
            reward_names: self.reward_names.clone(),
            policy_version: PolicyVersion(u64::MAX),
            cursor,
            dropped: Vec::new(),
            filler: false,
            generation_seconds: 0.0,
        };
        self.open.insert(tag, Open { group, row: row.clone(), missing: num_generations });
        GroupRequest {
            tag,
            prompt_id: row.prompt_id,
            epoch,
            prompt_ids: row.prompt_ids.clone(),
            num_generations,
            sampling: self.sampling.clone(),
            lengths: None,
            stop_criterion: self.stop_criterion.clone(),
        }
    }

    /// Takes a sequence that has ended; the last one of a group sends it to the reward functions.
    ///
    /// # Errors
    /// When the tokens cannot be decoded.
    pub fn add(&mut self, sequence: FinishedSequence) -> anyhow::Result<()> {
        let open = self.open.get_mut(&sequence.tag).context("the engine returned a sequence that nobody asked for")?;
        let text = self.tokenizer.decode(&sequence.token_ids)?;
        let group = &mut open.group;
        let oldest = sequence.versions.iter().map(|(_, version)| *version).min();
        group.policy_version = oldest.map_or(group.policy_version, |v| v.min(group.policy_version));
        group.generation_seconds = group.generation_seconds.max(sequence.total_seconds);
        group.completions.push(Completion {
            sample: sequence.sample,
            token_ids: sequence.token_ids,
            logprobs: sequence.logprobs,
            versions: sequence.versions,
            text,
            finish_reason: sequence.finish_reason,
            rewards: Vec::new(),
        });
        open.missing -= 1;
        if open.missing == 0 {
            group.completions.sort_unstable_by_key(|c| c.sample);
            let completions =
                group.completions.iter().map(|c| (c.text.as_str(), c.token_ids.as_slice(), c.finish_reason));
            self.rewards.submit(sequence.tag, open.row.reward_input(completions));
        }
        Ok(())
    }

    /// A group that is complete, rewards included, if there is one.
    pub fn finished(&mut self) -> Option<RolloutGroup> {
        let ScoredGroup { tag, outcomes, .. } = self.rewards.try_recv()?;
        let mut group = self.open.remove(&tag).expect("the pool returns what was submitted").group;
        for (completion, outcomes) in group.completions.iter_mut().zip(outcomes) {
            completion.rewards = outcomes;
        }
        Some(group)
    }

    /// Nothing is in the engine or being scored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Groups that are being scored.
    #[must_use]
    pub fn scoring(&self) -> usize {
        self.rewards.pending()
    }
}
