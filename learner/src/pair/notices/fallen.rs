//! A reward that had been reached and is lost again.

use std::collections::VecDeque;

use shared::{
    metrics::{self, Figure},
    run::notices::{Notice, NoticeKind},
};

use super::{Detector, Seen, streak::steps};

/// Steps whose mean is looked at: where a step's prompts are few, its reward is mostly their difficulty.
const WINDOW: usize = 20;
/// A fall is called one when it is this many times as large as the rewards of either window spread.
const SPREADS: f64 = 4.0;
/// A fall by less than this share of what was reached is none, however evenly both were reached.
const LEAST: f64 = 0.05;
/// Share of what was gained since the first window that has to be lost.
const LOST: f64 = 0.5;

/// Mean and standard deviation of the rewards of [`WINDOW`] steps.
#[derive(Debug, Clone, Copy)]
struct Window {
    last: u64,
    mean: f64,
    std: f64,
}

impl Window {
    fn of(rewards: &VecDeque<f64>, last: u64) -> Self {
        let count = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / count;
        let variance = rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / count;
        Self { last, mean, std: variance.sqrt() }
    }

    fn steps(&self) -> String {
        steps((self.last + 1).saturating_sub(WINDOW as u64), self.last)
    }
}

/// The mean reward of the last steps against that of the best ones before.
#[derive(Default)]
pub struct Fallen {
    rewards: VecDeque<f64>,
    first: Option<f64>,
    best: Option<Window>,
}

impl Detector for Fallen {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let Some(reward) = seen.record.get(metrics::REWARD).filter(|reward| reward.is_finite()) else {
            return Vec::new();
        };
        self.rewards.push_back(reward);
        if self.rewards.len() > WINDOW {
            self.rewards.pop_front();
        }
        if self.rewards.len() < WINDOW {
            return Vec::new();
        }
        let now = Window::of(&self.rewards, seen.step());
        let first = *self.first.get_or_insert(now.mean);
        let best = *self.best.get_or_insert(now);
        if now.mean > best.mean {
            self.best = Some(now);
        }
        let fall = best.mean - now.mean;
        let needed = [SPREADS * best.std.max(now.std), LOST * (best.mean - first), LEAST * best.mean.abs()];
        if needed.into_iter().any(|needed| fall <= needed) {
            return Vec::new();
        }
        vec![Notice::new(
            NoticeKind::RewardFallen,
            now.last,
            format!(
                "the reward fell from {:.3} in {} to {:.3} in {}",
                Figure(best.mean),
                best.steps(),
                Figure(now.mean),
                now.steps()
            ),
            "a kept checkpoint from before may be the better model (`tandem compare` says so); go on from it with a \
             lower learning_rate or with beta > 0",
        )]
    }
}

#[cfg(test)]
mod tests {
    use shared::config::TrainConfig;

    use super::{super::testing::told, *};

    fn found(steps: u64, reward: impl Fn(f64) -> f64) -> Vec<Notice> {
        told(&mut Fallen::default(), &TrainConfig::default(), steps, |record| {
            let reward = reward(record.get(metrics::STEP).unwrap());
            record.set(metrics::REWARD, reward);
        })
    }

    /// A number from -1 to 1 that is another for every step.
    fn noise(step: f64) -> f64 {
        (step * 12.9898).sin()
    }

    #[test]
    fn a_reward_that_collapses_is_told_with_both_windows() {
        let curve = |step: f64| (step / 50.0).min(1.0) + if step > 100.0 { -0.8 } else { 0.0 } + 0.02 * noise(step);
        assert_eq!(found(100, curve), []);
        let notice = found(120, curve).pop().expect("a fall");
        assert_eq!((notice.kind, notice.step), (NoticeKind::RewardFallen, 120));
        assert!(notice.text.contains(" to 0.199 ") && notice.text.ends_with("in steps 101 to 120"), "{}", notice.text);
    }

    #[test]
    fn noise_and_a_small_part_of_the_gain_are_no_fall() {
        assert_eq!(found(2000, noise), [], "prompts differ");
        assert_eq!(found(300, |step| step / 300.0), [], "it rises");
        let dented = |step: f64| (step / 50.0).min(1.0) - if step > 100.0 { 0.3 } else { 0.0 };
        assert_eq!(found(200, dented), [], "most of the gain is still there");
        assert_eq!(found(200, |step| if step > 100.0 { 0.98 } else { 1.0 }), [], "it is nothing to speak of");
    }
}
