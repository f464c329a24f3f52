//! A penalty on repetition.

use std::collections::HashSet;

use super::{Built, Parameters, of_completion};

/// TRL's `get_repetition_penalty_reward`: `(1 - unique / total) * max_penalty` over the n-grams of the sampled tokens,
/// none of which spans two turns; 0 for completions without an n-gram.
#[must_use]
pub fn repetition_penalty<'a>(turns: impl IntoIterator<Item = &'a [u32]>, ngram_size: usize, max_penalty: f64) -> f64 {
    let (mut total, mut unique) = (0, HashSet::new());
    for ngram in turns.into_iter().flat_map(|turn| turn.windows(ngram_size)) {
        total += 1;
        unique.insert(ngram);
    }
    if total == 0 {
        return 0.0;
    }
    (1.0 - unique.len() as f64 / f64::from(total)) * max_penalty
}

pub(super) fn build(parameters: &Parameters) -> Built {
    let ngram_size = parameters.positive("ngram_size")?;
    let max_penalty: f64 = parameters.get("max_penalty")?;
    if !(max_penalty <= 0.0 && max_penalty.is_finite()) {
        return Err(format!("parameter `max_penalty` must be at most 0, got {max_penalty}"));
    }
    of_completion(0.0, move |completion| repetition_penalty(completion.turns(), ngram_size, max_penalty))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RewardCompletion;

    #[test]
    fn golden_repetition_penalty_reward() {
        for case in harness::golden::cases(
            "repetition_penalty_reward.json",
            "repetition_reward",
            &["max_penalty", "ngram_size"],
            &["completion_ids"],
            &["rewards"],
        ) {
            let size = case["params"]["ngram_size"].as_u64().unwrap() as usize;
            let penalty = case["params"]["max_penalty"].as_f64().unwrap();
            let completions = case["inputs"]["completion_ids"].as_array().unwrap();
            let expected = case["expected"]["rewards"].as_array().unwrap();
            assert_eq!(completions.len(), expected.len());
            for (ids, expected) in completions.iter().zip(expected) {
                let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
                let found = repetition_penalty([&ids[..]], size, penalty);
                assert!((found - expected.as_f64().unwrap()).abs() < 1e-9, "{}: {ids:?}", case["name"]);
            }
        }
    }

    #[test]
    fn what_was_given_is_neither_repetition_nor_length() {
        let ids = vec![1, 2, 1, 2, 9, 9, 9, 9, 1, 2];
        let completion = |given| RewardCompletion {
            given,
            ..RewardCompletion::of_one_turn("", ids.clone(), shared::FinishReason::Stop)
        };
        let two_turns = completion(vec![4..7, 7..8]);
        assert_eq!(two_turns.turns().collect::<Vec<_>>(), [&[1, 2, 1, 2][..], &[1, 2]]);
        assert_eq!((two_turns.length(), completion(Vec::new()).length()), (6, 10));
        // The n-grams are 12, 21, 12 and 12.
        assert_eq!(repetition_penalty(two_turns.turns(), 2, -1.0), -0.5);
        let all_given = completion(vec![0..4, 4..10]);
        assert_eq!((all_given.length(), repetition_penalty(all_given.turns(), 2, -1.0)), (0, 0.0));
    }
}
