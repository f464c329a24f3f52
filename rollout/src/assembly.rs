//! Groups in the making: from the engine's sequences to text, rewards and a [`Scored`] group. Training, evaluation and
//! `rollout generate` all assemble their groups here.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use anyhow::Context;
use rollout_rewards::{RewardCompletion, RewardPool, ScoredGroup};
use shared::{Completion, Episode, Group, Notes, Provenance, RewardOutcome, SamplingParams, Scored};

use crate::{
    data::{PromptRow, Tokenizer, stop::StopCriterionFactory},
    engine::{Constrained, FinishedSequence, GroupRequest},
};

/// The functions that score completions.
pub struct Scoring {
    /// The pool that runs them.
    pub pool: RewardPool,
    /// Their names with their weights, in the pool's order.
    pub names: Vec<(String, f64)>,
}

/// Collects sequences, decodes them, has complete groups scored while the engine goes on, and hands them out.
pub struct Assembly {
    tokenizer: Tokenizer,
    sampling: Arc<SamplingParams>,
    stop_criterion: Option<StopCriterionFactory>,
    constraint: Option<Constrained>,
    num_generations: u32,
    scoring: Option<Scoring>,
    open: HashMap<u64, Open>,
    /// Complete groups that need no scoring, or no more of it.
    complete: VecDeque<u64>,
    next_tag: u64,
}

struct Open {
    group: Group,
    row: PromptRow,
    /// The provenance of the completions that are still to come.
    provenance: Provenance,
}

impl Assembly {
    /// An empty assembly for groups of `num_generations`. Without `scoring` completions have no rewards.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, sampling: SamplingParams, num_generations: u32, scoring: Option<Scoring>) -> Self {
        let stop_criterion = tokenizer.stop_criterion(&sampling.stop);
        Self {
            tokenizer,
            sampling: Arc::new(sampling),
            stop_criterion,
            constraint: None,
            num_generations,
            scoring,
            open: HashMap::new(),
            complete: VecDeque::new(),
            next_tag: 0,
        }
    }

    /// With a constraint for all completions.
    #[must_use]
    pub fn with_constraint(self, constraint: Option<Constrained>) -> Self {
        Self { constraint, ..self }
    }

    /// Begins a group of a prompt drawn in `epoch` that stands at `position` in the order of prompts. Returns the
    /// request for the engine.
    pub fn begin(&mut self, row: &PromptRow, epoch: u32, position: u64) -> GroupRequest {
        let (tag, samples) = (self.open(row, epoch, position, Provenance::New), (0..self.num_generations).collect());
        self.request(tag, row, epoch, samples)
    }

    /// As [`Assembly::begin`], for a group that was begun before and already has these completions, each once. Returns
    /// the request for the others; `None` where all are there.
    pub fn go_on(
        &mut self,
        row: &PromptRow,
        epoch: u32,
        position: u64,
        completions: Vec<Completion>,
    ) -> Option<GroupRequest> {
        let tag = self.open(row, epoch, position, Provenance::MadeAgain);
        let is_there = |sample: &u32| completions.iter().any(|completion| completion.sample == *sample);
        let samples: Arc<[u32]> = (0..self.num_generations).filter(|sample| !is_there(sample)).collect();
        for completion in completions {
            self.take_in(tag, completion);
        }
        (!samples.is_empty()).then(|| self.request(tag, row, epoch, samples))
    }

    fn open(&mut self, row: &PromptRow, epoch: u32, position: u64, provenance: Provenance) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let group = Group {
            position,
            prompt_id: row.prompt_id,
            epoch,
            prompt_ids: row.prompt_ids.to_vec(),
            prompt_text: row.prompt_text.clone(),
            completions: Vec::with_capacity(self.num_generations as usize),
            reward_names: self.scoring.as_ref().map(|scoring| scoring.names.clone()).unwrap_or_default(),
            generation_seconds: 0.0,
            notes: Box::new(Notes::of_row(&row.columns)),
        };
        self.open.insert(tag, Open { group, row: row.clone(), provenance });
        tag
    }

    fn request(&self, tag: u64, row: &PromptRow, epoch: u32, samples: Arc<[u32]>) -> GroupRequest {
        GroupRequest {
            tag,
            prompt_id: row.prompt_id,
            epoch,
            prompt_ids: row.prompt_ids.clone(),
            samples,
            sampling: self.sampling.clone(),
            lengths: None,
            stop_criterion: self.stop_criterion.clone(),
            constraint: self.constraint.clone(),
        }
    }

    /// Takes a sequence that has ended, with its rewards if it was scored elsewhere. With the last sequence, the group
    /// goes to the reward functions, unless all its completions have rewards.
    ///
    /// # Errors
    /// When the tokens cannot be decoded.
    pub fn add(&mut self, sequence: FinishedSequence, rewards: Vec<RewardOutcome>) -> anyhow::Result<()> {
        let Open { group, provenance, .. } =
            self.open.get_mut(&sequence.tag).context("the engine returned a sequence that nobody asked for")?;
        group.generation_seconds = group.generation_seconds.max(sequence.total_seconds);
        let completion = Completion {
            sample: sequence.sample,
            text: self.tokenizer.decode(&sequence.token_ids)?,
            episode: Episode::of_one_turn(
                sequence.token_ids,
                sequence.logprobs,
                sequence.versions,
                sequence.finish_reason,
            ),
            rewards,
            provenance: *provenance,
        };
        self.take_in(sequence.tag, completion);
        Ok(())
    }

    fn take_in(&mut self, tag: u64, completion: Completion) {
        let Open { group, row, .. } = self.open.get_mut(&tag).expect("the group is open");
        group.completions.push(completion);
        if group.completions.len() < self.num_generations as usize {
            return;
        }
        group.completions.sort_unstable_by_key(|completion| completion.sample);
        match &mut self.scoring {
            Some(Scoring { names, .. }) if group.completions.iter().all(|c| c.rewards.len() == names.len()) => {
                self.complete.push_back(tag);
            }
            Some(Scoring { pool, .. }) => {
                pool.submit(tag, row.reward_input(group.completions.iter().map(RewardCompletion::from)));
            }
            None => self.complete.push_back(tag),
        }
    }

    /// Groups in the making, with the completions that are finished.
    pub fn in_the_making(&self) -> impl Iterator<Item = &Group> {
        self.open.values().map(|open| &open.group)
    }

    /// Where the prompt of an open group stands in the order of prompts.
    ///
    /// # Panics
    /// When no group with this tag is open.
    #[must_use]
    pub fn position(&self, tag: u64) -> u64 {
        self.open[&tag].group.position
    }

    /// A group that is complete, rewards included, if there is one.
    pub fn finished(&mut self) -> Option<Scored> {
        let scored = self.scoring.as_mut().and_then(|scoring| scoring.pool.try_recv());
        self.take(scored)
    }

    /// As [`Assembly::finished`], but waits for groups that are being scored. `None` when no complete group is left.
    pub fn wait(&mut self) -> Option<Scored> {
        let scored = self.scoring.as_mut().and_then(|scoring| scoring.pool.recv());
        self.take(scored)
    }

    fn take(&mut self, scored: Option<ScoredGroup>) -> Option<Scored> {
        let Some(ScoredGroup { tag, outcomes, logged }) = scored else {
            let tag = self.complete.pop_front()?;
            return self.open.remove(&tag).map(|open| open.group.into());
        };
        let mut group = self.open.remove(&tag).expect("the pool returns what was submitted").group;
        for (completion, outcomes) in group.completions.iter_mut().zip(outcomes) {
            completion.rewards = outcomes;
        }
        group.notes.logged = logged;
        Some(group.into())
    }

    /// Whether nothing is in the engine or being scored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Groups that are being scored.
    #[must_use]
    pub fn scoring(&self) -> usize {
        self.scoring.as_ref().map_or(0, |scoring| scoring.pool.pending())
    }
}
