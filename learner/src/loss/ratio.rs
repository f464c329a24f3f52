//! Importance ratios of the policy to the old policy.

use shared::config::ImportanceSamplingLevel;
use tch::Tensor;

use super::rows::Rows;

/// verl's upper bound on the log-ratio of GSPO.
const GSPO_BOUND: f64 = 10.0;

/// `logprobs − old_logprobs`, `[N]`. Without old log-probs the old policy is the current one: the value is 0 and the
/// derivative that of the log-prob.
pub fn log_ratio(logprobs_N: &Tensor, old_logprobs_N: Option<&Tensor>) -> Tensor {
    match old_logprobs_N {
        Some(old_N) => logprobs_N - old_N,
        None => logprobs_N - logprobs_N.detach(),
    }
}

/// The ratio of each token or, at sequence level, the geometric mean of its row's ratios (GSPO eq. 7), `[N]`. `bound`
/// limits the log-ratio to ±bound.
pub fn ratio(log_ratio_N: &Tensor, rows: &Rows, level: ImportanceSamplingLevel, bound: Option<f64>) -> Tensor {
    let log_N = match level {
        ImportanceSamplingLevel::Token => log_ratio_N.shallow_clone(),
        ImportanceSamplingLevel::Sequence => rows.spread(&rows.mean(log_ratio_N)),
    };
    bounded(&log_N, bound).exp()
}

/// GSPO-token: the value of the sequence's ratio, the gradient of the token's log-prob (GSPO eq. 14; verl `gspo`).
pub fn gspo_token(logprobs_N: &Tensor, log_ratio_N: &Tensor, rows: &Rows) -> Tensor {
    let sequence_N = rows.spread(&rows.mean(&log_ratio_N.detach()));
    (logprobs_N - logprobs_N.detach() + sequence_N).clamp_max(GSPO_BOUND).exp()
}

/// Values limited to ±bound.
pub fn bounded(values_N: &Tensor, bound: Option<f64>) -> Tensor {
    match bound {
        Some(bound) => values_N.clamp(-bound, bound),
        None => values_N.shallow_clone(),
    }
}
