//! Rules on length.

use shared::{FinishReason, RewardOutcome};

use super::{Built, Parameters, of_completion};
use crate::{Reward, RewardCompletion, RewardInput, Scope};

/// 1 if the completion ended by itself, else 0.
#[must_use]
pub fn finished(completion: &RewardCompletion) -> f64 {
    f64::from(u8::from(completion.finish_reason == FinishReason::Stop))
}

/// 0 at `target` tokens, falling linearly on both sides to −1.
#[must_use]
pub fn near(tokens: usize, target: usize) -> f64 {
    -(tokens.abs_diff(target) as f64 / target as f64).min(1.0)
}

/// DAPO's soft overlong punishment (eq. 13): 0 up to `max - cache` tokens, then linear to −1 at `max`, −1 above.
#[must_use]
pub fn soft_overlong(tokens: usize, max: usize, cache: usize) -> f64 {
    let free = max - cache;
    if tokens <= free {
        0.0
    } else if tokens <= max {
        (free as f64 - tokens as f64) / cache as f64
    } else {
        -1.0
    }
}

pub(super) fn build_soft_overlong(parameters: &Parameters) -> Built {
    let max = parameters.positive("max_completion_len")?;
    let cache: usize = parameters.get("soft_punish_cache")?;
    if cache > max {
        return Err(format!("`soft_punish_cache` {cache} is larger than `max_completion_len` {max}"));
    }
    of_completion(0.0, move |completion| soft_overlong(completion.length(), max, cache))
}

/// The length reward of Kimi k1.5 (section 2.3.3), for every completion: `0.5 - (len - min) / (max - min)` over the
/// group, 0 when all are of the same length.
pub struct Relative;

impl Reward for Relative {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        let lengths: Vec<usize> = input.completions.iter().map(RewardCompletion::length).collect();
        let shortest = lengths.iter().min().copied().unwrap_or(0);
        let range = lengths.iter().max().copied().unwrap_or(0) - shortest;
        let score = |length: usize| if range == 0 { 0.0 } else { 0.5 - (length - shortest) as f64 / range as f64 };
        lengths.into_iter().map(|length| RewardOutcome::Score(score(length))).collect()
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }

    fn stated_correct_at(&self) -> Option<f64> {
        Some(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_overlong_punishment() {
        for case in harness::golden::cases(
            "overlong_punishment.json",
            "soft_overlong",
            &["max_completion_len", "soft_punish_cache"],
            &["lengths"],
            &["rewards"],
        ) {
            let parameter = |name: &str| case["params"][name].as_u64().unwrap() as usize;
            let lengths = case["inputs"]["lengths"].as_array().unwrap();
            let expected = case["expected"]["rewards"].as_array().unwrap();
            assert_eq!(lengths.len(), expected.len());
            for (length, expected) in lengths.iter().zip(expected) {
                let found = soft_overlong(
                    length.as_u64().unwrap() as usize,
                    parameter("max_completion_len"),
                    parameter("soft_punish_cache"),
                );
                assert!((found - expected.as_f64().unwrap()).abs() < 1e-9, "{}: {length}", case["name"]);
            }
        }
    }

    #[test]
    fn lengths_near_the_target_are_best() {
        assert_eq!([0, 50, 100, 150, 200, 900].map(|n| near(n, 100)), [-1.0, -0.5, 0.0, -0.5, -1.0, -1.0]);
    }

    #[test]
    fn relative_lengths_are_ranked_within_the_group() {
        let completion = |n: usize| RewardCompletion::of_one_turn("", vec![0; n], FinishReason::Stop);
        let scores = |lengths: &[usize]| -> Vec<f64> {
            let completions = lengths.iter().map(|&n| completion(n)).collect();
            let input = RewardInput { completions, ..RewardInput::default() };
            Relative.score(&input).iter().map(|o| o.score().unwrap()).collect()
        };
        assert_eq!(scores(&[10, 30, 20]), [0.5, -0.5, 0.0]);
        assert_eq!(scores(&[7, 7]), [0.0, 0.0]);
    }
}
