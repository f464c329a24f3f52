//! From a stream of groups to the generation batch of a step.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use shared::{RolloutGroup, Step, channel::STATUS_INTERVAL, config::TrainConfig};

use super::link::Link;
use crate::error::LearnerError;

/// Gathers groups by step and index; copies and leftovers of earlier steps are dropped, early ones wait.
#[derive(Debug)]
pub struct Collector {
    groups_per_step: u32,
    num_generations: usize,
    vocabulary: u32,
    waiting: BTreeMap<Step, BTreeMap<u32, RolloutGroup>>,
}

impl Collector {
    /// A collector for a model with `vocabulary` tokens.
    #[must_use]
    pub fn new(config: &TrainConfig, vocabulary: usize) -> Self {
        Self {
            groups_per_step: config.groups_per_step(),
            num_generations: config.num_generations as usize,
            vocabulary: vocabulary as u32,
            waiting: BTreeMap::new(),
        }
    }

    /// Every group of `step`, in prompt order; none when `stop` was set first.
    ///
    /// # Errors
    /// A failed channel, a silent sampler, or a group that breaks the contract.
    pub fn collect(
        &mut self,
        step: Step,
        link: &Link,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<RolloutGroup>>, LearnerError> {
        self.waiting.retain(|&s, _| s >= step);
        self.acknowledge(step, link);
        while self.waiting.get(&step).map_or(0, BTreeMap::len) < self.groups_per_step as usize {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            // Short waits: in between, stop requests and signs of life are looked at.
            if let Some(group) = link.receive(STATUS_INTERVAL)? {
                self.admit(group, step)?;
                self.acknowledge(step, link);
            }
        }
        Ok(self.waiting.remove(&step).map(|groups| groups.into_values().collect()))
    }

    fn acknowledge(&self, step: Step, link: &Link) {
        let received = self.waiting.get(&step).map(|groups| groups.keys().copied().collect()).unwrap_or_default();
        link.announce(|status| status.received = received);
    }

    fn admit(&mut self, group: RolloutGroup, step: Step) -> Result<(), LearnerError> {
        self.check(&group)?;
        let id = group.id;
        if id.step < step {
            tracing::debug!(group = %id, "a group of a step that is done came again");
            return Ok(());
        }
        self.waiting.entry(id.step).or_default().entry(id.index).or_insert(group);
        Ok(())
    }

    fn check(&self, group: &RolloutGroup) -> Result<(), LearnerError> {
        let fail = |problem: String| Err(LearnerError::Peer(format!("the sampler sent group {}: {problem}", group.id)));
        if group.id.index >= self.groups_per_step {
            return fail(format!("its index must be below {}", self.groups_per_step));
        }
        if group.completions.len() != self.num_generations {
            return fail(format!("{} completions instead of {}", group.completions.len(), self.num_generations));
        }
        if group.prompt_ids.is_empty() {
            return fail("its prompt has no token".into());
        }
        for completion in &group.completions {
            if completion.logprobs.len() != completion.token_ids.len() {
                return fail(format!(
                    "completion {} has {} tokens and {} log-probs",
                    completion.sample,
                    completion.token_ids.len(),
                    completion.logprobs.len()
                ));
            }
            if completion.rewards.len() != group.reward_names.len() {
                return fail(format!("completion {} lacks rewards", completion.sample));
            }
            let all = group.prompt_ids.iter().chain(&completion.token_ids);
            if let Some(token) = all.into_iter().find(|&&token| token >= self.vocabulary) {
                return fail(format!("token {token} is outside the vocabulary of {}", self.vocabulary));
            }
        }
        Ok(())
    }
}
