//! Comparing a mathematical answer with the expected one: the answer checker ([`accuracy`], [`compare`]) and plainer
//! rules on `\boxed{}` and numbers.
//!
//! The checker reads an answer as tokens (`tokens`), these as a shape (`reader`) of expressions (`scalar`) with units
//! (`units`), and compares expressions by an exact normal form (`value`, `polynomial`, `rational`).

mod choice;
mod compare;
mod inequality;
pub(super) mod looks;
mod polynomial;
mod reader;
mod scalar;
mod tokens;
mod units;
mod value;

use std::sync::LazyLock;

use regex::Regex;

use super::{
    number::{THOUSANDS, decimal_comma, in_digits, number, same_whole, vote_of_number},
    tags,
};

pub use compare::{Verdict, compare};

/// A number in running text, or several with nothing but commas between them ([`last_of`]).
static NUMBER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"-?(?:\d+(?:,\d+)*(?:\.\d+)?|\.\d+)").expect("a valid pattern"));

/// A simple fraction of LaTeX, whole numbers or decimals in both halves.
static FRACTION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(-?)\\frac\{?(-?[\d.]+)\}?\{?(-?[\d.]+)\}?$").expect("a valid pattern"));

/// Signs that answers may have or lack: of money, shares and degrees.
const SIGNS: [&str; 5] = ["$", "\\%", "%", "^\\circ", "^{\\circ}"];

/// Where a solution says what its answer is, as MetaMath's do.
static ANNOUNCED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?im)\banswer(?:\s+is)?\s*:\s*(\S.*)$").expect("a valid pattern"));

/// The same at the end of a solution, without a colon.
static CONCLUDED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i).*\banswer\s+is\s+(\S[^\n]*?)\s*$").expect("a valid pattern"));

/// The content of the last `\boxed{…}` (or `\fbox{…}`), braces balanced; `None` without one or if it is not closed.
/// Without braces, `\boxed 7` is what follows on the line.
#[must_use]
pub fn last_boxed(text: &str) -> Option<&str> {
    let last = |command: &str| {
        let mut all = text.rmatch_indices(command).map(|(at, _)| at + command.len());
        all.find(|&behind| boxes(&text[behind..]))
    };
    let rest = text[["\\boxed", "\\fbox", "\\framebox"].into_iter().filter_map(last).max()?..].trim_start();
    let Some(rest) = rest.strip_prefix('{') else {
        let end = rest.find(['$', '\n']).into_iter().chain(rest.find("\\)")).min();
        return Some(rest[..end.unwrap_or(rest.len())].trim());
    };
    let mut depth = 1;
    for (index, byte) in rest.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(rest[..index].trim());
        }
    }
    None
}

/// Whether the text behind the command is its argument: in braces, or a number or command without. A sentence may only
/// mention the command.
fn boxes(behind: &str) -> bool {
    let argument = behind.trim_start();
    let unsigned = argument.strip_prefix(['-', '+']).unwrap_or(argument);
    let bare = |c: char| c.is_ascii_digit() || (c == '\\' && unsigned[1..].starts_with(char::is_alphabetic));
    argument.starts_with('{') || unsigned.chars().next().is_some_and(bare)
}

/// The final answer of a completion: the content of the last `\boxed{}`, else of the last `<answer>`, else the rest of
/// the line after the last `####`. `None` without any, or when it is empty.
#[must_use]
pub fn final_answer(completion: &str) -> Option<&str> {
    let marked = || completion.rsplit_once("####").and_then(|(_, rest)| rest.trim_start().lines().next());
    let answer = last_boxed(completion).or_else(|| tags::extract_answer(completion)).or_else(marked);
    answer.map(str::trim).filter(|answer| !answer.is_empty())
}

/// The answer that a solution comes to: its final answer as a completion's, else what follows the last `answer is:`, or
/// `answer is` in its last line, else all of it.
#[must_use]
pub fn expected_answer(solution: &str) -> &str {
    final_answer(solution).unwrap_or_else(|| announced(solution)).trim()
}

fn announced(solution: &str) -> &str {
    let last = ANNOUNCED.captures_iter(solution).last().or_else(|| CONCLUDED.captures(solution));
    last.and_then(|found| found.get(1)).map_or(solution, |answer| answer.as_str())
}

/// 1 if the final answer of a completion is the expected one, 0 if it surely is not or there is none, `None` when that
/// cannot be told (TRL's `accuracy_reward`, which also abstains when it cannot read the solution). The expected answer
/// may itself be a solution that ends as a completion does.
#[must_use]
pub fn accuracy(completion: &str, expected: &str) -> Option<f64> {
    let Some(given) = final_answer(completion) else { return Some(0.0) };
    match compare(given, expected_answer(expected)) {
        Verdict::Equal => Some(1.0),
        Verdict::Different => Some(0.0),
        Verdict::Unsure => None,
    }
}

/// As [`accuracy`], of what follows the end of the reasoning; 0 when that never comes (TRL's
/// `reasoning_accuracy_reward`).
#[must_use]
pub fn reasoning_accuracy(completion: &str, expected: &str, delimiter: &str) -> Option<f64> {
    match completion.rsplit_once(delimiter) {
        Some((_, answer)) => accuracy(answer, expected),
        None => Some(0.0),
    }
}

/// 1 if the last `\boxed{}` of the completion equals the expected answer, as text or as a value, else 0. The expected
/// answer may itself be a solution that ends in `\boxed{}` or `####`.
#[must_use]
pub fn boxed(completion: &str, expected: &str) -> f64 {
    let expected = expected_answer(expected);
    let right = |given| same(&normalise(given), &normalise(expected)) || compare::same_text(given, expected);
    f64::from(u8::from(last_boxed(completion).is_some_and(right)))
}

/// 1 if the last number of the completion equals the expected one, else 0.
#[must_use]
pub fn numeric(completion: &str, expected: &str) -> f64 {
    let expected = normalise(expected_answer(expected));
    let right = |given| same(last_of(given), &expected) || same_with_decimal_comma(given, &expected);
    f64::from(u8::from(value(&readable(&expected)).is_some() && last_found(completion).is_some_and(right)))
}

/// The answer that [`accuracy`] compares, as [`canonical`] text.
#[must_use]
pub fn vote(completion: &str) -> Option<String> {
    final_answer(completion).map(canonical)
}

/// As [`vote`], for [`boxed`].
#[must_use]
pub fn vote_boxed(completion: &str) -> Option<String> {
    last_boxed(completion).filter(|answer| !answer.is_empty()).map(canonical)
}

/// As [`vote`], for [`numeric`].
#[must_use]
pub fn vote_numeric(completion: &str) -> Option<String> {
    last_found(completion).map(last_of).and_then(vote_of_number)
}

/// The value of an answer that is a number or a plain fraction, else its text without mere looks. Equal answers of
/// other forms may give different texts.
fn canonical(answer: &str) -> String {
    let text = normalise(answer);
    vote_of_number(&text).or_else(|| value(&text).map(in_digits)).unwrap_or(text)
}

/// The last number of a completion, or several with nothing but commas between them.
fn last_found(completion: &str) -> Option<&str> {
    NUMBER.find_iter(completion).last().map(|found| found.as_str())
}

/// The last number in a match of [`NUMBER`]: the whole match if its commas separate thousands, else the text after the
/// last comma.
fn last_of(found: &str) -> &str {
    if THOUSANDS.is_match(found) { found } else { found.rsplit(',').next().unwrap_or(found) }
}

fn normalise(answer: &str) -> String {
    let mut text = looks::without_commands(&looks::bare(answer)).replace("dfrac", "frac").replace("tfrac", "frac");
    for sign in SIGNS {
        text = text.replace(sign, "");
    }
    unwrapped(without_spaces(&text).trim_end_matches(['.', ','])).to_owned()
}

/// A text without its spaces, but for those between two numbers: `1 2` is not 12, and `1 234` is 1234.
fn without_spaces(text: &str) -> String {
    let mut kept = String::new();
    let mut parts = text.split_whitespace().peekable();
    while let Some(part) = parts.next() {
        kept.push_str(part);
        let Some(next) = parts.peek() else { break };
        let digits = next.bytes().take_while(u8::is_ascii_digit).count();
        let is_group = digits == 3 && !next[digits..].starts_with('/');
        if part.ends_with(|c: char| c.is_ascii_digit()) && digits > 0 && !is_group {
            kept.push(' ');
        }
    }
    kept
}

/// Without braces and parentheses around a single value.
fn unwrapped(text: &str) -> &str {
    let inner = [('{', '}'), ('(', ')')].iter().find_map(|&(open, close)| {
        let inner = text.strip_prefix(open)?.strip_suffix(close)?;
        (!inner.is_empty() && !inner.contains(['{', '}', '(', ')', '[', ']', ','])).then_some(inner)
    });
    inner.unwrap_or(text)
}

/// Whether two normalised answers are the same text or number.
fn same(given: &str, expected: &str) -> bool {
    same_as_written(given, expected) || same_with_decimal_comma(given, expected) || {
        same_with_decimal_comma(expected, given)
    }
}

fn same_as_written(given: &str, expected: &str) -> bool {
    match (value(given), value(expected)) {
        // Whole numbers are compared by their digits, since a double does not have all of them.
        (Some(a), Some(b)) => same_whole(given, expected).unwrap_or_else(|| close(a, b)),
        _ => given == expected,
    }
}

/// Whether a number with a decimal comma is the other one, which has no comma.
fn same_with_decimal_comma(text: &str, other: &str) -> bool {
    !other.contains(',') && decimal_comma(text).is_some_and(|text| same_as_written(&text, other))
}

/// A number in a form that [`value`] reads.
fn readable(text: &str) -> String {
    decimal_comma(text).unwrap_or_else(|| text.to_owned())
}

/// The value of a number, `a/b` or `\frac{a}{b}`.
fn value(text: &str) -> Option<f64> {
    if let Some(value) = number(text) {
        return Some(value);
    }
    let ratio = |top: &str, bottom: &str| Some(number(top)? / number(bottom)?).filter(|v| v.is_finite());
    if let Some(parts) = FRACTION.captures(text) {
        let sign = if parts[1].is_empty() { 1.0 } else { -1.0 };
        return ratio(&parts[2], &parts[3]).map(|v| sign * v);
    }
    text.split_once('/').and_then(|(top, bottom)| ratio(top, bottom))
}

/// Equal but for the rounding of a fraction.
fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

#[cfg(test)]
mod checker_tests;

#[cfg(test)]
mod looks_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_balanced_and_the_last_counts() {
        assert_eq!(last_boxed(r"\boxed{1} and \boxed{\frac{1}{2}}."), Some(r"\frac{1}{2}"));
        assert_eq!(last_boxed(r"\boxed{1"), None);
        assert_eq!(last_boxed("1"), None);
        assert_eq!(last_boxed(r"$\boxed 7$ it is"), Some("7"));
        assert_eq!(last_boxed(r"\fbox{12}"), Some("12"));
        assert_eq!(last_boxed(r"\boxed{\fbox {12}}"), Some("12"));
        assert_eq!(last_boxed(r"\boxed{5}, with \boxed as asked"), Some("5"));
    }

    #[test]
    fn equal_answers_may_look_different() {
        for (given, expected) in [
            ("72", "72"),
            ("72.0", "72"),
            (r"\$1{,}234", r"1{,}234"),
            ("1,234", "1234"),
            (r"\frac{1}{2}", "0.5"),
            (r"-\dfrac12", "-1/2"),
            (r"50\%", "50"),
            (r"\text{East}", "East"),
            (r"\left( 3, 4 \right)", "(3,4)"),
            ("x^2+1", "x^2 + 1"),
            (r"90^\circ", "90"),
            ("18", "6 * 3 = 18\n#### 18"),
            ("7", r"so it is \boxed{7}"),
            ("**7**", "7"),
            (r"\mathbf{7}", "7"),
            (r"\text{(C)}", "C"),
            (r"\textbf{7.0}", "7"),
            (r"\large 7", "7"),
            (r"7\\", "7"),
            ("3,5", "3.5"),
            ("0{,}75", "0.75"),
            ("36893488147419103232", "36893488147419103232"),
            ("72", "48 + 24 = 72. The answer is: 72"),
            ("72", "<answer>72</answer>"),
            ("72", "48 + 24 = 72. So the answer is 72."),
            ("72", "#### 7\n#### 72"),
            ("72,", "72"),
            ("{7}", "7"),
            (r"\left(7\right)", "7"),
            (r"\Large{7}", "7"),
            ("1 234", "1234"),
            (r"3\ \frac12", r"3\frac12"),
        ] {
            assert_eq!(boxed(&format!("thus \\boxed{{{given}}}"), expected), 1.0, "{given} for {expected}");
        }
        for (given, expected) in [
            ("71", "72"),
            ("", "72"),
            ("x", "y"),
            ("1/0", "1"),
            ("12", "1/2"),
            ("1 2", "12"),
            ("3 1/2", "31/2"),
            ("7", "#### 7\n#### 72"),
            ("1,2", "12"),
            ("1,20", "1,2"),
            ("1000000001", "1000000000"),
            ("36893488147419103233", "36893488147419103232"),
        ] {
            assert_eq!(boxed(&format!("\\boxed{{{given}}}"), expected), 0.0, "{given} for {expected}");
        }
        assert_eq!(boxed("72", "72"), 0.0, "without a box there is no answer");
    }

    #[test]
    fn the_last_number_of_a_text_counts() {
        for (text, expected, score) in [
            ("48 + 24 = 72", "72", 1.0),
            ("costs $1,234.50 in all.", "1234.5", 1.0),
            ("it is -3.", "-3", 1.0),
            (".5", "1/2", 1.0),
            ("it makes 1,234", "1234", 1.0),
            ("it makes 1,234", "234", 0.0),
            ("12,345,678 people", "12,345,678", 1.0),
            ("-1,234.50.", "-1234.5", 1.0),
            ("in 2024", "2024", 1.0),
            // Commas that do not stand before three digits each are those of a list.
            ("1,2", "2", 1.0),
            ("1,2", "12", 0.0),
            ("12,3456", "3456", 1.0),
            ("1234,567", "567", 1.0),
            ("1,2,345", "345", 1.0),
            ("3,5 metres", "3.5", 1.0),
            ("3.5 metres", "3,5", 1.0),
            ("it is 36893488147419103232", "36893488147419103232", 1.0),
            ("it is 36893488147419103233", "36893488147419103232", 0.0),
            ("72 or 73", "72", 0.0),
            ("none", "72", 0.0),
        ] {
            assert_eq!(numeric(text, expected), score, "{text} for {expected}");
        }
    }
}
