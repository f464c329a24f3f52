//! The trainer of this rank, and the orders with which the other ranks do what it does.

use shared::{Placed, PolicyVersion, config::TrainConfig};

use crate::{
    crew::Crew,
    error::LearnerError,
    model::Decoder,
    step::{Allows, StepBatch, TrainedStep, Trainer},
};

/// The trainer of a run, which may be several processes.
pub struct DistributedTrainer {
    /// That of this rank, which is the first.
    first: Trainer,
    /// The further ranks; none of a learner that is one process.
    crew: Option<Crew>,
}

impl DistributedTrainer {
    /// Joins a trainer and the ranks that it is one of.
    pub fn new(first: Trainer, crew: Option<Crew>) -> Self {
        Self { first, crew }
    }

    /// The trainer of this rank. After each step, all ranks have the same weights.
    pub fn first(&self) -> &Trainer {
        &self.first
    }

    /// The policy as it is now.
    pub fn policy(&self) -> &Decoder {
        self.first.policy().model()
    }

    /// Trains all ranks on the groups of a step, as long as `allows` lets them. `step` is the number of steps done
    /// before it.
    ///
    /// # Errors
    /// As [`Trainer::step`]; a rank that is gone.
    pub fn train<'g>(
        &mut self,
        groups: &'g [Placed],
        step: u64,
        config: &TrainConfig,
        allows: &mut Allows<'_>,
    ) -> Result<(StepBatch<'g>, TrainedStep), LearnerError> {
        if let Some(crew) = &mut self.crew {
            crew.train(step, groups)?;
        }
        let batch = StepBatch::new(groups, config, PolicyVersion(step));
        let trained = self.first.step_if(&batch, step, allows)?;
        Ok((batch, trained))
    }

    /// Multiplies the policy's learning rate with `factor` from now on.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn lower_learning_rate(&mut self, factor: f64) -> Result<(), LearnerError> {
        self.first.lower_learning_rate(factor);
        self.crew.as_mut().map_or(Ok(()), |crew| crew.lower_learning_rate(factor))
    }

    /// Asks the other ranks for their parts of the optimisers' state, which is written next.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn ask_for_parts(&mut self) -> Result<(), LearnerError> {
        let sharded = self.first.policy().is_sharded();
        self.crew.as_mut().filter(|_| sharded).map_or(Ok(()), Crew::save)
    }

    /// Lets the other ranks go for good.
    ///
    /// # Errors
    /// A rank that is gone, and has not heard of the end.
    pub fn end(&mut self) -> Result<(), LearnerError> {
        self.crew.take().map_or(Ok(()), |crew| crew.end(true))
    }

    /// Makes room for the trainer that takes this one's place, to which the other ranks come again.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn give_way(self) -> Result<(), LearnerError> {
        let Self { first, crew } = self;
        // Its memory is needed for the one that takes its place.
        drop(first);
        crew.map_or(Ok(()), |crew| crew.end(false))
    }
}
