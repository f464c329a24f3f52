//! Inequalities in one letter, read as intervals.

use super::{
    reader::{self, Answer},
    tokens::Token,
};

/// A sign between two sides.
#[derive(Clone, Copy, PartialEq)]
struct Relation {
    /// Whether the left side is the smaller one.
    less: bool,
    /// Whether the sides may be equal.
    closed: bool,
}

/// The letter of an inequality and the values that it may have: of `x \ge 3`, of `3 \le x < 5`, of several that are
/// joined by `or`, and of `\{x \mid x \ge 3\}`.
pub(super) fn read(tokens: &[Token]) -> Option<(String, Answer)> {
    if let Some(inner) = reader::enclosed(tokens, |token| token.is_command("{"), |token| token.is_command("}")) {
        let [name, such_that, condition @ ..] = inner else { return None };
        let such_that = such_that.is('|') || such_that.is(':') || such_that.is_command("mid");
        return read(condition).filter(|(found, _)| such_that && reader::letter(name).as_ref() == Some(found));
    }
    let parts = reader::split(tokens, is_or)?;
    let ranges: Vec<(String, Answer)> = parts.into_iter().map(range).collect::<Option<_>>()?;
    let name = ranges.first()?.0.clone();
    if ranges.iter().any(|(other, _)| *other != name) {
        return None;
    }
    let mut ranges: Vec<Answer> = ranges.into_iter().map(|(_, range)| range).collect();
    Some((name, if ranges.len() == 1 { ranges.remove(0) } else { Answer::Union(ranges) }))
}

fn is_or(token: &Token) -> bool {
    let word = matches!(token, Token::Word(word) | Token::Text(word) if word == "or");
    word || token.is_command("cup") || token.is_command("lor") || token.is_command("vee")
}

fn relation(token: &Token) -> Option<Relation> {
    let (less, closed) = match token {
        Token::Symbol('<') => (true, false),
        Token::Symbol('>') => (false, false),
        token if token.is_command("le") => (true, true),
        token if token.is_command("ge") => (false, true),
        _ => return None,
    };
    Some(Relation { less, closed })
}

/// One interval.
fn range(tokens: &[Token]) -> Option<(String, Answer)> {
    let signs: Vec<Relation> = tokens.iter().filter_map(relation).collect();
    let sides = reader::split(tokens, |token| relation(token).is_some())?;
    let single_letter = |side: &[Token]| match side {
        [token] => reader::letter(token),
        _ => None,
    };
    let (name, low, high) = match (sides.as_slice(), signs.as_slice()) {
        ([left, right], [sign]) => match (single_letter(left), single_letter(right)) {
            (Some(name), None) if sign.less => (name, None, Some((*right, sign.closed))),
            (Some(name), None) => (name, Some((*right, sign.closed)), None),
            (None, Some(name)) if sign.less => (name, Some((*left, sign.closed)), None),
            (None, Some(name)) => (name, None, Some((*left, sign.closed))),
            _ => return None,
        },
        ([left, middle, right], [first, second]) if first.less == second.less => {
            let (left, right) = ((*left, first.closed), (*right, second.closed));
            let (low, high) = if first.less { (left, right) } else { (right, left) };
            (single_letter(middle)?, Some(low), Some(high))
        }
        _ => return None,
    };
    let end = |end: Option<(&[Token], bool)>, negative: bool| match end {
        None => Some((Answer::Infinity { negative }, false)),
        Some((tokens, _)) if reader::has_groups(tokens) => None,
        Some((tokens, closed)) => match reader::single(tokens)? {
            value @ (Answer::Quantity(_) | Answer::Infinity { .. }) => Some((value, closed)),
            _ => None,
        },
    };
    let ((low, low_closed), (high, high_closed)) = (end(low, true)?, end(high, false)?);
    let (open, close) = (if low_closed { '[' } else { '(' }, if high_closed { ']' } else { ')' });
    Some((name, Answer::Bracket(open, close, vec![low, high])))
}
