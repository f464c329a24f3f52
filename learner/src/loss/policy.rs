//! Policy terms: per-token losses as functions of ratio and advantage.
//!
//! Each is a small function of `[N]` tensors inside the autograd graph, so a further method is a further function.

use tch::Tensor;

/// `π(token) / π_old(token)`, `[N]`. Without `old_logprobs_N` the old policy is the current one: the ratio is 1 and its
/// derivative is that of the log-prob.
pub fn ratio(logprobs_N: &Tensor, old_logprobs_N: Option<&Tensor>) -> Tensor {
    match old_logprobs_N {
        Some(old_N) => (logprobs_N - old_N).exp(),
        None => (logprobs_N - logprobs_N.detach()).exp(),
    }
}

/// PPO's clipped surrogate, negated: `−min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A)` (Schulman et al. 2017 eq. 7; DAPO's
/// clip-higher when the two bounds differ). `[N]`.
pub fn clipped(ratio_N: &Tensor, advantages_N: &Tensor, epsilon_low: f64, epsilon_high: f64) -> Tensor {
    let bounded_N = ratio_N.clamp(1.0 - epsilon_low, 1.0 + epsilon_high);
    (ratio_N * advantages_N).minimum(&(bounded_N * advantages_N)).neg()
}
