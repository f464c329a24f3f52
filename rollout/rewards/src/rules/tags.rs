//! Rules on tags: theLMbook's correctness and format, TRL's think format.

use std::{borrow::Cow, sync::LazyLock};

use regex::Regex;

use super::{
    answer::expected_answer,
    gsm8k,
    number::{same_number, vote_of_number},
};

/// theLMbook's idea of a number.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"-?\d*\.?\d+").expect("a valid pattern"));

/// Tags that begin an answer.
const OPENING: [&str; 3] = ["<think>", "<reasoning>", "<answer>"];

/// The tag that a prompt opens at its end, with the white space behind it: some chat templates begin the answer for the
/// model, so that its completions begin behind the tag.
#[must_use]
pub fn opened(prompt: &str) -> Option<&str> {
    let end = prompt.trim_end();
    let tag = OPENING.into_iter().find(|tag| end.ends_with(tag))?;
    Some(&prompt[end.len() - tag.len()..])
}

/// A completion with the tag that its prompt opens, unless it opens that itself.
#[must_use]
pub fn with_opened<'a>(prompt: &str, completion: &'a str) -> Cow<'a, str> {
    with_known(prompt, completion, &OPENING)
}

/// As [`with_opened`], for a rule that looks for the tags `known` alone: another one before them would be text to it.
#[must_use]
pub fn with_known<'a>(prompt: &str, completion: &'a str, known: &[&str]) -> Cow<'a, str> {
    match opened(prompt).filter(|tag| known.contains(&tag.trim_end())) {
        Some(tag) if !completion.trim_start().starts_with(tag.trim_end()) => format!("{tag}{completion}").into(),
        _ => completion.into(),
    }
}

/// The text of the last `<answer>` up to `</answer>`, stripped. `None` if it is missing, not closed, or exactly `...`
/// (the system prompt's own example).
#[must_use]
pub fn extract_answer(text: &str) -> Option<&str> {
    let (_, last) = text.rsplit_once("<answer>")?;
    let (answer, _) = last.split_once("</answer>")?;
    Some(answer.trim()).filter(|answer| *answer != "...")
}

/// The number in a text that holds exactly one, as it stands there.
fn single(text: &str) -> Option<&str> {
    let mut matches = NUMBER.find_iter(text);
    let first = matches.next()?;
    if matches.next().is_some() { None } else { Some(first.as_str()) }
}

/// theLMbook's `correctness_reward`: 2 if the extracted answer is the expected one, 1.5 if both hold exactly one number
/// and these are equal, else 0.
#[must_use]
pub fn correctness(completion: &str, answer: &str) -> f64 {
    let Some(extracted) = extract_answer(completion) else { return 0.0 };
    // A dataset may have a whole solution as its answer.
    let answer = gsm8k::answer(answer).unwrap_or_else(|| expected_answer(answer));
    if extracted == answer {
        return 2.0;
    }
    let same = single(extracted).zip(single(answer)).and_then(|(found, expected)| same_number(found, expected));
    if same == Some(true) { 1.5 } else { 0.0 }
}

/// The answer that [`correctness`] looks at. Two answers that it takes for the same have the same text.
#[must_use]
pub fn vote(completion: &str) -> Option<String> {
    let answer = extract_answer(completion).filter(|answer| !answer.is_empty())?;
    Some(single(answer).and_then(vote_of_number).unwrap_or_else(|| answer.to_owned()))
}

/// theLMbook's `format_reward`: 0.2 for each of the four tags that appears.
#[must_use]
pub fn format(completion: &str) -> f64 {
    ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]
        .iter()
        .filter(|tag| completion.contains(**tag))
        .fold(0.0, |sum, _| sum + 0.2)
}

/// TRL's `think_format_reward`, the pattern `^<think>(?!.*<think>)(.*?)</think>.*$`: opens with `<think>`, never opens
/// it again, and closes it.
#[must_use]
pub fn think_format(completion: &str) -> f64 {
    let thinks =
        completion.strip_prefix("<think>").is_some_and(|rest| !rest.contains("<think>") && rest.contains("</think>"));
    f64::from(u8::from(thinks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_rewards_rule() {
        for case in harness::golden::cases(
            "rewards_rule.json",
            "rewards_rule",
            &[],
            &["answer", "response"],
            &["combined", "correctness", "extracted", "format"],
        ) {
            let (inputs, expected) = (&case["inputs"], &case["expected"]);
            let (response, answer) = (inputs["response"].as_str().unwrap(), inputs["answer"].as_str().unwrap());
            let (correct, format) = (correctness(response, answer), format(response));
            assert_eq!(extract_answer(response), expected["extracted"].as_str(), "{}", case["name"]);
            assert_eq!(correct, expected["correctness"].as_f64().unwrap(), "{}", case["name"]);
            assert!((format - expected["format"].as_f64().unwrap()).abs() < 1e-9, "{}", case["name"]);
            assert!((correct + format - expected["combined"].as_f64().unwrap()).abs() < 1e-9, "{}", case["name"]);
        }
    }

    #[test]
    fn what_a_prompt_opens_is_the_completions() {
        for (prompt, tag) in [
            ("[assistant] <think>\n", Some("<think>\n")),
            ("<think>", Some("<think>")),
            ("so <reasoning> ", Some("<reasoning> ")),
            ("<think>\n\n</think>\n\n", None),
            ("<think> about", None),
            ("", None),
        ] {
            assert_eq!(opened(prompt), tag, "{prompt}");
        }
        let prompt = "[assistant] <think>\n";
        assert_eq!(with_opened(prompt, "a</think>b"), "<think>\na</think>b");
        assert_eq!(with_opened(prompt, "<think>a</think>b"), "<think>a</think>b");
        assert_eq!(with_opened("[assistant] ", "a</think>b"), "a</think>b");
        assert_eq!(with_known(prompt, "a</think>b", &["<think>"]), "<think>\na</think>b");
        assert_eq!(with_known("[assistant] <answer>", "<think>a</think>b", &["<think>"]), "<think>a</think>b");
    }

    #[test]
    fn thinking_happens_once_and_first() {
        for (text, expected) in [
            ("<think>a\nb</think>c\nd", 1.0),
            ("<think></think>", 1.0),
            (" <think>a</think>", 0.0),
            ("<think>a", 0.0),
            ("<think>a</think><think>", 0.0),
            ("<think><think>a</think>", 0.0),
            ("a<think>b</think>", 0.0),
        ] {
            assert_eq!(think_format(text), expected, "{text}");
        }
    }
}
