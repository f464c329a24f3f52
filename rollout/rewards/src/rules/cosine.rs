//! Accuracy scaled by length.

use std::f64::consts::PI;

use super::{Built, Parameters, answer, judged};
use crate::answers::ANSWER_COLUMNS;

/// TRL's `get_cosine_scaled_reward` ("Demystifying Long Chain-of-Thought Reasoning", arXiv 2502.03373, appendix C.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineScale {
    /// Tokens at which the schedule ends; longer completions stay there.
    pub max_len: usize,
    /// Wrong, at no tokens.
    pub min_value_wrong: f64,
    /// Wrong, at `max_len` tokens.
    pub max_value_wrong: f64,
    /// Right, at `max_len` tokens.
    pub min_value_correct: f64,
    /// Right, at no tokens.
    pub max_value_correct: f64,
}

impl CosineScale {
    /// `v_long + (v_short - v_long) / 2 * (1 + cos(π * min(tokens / max_len, 1)))`.
    #[must_use]
    pub fn reward(&self, correct: bool, tokens: usize) -> f64 {
        let (short, long) = if correct {
            (self.max_value_correct, self.min_value_correct)
        } else {
            (self.min_value_wrong, self.max_value_wrong)
        };
        let progress = (tokens as f64 / self.max_len as f64).min(1.0);
        long + 0.5 * (short - long) * (1.0 + (progress * PI).cos())
    }
}

pub(super) fn build(parameters: &Parameters) -> Built {
    let scale = CosineScale {
        max_len: parameters.positive("max_len")?,
        min_value_wrong: parameters.get("min_value_wrong")?,
        max_value_wrong: parameters.get("max_value_wrong")?,
        min_value_correct: parameters.get("min_value_correct")?,
        max_value_correct: parameters.get("max_value_correct")?,
    };
    let values = [scale.min_value_wrong, scale.max_value_wrong, scale.min_value_correct, scale.max_value_correct];
    if !values.iter().all(|value| value.is_finite()) {
        return Err("the values must be finite numbers".into());
    }
    // Every right answer counts, whatever its length.
    let correct_at = scale.min_value_correct.min(scale.max_value_correct);
    judged(correct_at, ANSWER_COLUMNS, answer::vote, move |text, completion, expected| {
        let accuracy = answer::accuracy(text, expected)?;
        Some(scale.reward(accuracy == 1.0, completion.length()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRL: CosineScale = CosineScale {
        max_len: 100,
        min_value_wrong: -1.0,
        max_value_wrong: -0.5,
        min_value_correct: 0.5,
        max_value_correct: 1.0,
    };

    /// The ends and the middle are TRL's documented values, the quarter is `0.75 ± 0.25 * cos(π / 4)`.
    #[test]
    fn rewards_follow_the_cosine_and_stay_at_its_end() {
        let quarter = 0.25 * 0.5f64.sqrt();
        for (tokens, right, wrong) in [
            (0, 1.0, -1.0),
            (25, 0.75 + quarter, -0.75 - quarter),
            (50, 0.75, -0.75),
            (100, 0.5, -0.5),
            (170, 0.5, -0.5),
        ] {
            assert!((TRL.reward(true, tokens) - right).abs() < 1e-12, "{tokens}");
            assert!((TRL.reward(false, tokens) - wrong).abs() < 1e-12, "{tokens}");
        }
    }
}
