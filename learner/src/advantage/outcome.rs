//! Group advantages of rewards for whole completions, with TRL 1.16's semantics
//! (`GRPOTrainer._generate_and_score_completions`): weighted sum of the reward functions in which abstentions are left
//! out, centring on the group's mean, scaling by a standard deviation with n − 1.

use shared::{
    config::{LoneAdvantage, ScaleRewards},
    weighted_sum,
};

use super::moments::{Moments, members, pick};

/// Advantages, with the standard deviations behind them.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalised {
    /// One per completion; 0 where there is nothing to compare with.
    pub advantages: Vec<f64>,
    /// Standard deviation for each completion; NaN where there is none. With [`ScaleRewards::None`] it is the group's,
    /// although nothing is divided by it.
    pub stds: Vec<f64>,
}

/// Reward minus the group's mean, over a standard deviation plus `eps` (DeepSeekMath eq. 3; Dr. GRPO without scaling).
/// `groups[i]` names the group of completion i.
#[must_use]
pub fn grpo(
    rewards: &[Option<f64>],
    groups: &[usize],
    scale: ScaleRewards,
    eps: f64,
    lone: LoneAdvantage,
) -> Normalised {
    let all = Moments::of(rewards);
    let batch_std = if rewards.len() > 1 { all.std } else { 0.0 };
    let mut found = Normalised { advantages: vec![0.0; rewards.len()], stds: vec![f64::NAN; rewards.len()] };
    for rows in members(groups) {
        let own = Moments::of(&pick(rewards, &rows));
        let alone = lone == LoneAdvantage::Reward && own.count == 1;
        let group_std = match rows.len() {
            _ if alone => 1.0,
            1 => 0.0,
            _ => own.std,
        };
        let mean = if alone { 0.0 } else { own.mean };
        let (std, divisor) = match scale {
            ScaleRewards::Group => (group_std, group_std + eps),
            ScaleRewards::Batch => (batch_std, batch_std + eps),
            ScaleRewards::None => (group_std, 1.0),
        };
        for row in rows {
            found.stds[row] = std;
            found.advantages[row] = rewards[row].map_or(0.0, |reward| zero_if_nan((reward - mean) / divisor));
        }
    }
    found
}

/// Each reward function normalised in its group, their weighted sum normalised over the batch (GDPO). TRL
/// `normalize_then_sum`. `scores[i][k]` is function k's score of completion i.
#[must_use]
pub fn normalize_then_sum(scores: &[Vec<Option<f64>>], weights: &[f64], groups: &[usize], eps: f64) -> Normalised {
    let normalised: Vec<Vec<Option<f64>>> = (0..weights.len())
        .map(|function| {
            let column: Vec<Option<f64>> = scores.iter().map(|row| row[function]).collect();
            let found = grpo(&column, groups, ScaleRewards::Group, eps, LoneAdvantage::Zero);
            column.iter().zip(found.advantages).map(|(score, advantage)| score.map(|_| advantage)).collect()
        })
        .collect();
    let sum = |row: usize| weighted_sum(normalised.iter().map(|column| column[row]), weights.iter().copied());
    let sums: Vec<Option<f64>> = (0..scores.len()).map(sum).collect();
    // The whole batch as one group.
    grpo(&sums, &vec![0; sums.len()], ScaleRewards::Group, eps, LoneAdvantage::Zero)
}

fn zero_if_nan(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value }
}
