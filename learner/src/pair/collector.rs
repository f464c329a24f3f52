//! From a stream of groups to the generation batch of a step.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use shared::{
    Placed, PolicyVersion, Step,
    channel::STATUS_INTERVAL,
    config::TrainConfig,
    process::heartbeat::{self, Phase},
};

use super::link::Link;
use crate::error::LearnerError;

/// Gathers groups by step and index; copies and leftovers of earlier steps are dropped, early ones wait.
///
/// With dynamic sampling, which prompt a group was made of depends on the groups before it. So a group counts once it
/// follows on, without a gap, from what has arrived. One that does not (a sampler that was killed left it behind) gives
/// way to what the next sampler sends in its place.
#[derive(Debug)]
pub struct Collector {
    groups_per_step: u32,
    num_generations: usize,
    vocabulary: u32,
    dynamic_sampling: bool,
    /// Versions that are made again after a restart are other weights than before.
    remakes_differ: bool,
    /// Versions that a roll-back has given up: those after the first and up to the second.
    given_up: Option<(PolicyVersion, PolicyVersion)>,
    waiting: BTreeMap<Step, BTreeMap<u32, Placed>>,
}

impl Collector {
    /// A collector for a model with `vocabulary` tokens.
    #[must_use]
    pub fn new(config: &TrainConfig, vocabulary: usize) -> Self {
        Self {
            groups_per_step: config.groups_per_step(),
            num_generations: config.num_generations as usize,
            vocabulary: vocabulary as u32,
            dynamic_sampling: config.dynamic_sampling,
            remakes_differ: config.max_staleness > 0,
            given_up: None,
            waiting: BTreeMap::new(),
        }
    }

    /// Leaves out what was sampled from the versions after the first and up to the second: a roll-back has given them
    /// up, and the sampler makes those groups again.
    pub fn give_up(&mut self, versions: Option<(PolicyVersion, PolicyVersion)>) {
        self.given_up = versions;
        let given_up = |group: &Placed| is_of(group, versions);
        self.waiting.values_mut().for_each(|groups| groups.retain(|_, group| !given_up(group)));
    }

    /// Every group of `step`, which begins at dataset position `cursor`, in prompt order; none when `stop` was set
    /// first. `meanwhile` is called now and again.
    ///
    /// # Errors
    /// A failed channel, a silent sampler, a group that breaks the contract, or an error of `meanwhile`.
    pub fn collect(
        &mut self,
        step: Step,
        cursor: u64,
        link: &Link,
        stop: &AtomicBool,
        meanwhile: &mut dyn FnMut() -> Result<(), LearnerError>,
    ) -> Result<Option<Vec<Placed>>, LearnerError> {
        meanwhile()?;
        self.waiting.retain(|&s, _| s >= step);
        loop {
            let arrived = self.arrived(step, cursor);
            heartbeat::part(Phase::Wait, arrived.indices.len(), self.groups_per_step as usize);
            if arrived.indices.len() >= self.groups_per_step as usize {
                return Ok(self.waiting.remove(&step).map(|groups| groups.into_values().collect()));
            }
            link.announce(|status| {
                status.received.clone_from(&arrived.indices);
                status.next_cursor = arrived.next_cursor;
            });
            let Some(group) = self.wait(link, stop, meanwhile)? else {
                return Ok(None);
            };
            self.admit(group, step, &arrived)?;
        }
    }

    /// Takes in groups for the step at hand and later ones until `ready`, without making a batch; false when `stop` was
    /// set first.
    ///
    /// # Errors
    /// As [`Collector::collect`], and an error of `ready`.
    pub fn hold(
        &mut self,
        (step, cursor): (Step, u64),
        link: &Link,
        stop: &AtomicBool,
        ready: &mut dyn FnMut() -> Result<bool, LearnerError>,
    ) -> Result<bool, LearnerError> {
        while !ready()? {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            heartbeat::beat(Phase::Wait);
            heartbeat::part(Phase::Wait, 0, self.groups_per_step as usize);
            if let Some(group) = link.receive(STATUS_INTERVAL)? {
                let arrived = self.arrived(step, cursor);
                self.admit(group, step, &arrived)?;
            }
        }
        Ok(true)
    }

    /// The next group; none when `stop` was set first.
    fn wait(
        &self,
        link: &Link,
        stop: &AtomicBool,
        meanwhile: &mut dyn FnMut() -> Result<(), LearnerError>,
    ) -> Result<Option<Placed>, LearnerError> {
        while !stop.load(Ordering::Relaxed) {
            heartbeat::beat(Phase::Wait);
            meanwhile()?;
            // Short waits: in between, stop requests and signs of life are looked at.
            if let Some(group) = link.receive(STATUS_INTERVAL)? {
                return Ok(Some(group));
            }
        }
        Ok(None)
    }

    fn arrived(&self, step: Step, cursor: u64) -> Arrived {
        let mut arrived = Arrived { indices: Vec::new(), next_cursor: cursor };
        for ((index, group), expected) in self.waiting.get(&step).into_iter().flatten().zip(0..) {
            if *index != expected || group.begin() != arrived.next_cursor {
                break;
            }
            arrived.indices.push(*index);
            arrived.next_cursor = group.cursor();
        }
        arrived
    }

    /// Groups that have arrived for steps that are not made.
    pub fn left(&self) -> impl Iterator<Item = &Placed> {
        self.waiting.values().flat_map(BTreeMap::values)
    }

    fn admit(&mut self, group: Placed, step: Step, arrived: &Arrived) -> Result<(), LearnerError> {
        self.check(&group)?;
        let id = group.id;
        if id.step < step {
            tracing::debug!(group = %id, "a group of a step that is done came again");
            return Ok(());
        }
        let newest = group.newest().unwrap_or_default().max(group.policy_version);
        if self.remakes_differ && newest.0 > step.0 {
            tracing::debug!(group = %id, "a group of v{newest}, which was lost, is left out; the sampler makes it \
                again");
            return Ok(());
        }
        if is_of(&group, self.given_up) {
            tracing::debug!(group = %id, "a group of a version that was given up is left out; the sampler makes it \
                again");
            return Ok(());
        }
        let known = id.step == step && arrived.indices.binary_search(&id.index).is_ok();
        if !known {
            self.waiting.entry(id.step).or_default().insert(id.index, group);
        }
        Ok(())
    }

    fn check(&self, group: &Placed) -> Result<(), LearnerError> {
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
        if !self.dynamic_sampling && (group.filler || !group.dropped.is_empty()) {
            return fail("it comes from dynamic sampling, which is off".into());
        }
        for completion in &group.completions {
            let episode = &completion.episode;
            if !episode.is_sound() {
                return fail(format!(
                    "completion {} has {} tokens and {} log-probs",
                    completion.sample,
                    episode.token_ids().len().saturating_sub(episode.given()),
                    episode.sampled()
                ));
            }
            if completion.rewards.len() != group.reward_names.len() {
                return fail(format!("completion {} lacks rewards", completion.sample));
            }
            let all = group.prompt_ids.iter().chain(episode.token_ids());
            if let Some(token) = all.into_iter().find(|&&token| token >= self.vocabulary) {
                return fail(format!("token {token} is outside the vocabulary of {}", self.vocabulary));
            }
        }
        Ok(())
    }
}

/// Whether any token of a group was sampled from the versions after the first and up to the second.
fn is_of(group: &Placed, versions: Option<(PolicyVersion, PolicyVersion)>) -> bool {
    let Some((after, through)) = versions else { return false };
    let tokens = group.completions.iter().flat_map(|completion| completion.episode.versions());
    tokens
        .map(|(_, version)| version)
        .chain([group.policy_version])
        .any(|version| version > after && version <= through)
}

/// What counts of a step's groups.
#[derive(Debug)]
struct Arrived {
    /// Ascending.
    indices: Vec<u32>,
    /// Dataset position at which the first group that is missing begins.
    next_cursor: u64,
}

#[cfg(test)]
mod tests {
    use shared::{Completion, FinishReason, GroupId, generation::testing};

    use super::*;

    fn group(step: u64, versions: &[(u32, u64)]) -> Placed {
        let completion = |sample| Completion {
            episode: testing::episode(vec![1; 4], versions, FinishReason::Stop),
            ..testing::completion(sample, Vec::new())
        };
        let group = testing::group(0, (0..2).map(completion).collect());
        testing::placed(GroupId { step: Step(step), index: 0 }, group)
    }

    /// A version that the learner has not made (again) comes from before its restart.
    #[test]
    fn groups_of_lost_versions_are_left_out_where_remade_versions_differ() {
        for (max_staleness, expected) in [(1, [4, 5].as_slice()), (0, &[4, 5, 6, 7])] {
            let config = TrainConfig { num_generations: 2, max_staleness, ..TrainConfig::default() };
            let mut collector = Collector::new(&config, 10);
            let nothing = Arrived { indices: Vec::new(), next_cursor: 0 };
            let all = [(4, &[(0, 3)][..]), (5, &[(0, 3), (2, 4)]), (6, &[(0, 4), (2, 5)]), (7, &[(0, 5)])];
            for (step, versions) in all {
                collector.admit(group(step, versions), Step(4), &nothing).unwrap();
            }
            let kept: Vec<u64> = collector.waiting.keys().map(|step| step.0).collect();
            assert_eq!(kept, expected);
        }
    }
}
