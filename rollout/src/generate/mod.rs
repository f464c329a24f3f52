//! The seam between whatever makes tokens and whoever uses them.
//!
//! [`Generate`] is what callers know: an engine in this process, workers on other hosts, or a script in a test.
//! [`drive`] is the one loop over it; what a caller does between two steps is its [`Work`]. [`follower`] keeps a
//! generator on the learner's versions. [`pair`] is what a pair asks beyond that, for the sake of workers.

pub mod drive;
pub mod follower;
pub mod pair;
#[cfg(test)]
pub(crate) mod testing;

pub use drive::{Next, Work, drive, finish};
pub use pair::{Conversed, PairGenerator};

use shared::PolicyVersion;

use crate::engine::{Engine, EngineError, FinishedSequence, Output, Request, SwapReport, WeightSource};

/// Takes prompts and gives completions, by versions of the weights that follow one another. Everything but
/// [`Generate::advance`] returns at once.
pub trait Generate {
    /// The version that new requests may count on.
    fn version(&self) -> PolicyVersion;

    /// Sequences that it can do something with at once.
    fn capacity(&self) -> usize;

    /// Sequences that are being made.
    fn running(&self) -> usize;

    /// Sequences that have not started.
    fn waiting(&self) -> usize;

    /// Whether nothing runs and nothing waits.
    fn is_idle(&self) -> bool {
        self.running() + self.waiting() == 0
    }

    /// Whether it can only wait: nothing is to be computed until somebody else answers.
    fn waits(&self) -> bool {
        false
    }

    /// Queues a request: a prompt, or what comes after a [`State`](crate::engine::State) that an earlier one has left.
    ///
    /// # Errors
    /// A request that it refuses.
    fn begin(&mut self, request: Request) -> Result<(), EngineError>;

    /// Gets on, for milliseconds, and says what came of it. [`drive`] alone calls this.
    ///
    /// # Errors
    /// When it is of no further use.
    fn advance(&mut self) -> Result<Vec<Output>, EngineError>;

    /// Ends one completion of the requests with a tag, or all of them: what is still to come of them is not wanted.
    /// Returns them as [`Aborted`](shared::FinishReason::Aborted), with the tokens that there are; those that were made
    /// elsewhere and that [`Generate::advance`] has not told of yet as they are.
    fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence>;

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
}

impl Generate for Engine {
    fn version(&self) -> PolicyVersion {
        Self::version(self)
    }

    fn capacity(&self) -> usize {
        self.options().max_num_seqs
    }

    fn running(&self) -> usize {
        Self::running(self)
    }

    fn waiting(&self) -> usize {
        Self::waiting(self)
    }

    fn begin(&mut self, request: Request) -> Result<(), EngineError> {
        Self::begin(self, request)
    }

    fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        Self::advance(self)
    }

    fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        Self::cancel(self, tag, sample)
    }

    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        Self::begin_swap(self, weights)
    }

    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        Self::try_swap(self)
    }

    fn set_admission(&mut self, admit: bool) {
        Self::set_admission(self, admit);
    }
}
