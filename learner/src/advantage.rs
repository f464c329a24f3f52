//! Rewards to advantages: pure functions in float64.
//!
//! Semantics are TRL 1.16's (`GRPOTrainer._generate_and_score_completions`): weighted sum of the reward functions in
//! which abstentions are left out, centring on the group's mean, scaling by a standard deviation with n − 1.

use shared::config::ScaleRewards;

/// Added to the standard deviation before the division.
pub const EPSILON: f64 = 1e-4;

/// numpy's `isclose` to 0.
const ZERO_STD: f64 = 1e-8;

/// Advantages of a generation batch and what the metrics say about its rewards.
#[derive(Debug, Clone, PartialEq)]
pub struct Advantages {
    /// One per completion; 0 where there is nothing to compare with.
    pub advantages: Vec<f64>,
    /// Weighted reward of each completion; `None` when every function abstained.
    pub rewards: Vec<Option<f64>>,
    /// Whether the standard deviation that the completion is scaled by is 0.
    pub zero_std: Vec<bool>,
    /// Mean reward of the completions that have one. NaN without any.
    pub reward_mean: f64,
    /// Standard deviation (n − 1) of all rewards. NaN with fewer than two.
    pub reward_std: f64,
}

impl Advantages {
    /// Share of completions whose standard deviation is 0.
    #[must_use]
    pub fn frac_zero_std(&self) -> f64 {
        self.zero_std.iter().filter(|&&zero| zero).count() as f64 / self.zero_std.len().max(1) as f64
    }
}

/// Weighted sum of one completion's rewards; `None` when every function abstained. TRL `sum_then_normalize`.
#[must_use]
pub fn weighted_reward(scores: &[Option<f64>], weights: &[f64]) -> Option<f64> {
    let scored = scores.iter().zip(weights).filter_map(|(score, weight)| Some(score.as_ref()? * weight));
    scores.iter().any(Option::is_some).then(|| scored.sum())
}

/// Advantages of completions that lie group after group, `group_size` each (DeepSeekMath eq. 3; Dr. GRPO without the
/// scaling).
///
/// # Panics
/// When the number of rewards is no multiple of the group size.
#[must_use]
pub fn group_advantages(rewards: Vec<Option<f64>>, group_size: usize, scale: ScaleRewards) -> Advantages {
    assert!(group_size > 0 && rewards.len().is_multiple_of(group_size), "groups are whole");
    let all = Moments::of(&rewards);
    let mut advantages = Vec::with_capacity(rewards.len());
    let mut zero_std = Vec::with_capacity(rewards.len());
    for group in rewards.chunks(group_size) {
        let own = Moments::of(group);
        let std = match scale {
            ScaleRewards::Batch => {
                if rewards.len() > 1 {
                    all.std
                } else {
                    0.0
                }
            }
            ScaleRewards::Group | ScaleRewards::None => {
                if group_size > 1 {
                    own.std
                } else {
                    0.0
                }
            }
        };
        let divisor = if scale == ScaleRewards::None { 1.0 } else { std + EPSILON };
        for reward in group {
            let advantage = reward.map_or(0.0, |r| (r - own.mean) / divisor);
            advantages.push(if advantage.is_nan() { 0.0 } else { advantage });
            zero_std.push(std.abs() <= ZERO_STD);
        }
    }
    Advantages { advantages, zero_std, reward_mean: all.mean, reward_std: all.std, rewards }
}

/// Mean and standard deviation of the numbers that are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moments {
    /// NaN without any.
    pub(crate) mean: f64,
    /// With n − 1; NaN with fewer than two.
    pub(crate) std: f64,
}

impl Moments {
    pub(crate) fn of(values: &[Option<f64>]) -> Self {
        let known: Vec<f64> = values.iter().flatten().copied().collect();
        let n = known.len() as f64;
        if let Some(&first) = known.first()
            && known.iter().all(|&v| v == first)
        {
            // The mean of equal numbers is that number, to the last bit: a group without contrast has advantage 0.
            return Self { mean: first, std: if known.len() > 1 { 0.0 } else { f64::NAN } };
        }
        if known.is_empty() {
            return Self { mean: f64::NAN, std: f64::NAN };
        }
        let mean = known.iter().sum::<f64>() / n;
        let squares: f64 = known.iter().map(|v| (v - mean).powi(2)).sum();
        Self { mean, std: (squares / (n - 1.0)).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn numbers(v: &Value) -> Vec<Option<f64>> {
        v.as_array().unwrap().iter().map(Value::as_f64).collect()
    }

    fn close(found: f64, expected: Option<f64>) -> bool {
        match expected {
            None => found.is_nan(),
            Some(e) => (found - e).abs() <= 1e-9 * e.abs().max(1.0),
        }
    }

    #[test]
    fn golden_advantages_outcome() {
        let golden = ::tests::golden("advantages_outcome.json");
        let mut run = 0;
        for case in golden["cases"].as_array().unwrap() {
            let (name, params, expected) = (&case["name"], &case["params"], &case["expected"]);
            if params["aggregation"] != "sum_then_normalize" {
                continue;
            }
            let scale: ScaleRewards = serde_json::from_value(params["scale_rewards"].clone()).unwrap();
            assert_eq!(params["eps"].as_f64(), Some(EPSILON));
            let weights: Vec<f64> = numbers(&params["reward_weights"]).into_iter().flatten().collect();
            let rows = case["inputs"]["rewards_per_func"].as_array().unwrap();
            let rewards = rows.iter().map(|row| weighted_reward(&numbers(row), &weights)).collect();
            let found = group_advantages(rewards, params["num_generations"].as_u64().unwrap() as usize, scale);
            for (i, wanted) in numbers(&expected["advantages"]).into_iter().enumerate() {
                assert!(close(found.advantages[i], wanted), "{name}: {} is not {wanted:?}", found.advantages[i]);
            }
            let zero: Vec<bool> =
                expected["is_std_zero"].as_array().unwrap().iter().map(|v| v.as_bool().unwrap()).collect();
            assert_eq!(found.zero_std, zero, "{name}");
            // The share was averaged in float32.
            let share = expected["frac_reward_zero_std"].as_f64().unwrap();
            assert!((found.frac_zero_std() - share).abs() < 1e-6, "{name}");
            assert!(close(found.reward_mean, expected["reward_mean"].as_f64()), "{name}: {}", found.reward_mean);
            assert!(
                close(found.reward_std, expected["reward_std"].as_f64()),
                "{name}: {} is not {}",
                found.reward_std,
                expected["reward_std"]
            );
            run += 1;
        }
        assert!(run > 0);
    }

    #[test]
    fn equal_rewards_give_exactly_zero() {
        for reward in [0.1, 1.0 / 3.0, 0.7] {
            let found = group_advantages(vec![Some(reward); 3], 3, ScaleRewards::Group);
            assert_eq!(found.advantages, [0.0; 3]);
        }
    }

    #[test]
    fn the_worked_example() {
        let rewards = || vec![Some(1.0), Some(0.0), Some(2.0)];
        assert_eq!(group_advantages(rewards(), 3, ScaleRewards::None).advantages, [0.0, -1.0, 1.0]);
        let scaled = group_advantages(rewards(), 3, ScaleRewards::Group).advantages;
        assert!((scaled[2] - 1.0 / 1.0001).abs() < 1e-12 && scaled[0] == 0.0);
    }
}
