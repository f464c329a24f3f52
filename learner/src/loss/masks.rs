//! Masks of tokens: those of high entropy, those of completions that the policy has not moved away from, and those with
//! the largest values.

use tch::{Kind, Tensor};

use super::rows::Rows;

/// 1 for the share `quantile` of tokens with the highest entropy, `[N]` float64 (Wang et al. 2025, "Beyond the 80/20
/// rule"; TRL `top_entropy_quantile`). The threshold is interpolated linearly in float32, as torch and TRL do.
pub fn top_entropy(entropies_N: &Tensor, quantile: f64) -> Tensor {
    if entropies_N.numel() == 0 {
        return entropies_N.to_kind(Kind::Double);
    }
    let threshold = entropies_N.to_kind(Kind::Float).quantile_scalar(1.0 - quantile, None::<i64>, false, "linear");
    entropies_N.ge(threshold.double_value(&[])).to_kind(Kind::Double)
}

/// True for the `count` tokens with the largest values, `[N]`.
pub fn largest(values_N: &Tensor, count: i64) -> Tensor {
    let (_, places) = values_N.topk(count, 0, true, false);
    values_N.zeros_like().to_kind(Kind::Bool).index_fill(0, &places, 1)
}

/// 0 for tokens with a negative advantage in rows whose mean `−log_ratio` is above the threshold, `[N]` float64
/// (DeepSeek-V3.2 eq. 9; TRL `off_policy_mask_threshold`). The log-ratio is taken to the sampling policy, so both the
/// updates since then and the mismatch between sampler and learner count.
pub fn off_policy(log_ratio_N: &Tensor, advantages_N: &Tensor, rows: &Rows, threshold: f64) -> Tensor {
    let distance_N = rows.spread(&rows.mean(&log_ratio_N.neg()));
    advantages_N.ge(0.0).logical_or(&distance_N.le(threshold)).to_kind(Kind::Double)
}
