//! What samples for the step loop: the engine of this process, or workers on other hosts. [`follower`] keeps it on the
//! learner's versions.

pub mod follower;

use shared::{Placed, PolicyVersion, PromptId, RewardOutcome, channel::FleetStatus};

use crate::{
    data::PromptRow,
    engine::{Engine, EngineError, FinishedSequence, GroupRequest, SwapReport, WeightSource},
};

/// Takes prompts and gives completions, by versions of the weights that follow one another. Everything but
/// [`Generator::step`] returns at once.
pub trait Generator {
    /// The version that new groups may count on.
    fn version(&self) -> PolicyVersion;

    /// Sequences that it can do something with at once.
    fn places(&self) -> usize;

    /// Sequences that are being made.
    fn running(&self) -> usize;

    /// Sequences that have not started.
    fn waiting(&self) -> usize;

    /// Whether nothing runs and nothing waits.
    fn is_idle(&self) -> bool {
        self.running() + self.waiting() == 0
    }

    /// Queues a group. `row` is that of a request for all completions of it, which may then come back scored.
    ///
    /// # Errors
    /// A request that it refuses.
    fn add_group(&mut self, request: GroupRequest, row: Option<&PromptRow>) -> Result<(), EngineError>;

    /// Gets on, for milliseconds; the sequences that ended, and what reward functions have said of each where they were scored.
    ///
    /// # Errors
    /// When it is of no further use.
    fn step(&mut self) -> Result<Vec<(FinishedSequence, Vec<RewardOutcome>)>, EngineError>;

    /// Begins to load new weights.
    ///
    /// # Errors
    /// When that version cannot be loaded.
    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError>;

    /// Goes over to the new weights if they are ready.
    ///
    /// # Errors
    /// When they cannot be used, or are refused; the old ones stay.
    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError>;

    /// Whether waiting sequences may start (they may at first).
    fn set_admission(&mut self, admit: bool);

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
    fn handed_over(&mut self, _group: &Placed) {}

    /// Prompts, by row and epoch, of which what was made is not to be trusted any more; each once.
    fn distrusted(&mut self) -> Vec<(PromptId, u32)> {
        Vec::new()
    }
}

impl Generator for Engine {
    fn version(&self) -> PolicyVersion {
        Engine::version(self)
    }

    fn places(&self) -> usize {
        self.options().max_num_seqs
    }

    fn running(&self) -> usize {
        Engine::running(self)
    }

    fn waiting(&self) -> usize {
        Engine::waiting(self)
    }

    fn add_group(&mut self, request: GroupRequest, _: Option<&PromptRow>) -> Result<(), EngineError> {
        Engine::add_group(self, request)
    }

    fn step(&mut self) -> Result<Vec<(FinishedSequence, Vec<RewardOutcome>)>, EngineError> {
        Ok(Engine::step(self)?.into_iter().map(|sequence| (sequence, Vec::new())).collect())
    }

    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        Engine::begin_swap(self, weights)
    }

    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        Engine::try_swap(self)
    }

    fn set_admission(&mut self, admit: bool) {
        Engine::set_admission(self, admit);
    }
}
