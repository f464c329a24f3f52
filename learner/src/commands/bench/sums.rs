//! How fast ranks add up a flat buffer.

use std::time::Instant;

use tch::Tensor;

use crate::{
    error::LearnerError,
    ranks::{self, Ranks},
};

/// Number of sums that are measured each way, by turns.
const ROUNDS: usize = 5;

/// Gigabytes per second at which the ranks sum a buffer of this size, in buckets and at once: medians, absent for one
/// rank.
pub fn rates(all: &dyn Ranks, flat: &Tensor) -> Result<[Option<f64>; 2], LearnerError> {
    if all.count() == 1 {
        return Ok([None; 2]);
    }
    let values = flat.zeros_like();
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..=ROUNDS {
        for (at_once, seconds) in [false, true].into_iter().zip(&mut seconds) {
            // All begin together.
            all.of_first(0.0)?;
            let start = Instant::now();
            if at_once {
                all.sum_tensor(&values)?;
            } else {
                ranks::sum(all, &values)?;
            }
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    let bytes = (values.numel() * values.kind().elt_size_in_bytes()) as f64;
    Ok(seconds.map(|seconds| Some(bytes / super::median(seconds[1..].to_vec()) / 1e9)))
}
