//! Advantages of whole completions by other baselines than TRL's, as in verl (`core_algos.py`).
//!
//! Rewards that are `None` take no part and get advantage 0. The only scored completion of a group has no baseline and
//! keeps its reward, where nothing else is said. `groups[i]` names the group of completion i.

use super::moments::{Moments, members, pick};

/// Reward minus the mean of the group's scored completions (Dr. GRPO; the first half of REINFORCE++ with baseline).
#[must_use]
pub fn centred(rewards: &[Option<f64>], groups: &[usize]) -> Vec<f64> {
    per_group(rewards, groups, &|reward, own| reward - own.mean)
}

/// Reward minus the mean of the group's *other* completions (RLOO, Ahmadian et al. 2024).
#[must_use]
pub fn rloo(rewards: &[Option<f64>], groups: &[usize]) -> Vec<f64> {
    per_group(rewards, groups, &|reward, own| {
        let count = own.count as f64;
        (reward - own.mean) * count / (count - 1.0)
    })
}

/// Centred rewards, scaled by completions ÷ completions whose reward is not 0 (GPG eq. 7).
#[must_use]
pub fn gpg(rewards: &[Option<f64>], groups: &[usize]) -> Vec<f64> {
    let scored = rewards.iter().flatten().count() as f64;
    let rewarded = rewards.iter().flatten().filter(|&&reward| reward != 0.0).count().max(1) as f64;
    centred(rewards, groups).into_iter().map(|advantage| advantage * (scored / rewarded)).collect()
}

/// Reward over the group's mean, minus 1: hard prompts weigh as much as they are rarely solved (MaxRL, arXiv
/// 2602.02710). A group whose mean is not above 0 has no such measure: its
/// advantages are 0, as is that of a lone completion.
#[must_use]
pub fn max_rl(rewards: &[Option<f64>], groups: &[usize]) -> Vec<f64> {
    let mut advantages = vec![0.0; rewards.len()];
    for rows in members(groups) {
        let mean = Moments::of(&pick(rewards, &rows)).mean;
        for row in rows.into_iter().filter(|_| mean > 0.0) {
            advantages[row] = rewards[row].map_or(0.0, |reward| (reward - mean) / mean);
        }
    }
    advantages
}

/// Reward minus the mean of the group weighted by `lengths`, the optimal baseline when gradients grow with length
/// (OPO).
#[must_use]
pub fn opo(rewards: &[Option<f64>], lengths: &[usize], groups: &[usize]) -> Vec<f64> {
    let mut advantages = vec![0.0; rewards.len()];
    for rows in members(groups) {
        let scored: Vec<(usize, f64)> = rows.iter().filter_map(|&row| Some((row, rewards[row]?))).collect();
        let tokens: f64 = scored.iter().map(|&(row, _)| lengths[row] as f64).sum();
        let sum: f64 = scored.iter().map(|&(row, reward)| reward * lengths[row] as f64).sum();
        let equal = scored.windows(2).all(|pair| pair[0].1 == pair[1].1);
        for &(row, reward) in &scored {
            advantages[row] = match scored.len() {
                1 => reward,
                _ if equal => 0.0,
                _ => reward - sum / tokens,
            };
        }
    }
    advantages
}

/// Only the best completion of a group counts: its lead over the second best, divided by the group's standard deviation
/// plus `eps` if `scaled` (pass@k policy optimisation; verl `norm_adv_by_std_in_grpo`). A group with one scored
/// completion has no second best: advantage 0.
#[must_use]
pub fn grpo_passk(rewards: &[Option<f64>], groups: &[usize], scaled: bool, eps: f64) -> Vec<f64> {
    let mut advantages = vec![0.0; rewards.len()];
    for rows in members(groups) {
        let own = pick(rewards, &rows);
        let mut scored: Vec<(usize, f64)> = rows.iter().filter_map(|&row| Some((row, rewards[row]?))).collect();
        // Stable: of equals, the first completion is the best.
        scored.sort_by(|a, b| b.1.total_cmp(&a.1));
        if let [(best, first), (_, second), ..] = scored[..] {
            let divisor = if scaled { Moments::of(&own).std + eps } else { 1.0 };
            advantages[best] = (first - second) / divisor;
        }
    }
    advantages
}

fn per_group(rewards: &[Option<f64>], groups: &[usize], advantage: &dyn Fn(f64, Moments) -> f64) -> Vec<f64> {
    let mut advantages = vec![0.0; rewards.len()];
    for rows in members(groups) {
        let own = Moments::of(&pick(rewards, &rows));
        for row in rows {
            let Some(reward) = rewards[row] else { continue };
            advantages[row] = if own.count == 1 { reward } else { advantage(reward, own) };
        }
    }
    advantages
}
