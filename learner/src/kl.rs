//! Estimators of the KL divergence from the reference policy (Schulman 2020, "Approximating KL divergence").

#![deny(clippy::wildcard_enum_match_arm)]

use shared::config::KlEstimator;
use tch::Tensor;

use crate::verl::LOG_RATIO_BOUND;

/// verl's bound on the value of k3.
const VALUE_BOUND: f64 = 10.0;

/// Estimates of each token, `[N]` to `[N]`. `bounded` gives k3 verl's bounds (log-ratio within ±20, value within ±10,
/// no gradient beyond them); TRL's k3 has none.
pub fn estimate(estimator: KlEstimator, logprobs_N: &Tensor, ref_logprobs_N: &Tensor, bounded: bool) -> Tensor {
    let difference_N = logprobs_N - ref_logprobs_N;
    match estimator {
        KlEstimator::K1 => difference_N,
        KlEstimator::K2 | KlEstimator::Mse => k2(&difference_N),
        KlEstimator::K3 => k3(&difference_N.neg(), bounded),
        KlEstimator::Abs => difference_N.abs(),
        KlEstimator::K1Plus => straight_through(&difference_N, &k2(&difference_N)),
        KlEstimator::K3Plus => straight_through(&k3(&difference_N.neg(), bounded), &k2(&difference_N)),
    }
}

/// The estimate of one token, with verl's bounds. Nothing is differentiated, so the straight-through forms equal their
/// values. verl `kl_penalty`.
#[must_use]
pub fn value(estimator: KlEstimator, logprob: f64, ref_logprob: f64) -> f64 {
    let difference = logprob - ref_logprob;
    match estimator {
        KlEstimator::K1 | KlEstimator::K1Plus => difference,
        KlEstimator::K2 | KlEstimator::Mse => 0.5 * difference * difference,
        KlEstimator::Abs => difference.abs(),
        KlEstimator::K3 | KlEstimator::K3Plus => {
            k3_value((-difference).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)).clamp(-VALUE_BOUND, VALUE_BOUND)
        }
    }
}

/// Half the squared difference.
fn k2(difference_N: &Tensor) -> Tensor {
    difference_N.square() * 0.5
}

/// `exp(d) − d − 1` with `d = ref_logprobs − logprobs`: unbiased, never negative, 0 where the policies agree.
fn k3(difference_N: &Tensor, bounded: bool) -> Tensor {
    if bounded {
        let difference_N = difference_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND);
        (difference_N.exp() - difference_N - 1.0).clamp(-VALUE_BOUND, VALUE_BOUND)
    } else {
        difference_N.exp() - difference_N - 1.0
    }
}

/// The value of one, the gradient of the other.
fn straight_through(value_N: &Tensor, gradient_N: &Tensor) -> Tensor {
    gradient_N - gradient_N.detach() + value_N.detach()
}

/// k3 of a number, with `d = other − own`; exact near 0, where `exp(d) − 1` would cancel.
#[must_use]
pub fn k3_value(difference: f64) -> f64 {
    difference.exp_m1() - difference
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worked_point() {
        let (own, reference) = (Tensor::from_slice(&[-1.0]), Tensor::from_slice(&[-1.5]));
        let of_tensor = |estimator| estimate(estimator, &own, &reference, false).double_value(&[0]);
        assert_eq!(of_tensor(KlEstimator::K1), 0.5);
        assert_eq!(of_tensor(KlEstimator::K2), 0.125);
        assert!((of_tensor(KlEstimator::K3) - 0.106_530_659_712_633_4).abs() < 1e-12);
    }

    #[test]
    fn numbers_and_tensors_have_the_same_estimates_also_at_the_bounds() {
        use KlEstimator::{Abs, K1, K1Plus, K2, K3, K3Plus, Mse};
        for (own, reference) in [(-1.0, -1.5), (-1.5, -1.0), (-0.1, -40.0), (-40.0, -0.1), (-9.0, -3.0)] {
            let (own_N, reference_N) = (Tensor::from_slice(&[own]), Tensor::from_slice(&[reference]));
            for estimator in [K1, K1Plus, K2, K3, K3Plus, Mse, Abs] {
                let tensor = estimate(estimator, &own_N, &reference_N, true).double_value(&[0]);
                let number = value(estimator, own, reference);
                assert!((tensor - number).abs() < 1e-12, "{estimator:?}: {tensor} is not {number}");
            }
        }
    }

    /// Over a vocabulary of five, the expectation of k1 and of k3 is the divergence.
    #[test]
    fn k1_and_k3_are_unbiased() {
        let own = Tensor::from_slice(&[0.3, -1.0, 0.2, 2.0, -0.4]).log_softmax(0, None);
        let reference = Tensor::from_slice(&[0.0, 0.5, -0.2, 1.0, -2.0]).log_softmax(0, None);
        let divergence = (own.exp() * (&own - &reference)).sum(None).double_value(&[]);
        for estimator in [KlEstimator::K1, KlEstimator::K3] {
            let values = estimate(estimator, &own, &reference, true);
            let mean = (own.exp() * values).sum(None).double_value(&[]);
            assert!((mean - divergence).abs() < 1e-12);
        }
    }
}
