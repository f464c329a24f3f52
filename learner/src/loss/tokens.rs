//! The inputs of an objective: a run of tokens.

use std::ops::Range;

use tch::{Device, Tensor};

use super::rows::Rows;

/// Correction for the mismatch between sampler and learner.
#[derive(Debug)]
pub struct Importance {
    /// Weight of each token, `[N]`.
    pub weights_N: Tensor,
    /// Whether a row's tokens share one weight, which then is that of the whole row.
    pub per_sequence: bool,
}

/// A run of tokens; all `[N]` float64.
#[derive(Debug)]
pub struct Tokens {
    /// Rows that they belong to.
    pub rows: Rows,
    /// Log-probs under the old policy, which the ratio is taken to; absent = the current policy is the old one.
    pub old_logprobs_N: Option<Tensor>,
    /// Log-probs under the distribution that the tokens were drawn from; absent = that of `old_logprobs_N`.
    pub sampling_logprobs_N: Option<Tensor>,
    /// Log-probs under the reference policy.
    pub ref_logprobs_N: Option<Tensor>,
    /// Advantages.
    pub advantages_N: Tensor,
    /// Factor of the policy term (VESPO and GMPO apply it inside their formulas).
    pub importance: Option<Importance>,
    /// A number in (0, 1) for each token, by which a loss draws some; absent for losses that draw none.
    pub lots_N: Option<Tensor>,
    /// Weights of the reduction.
    pub weights_N: Tensor,
    /// Weights of the entropies in the bonus when no token is masked.
    pub entropy_weights_N: Tensor,
}

impl Tokens {
    /// The tokens with the given numbers.
    #[must_use]
    pub fn slice(&self, run: &Range<i64>) -> Self {
        let part = |x: &Tensor| x.narrow(0, run.start, run.end - run.start);
        Self {
            rows: self.rows.slice(run),
            old_logprobs_N: self.old_logprobs_N.as_ref().map(part),
            sampling_logprobs_N: self.sampling_logprobs_N.as_ref().map(part),
            ref_logprobs_N: self.ref_logprobs_N.as_ref().map(part),
            advantages_N: part(&self.advantages_N),
            importance: self
                .importance
                .as_ref()
                .map(|i| Importance { weights_N: part(&i.weights_N), per_sequence: i.per_sequence }),
            lots_N: self.lots_N.as_ref().map(part),
            weights_N: part(&self.weights_N),
            entropy_weights_N: part(&self.entropy_weights_N),
        }
    }

    /// A tensor of host values on a device.
    pub fn column(values: &[f64], device: Device) -> Tensor {
        Tensor::from_slice(values).to_device(device)
    }
}
