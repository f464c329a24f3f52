//! Rules of open-r1's registry (`open_r1/rewards.py`) that have no counterpart elsewhere, figure for figure.

use std::{collections::HashSet, sync::LazyLock};

use regex::Regex;
use shared::RewardOutcome;

use super::{Built, Parameters, Rule, tags};
use crate::{RewardCompletion, RewardInput};

/// Tags that a prompt may open for the rules on form.
pub(super) const TAGS: &[&str] = &["<think>", "<answer>"];

/// Python's `re.match` with DOTALL and MULTILINE: anchored at the beginning of the text, `$` at the end of any line.
static FORMAT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?s)\A<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>(?m:$)").expect("a valid pattern")
});

/// The beginning of a step of reasoning, in open-r1's view.
static STEP: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?:Step \d+:|\A\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,)").expect("a valid pattern")
});

/// `format_reward`: 1 if the completion opens with `<think>` and `<answer>`, each tag on a line of its own, else 0.
#[must_use]
pub fn think_answer_format(completion: &str) -> f64 {
    f64::from(u8::from(FORMAT.is_match(completion)))
}

/// `tag_count_reward`: 0.25 for each of the four tags that is there exactly once, with its line breaks.
#[must_use]
pub fn tag_count(completion: &str) -> f64 {
    let tags = ["<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>"];
    tags.iter().filter(|tag| completion.matches(**tag).count() == 1).map(|_| 0.25).sum()
}

/// `reasoning_steps_reward`: a third for each step or bullet, up to 1.
#[must_use]
pub fn reasoning_steps(completion: &str) -> f64 {
    (STEP.find_iter(completion).count() as f64 / 3.0).min(1.0)
}

/// `repetition_penalty_reward`: `(1 - unique / total) * max_penalty` over the n-grams of the lower-case words; 0 for
/// completions shorter than one n-gram. TRL's function of this name counts tokens.
#[must_use]
pub fn word_repetition(completion: &str, ngram_size: usize, max_penalty: f64) -> f64 {
    let text = completion.to_lowercase();
    let words: Vec<&str> = text.split_whitespace().collect();
    let total = (words.len() + 1).saturating_sub(ngram_size);
    if total == 0 {
        return 0.0;
    }
    let unique: HashSet<&[&str]> = words.windows(ngram_size).collect();
    (1.0 - unique.len() as f64 / total as f64) * max_penalty
}

pub(super) fn build_word_repetition(parameters: &Parameters) -> Built {
    let ngram_size = parameters.positive("ngram_size")?;
    let max_penalty: f64 = parameters.get("max_penalty")?;
    if !(max_penalty <= 0.0 && max_penalty.is_finite()) {
        return Err(format!("parameter `max_penalty` must be at most 0, got {max_penalty}"));
    }
    super::of_completion(0.0, move |completion| word_repetition(&completion.text, ngram_size, max_penalty))
}

/// The pattern of `code_format_reward`; the language is part of it as it stands, so that it may be `(?:python|cpp)`.
fn code_pattern(language: &str) -> Result<Regex, String> {
    let pattern = format!(r"(?s)\A<think>\n.*?\n</think>\n<answer>\n.*?```{language}.*?```.*?\n</answer>(?m:$)");
    Regex::new(&pattern).map_err(|_| format!("`{language}` is no pattern for the name of a language"))
}

/// `code_format_reward`: as [`think_answer_format`], with a block of code in the answer. The row's column `language`
/// wins over the parameter.
pub(super) fn build_code_format(parameters: &Parameters) -> Built {
    let usual = code_pattern(&parameters.get::<String>("language")?)?;
    let score = move |input: &RewardInput, completion: &RewardCompletion| {
        let of_row = input.columns.get("language").and_then(serde_json::Value::as_str).map(code_pattern);
        let text = tags::with_known(&input.prompt, &completion.text, TAGS);
        match of_row {
            Some(Err(reason)) => RewardOutcome::Failed(reason),
            Some(Ok(pattern)) => RewardOutcome::Score(f64::from(u8::from(pattern.is_match(&text)))),
            None => RewardOutcome::Score(f64::from(u8::from(usual.is_match(&text)))),
        }
    };
    Ok(std::sync::Arc::new(Rule { score, correct_at: 1.0, extract: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts with what open-r1's own functions give them: format, tags, steps, repetition of three words at -1, and the
    /// format with code in Python.
    #[test]
    fn figures_are_those_of_open_r1() {
        let code = code_pattern("python").unwrap();
        for (text, expected) in [
            ("<think>\na\n</think>\n<answer>\n2\n</answer>", [1.0, 1.0, 0.0, 0.0, 0.0]),
            ("<think>a</think><answer>2</answer>", [0.0; 5]),
            ("<think>\n\n</think>\n<answer>\n\n</answer>", [1.0, 1.0, 0.0, 0.0, 0.0]),
            ("<think>\na\n</think>\n<answer>\n2\n</answer>\nmore", [1.0, 1.0, 0.0, 0.0, 0.0]),
            (" <think>\na\n</think>\n<answer>\n2\n</answer>", [0.0, 1.0, 0.0, 0.0, 0.0]),
            ("<think>\na\n</think>\n<answer>\n2\n</answer> more", [0.0, 1.0, 0.0, 0.0, 0.0]),
            ("<think>\na\n</think>\n\n<answer>\n2\n</answer>", [0.0, 1.0, 0.0, 0.0, 0.0]),
            ("<think>\n1\n</think>\n<answer>\n2\n</answer>\n<answer>\n3\n</answer>", [1.0, 0.5, 0.0, 0.0, 0.0]),
            ("", [0.0; 5]),
            ("<think>\na\n</think>\n<answer>\n```python\nprint(1)\n```\n</answer>", [1.0, 1.0, 0.0, 0.0, 1.0]),
            ("<think>\na\n</think>\n<answer>\n```cpp\nint x;```\n</answer>", [1.0, 1.0, 0.0, 0.0, 0.0]),
            ("Step 1: a\nStep 2: b", [0.0, 0.0, 2.0 / 3.0, 0.0, 0.0]),
            ("1. a\n2. b\n- c\n* d", [0.0, 0.0, 1.0, 0.0, 0.0]),
            ("First, a. Second, b. Next, c. Finally, d.", [0.0, 0.0, 1.0, 0.0, 0.0]),
            ("a a a a", [0.0, 0.0, 0.0, -0.5, 0.0]),
            ("A a\tb A a\nb", [0.0, 0.0, 0.0, -0.25, 0.0]),
            ("x y", [0.0; 5]),
        ] {
            let found = [
                think_answer_format(text),
                tag_count(text),
                reasoning_steps(text),
                word_repetition(text, 3, -1.0),
                f64::from(u8::from(code.is_match(text))),
            ];
            let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12);
            assert!(close, "{text:?}: {found:?}");
        }
        assert!((word_repetition("the cat the cat the cat", 2, -0.5) + 0.3).abs() < 1e-12);
    }

    #[test]
    fn the_language_of_a_row_wins() {
        let function = crate::Registry::default().function("code_format:language=cpp").unwrap();
        let text = "<think>\na\n</think>\n<answer>\n```python\nx\n```\n</answer>";
        let scores = |columns: serde_json::Value| {
            let input = RewardInput {
                columns: std::sync::Arc::new(serde_json::from_value(columns).unwrap()),
                completions: crate::testing::completions(&[text]),
                ..RewardInput::default()
            };
            function.reward().score(&input)[0].score()
        };
        assert_eq!(scores(serde_json::json!({})), Some(0.0));
        assert_eq!(scores(serde_json::json!({ "language": "python" })), Some(1.0));
    }
}
