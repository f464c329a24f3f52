//! Steps of a completion, for process rewards (DeepSeekMath, section 4.1.3).
//!
//! A separator closes a step and belongs to it; the end of the completion closes the last one. Blank text is no step of
//! its own but part of the step before it.

use std::ops::Range;

use super::{RewardCompletion, RewardInput};

/// A step of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its bytes in [`RewardCompletion::text`], separator and blanks included.
    pub text: Range<usize>,
    /// Index of its last token in [`RewardCompletion::token_ids`].
    pub end: u32,
}

/// The steps of a completion, each with the token that completes it. Steps that end within a prefill are left out,
/// since the policy did not make them. Steps that end with the same token are one step.
///
/// # Errors
/// When the tokenizer is not known or cannot decode the tokens.
pub fn of_completion(input: &RewardInput, completion: &RewardCompletion, separator: &str) -> Result<Vec<Step>, String> {
    let Some(last) = completion.token_ids.len().checked_sub(1) else {
        return Ok(Vec::new());
    };
    let tokenizer = input.tokenizer.as_ref().ok_or("the steps of a text without its tokenizer cannot be placed")?;
    let ends = tokenizer.token_ends(&completion.token_ids)?;
    let mut steps: Vec<Step> = Vec::new();
    for text in split(&completion.text, separator) {
        if text.end <= input.prefill {
            continue;
        }
        let closes_all = text.end == completion.text.len();
        let token = ends.partition_point(|&end| input.prefill + end < text.end);
        let end = if closes_all { last } else { token.min(last) } as u32;
        match steps.last_mut() {
            Some(step) if step.end == end => step.text.end = text.end,
            _ => steps.push(Step { text, end }),
        }
    }
    Ok(steps)
}

/// The bytes of each step; together, those of the whole text but for blanks before the first step.
fn split(text: &str, separator: &str) -> Vec<Range<usize>> {
    let mut steps: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for piece in text.split_inclusive(separator) {
        let range = start..start + piece.len();
        start = range.end;
        match steps.last_mut() {
            _ if !piece.trim_end_matches(separator).trim().is_empty() => steps.push(range),
            Some(step) => step.end = range.end,
            None => {}
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use shared::FinishReason;

    use super::*;
    use crate::testing::{ByteTokenizer, SILENT};

    /// Texts and last tokens of the steps of a completion with one token per byte and one at the end without text.
    fn steps(prefill: &str, sampled: &str, separator: &str) -> Vec<(String, u32)> {
        let mut token_ids = ByteTokenizer::encode(sampled);
        token_ids.push(SILENT);
        let text = format!("{prefill}{sampled}");
        let completion = RewardCompletion::of_one_turn(text.clone(), token_ids, FinishReason::Stop);
        let input = RewardInput {
            tokenizer: Some(std::sync::Arc::new(ByteTokenizer)),
            prefill: prefill.len(),
            ..RewardInput::default()
        };
        let steps = of_completion(&input, &completion, separator).unwrap();
        steps.into_iter().map(|step| (text[step.text].to_owned(), step.end)).collect()
    }

    fn owned(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
        expected.iter().map(|(text, end)| ((*text).to_owned(), *end)).collect()
    }

    #[test]
    fn separators_close_steps_and_the_end_closes_the_last() {
        assert_eq!(steps("", "a\nbc\nd", "\n"), owned(&[("a\n", 1), ("bc\n", 4), ("d", 6)]));
        assert_eq!(steps("", "a\nb\n", "\n"), owned(&[("a\n", 1), ("b\n", 4)]));
        assert_eq!(steps("", "a", "\n"), owned(&[("a", 1)]));
        assert_eq!(steps("", "a##b", "##"), owned(&[("a##", 2), ("b", 4)]));
    }

    #[test]
    fn blanks_belong_to_the_step_before_them() {
        assert_eq!(steps("", "\n\na\n\n b", "\n"), owned(&[("a\n\n", 4), (" b", 7)]));
        assert_eq!(steps("", " \n", "\n"), owned(&[]));
        assert_eq!(steps("", "", "\n"), owned(&[]));
    }

    #[test]
    fn characters_of_several_tokens_count_with_the_last() {
        assert_eq!(steps("", "é\n東京\nx", "\n"), owned(&[("é\n", 2), ("東京\n", 9), ("x", 11)]));
        assert_eq!(steps("", "a東b", "東"), owned(&[("a東", 3), ("b", 5)]));
    }

    #[test]
    fn steps_of_a_prefill_are_not_the_policys() {
        assert_eq!(steps("one\n", "two\nx", "\n"), owned(&[("two\n", 3), ("x", 5)]));
        assert_eq!(steps("one", " more\nx", "\n"), owned(&[("one more\n", 5), ("x", 7)]));
    }
}
