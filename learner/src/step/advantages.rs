//! Advantages of tokens, once the log-probs that they may depend on are known.

use shared::config::TrainConfig;

use super::StepBatch;

/// Added to the standard deviation of `normalize_advantages` (RLinf `masked_normalization`).
const EPSILON: f64 = 1e-5;

/// The advantage of every token: `[row][token]`.
#[must_use]
pub fn token_advantages(batch: &StepBatch<'_>, config: &TrainConfig) -> Vec<Vec<f64>> {
    let of_row = |(row, &advantage): (&super::Row<'_>, &f64)| vec![advantage; row.completion.token_ids.len()];
    let mut advantages: Vec<Vec<f64>> = batch.rows.iter().zip(&batch.advantages.advantages).map(of_row).collect();
    if config.normalize_advantages {
        normalise(&mut advantages, &batch.rows.iter().map(|row| row.trained).collect::<Vec<bool>>());
    }
    advantages
}

/// Mean 0 and standard deviation 1 over the tokens of the trained rows.
fn normalise(advantages: &mut [Vec<f64>], trained: &[bool]) {
    let tokens: Vec<f64> = advantages.iter().zip(trained).filter(|(_, t)| **t).flat_map(|(a, _)| a.clone()).collect();
    let count = tokens.len().max(1) as f64;
    let mean = tokens.iter().sum::<f64>() / count;
    let variance = tokens.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / count;
    let divisor = variance.sqrt() + EPSILON;
    advantages.iter_mut().flatten().for_each(|advantage| *advantage = (*advantage - mean) / divisor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trained_tokens_have_mean_zero_and_deviation_one() {
        let mut advantages = vec![vec![2.0; 3], vec![-1.0], vec![100.0; 4]];
        normalise(&mut advantages, &[true, true, false]);
        let tokens: Vec<f64> = advantages[..2].concat();
        let mean = tokens.iter().sum::<f64>() / 4.0;
        let variance = tokens.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / 4.0;
        assert!(mean.abs() < 1e-12 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
    }
}
