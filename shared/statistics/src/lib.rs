//! Intervals and tests of means, for evaluations, comparisons of two models, and sweeps.
//!
//! An observation is whatever varies independently of the others: a prompt of an evaluation, a seed of a sweep.

#![forbid(unsafe_code)]

pub mod interval;

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Share of intervals that hold the true value.
pub const CONFIDENCE: f64 = 0.95;

/// The mean; NaN without values.
#[must_use]
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    sum / count as f64
}

/// The mean and its standard error; NaN where there are too few values.
#[must_use]
pub fn mean_and_error(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let mean = mean(values.clone());
    let (squares, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + (value - mean).powi(2), count + 1.0));
    (mean, (squares / (count - 1.0) / count).sqrt())
}

/// A mean of differences between paired observations, and whether it is different from 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Paired {
    /// The mean of the differences.
    pub difference: f64,
    /// Lower and upper end of its 95 % interval: Student's t.
    pub interval: [f64; 2],
    /// The chance of a difference as large as this one where there is none: by a two-sided t-test or, where all
    /// differences are the same, by a sign test.
    pub p_value: f64,
}

/// Tests differences, one for each pair of observations. `None` for fewer than two.
#[must_use]
pub fn paired(differences: &[f64]) -> Option<Paired> {
    let freedom = students_t(differences.len())?;
    let (difference, error) = mean_and_error(differences.iter().copied());
    let half = error * reach(&freedom);
    let p_value = match error {
        0.0 if difference == 0.0 => 1.0,
        // All differences are the same, so they say nothing of their variance. The sign test remains: all have one
        // sign, as tossed coins may.
        0.0 => 0.5_f64.powi(differences.len() as i32 - 1),
        _ => 2.0 * freedom.sf((difference / error).abs()),
    };
    Some(Paired { difference, interval: [difference - half, difference + half], p_value })
}

/// P-values of several tests, corrected such that the chance of any false discovery among all of them is that of one
/// test (Holm 1979, step-down). In the order of the tests.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let (mut corrected, mut least) = (vec![1.0; p_values.len()], 0.0_f64);
    for (rank, &test) in order.iter().enumerate() {
        // A larger p-value never becomes smaller than a smaller one's.
        least = least.max((p_values.len() - rank) as f64 * p_values[test]).min(1.0);
        corrected[test] = least;
    }
    corrected
}

/// Student's t for the mean of `count` values; `None` for fewer than two.
fn students_t(count: usize) -> Option<StudentsT> {
    StudentsT::new(0.0, 1.0, count.checked_sub(1)? as f64).ok()
}

/// How many standard errors an interval reaches to either side.
fn reach(distribution: &impl ContinuousCDF<f64, f64>) -> f64 {
    distribution.inverse_cdf(0.5 + CONFIDENCE / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean is 2.77746 standard errors. Student's t of 3 degrees of freedom has a closed form, by which the p-value
    /// is 0.069137.
    #[test]
    fn a_paired_test_is_students() {
        let found = paired(&[0.1, 0.3, 0.2, 0.6]).unwrap();
        assert!((found.difference - 0.3).abs() < 1e-12 && (found.p_value - 0.069137).abs() < 1e-6, "{found:?}");
        // The t-value of 3 degrees of freedom is 3.1824; the error is 0.1080.
        assert!((found.interval[0] + 0.0437).abs() < 5e-4 && (found.interval[1] - 0.6437).abs() < 5e-4, "{found:?}");
        assert_eq!(paired(&[0.5]), None);
        assert_eq!(paired(&[]), None);
    }

    /// In their order, the values are multiplied by 4, 3, 2 and 1, and none falls below the one before.
    #[test]
    fn corrected_values_are_holms_and_keep_the_order() {
        let near = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(near(&holm(&[0.01, 0.04, 0.03, 0.005]), &[0.03, 0.06, 0.06, 0.02]));
        assert!(near(&holm(&[0.9, 0.8]), &[1.0, 1.0]));
        assert!(near(&holm(&[0.02]), &[0.02]) && holm(&[]).is_empty());
    }
}
