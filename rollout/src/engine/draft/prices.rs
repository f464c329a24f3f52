//! What a step takes with so many rows.

use std::time::Duration;

/// Rows of one class.
const CLASS: usize = 4;
/// Weight of the newest measurement.
const NEWEST: f32 = 0.1;

/// Measured seconds of decode steps, by classes of rows.
#[derive(Debug, Default)]
pub struct Prices {
    /// Means of `(rows, seconds)`; 0 rows where nothing was measured.
    classes: Vec<(f32, f32)>,
}

impl Prices {
    /// A step with `rows` rows took so long.
    pub fn add(&mut self, rows: usize, time: Duration) {
        let class = (rows - 1) / CLASS;
        if self.classes.len() <= class {
            self.classes.resize(class + 1, (0.0, 0.0));
        }
        let (mean_rows, mean_seconds) = &mut self.classes[class];
        let (rows, seconds) = (rows as f32, time.as_secs_f32());
        if *mean_rows == 0.0 {
            (*mean_rows, *mean_seconds) = (rows, seconds);
        }
        // The machine is not ours alone: a single late step says little.
        let seconds = seconds.min(2.0 * *mean_seconds);
        *mean_rows += NEWEST * (rows - *mean_rows);
        *mean_seconds += NEWEST * (seconds - *mean_seconds);
    }

    /// Seconds of a step with `rows` rows: between what was measured with fewer and with more. What was never tried is
    /// taken to cost no more than the nearest measurement, so that it is tried.
    pub fn of(&self, rows: usize) -> f32 {
        let rows = rows as f32;
        let measured = || self.classes.iter().filter(|&&(rows, _)| rows > 0.0);
        let below = measured().rev().find(|&&(at, _)| at <= rows);
        let above = measured().find(|&&(at, _)| at > rows);
        match (below, above) {
            (Some(&(r0, s0)), Some(&(r1, s1))) => s0 + (s1 - s0) * (rows - r0) / (r1 - r0),
            (Some(&(_, seconds)), None) | (None, Some(&(_, seconds))) => seconds,
            (None, None) => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_lie_between_their_measurements_and_one_late_step_counts_little() {
        let mut prices = Prices::default();
        let near = |price: f32, expected: f32| (price - expected).abs() < 1e-6;
        assert!(prices.of(3) == prices.of(30), "nothing is known");
        prices.add(4, Duration::from_millis(20));
        prices.add(16, Duration::from_millis(50));
        assert!(near(prices.of(1), 0.02) && near(prices.of(10), 0.035) && near(prices.of(64), 0.05));
        prices.add(4, Duration::from_secs(10));
        assert!(near(prices.of(4), 0.022), "counted as twice the mean, with a tenth of the weight");
        for _ in 0..100 {
            prices.add(4, Duration::from_millis(10));
        }
        assert!(prices.of(4) < 0.0101, "what changes is followed");
    }
}
