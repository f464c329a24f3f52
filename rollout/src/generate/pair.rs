//! What a pair asks of a generator beyond [`Generate`]: where workers generate, it has to know of them.

use std::sync::Arc;

use shared::{Episode, Exchange, Logged, Placed, PromptId, RewardOutcome, channel::FleetStatus};

use super::Generate;
use crate::{
    data::PromptRow,
    engine::{Engine, EngineError, FinishedSequence, Request},
};

/// A conversation that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversed {
    /// The tag of its group.
    pub tag: u64,
    /// Its index within the group.
    pub sample: u32,
    /// Its prompt, with the first words of its environment; none where that failed before there was a prompt.
    pub prompt_ids: Option<Arc<[u32]>>,
    /// Its tokens after the prompt.
    pub episode: Episode,
    /// What it has beside its tokens.
    pub exchange: Exchange,
    /// One outcome for each rater, in the order of the raters; none where they were not asked.
    pub rewards: Vec<RewardOutcome>,
    /// What raters have logged of its group. One conversation of the group has it.
    pub logged: Logged,
    /// Whether its group was dropped before for its stragglers.
    pub is_drawn_again: bool,
}

/// A generator as a pair has it. What is said here of workers is the answer of a generator without any.
pub trait PairGenerator: Generate {
    /// As [`Generate::begin`], of a request for all completions of `row`, which may then come back scored.
    ///
    /// # Errors
    /// A request that it refuses.
    fn begin_row(&mut self, request: Request, row: &PromptRow) -> Result<(), EngineError> {
        let _ = row;
        self.begin(request)
    }

    /// As [`Generate::begin`], of a request for some completions of `row`, of which the others are there.
    ///
    /// # Errors
    /// A request that it refuses.
    fn begin_rest(&mut self, request: Request, row: &PromptRow) -> Result<(), EngineError> {
        let _ = row;
        self.begin(request)
    }

    /// The conversation that has ended with a sequence that the last [`Generate::advance`] returned, where completions
    /// are conversations.
    fn take_conversation(&mut self, sequence: &FinishedSequence) -> Option<Conversed> {
        let _ = sequence;
        None
    }

    /// What reward functions have said of a sequence that the last [`Generate::advance`] returned, where they were
    /// asked beside the generator.
    fn take_rewards(&mut self, sequence: &FinishedSequence) -> Vec<RewardOutcome> {
        let _ = sequence;
        Vec::new()
    }

    /// Whether it computes on this host.
    fn is_here(&self) -> bool {
        true
    }

    /// What workers are and have done, where there are any.
    fn fleet(&self) -> Option<FleetStatus> {
        None
    }

    /// The run is over.
    fn close(&mut self) {}

    /// A group of its sequences is on its way to the learner.
    fn handed_over(&mut self, group: &Placed) {
        let _ = group;
    }

    /// Prompts, by row and epoch, of which what was made is not to be trusted any more; each once.
    fn distrusted(&mut self) -> Vec<(PromptId, u32)> {
        Vec::new()
    }
}

impl PairGenerator for Engine {}
