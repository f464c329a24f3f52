//! A learner of several ranks: each passes over its share of a step's completions, and all make the same update.
//!
//! Every rank has the whole model, the whole batch and the whole schedule. Only passes are shared out, by whole groups
//! and balanced by tokens ([`crate::batch::share`]); their values for each token, and the gradient, are summed over the
//! ranks before anything reads them. So losses and their normalisers see all completions, as one learner would, and
//! every rank goes on with the same bits.
//!
//! With `shard_optimizer` each rank has the optimiser's moments of its own [`shard`] of the flat buffer alone. It gets
//! the sum of that shard's gradient, moves that shard, and the others take the moved values from it.
//!
//! [`crate::crew`] has the orders that ranks follow, and the way in which they meet.
//!
//! Ranks find each other through torch's store ([`TorchStore`]). Ranks that others have started also show there that
//! they live ([`Signs`]). Everything else goes through torch's process group ([`Gloo`]). Each rank on a GPU has a GPU
//! of its own. libtorch does not ship all headers of Gloo, so `gloo.cpp` is compiled with stand-ins.

mod flat;
mod gloo;
mod shim;
mod signs;
mod store;

use std::{fmt, ops::Range};

use tch::{Device, Kind, Tensor};

use crate::error::LearnerError;

pub(crate) use flat::pieces;
pub use flat::{BUCKET_BYTES, copy, gather, shard, sum, sum_shards};
pub(crate) use gloo::CONNECT;
pub use gloo::{Gloo, Joined};
pub(crate) use shim::instructions;
pub(crate) use signs::{SIGN, SILENCE};
pub use signs::{Signs, Watch};
pub use store::TorchStore;

/// The ranks of a learner, as one of them sees them. All must call the same methods in the same order.
pub trait Ranks: fmt::Debug + Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn count(&self) -> usize;

    /// Replaces each value by its sum over all ranks. The order of the addends depends only on the numbers of ranks and
    /// values, so every rank gets the same bits, in every run.
    ///
    /// # Errors
    /// A rank that is gone or silent.
    fn sum(&self, values: &mut [f64]) -> Result<(), LearnerError>;

    /// As [`Ranks::sum`], of a contiguous tensor in place.
    ///
    /// # Errors
    /// As [`Ranks::sum`].
    fn sum_tensor(&self, values: &Tensor) -> Result<(), LearnerError>;

    /// As [`Ranks::sum_tensor`], but only `owner` gets the sum; the values of the others are then of no use.
    ///
    /// # Errors
    /// As [`Ranks::sum`].
    fn sum_at(&self, values: &Tensor, owner: usize) -> Result<(), LearnerError>;

    /// Gives all ranks `owner`'s values of a contiguous tensor.
    ///
    /// # Errors
    /// As [`Ranks::sum`].
    fn copy_of(&self, values: &Tensor, owner: usize) -> Result<(), LearnerError>;

    /// The value that the first rank has.
    ///
    /// # Errors
    /// As [`Ranks::sum`].
    fn of_first(&self, value: f64) -> Result<f64, LearnerError> {
        let mut shared = [if self.rank() == 0 { value } else { 0.0 }];
        self.sum(&mut shared)?;
        Ok(shared[0])
    }

    /// The bytes that the first rank has.
    ///
    /// # Errors
    /// As [`Ranks::sum`].
    fn bytes_of_first(&self, bytes: Vec<u8>) -> Result<Vec<u8>, LearnerError> {
        let length = self.of_first(bytes.len() as f64)? as usize;
        if self.count() == 1 || length == 0 {
            return Ok(if self.rank() == 0 { bytes } else { Vec::new() });
        }
        let shared = match self.rank() {
            0 => Tensor::from_slice(&bytes),
            _ => Tensor::zeros([length as i64], (Kind::Uint8, Device::Cpu)),
        };
        self.copy_of(&shared, 0)?;
        Ok(if self.rank() == 0 { bytes } else { Vec::try_from(&shared)? })
    }

    /// The part of a flat buffer that is this rank's.
    fn own_shard(&self, length: i64) -> Range<i64> {
        shard(length, self.rank(), self.count())
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

    fn sum_at(&self, _: &Tensor, _: usize) -> Result<(), LearnerError> {
        Ok(())
    }

    fn copy_of(&self, _: &Tensor, _: usize) -> Result<(), LearnerError> {
        Ok(())
    }
}
