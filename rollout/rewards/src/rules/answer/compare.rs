//! Whether two answers say the same.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;

use super::{
    choice,
    reader::{self, Answer, Quantity},
    tokens::{MAX_BYTES, Token, tokens},
    value::Value,
};
use crate::rules::rational::Rational;

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The answers are the same.
    Equal,
    /// They are surely not the same.
    Different,
    /// One of them could not be read, or the verdict depends on their intended meaning.
    Unsure,
}

use Verdict::{Different, Equal, Unsure};

impl From<Option<bool>> for Verdict {
    fn from(same: Option<bool>) -> Self {
        match same {
            Some(true) => Equal,
            Some(false) => Different,
            None => Unsure,
        }
    }
}

impl Verdict {
    /// The verdict on two parts: the same if both are, different if one is.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Different, _) | (_, Different) => Different,
            (Equal, Equal) => Equal,
            _ => Unsure,
        }
    }

    /// Turns different into unsure.
    fn at_best(self) -> Self {
        if self == Equal { Equal } else { Unsure }
    }
}

/// Compares two final answers (without `\boxed{}` or tags around them). `docs/rewards.md` lists the forms that are
/// understood; the time is bounded whatever the texts are.
#[must_use]
pub fn compare(given: &str, expected: &str) -> Verdict {
    if let Some(verdict) = choices(given, expected) {
        return verdict;
    }
    match as_written(given, expected) {
        Different if equal_in_another_reading(given, expected) => Unsure,
        // `,72` may be 0.72.
        Equal if COMMA_FIRST.is_match(given) != COMMA_FIRST.is_match(expected) => Unsure,
        verdict => verdict,
    }
}

/// Whether two answers are the same text but for looks, or the same choice.
pub(super) fn same_text(a: &str, b: &str) -> bool {
    let words = |token: Token| match token {
        Token::Text(text) => Token::Word(text),
        token => token,
    };
    let plain = |text: &str| tokens(text).map(|tokens| tokens.into_iter().map(words).collect::<Vec<_>>());
    let choice = |text: &str| choice::read(text).filter(|choice| choice.rest.is_empty());
    let same = plain(a).zip(plain(b)).is_some_and(|(a, b)| !a.is_empty() && unwrapped(&a) == unwrapped(&b));
    same || choice(a).zip(choice(b)).is_some_and(|(a, b)| a == b)
}

/// The tokens without parentheses or braces around a single value.
fn unwrapped(tokens: &[Token]) -> &[Token] {
    let brackets = [('(', ')'), ('{', '}')];
    let inner = brackets
        .iter()
        .find_map(|&(open, close)| reader::enclosed(tokens, |token| token.is(open), |token| token.is(close)));
    inner.filter(|inner| !inner.is_empty() && !inner.iter().any(|token| token.is(','))).unwrap_or(tokens)
}

/// Compares two choices, or one with an answer; none where neither is a marked choice.
fn choices(given: &str, expected: &str) -> Option<Verdict> {
    let pair = (choice::read(given), choice::read(expected));
    let of_rest = |rest: &str, other: &str| as_written(rest, other).at_best();
    match pair {
        (Some(a), Some(b)) if a.rest.is_empty() || b.rest.is_empty() => Some(Some(a.letter == b.letter).into()),
        (Some(a), Some(b)) => match as_written(&a.rest, &b.rest) {
            Equal if a.letter == b.letter => Some(Equal),
            Different if a.letter != b.letter => Some(Different),
            _ => Some(Unsure),
        },
        (Some(choice), None) if !choice.rest.is_empty() => Some(of_rest(&choice.rest, expected)),
        (None, Some(choice)) if !choice.rest.is_empty() => Some(of_rest(given, &choice.rest)),
        _ => None,
    }
}

/// A comma between two digits.
static COMMA: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\d),(\d)").expect("a valid pattern"));

/// Several commas within one number, which are no decimal commas.
static COMMAS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\d,\d+,\d").expect("a valid pattern"));

/// The same answer with every comma between digits as a decimal point, and without a point for thousands before the
/// first comma; `None` where no comma can be one.
fn with_decimal_points(answer: &str) -> Option<String> {
    if COMMAS.is_match(answer) {
        return None;
    }
    let first = COMMA.find(answer)?.start();
    let (before, after) = answer.split_at(first);
    // `1.234,5`
    let before = before.rsplit_once('.').filter(|(_, digits)| digits.len() == 2 && is_digits(digits));
    let text = match before {
        Some((thousands, digits)) => format!("{thousands}{digits}{after}"),
        None => answer.to_owned(),
    };
    Some(COMMA.replace_all(&text, "$1.$2").into_owned())
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// A comma before the first digit, which may stand before decimals.
static COMMA_FIRST: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^([\s$+−-]*),(\d)").expect("a valid pattern"));

/// Points before groups of three digits, as much of the world writes thousands.
static POINTS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[\s$+−-]*[1-9]\d{0,2}(?:\.\d{3})+\b").expect("a valid pattern"));

/// Commas before groups of two digits and a last one of three, as India writes them.
static LAKHS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[\s$+−-]*[1-9]\d?(?:,\d{2})+,\d{3}\b").expect("a valid pattern"));

/// Other readings of an answer than the usual one: with other commas and points, a dash for a minus, small letters for
/// capitals.
fn readings(answer: &str) -> Vec<String> {
    let without = |mark: char, pattern: &Regex| {
        pattern.find(answer).map(|found| found.as_str().replace(mark, "") + &answer[found.end()..])
    };
    let comma_first = COMMA_FIRST.is_match(answer).then(|| COMMA_FIRST.replace(answer, "${1}0.$2").into_owned());
    let behind_dash = answer.trim_start().strip_prefix("- ").map(str::to_owned);
    let small = answer.chars().any(char::is_uppercase).then(|| answer.to_lowercase());
    let others =
        [with_decimal_points(answer), comma_first, without('.', &POINTS), without(',', &LAKHS), behind_dash, small];
    others.into_iter().flatten().chain([answer.to_owned()]).collect()
}

/// Whether two answers may be equal in another way of writing.
fn equal_in_another_reading(given: &str, expected: &str) -> bool {
    if given.len().max(expected.len()) > MAX_BYTES {
        return false;
    }
    let (given, expected) = (readings(given), readings(expected));
    given.iter().any(|a| expected.iter().any(|b| as_written(a, b) != Different))
}

/// Compares two answers whose commas separate thousands or elements.
fn as_written(given: &str, expected: &str) -> Verdict {
    let (Some(given), Some(expected)) = (tokens(given), tokens(expected)) else {
        return Verdict::from((given.trim() == expected.trim()).then_some(true));
    };
    if expected.is_empty() {
        return Unsure;
    }
    if given == expected {
        return Equal;
    }
    let (Some(given), Some(expected)) = (reader::read(&given), reader::read(&expected)) else {
        return Unsure;
    };
    let is_range = |answer: &Answer| matches!(answer, Answer::Bracket(..) | Answer::Union(_) | Answer::Set(_));
    if (given.inequality && !is_range(&expected.answer)) || (expected.inequality && !is_range(&given.answer)) {
        return Unsure;
    }
    let verdict = answers(&given.answer, &expected.answer);
    // Different names may be for the same thing, or for two.
    let two_names = given.name.is_some() && expected.name.is_some() && given.name != expected.name;
    if two_names { Unsure } else { verdict }
}

fn answers(a: &Answer, b: &Answer) -> Verdict {
    use Answer::{Bracket, Infinity, List, Named, Quantity as One, Set, Union, Words};
    match (a, b) {
        (Named(name, a), Named(other, b)) if name != other => match answers(a, b) {
            Equal => Unsure,
            verdict => verdict,
        },
        (Named(_, a), Named(_, b)) => answers(a, b),
        (Named(_, a), b) => answers(a, b),
        (a, Named(_, b)) => answers(a, b),
        (One(a), One(b)) => quantities(a, b),
        (Infinity { negative: a }, Infinity { negative: b }) => Some(a == b).into(),
        (Infinity { .. }, One(one)) | (One(one), Infinity { .. }) => {
            if one.value.as_f64().is_some() {
                Different
            } else {
                Unsure
            }
        }
        (Words(a), Words(b)) if opposites(a, b) => Different,
        (Words(a), Words(b)) => Verdict::from((a == b).then_some(true)),
        (Set(a), Set(b) | List(b)) | (List(a), Set(b)) => unordered(a, b),
        (Union(a), Union(b)) => unordered(a, b).at_best(),
        (List(a), List(b)) => ordered(a, b),
        (Bracket(open, close, a), Bracket(open_b, close_b, b)) => {
            let same = in_order(a, b);
            // As tuples they would be equal, as intervals not.
            if same == Equal && (open, close) != (open_b, close_b) { Unsure } else { same }
        }
        (Bracket(open, close, a), List(b)) | (List(b), Bracket(open, close, a)) => match in_order(a, b) {
            Equal if (*open, *close) == ('(', ')') => Equal,
            Different if unordered(a, b) == Different => Different,
            _ => Unsure,
        },
        (Set(items), one @ One(_)) | (one @ One(_), Set(items)) if items.len() == 1 => answers(&items[0], one),
        // `72, approximately`: a remark is no element.
        (One(_), List(items)) | (List(items), One(_)) if items.iter().any(|item| matches!(item, Words(_))) => Unsure,
        (One(one), List(_) | Bracket(..) | Set(_)) | (List(_) | Bracket(..) | Set(_), One(one)) => {
            if one.grouped {
                Unsure
            } else {
                Different
            }
        }
        _ => Unsure,
    }
}

/// Element by element.
fn in_order(a: &[Answer], b: &[Answer]) -> Verdict {
    if a.len() != b.len() {
        return Different;
    }
    a.iter().zip(b).map(|(a, b)| answers(a, b)).fold(Equal, Verdict::and)
}

/// Lists. Their order does not matter where both hold the same quantities equally often and no names tell them apart.
fn ordered(a: &[Answer], b: &[Answer]) -> Verdict {
    match in_order(a, b) {
        Equal => Equal,
        _ if unordered(a, b) == Different => Different,
        _ if names(a) == names(b) && a.iter().chain(b).all(is_quantity) && rearranged(a, b) => Equal,
        _ => Unsure,
    }
}

fn is_quantity(answer: &Answer) -> bool {
    match answer {
        Answer::Named(_, answer) => is_quantity(answer),
        answer => matches!(answer, Answer::Quantity(_) | Answer::Infinity { .. }),
    }
}

/// The names of elements, each once, where they tell elements apart.
fn names(items: &[Answer]) -> BTreeSet<&str> {
    let names: BTreeSet<&str> = items
        .iter()
        .filter_map(|item| match item {
            Answer::Named(name, _) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    if names.len() > 1 { names } else { BTreeSet::new() }
}

/// Whether each element has another one that is equal.
fn rearranged(a: &[Answer], b: &[Answer]) -> bool {
    let mut left: Vec<&Answer> = b.iter().collect();
    let taken = a.iter().all(|item| {
        let found = left.iter().position(|other| answers(item, other) == Equal);
        found.map(|index| left.swap_remove(index)).is_some()
    });
    taken && left.is_empty()
}

/// Words that exclude each other.
fn opposites(a: &str, b: &str) -> bool {
    [("true", "false"), ("yes", "no")].iter().any(|&(x, y)| (a, b) == (x, y) || (a, b) == (y, x))
}

/// Sets: every element of each in the other.
fn unordered(a: &[Answer], b: &[Answer]) -> Verdict {
    let one_in = |item: &Answer, others: &[Answer]| {
        let verdicts: Vec<Verdict> = others.iter().map(|other| answers(item, other)).collect();
        match () {
            () if verdicts.contains(&Equal) => Equal,
            () if verdicts.contains(&Unsure) => Unsure,
            () => Different,
        }
    };
    let all_in =
        |items: &[Answer], others: &[Answer]| items.iter().map(|item| one_in(item, others)).fold(Equal, Verdict::and);
    all_in(a, b).and(all_in(b, a))
}

/// Factors between units of the same kind.
const CONVERSIONS: [i128; 12] = [3, 7, 12, 16, 24, 36, 52, 60, 365, 1440, 1760, 3600];

fn quantities(a: &Quantity, b: &Quantity) -> Verdict {
    let (units_a, units_b) = (&a.suffix.unit, &b.suffix.unit);
    let verdict = values(a, b);
    let one_has_units = units_a.is_empty() != units_b.is_empty();
    match verdict {
        // 5 cm and 5 m, but also 100 cm and 1 m.
        _ if !units_a.is_empty() && !units_b.is_empty() && units_a != units_b => Unsure,
        Different if one_has_units && convertible(&a.value, &b.value) => Unsure,
        // `5m` may be five metres.
        Different if maybe_unit(a, b) || maybe_unit(b, a) => Unsure,
        Different if rounded(a, b) || rounded(b, a) || equal_as_doubles(a, b) => Unsure,
        verdict => verdict,
    }
}

/// Compares the values. A percent sign on one side only may mean the number of percent or the share.
fn values(a: &Quantity, b: &Quantity) -> Verdict {
    let plain = Verdict::from(a.value.same(&b.value));
    if a.suffix.percent == b.suffix.percent || plain == Equal {
        return plain;
    }
    let (percent, other) = if a.suffix.percent { (a, b) } else { (b, a) };
    let share = Rational::new(1, 100).and_then(|hundredth| percent.value.multiply(&Value::rational(hundredth)));
    match share.and_then(|share| share.same(&other.value)) {
        Some(true) => Equal,
        Some(false) => plain,
        None => Unsure,
    }
}

/// Whether one number is the other in another unit, as far as can be guessed.
fn convertible(a: &Value, b: &Value) -> bool {
    let Some(ratio) = a.divide(b).and_then(|ratio| ratio.as_rational()) else { return true };
    let factor = match (ratio.top(), ratio.bottom()) {
        (factor, 1) | (1, factor) => factor,
        _ => return false,
    };
    CONVERSIONS.contains(&factor) || factor.to_string().trim_end_matches('0') == "1"
}

/// Whether the letter at the end of `a` might be a unit of the number `b`, or all its letters together one of the same
/// number.
fn maybe_unit(a: &Quantity, b: &Quantity) -> bool {
    let is_same = || a.before_units.iter().any(|number| number.same(&b.value) == Some(true));
    b.value.as_f64().is_some() && (a.ends_in_letter || is_same())
}

/// Significant digits from which a decimal number may be what a program printed of a double.
const DIGITS_OF_A_DOUBLE: usize = 15;
/// Relative error of a few operations on doubles.
const NOISE: f64 = 1e-14;

/// Whether one is a decimal number with as many digits as a double has, and the other differs from it by no more than
/// the errors of a computation with doubles.
fn equal_as_doubles(a: &Quantity, b: &Quantity) -> bool {
    let printed = |q: &Quantity| q.decimals != Some(0) && q.digits >= DIGITS_OF_A_DOUBLE;
    let (true, Some(x), Some(y)) = (printed(a) || printed(b), a.value.as_f64(), b.value.as_f64()) else { return false };
    let scale = x.abs().max(y.abs());
    let near = |x: f64, y: f64| (x - y).abs() <= NOISE * scale;
    near(x, y) || a.suffix.percent != b.suffix.percent && (near(x / 100.0, y) || near(x, y / 100.0))
}

/// Whether `a` is a plain number to which `b`, which is written in another way, may have been rounded or cut off.
fn rounded(a: &Quantity, b: &Quantity) -> bool {
    let (Some(mut decimals), None) = (a.decimals, b.decimals) else { return false };
    let (Some(mut number), Some(exact)) = (a.value.as_f64(), b.value.as_f64()) else { return false };
    if a.suffix.percent && !b.suffix.percent {
        decimals += 2;
        number /= 100.0;
    }
    let unit = 10f64.powi(-(decimals.min(300) as i32)) * (1.0 + 1e-9);
    let distance = (number - exact).abs();
    let cut_off = number.abs() <= exact.abs() && distance < unit;
    decimals > 0 && (distance <= unit / 2.0 || cut_off)
}
