//! Estimators of the KL divergence from the reference policy (Schulman 2020, "Approximating KL divergence").

use tch::Tensor;

/// k3: `exp(d) − d − 1` with `d = ref_logprobs − logprobs`. Unbiased, never negative, 0 where the policies agree.
/// `[N]` to `[N]`.
pub fn k3(logprobs_N: &Tensor, ref_logprobs_N: &Tensor) -> Tensor {
    let difference_N = ref_logprobs_N - logprobs_N;
    difference_N.exp() - difference_N - 1.0
}

/// k3 of numbers on the host, with `d = other − own`; exact near 0, where `exp(d) − 1` would cancel.
#[must_use]
pub fn k3_value(difference: f64) -> f64 {
    difference.exp_m1() - difference
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    /// verl clamps the log-ratio to [-20, 20] and the value to [-10, 10]; the cases where neither happens must agree.
    #[test]
    fn golden_kl_estimators_k3() {
        let golden = ::tests::golden("kl_estimators.json");
        let matrix = |v: &serde_json::Value| -> Vec<f64> {
            let rows = v.as_array().unwrap();
            rows.iter().flat_map(|r| r.as_array().unwrap().iter().map(|x| x.as_f64().unwrap())).collect()
        };
        let mut compared = 0;
        for case in golden["cases"].as_array().unwrap() {
            if !["k3", "low_var_kl"].contains(&case["params"]["estimator"].as_str().unwrap()) {
                continue;
            }
            let (logprobs, reference) = (matrix(&case["inputs"]["logps"]), matrix(&case["inputs"]["ref_logps"]));
            let weights = Tensor::from_slice(&matrix(&case["inputs"]["weights"]));
            let (kl, slope) = (matrix(&case["expected"]["kl"]), matrix(&case["expected"]["grad_of_weighted_sum"]));
            let own = Tensor::from_slice(&logprobs).set_requires_grad(true);
            let value = k3(&own, &Tensor::from_slice(&reference));
            let found = Vec::<f64>::try_from(value.detach()).unwrap();
            let slopes = Tensor::run_backward(&[(value * weights).sum(None::<Kind>)], &[&own], false, false);
            let slopes = Vec::<f64>::try_from(&slopes[0]).unwrap();
            for i in 0..kl.len() {
                if (reference[i] - logprobs[i]).abs() >= 20.0 || found[i] >= 10.0 {
                    continue;
                }
                let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
                assert!(close(found[i], kl[i]), "{}: {} instead of {}", case["name"], found[i], kl[i]);
                assert!(close(slopes[i], slope[i]), "{}: slope {} instead of {}", case["name"], slopes[i], slope[i]);
                assert!(close(k3_value(reference[i] - logprobs[i]), kl[i]));
                compared += 1;
            }
        }
        assert!(compared > 0);
    }
}
