//! Recursions over the tokens of a completion, and whitening over those of a batch.

use crate::{ragged::Ragged, verl::EPSILON};

/// Added to the standard deviation in normalisation, as in RLinf.
const NORMALISE_EPSILON: f64 = 1e-5;

/// Numbers up to here have squares whose sum over any batch is finite.
const IN_RANGE: f64 = 1e150;

/// Generalised advantage estimation (Schulman et al. 2016) of one completion: `A_t = δ_t + γλ A_{t+1}` with
/// `δ_t = r_t + γ V_{t+1} − V_t`; after the last token there is nothing. Returns are `A_t + V_t`.
#[must_use]
pub fn gae(rewards: &[f64], values: &[f64], gamma: f64, lam: f64) -> Vec<f64> {
    let mut advantages = vec![0.0; rewards.len()];
    let (mut next_value, mut next_advantage) = (0.0, 0.0);
    for t in (0..rewards.len()).rev() {
        let delta = rewards[t] + gamma * next_value - values[t];
        next_advantage = delta + gamma * lam * next_advantage;
        next_value = values[t];
        advantages[t] = next_advantage;
    }
    advantages
}

/// Discounted reward to come of each token: `G_t = r_t + γ G_{t+1}` (REINFORCE++).
#[must_use]
pub fn rewards_to_go(rewards: &[f64], gamma: f64) -> Vec<f64> {
    let mut returns = rewards.to_vec();
    for t in (0..returns.len().saturating_sub(1)).rev() {
        returns[t] += gamma * returns[t + 1];
    }
    returns
}

/// Shifts and scales all rows so that the tokens of the rows with `counts` have mean 0 and variance 1 (n − 1). With
/// fewer than two such tokens there is nothing to compare and everything becomes 0.
pub fn whiten(rows: &mut Ragged<f64>, counts: &[bool]) {
    bring_into_range(rows, counts);
    let counted = counted(rows, counts);
    let tokens = counted.len() as f64;
    if tokens < 2.0 {
        rows.values_mut().fill(0.0);
        return;
    }
    let mean = counted.iter().sum::<f64>() / (tokens + EPSILON);
    let squares: f64 = counted.iter().map(|value| (value - mean).powi(2)).sum();
    let variance = squares / (tokens + EPSILON) * tokens / (tokens - 1.0);
    let scale = (variance + EPSILON).sqrt();
    rows.values_mut().iter_mut().for_each(|value| *value = (*value - mean) / scale);
}

/// Divides values whose squares would overflow by the largest of them, without which all would become 0. It changes
/// nothing else: what is scaled to a variance of 1 may have any size before.
fn bring_into_range(rows: &mut Ragged<f64>, counts: &[bool]) {
    let largest = counted(rows, counts).iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    if largest > IN_RANGE && largest.is_finite() {
        rows.values_mut().iter_mut().for_each(|value| *value /= largest);
    }
}

/// As [`whiten`], with RLinf's moments (`masked_normalization`): the variance divides by n, and ε is added to the
/// standard deviation.
pub fn normalise(rows: &mut Ragged<f64>, counts: &[bool]) {
    bring_into_range(rows, counts);
    let tokens = counted(rows, counts);
    let count = tokens.len().max(1) as f64;
    let mean = tokens.iter().sum::<f64>() / count;
    let variance = tokens.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    let divisor = variance.sqrt() + NORMALISE_EPSILON;
    rows.values_mut().iter_mut().for_each(|value| *value = (*value - mean) / divisor);
}

/// The tokens of the rows that count.
fn counted(rows: &Ragged<f64>, counts: &[bool]) -> Vec<f64> {
    rows.rows().zip(counts).filter(|(_, counts)| **counts).flat_map(|(row, _)| row.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lambda_0_is_the_temporal_difference_and_lambda_1_the_return() {
        let (rewards, values, gamma) = ([0.1, 0.0, -0.4, 1.0], [0.3, -0.2, 0.5, 0.7], 0.9);
        let short = gae(&rewards, &values, gamma, 0.0);
        let long = gae(&rewards, &values, gamma, 1.0);
        let returns = rewards_to_go(&rewards, gamma);
        for t in 0..4 {
            let next = values.get(t + 1).copied().unwrap_or(0.0);
            assert!((short[t] - (rewards[t] + gamma * next - values[t])).abs() < 1e-12);
            assert!((long[t] - (returns[t] - values[t])).abs() < 1e-12);
        }
    }

    #[test]
    fn a_reward_at_the_end_reaches_every_token() {
        assert_eq!(gae(&[0.0, 0.0, 2.0], &[0.0; 3], 1.0, 1.0), [2.0; 3]);
        assert_eq!(rewards_to_go(&[0.0, 0.0, 2.0], 0.5), [0.5, 1.0, 2.0]);
    }

    #[test]
    fn tokens_whose_squares_overflow_are_whitened_and_normalised_as_smaller_ones() {
        for scale in [whiten, normalise] {
            let scaled = |size: f64| {
                let mut rows: Ragged<f64> = [vec![size, -size], vec![0.5 * size]].into_iter().collect();
                scale(&mut rows, &[true, true]);
                [rows[0][0], rows[0][1], rows[1][0]]
            };
            let near = |(a, b): (f64, f64)| (a - b).abs() < 1e-3;
            assert!(scaled(1e308).into_iter().zip(scaled(1.0)).all(near), "{:?}", scaled(1e308));
        }
    }

    #[test]
    fn whitened_tokens_have_mean_0_and_variance_1_and_others_do_not_count() {
        let mut rows: Ragged<f64> = [vec![1.0, 2.0], vec![4.0], vec![100.0, -100.0]].into_iter().collect();
        whiten(&mut rows, &[true, true, false]);
        let tokens = [rows[0][0], rows[0][1], rows[1][0]];
        assert!(tokens.iter().sum::<f64>().abs() < 1e-7);
        assert!((tokens.iter().map(|t| t * t).sum::<f64>() / 2.0 - 1.0).abs() < 1e-6);
        assert!(rows[2][0] > 10.0 && rows[2][1] < -10.0);
        let mut alone: Ragged<f64> = [vec![3.0], vec![]].into_iter().collect();
        whiten(&mut alone, &[true, true]);
        assert_eq!(alone.rows().collect::<Vec<_>>(), [&[0.0][..], &[]]);
    }
}
