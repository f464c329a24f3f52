//! Mean and standard deviation where values may be missing.

/// numpy's `isclose` to 0.
const ZERO_STD: f64 = 1e-8;

/// Mean and standard deviation of the values that are present.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// NaN without any.
    pub mean: f64,
    /// With n − 1; NaN with fewer than two.
    pub std: f64,
    /// Number of values.
    pub count: usize,
}

impl Moments {
    /// Moments of the values that are not `None`.
    #[must_use]
    pub fn of(values: &[Option<f64>]) -> Self {
        let known: Vec<f64> = values.iter().flatten().copied().collect();
        let count = known.len();
        if let Some(&first) = known.first()
            && known.iter().all(|&v| v == first)
        {
            // The mean of equal numbers is that number, to the last bit: a group without contrast has advantage 0.
            return Self { mean: first, std: if count > 1 { 0.0 } else { f64::NAN }, count };
        }
        if known.is_empty() {
            return Self { mean: f64::NAN, std: f64::NAN, count };
        }
        let (mean, std) = mean_and_std(&known);
        let largest = known.iter().fold(0.0_f64, |largest, v| largest.max(v.abs()));
        if std.is_finite() || !largest.is_finite() {
            return Self { mean, std, count };
        }
        // The sum or the squares have overflowed, and no completion would have an advantage.
        let scaled: Vec<f64> = known.iter().map(|v| v / largest).collect();
        let (mean, std) = mean_and_std(&scaled);
        Self { mean: mean * largest, std: std * largest, count }
    }
}

fn mean_and_std(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

/// Whether a standard deviation counts as 0; NaN does not.
pub(super) fn is_zero(std: f64) -> bool {
    std.abs() <= ZERO_STD
}

/// Rows of each group, in order of first appearance.
pub(super) fn members(groups: &[usize]) -> Vec<Vec<usize>> {
    let mut found: Vec<(usize, Vec<usize>)> = Vec::new();
    for (row, &group) in groups.iter().enumerate() {
        match found.iter_mut().rev().find(|(id, _)| *id == group) {
            Some((_, rows)) => rows.push(row),
            None => found.push((group, vec![row])),
        }
    }
    found.into_iter().map(|(_, rows)| rows).collect()
}

/// The given rows of a list.
pub(super) fn pick<T: Copy>(values: &[T], rows: &[usize]) -> Vec<T> {
    rows.iter().map(|&row| values[row]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_whose_squares_or_sum_overflow_have_their_moments_all_the_same() {
        for size in [1.0, 1e200, 1e308] {
            let found = Moments::of(&[Some(size), None, Some(-size), Some(size), Some(size)]);
            assert!((found.mean / size - 0.5).abs() < 1e-12 && (found.std / size - 1.0).abs() < 1e-12, "{found:?}");
        }
    }
}
