//! A penalty on repetition.

use std::collections::HashSet;

use super::{Built, Parameters, of_completion, positive};

/// TRL's `get_repetition_penalty_reward`: `(1 - unique / total) * max_penalty` over the n-grams of the tokens; 0 for
/// completions shorter than one n-gram.
#[must_use]
pub fn repetition_penalty(token_ids: &[u32], ngram_size: usize, max_penalty: f64) -> f64 {
    let total = (token_ids.len() + 1).saturating_sub(ngram_size);
    if total == 0 {
        return 0.0;
    }
    let unique: HashSet<&[u32]> = token_ids.windows(ngram_size).collect();
    (1.0 - unique.len() as f64 / total as f64) * max_penalty
}

pub(super) fn build(parameters: &Parameters) -> Built {
    let ngram_size = positive(parameters, "ngram_size")?;
    let max_penalty: f64 = parameters.get("max_penalty")?;
    if !(max_penalty <= 0.0 && max_penalty.is_finite()) {
        return Err(format!("parameter `max_penalty` must be at most 0, got {max_penalty}"));
    }
    of_completion(0.0, move |completion| repetition_penalty(&completion.token_ids, ngram_size, max_penalty))
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let found = repetition_penalty(&ids, size, penalty);
                assert!((found - expected.as_f64().unwrap()).abs() < 1e-9, "{}: {ids:?}", case["name"]);
            }
        }
    }
}
