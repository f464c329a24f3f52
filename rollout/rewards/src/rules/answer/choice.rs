//! Answers to multiple-choice questions, such as `(C) 14`: a letter that stands for an answer, with or without the
//! answer.

use std::sync::LazyLock;

use regex::Regex;

use super::looks;

/// A choice as it is written, without commands around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// Its letter.
    pub letter: char,
    /// The text behind the letter; empty for the letter alone.
    pub rest: String,
}

/// A letter that is marked as a choice, and the rest.
static MARKED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(?:\(\s*([A-J])\s*\)[.:]?|([A-J])\s*[).:])\s*(.*)$").expect("a valid pattern"));

/// Words before a choice.
static INTRODUCED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(?i:option|choice)\s+(?P<choice>\(?\s*[A-J]\b)").expect("a valid pattern"));

/// Signs that the letter may not be the choice: another letter, or words that take it back.
static DOUBT: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"\b[A-J]\b|^(?:and|or|&)\b|(?i:\b(?:not|no|wrong|incorrect|false|neither|except|but|if)\b)";
    Regex::new(pattern).expect("a valid pattern")
});

/// Reads a choice: the letter alone, with or without marks, or a marked one with what it stands for.
pub(super) fn read(answer: &str) -> Option<Choice> {
    if answer.len() > super::tokens::MAX_BYTES {
        return None;
    }
    let text = looks::without_commands(&looks::bare(answer)).replace(['$', '~'], " ");
    let text = looks::bare(&text);
    let text = INTRODUCED.replace(&text, "$choice");
    if let [letter @ b'A'..=b'J'] = text.as_bytes() {
        return Some(Choice { letter: char::from(*letter), rest: String::new() });
    }
    let found = MARKED.captures(&text)?;
    let letter = found.get(1).or_else(|| found.get(2))?.as_str().chars().next()?;
    let rest = found.get(3).map_or("", |rest| rest.as_str()).trim();
    let begins = rest.chars().next().is_none_or(|c| c.is_alphanumeric() || matches!(c, '\\' | '-' | '"' | '$'));
    (begins && !DOUBT.is_match(rest)).then(|| Choice { letter, rest: rest.to_owned() })
}
