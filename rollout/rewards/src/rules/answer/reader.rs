//! The shape of an answer: a quantity, several of them, or words.

use super::{
    inequality, scalar,
    tokens::Token,
    units::{self, Suffix},
    value::Value,
};

/// Deepest nesting of tuples and sets.
const MAX_DEPTH: usize = 6;
/// Most elements of a list or set.
const MAX_ITEMS: usize = 32;

/// An answer that was understood.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// One value.
    Quantity(Quantity),
    /// Positive or negative infinity.
    Infinity { negative: bool },
    /// `1, 2`: several values without brackets.
    List(Vec<Answer>),
    /// `(1, 2)` or an interval: brackets and elements.
    Bracket(char, char, Vec<Answer>),
    /// `\{1, 2\}`.
    Set(Vec<Answer>),
    /// Intervals or sets joined by `\cup`.
    Union(Vec<Answer>),
    /// Words, in lower case.
    Words(String),
    /// An element with its name, as in `x = 1, y = 2`.
    Named(String, Box<Answer>),
}

/// An answer with its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reading {
    /// The name that it gives to its value: `x` in `x = 5`.
    pub name: Option<String>,
    /// The value.
    pub answer: Answer,
    /// Whether the value is an interval that is written as an inequality, so that its ends are no answer.
    pub inequality: bool,
}

/// A value with what stands around it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quantity {
    pub value: Value,
    pub suffix: Suffix,
    /// Digits after the point, if it is written as a plain number.
    pub decimals: Option<usize>,
    /// Significant digits, if it is written as a plain number or in scientific notation.
    pub digits: usize,
    /// Whether it has thousands separators, so that it might be several numbers.
    pub grouped: bool,
    /// Whether it ends in a single letter, which might be a unit.
    pub ends_in_letter: bool,
    /// The values before letters with powers and quotients that might be a unit all together, as in `9.8 m/s^2`.
    pub before_units: Vec<Value>,
}

/// Reads an answer. A leading comma separates nothing.
pub(super) fn read(tokens: &[Token]) -> Option<Reading> {
    let tokens = match tokens {
        [comma, rest @ ..] if is_comma(comma) => rest,
        all => all,
    };
    if let Some((name, answer)) = inequality::read(tokens) {
        return Some(Reading { name: Some(name), answer, inequality: true });
    }
    // In `x = 1, y = 2`, each element has its own name.
    let parts = split(tokens, |token| is_comma(token) || is_and(token))?;
    let named = parts.iter().filter(|part| name(part).0.is_some()).count();
    let (name, tokens) = if named > 1 { (None, tokens) } else { name(tokens) };
    Some(Reading { name, answer: shape(tokens, 0)?, inequality: false })
}

/// Splits `x = …`, `f(x) = …`, `x \in …` and `\text{Area} = …`.
fn name(tokens: &[Token]) -> (Option<String>, &[Token]) {
    match tokens {
        [name, equals, rest @ ..] if equals.is('=') || equals.is_command("in") => {
            if let Some(name) = letter(name) {
                return (Some(name), rest);
            }
        }
        [function, open, argument, close, equals, rest @ ..]
            if open.is('(') && close.is(')') && equals.is('=') && letter(argument).is_some() =>
        {
            return (letter(function), if letter(function).is_some() { rest } else { tokens });
        }
        _ => {}
    }
    let equals = tokens.iter().position(|token| token.is('='));
    match equals.and_then(|at| Some((words_of_name(&tokens[..at])?, &tokens[at + 1..]))) {
        Some((name, rest)) => (Some(name), rest),
        None => (None, tokens),
    }
}

/// A single letter.
pub(super) fn letter(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.chars().count() == 1 => Some(word.clone()),
        _ => None,
    }
}

/// Words that name a quantity, in lower case. `mx` and `ln x` are no names but expressions.
fn words_of_name(tokens: &[Token]) -> Option<String> {
    let names = |token: &Token| match token {
        Token::Text(text) => text.chars().all(|c| c.is_alphabetic() || c == ' ').then(|| text.to_lowercase()),
        Token::Word(word) => {
            let of_letter = |function: &str| {
                word.strip_prefix(function).is_some_and(|letter| ["", "x", "y", "z", "a", "b", "θ"].contains(&letter))
            };
            let function = ["sin", "cos", "tan", "cot", "sec", "log", "exp", "sqrt"].into_iter().any(of_letter);
            (word.chars().count() > 3 && !function).then(|| word.to_lowercase())
        }
        _ => None,
    };
    let words: Vec<String> = tokens.iter().map(names).collect::<Option<_>>()?;
    (!words.is_empty()).then(|| words.join(" "))
}

fn shape(tokens: &[Token], depth: usize) -> Option<Answer> {
    if depth > MAX_DEPTH || tokens.is_empty() {
        return None;
    }
    let unions = split(tokens, |token| token.is_command("cup"))?;
    if unions.len() > 1 {
        return items(unions, depth).map(Answer::Union);
    }
    if let [empty] = tokens
        && empty.is_command("emptyset")
    {
        return Some(Answer::Set(Vec::new()));
    }
    if let Some(inner) = enclosed(tokens, |token| token.is_command("{"), |token| token.is_command("}")) {
        if inner.is_empty() {
            return Some(Answer::Set(Vec::new()));
        }
        return items(split(inner, is_comma)?, depth).map(Answer::Set);
    }
    if let Some(inner) = enclosed(tokens, |token| token.is('{'), |token| token.is('}')) {
        let parts = split(inner, is_comma)?;
        return match parts.len() {
            1 if has_groups(inner) => None,
            1 => shape(inner, depth + 1),
            _ => items(parts, depth).map(Answer::Set),
        };
    }
    let open = |token: &Token| token.is('(') || token.is('[');
    if let Some(inner) = enclosed(tokens, open, |token| token.is(')') || token.is(']')) {
        let parts = split(inner, is_comma)?;
        if parts.len() == 1 && has_groups(inner) {
            return None;
        }
        if let (true, Token::Symbol(open), Some(Token::Symbol(close))) = (parts.len() > 1, &tokens[0], tokens.last()) {
            return items(parts, depth).map(|items| Answer::Bracket(*open, *close, items));
        }
    }
    let parts = split(tokens, |token| is_comma(token) || is_and(token))?;
    if parts.len() > 1 {
        // `1, 2, and 3` has an empty place.
        return items(parts.into_iter().filter(|part| !part.is_empty()).collect(), depth).map(Answer::List);
    }
    single(tokens)
}

fn is_comma(token: &Token) -> bool {
    token.is(',')
}

fn is_and(token: &Token) -> bool {
    matches!(token, Token::Word(word) | Token::Text(word) if word == "and" || word == "or")
}

fn items(parts: Vec<&[Token]>, depth: usize) -> Option<Vec<Answer>> {
    if parts.len() > MAX_ITEMS {
        return None;
    }
    let item = |part: &[Token]| {
        let (name, part) = name(part);
        let answer = if has_groups(part) { None } else { shape(part, depth + 1) }?;
        Some(match name {
            Some(name) => Answer::Named(name, Box::new(answer)),
            None => answer,
        })
    };
    parts.into_iter().map(item).collect()
}

/// Whether a number has thousands separators: within brackets and lists, `1,234` is one number or two.
pub(super) fn has_groups(tokens: &[Token]) -> bool {
    tokens.iter().any(|token| matches!(token, Token::Number { grouped: true, .. }))
}

fn opens(token: &Token) -> bool {
    matches!(token, Token::Symbol('(' | '[' | '{')) || token.is_command("{")
}

fn closes(token: &Token) -> bool {
    matches!(token, Token::Symbol(')' | ']' | '}')) || token.is_command("}")
}

/// The parts between separators that are in no brackets; `None` when brackets do not match.
pub(super) fn split(tokens: &[Token], separates: impl Fn(&Token) -> bool) -> Option<Vec<&[Token]>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (index, token) in tokens.iter().enumerate() {
        if opens(token) {
            depth += 1;
        } else if closes(token) {
            depth = depth.checked_sub(1)?;
        } else if depth == 0 && separates(token) {
            parts.push(&tokens[start..index]);
            start = index + 1;
        }
    }
    parts.push(&tokens[start..]);
    (depth == 0).then_some(parts)
}

/// The tokens between a matching first and last token.
pub(super) fn enclosed(
    tokens: &[Token],
    open: impl Fn(&Token) -> bool,
    close: impl Fn(&Token) -> bool,
) -> Option<&[Token]> {
    let [first, inner @ .., last] = tokens else { return None };
    (open(first) && close(last) && split(inner, |_| false).is_some()).then_some(inner)
}

pub(super) fn single(tokens: &[Token]) -> Option<Answer> {
    let infinity = |token: &Token| token.is_command("infty");
    match tokens {
        [token] if infinity(token) => return Some(Answer::Infinity { negative: false }),
        [sign, token] if infinity(token) && (sign.is('-') || sign.is('+')) => {
            return Some(Answer::Infinity { negative: sign.is('-') });
        }
        _ => {}
    }
    match letter_in_text(tokens) {
        Some(letter) => quantity(&[letter]),
        None => quantity(tokens).or_else(|| words(tokens)),
    }
}

/// `\text{A}` is the letter.
fn letter_in_text(tokens: &[Token]) -> Option<Token> {
    let inner = enclosed(tokens, |token| token.is('('), |token| token.is(')')).unwrap_or(tokens);
    let [Token::Text(text)] = inner else { return None };
    let text = text.trim_start_matches('(').trim_end_matches(')');
    (text.len() == 1 && text.bytes().all(|b| b.is_ascii_alphabetic())).then(|| Token::Word(text.to_owned()))
}

fn quantity(tokens: &[Token]) -> Option<Answer> {
    let (value, used) = scalar::value(tokens)?;
    let suffix = units::suffix(&tokens[used..])?;
    let expression = &tokens[..used];
    let unsigned = match expression {
        [sign, rest @ ..] if sign.is('-') || sign.is('+') => rest,
        all => all,
    };
    let decimals = match unsigned {
        [Token::Number { text, .. }] => Some(text.split_once('.').map_or(0, |(_, decimals)| decimals.len())),
        _ => None,
    };
    let digits = match unsigned {
        [Token::Number { text, .. }, rest @ ..] if rest.is_empty() || is_power_of_ten(rest) => {
            text.trim_start_matches(['0', '.']).bytes().filter(u8::is_ascii_digit).count()
        }
        _ => 0,
    };
    let whole = |part: &[Token]| scalar::value(part).filter(|(_, used)| *used == part.len()).map(|(value, _)| value);
    Some(Answer::Quantity(Quantity {
        digits,
        before_units: before_units(expression).filter_map(whole).collect(),
        value,
        suffix,
        decimals,
        grouped: has_groups(expression),
        ends_in_letter: used > 1 && matches!(expression.last(), Some(Token::Word(word)) if word.chars().count() == 1),
    }))
}

/// The beginnings of an expression behind which the rest may be a unit: single letters with powers behind them, and
/// fraction bars or signs of multiplication between them.
fn before_units(expression: &[Token]) -> impl Iterator<Item = &[Token]> {
    let is_letter = |token: &Token| matches!(token, Token::Word(letter) if letter.chars().count() == 1);
    let is_power = |at: usize| {
        let mut before = expression[..at].iter().rev().skip_while(|token| token.is('-') || token.is('{'));
        before.next().is_some_and(|token| token.is('^'))
    };
    let may_be_of_unit = move |at: usize| match &expression[at] {
        Token::Number { .. } => is_power(at),
        token => is_letter(token) || ['*', '/', '^', '{', '}', '-'].iter().any(|symbol| token.is(*symbol)),
    };
    let places = (1..expression.len()).rev().take_while(move |at| may_be_of_unit(*at));
    places.filter(move |at| is_letter(&expression[*at])).map(|at| &expression[..at])
}

/// Whether what follows a number is the rest of scientific notation: `e19` or `\cdot 10^{19}`.
fn is_power_of_ten(rest: &[Token]) -> bool {
    match rest {
        [Token::Word(e), ..] => matches!(e.as_str(), "e" | "E"),
        [times, Token::Number { text, .. }, power, ..] => times.is('*') && text == "10" && power.is('^'),
        _ => false,
    }
}

fn words(tokens: &[Token]) -> Option<Answer> {
    let word = |token: &Token| match token {
        Token::Word(word) | Token::Text(word) => Some(word.to_lowercase()),
        _ => None,
    };
    let words: Vec<String> = tokens.iter().map(word).collect::<Option<_>>()?;
    Some(Answer::Words(words.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")))
}
