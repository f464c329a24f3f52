//! A process reward by rule: the equations of each step.

use std::{borrow::Cow, sync::Arc, sync::LazyLock};

use regex::Regex;
use shared::{RewardOutcome, StepScore};

use super::{Built, Parameters, expression};
use crate::{Reward, RewardCompletion, RewardInput, steps};

/// Numbering or a bullet at the start of a line.
static LIST_MARK: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^[ \t]*(?:\d+[.)]|[-*•])[ \t]+").expect("a valid pattern"));
/// A letter x, or a sign that only looks like an operator of a program, between two numbers.
static TIMES: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"([\d)])[ \t]*(?:[x×·]|\\times|\\cdot)[ \t]*([\d($-])").expect("a valid pattern"));
/// A comma between groups of three digits.
static THOUSANDS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\d),(\d{3})(?:\b)").expect("a valid pattern"));

/// Longest side of an equation, in bytes; a longer one is not looked at.
const MAX_SIDE: usize = 200;

/// Whether the equations of a text hold: `None` without an equation.
///
/// An equation is `left = right` where both sides are numbers joined by `+ - * /` and parentheses, at least one of them
/// with an operator. `×`, `·`, `x` between numbers, `÷`, `\times`, `\cdot`, `\div`, `−`, `$` and thousands separators
/// are understood. In `a = b = c`, each `=` is an equation. An equation holds when its sides are equal. Where the right
/// side is a number with d decimals, it also holds when the left side rounds to that, within half a unit of the last
/// decimal. An equation next to a letter or a percent sign is not looked at.
#[must_use]
pub fn equations_hold(text: &str) -> Option<bool> {
    let text = plain(text);
    let checked = text.match_indices('=').filter_map(|(at, _)| holds(&text[..at], &text[at + 1..]));
    checked.fold(None, |all, holds| Some(all.unwrap_or(true) && holds))
}

fn plain(text: &str) -> String {
    let text = LIST_MARK.replace_all(text, "");
    // A match takes the digit that the next one would begin with, so chains need a second pass.
    let twice = |pattern: &Regex, with: &str, text: &str| -> String {
        let once: Cow<'_, str> = pattern.replace_all(text, with);
        pattern.replace_all(&once, with).into_owned()
    };
    let text = twice(&TIMES, "$1*$2", &text);
    let text = twice(&THOUSANDS, "$1$2", &text);
    text.replace(['÷'], "/").replace("\\div", "/").replace('−', "-").replace(['$'], "").replace("\\(", "")
}

const OPERATORS: [char; 4] = ['+', '-', '*', '/'];

fn part_of_expression(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, ' ' | '\t' | '.' | '+' | '-' | '*' | '/' | '(' | ')')
}

fn holds(before: &str, after: &str) -> Option<bool> {
    let left = &before[before.trim_end_matches(part_of_expression).len()..];
    let right = &after[..after.len() - after.trim_start_matches(part_of_expression).len()];
    // Parentheses after a number explain it.
    let right = right.strip_suffix('(').unwrap_or(right);
    let joined = |c: char| c.is_alphanumeric() || matches!(c, '_' | '%' | '^' | '!' | '\\' | '{' | '}' | '²' | '³');
    if left.len().max(right.len()) > MAX_SIDE {
        return None;
    }
    let blank = [' ', '\t'];
    // A word beside a side is only a word, unless it is written together with it.
    let touches = |c: char, apart: bool| joined(c) && !(apart && c.is_alphabetic());
    let precedes = before[..before.len() - left.len()].chars().next_back();
    let follows = after[right.len()..].chars().next();
    if precedes.is_some_and(|c| touches(c, left.starts_with(blank)))
        || follows.is_some_and(|c| touches(c, right.ends_with(blank)))
    {
        return None;
    }
    let left = left.trim().trim_start_matches(['.', ')']).trim();
    let right = right.trim().trim_end_matches([' ', '\t', '.']);
    // An operator at the outer end has its other operand in a text that is no number.
    let joins = left.starts_with(OPERATORS) && left[1..].starts_with(blank);
    if joins || right.ends_with(OPERATORS) || !(has_operator(left) || has_operator(right)) {
        return None;
    }
    let (a, b) = (expression::evaluate(left)?.as_f64(), expression::evaluate(right)?.as_f64());
    Some((a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0) + rounding(right))
}

fn has_operator(side: &str) -> bool {
    side.trim_start_matches(['+', '-']).contains(OPERATORS)
}

/// Half a unit of the last decimal of a number; 0 for whole numbers and expressions.
fn rounding(side: &str) -> f64 {
    match side.split_once('.') {
        Some((_, decimals)) if !has_operator(side) => 0.5 * 10f64.powi(-(decimals.len().min(300) as i32)),
        _ => 0.0,
    }
}

/// Scores every step that has an equation: 1 if all its equations hold, else 0.
struct StepArithmetic {
    separator: String,
}

impl StepArithmetic {
    fn steps(&self, input: &RewardInput, completion: &RewardCompletion) -> RewardOutcome {
        let steps = match steps::of_completion(input, completion, &self.separator) {
            Ok(steps) => steps,
            Err(reason) => return RewardOutcome::Failed(reason),
        };
        let scored: Vec<StepScore> = steps
            .into_iter()
            .filter_map(|step| {
                let holds = equations_hold(&completion.text[step.text])?;
                Some(StepScore { end: step.end, score: f64::from(u8::from(holds)) })
            })
            .collect();
        if scored.is_empty() { RewardOutcome::NotApplicable } else { RewardOutcome::Steps(scored) }
    }
}

impl Reward for StepArithmetic {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        input.completions.iter().map(|completion| self.steps(input, completion)).collect()
    }
}

pub(super) fn build(parameters: &Parameters) -> Built {
    Ok(Arc::new(StepArithmetic { separator: separator(parameters)? }))
}

/// The parameter `separator`, in which `\n` and `\t` stand for a line break and a tabulator.
pub fn separator(parameters: &Parameters) -> Result<String, String> {
    let text: String = parameters.get("separator")?;
    let separator = text.replace("\\n", "\n").replace("\\t", "\t");
    if separator.is_empty() { Err("parameter `separator` must not be empty".into()) } else { Ok(separator) }
}

#[cfg(test)]
mod tests {
    use shared::FinishReason;

    use super::*;
    use crate::{Registry, testing::ByteTokenizer};

    #[test]
    fn equations_are_found_and_checked() {
        for (text, expected) in [
            ("1 + 2 = 3", Some(true)),
            ("1 + 2 = 4", Some(false)),
            ("so 48 / 2 = 24 clips in May.", Some(true)),
            ("48/2=<<48/2=24>>24 clips", Some(true)),
            ("48/2=<<48/2=25>>25 clips", Some(false)),
            ("3 x 4 x 5 = 60", Some(true)),
            ("3 × 4 ÷ 2 = 6", Some(true)),
            ("3 \\times 4 = 12", Some(true)),
            ("$1,200 * 3 = $3,600.", Some(true)),
            ("2 * (3 + 4) = 14", Some(true)),
            ("1 + 2 = 3 and 3 + 3 = 7", Some(false)),
            ("2 + 3 = 5 + 1 = 6", Some(false)),
            ("2 + 4 = 5 + 1 = 6", Some(true)),
            ("10 / 3 = 3.33", Some(true)),
            ("10 / 3 = 3.34", Some(false)),
            ("10 / 3 = 3", Some(false)),
            ("5 - 8 = -3", Some(true)),
            ("- 5 + 8 = 13", Some(true)),
            ("1. 5 + 8 = 13", Some(true)),
            ("-5 + 8 = 3", Some(true)),
            ("7 = 3 + 4", Some(true)),
            ("5 - 8 = -3 degrees", Some(true)),
            ("3 + 4 = 7 (seven)", Some(true)),
            ("x - 2 + 3 = 9", None),
            ("x * 2 + 3 = 9", None),
            ("2 + 4 = 3 * x", None),
            ("2 + 4 = 3x", None),
            ("x = 5", None),
            ("x2 + 3 = 5", None),
            ("2x + 3 = 5", None),
            ("50% + 1 = 2", None),
            ("3 / 20 = 15%", None),
            ("3^2 + 1 = 10", None),
            ("1 / 0 = 3", None),
            ("5 = 5", None),
            ("no equation", None),
            ("", None),
            ("= = = 1 + =", None),
        ] {
            assert_eq!(equations_hold(text), expected, "{text}");
        }
        let long = format!("{}1 = 2", "1+".repeat(100_000));
        assert_eq!(equations_hold(&long), None);
    }

    #[test]
    fn steps_end_at_their_last_token() {
        let text = "é: 1+1=2\nnothing here\n2+2=5";
        let token_ids = ByteTokenizer::encode(text);
        let completion = RewardCompletion::of_one_turn(text, token_ids, FinishReason::Stop);
        let none = RewardCompletion::of_one_turn("x", vec![87], FinishReason::Stop);
        let input = RewardInput {
            tokenizer: Some(Arc::new(ByteTokenizer)),
            completions: vec![completion, none],
            ..RewardInput::default()
        };
        let step = |end, score| StepScore { end, score };
        let outcomes = Registry::default().function("step_arithmetic").unwrap().reward().score(&input);
        let expected = RewardOutcome::Steps(vec![step(9, 1.0), step(27, 0.0)]);
        assert_eq!(outcomes, [expected, RewardOutcome::NotApplicable]);
        let outcomes = Registry::default().function(r"step_arithmetic:separator=\n2").unwrap().reward().score(&input);
        assert_eq!(outcomes[0], RewardOutcome::Steps(vec![step(23, 1.0)]));
    }
}
