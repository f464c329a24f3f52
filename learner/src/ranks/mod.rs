//! A learner of several ranks: each passes over its share of a step's completions, and all make the same update.
//!
//! Every rank has the whole model, the whole batch and the whole schedule. Only passes are shared out, by whole groups and
//! balanced by tokens ([`crate::batch::share`]); what they find of a token, and the gradient, is added up over the ranks
//! before anything reads it. So losses and their normalisers see all completions, as one learner would, and every rank
//! goes on with the same bits.

mod crew;
mod gloo;

use std::fmt;

use tch::Tensor;

use crate::error::LearnerError;

pub use crew::{Crew, serve, show_life};
pub use gloo::{Gloo, Meeting};

/// The ranks of a learner, as one of them sees them. All must call the same methods in the same order.
pub trait Ranks: fmt::Debug + Send + Sync {
    /// Which one this is, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn count(&self) -> usize;

    /// Replaces each value by the sum of it over all ranks. The order of the addends hangs on nothing but the number of
    /// ranks and values, so that every rank gets the same bits, today and tomorrow.
    ///
    /// # Errors
    /// A rank that is gone or silent.
    fn sum(&self, values: &mut [f64]) -> Result<(), LearnerError>;

    /// As [`Ranks::sum`], of a contiguous tensor in place.
    ///
    /// # Errors
    /// As [`Ranks::sum`].
    fn sum_tensor(&self, values: &Tensor) -> Result<(), LearnerError>;

    /// The value that the first rank has.
    ///
    /// # Errors
    /// As [`Ranks::sum`].
    fn of_first(&self, value: f64) -> Result<f64, LearnerError> {
        let mut shared = [if self.rank() == 0 { value } else { 0.0 }];
        self.sum(&mut shared)?;
        Ok(shared[0])
    }
}

/// A learner of one rank.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn sum(&self, _: &mut [f64]) -> Result<(), LearnerError> {
        Ok(())
    }

    fn sum_tensor(&self, _: &Tensor) -> Result<(), LearnerError> {
        Ok(())
    }
}
