//! Whether two answers say the same.

use super::{
    rational::Rational,
    reader::{self, Answer, Quantity},
    tokens::tokens,
    value::Value,
};

/// What a comparison found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The answers are the same.
    Equal,
    /// They are surely not the same.
    Different,
    /// One of them could not be read, or it depends on what is meant.
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
    /// Of two parts: the same if both are, different if one is.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Different, _) | (_, Different) => Different,
            (Equal, Equal) => Equal,
            _ => Unsure,
        }
    }

    /// If different, then unsure.
    fn at_best(self) -> Self {
        if self == Equal { Equal } else { Unsure }
    }
}

/// Compares two final answers (without `\boxed{}` or tags around them). `docs/rewards.md` lists the forms that are
/// understood; the time is bounded whatever the texts are.
#[must_use]
pub fn compare(given: &str, expected: &str) -> Verdict {
    let (Some(given), Some(expected)) = (tokens(given), tokens(expected)) else {
        return Verdict::from((given.trim() == expected.trim()).then_some(true));
    };
    if expected.is_empty() {
        return Unsure;
    }
    if given == expected {
        return Equal;
    }
    let (Some((given_name, given)), Some((expected_name, expected))) = (reader::read(&given), reader::read(&expected))
    else {
        return Unsure;
    };
    let verdict = answers(&given, &expected);
    // Different names may be for the same thing, or for two.
    if given_name.is_some() && expected_name.is_some() && given_name != expected_name { Unsure } else { verdict }
}

fn answers(a: &Answer, b: &Answer) -> Verdict {
    use Answer::{Bracket, Infinity, List, Quantity as One, Set, Union, Words};
    match (a, b) {
        (One(a), One(b)) => quantities(a, b),
        (Infinity { negative: a }, Infinity { negative: b }) => Some(a == b).into(),
        (Infinity { .. }, One(one)) | (One(one), Infinity { .. }) => {
            if one.value.as_f64().is_some() {
                Different
            } else {
                Unsure
            }
        }
        (Words(a), Words(b)) => Verdict::from((a == b).then_some(true)),
        (Set(a), Set(b) | List(b)) | (List(a), Set(b)) => unordered(a, b),
        (Union(a), Union(b)) => unordered(a, b).at_best(),
        (List(a), List(b)) => ordered(a, b),
        (Bracket(open, close, a), Bracket(open_b, close_b, b)) => {
            let same = in_order(a, b);
            // As tuples they would be equal, as intervals not.
            if same == Equal && (open, close) != (open_b, close_b) { Unsure } else { same }
        }
        (Bracket(open, close, a), List(b)) | (List(b), Bracket(open, close, a)) => match ordered(a, b) {
            Equal if (*open, *close) != ('(', ')') => Unsure,
            verdict => verdict,
        },
        (Set(items), one @ One(_)) | (one @ One(_), Set(items)) if items.len() == 1 => answers(&items[0], one),
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

/// Lists, whose order may not matter.
fn ordered(a: &[Answer], b: &[Answer]) -> Verdict {
    match in_order(a, b) {
        Equal => Equal,
        _ if unordered(a, b) == Different => Different,
        _ => Unsure,
    }
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
        Different if rounded(a, b) || rounded(b, a) => Unsure,
        verdict => verdict,
    }
}

/// Compares the values; with a percent sign on one side only, as the number of percent and as the share.
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

/// Whether the letter at the end of `a` might be a unit of the number `b`.
fn maybe_unit(a: &Quantity, b: &Quantity) -> bool {
    a.ends_in_letter && b.value.as_f64().is_some()
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
