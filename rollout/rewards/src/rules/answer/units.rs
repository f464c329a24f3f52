//! Units that may follow a number.

use super::tokens::Token;

/// Each unit's spellings; the first names it.
const UNITS: &[&[&str]] = &[
    &["mm", "millimeter", "millimeters", "millimetre", "millimetres"],
    &["cm", "centimeter", "centimeters", "centimetre", "centimetres"],
    &["m", "meter", "meters", "metre", "metres"],
    &["km", "kilometer", "kilometers", "kilometre", "kilometres"],
    &["inch", "inches", "in"],
    &["foot", "feet", "ft"],
    &["yard", "yards", "yd", "yds"],
    &["mile", "miles", "mi"],
    &["mg", "milligram", "milligrams"],
    &["g", "gram", "grams"],
    &["kg", "kilogram", "kilograms"],
    &["ton", "tons"],
    &["ounce", "ounces", "oz"],
    &["pound", "pounds", "lb", "lbs"],
    &["ml", "milliliter", "milliliters", "millilitre", "millilitres"],
    &["liter", "liters", "litre", "litres", "l"],
    &["gallon", "gallons", "gal"],
    &["cup", "cups"],
    &["s", "second", "seconds", "sec", "secs"],
    &["minute", "minutes", "min", "mins"],
    &["hour", "hours", "hr", "hrs", "h"],
    &["day", "days"],
    &["week", "weeks"],
    &["month", "months"],
    &["year", "years", "yr", "yrs"],
    &["dollar", "dollars", "usd"],
    &["cent", "cents"],
    &["euro", "euros"],
    &["degree", "degrees"],
    &["radian", "radians", "rad"],
    &["unit", "units"],
    &["square", "sq"],
    &["cubic"],
    &["per"],
    &["mph"],
    &["point", "points"],
    &["people", "person"],
    &["student", "students"],
    &["way", "ways"],
    &["time", "times"],
    &["item", "items"],
    &["apple", "apples"],
    &["egg", "eggs"],
    &["book", "books"],
];

/// Units that are written with the degree sign.
const SCALES: [&str; 3] = ["C", "F", "K"];

/// The percent sign and the unit that follow a number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Suffix {
    /// A percent sign or the word.
    pub percent: bool,
    /// The unit in one spelling; empty without one.
    pub unit: String,
}

/// Reads what follows a number: units of the list, with powers and quotients, or a percent sign. `None` for anything
/// else.
pub(super) fn suffix(tokens: &[Token]) -> Option<Suffix> {
    let mut suffix = Suffix::default();
    let mut parts: Vec<String> = Vec::new();
    let mut rest = tokens;
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        match token {
            Token::Symbol('%') if tokens.len() == 1 => suffix.percent = true,
            Token::Word(words) | Token::Text(words) => {
                for word in words.split_whitespace() {
                    match unit(word, parts.last().map(String::as_str)) {
                        _ if word.eq_ignore_ascii_case("percent") => suffix.percent = true,
                        Some(unit) => parts.push(unit),
                        None => return None,
                    }
                }
            }
            Token::Symbol('^') => rest = power(rest, &mut parts)?,
            Token::Symbol('/') if !parts.is_empty() => parts.push("per".into()),
            _ => return None,
        }
    }
    suffix.unit = parts.join(" ");
    let alone = suffix.unit.is_empty() || !suffix.percent;
    alone.then_some(suffix)
}

/// A power of the unit before, or the degree sign.
fn power<'a>(rest: &'a [Token], parts: &mut Vec<String>) -> Option<&'a [Token]> {
    let (inner, after) = match rest {
        [open, inner, close, after @ ..] if open.is('{') && close.is('}') => (inner, after),
        [inner, after @ ..] => (inner, after),
        [] => return None,
    };
    match inner {
        Token::Word(word) if word == "degrees" => parts.push("degree".into()),
        Token::Number { text, .. } if !parts.is_empty() && (text == "2" || text == "3") => {
            let name = if text == "2" { "square" } else { "cubic" };
            parts.insert(parts.len() - 1, name.into());
        }
        _ => return None,
    }
    Some(after)
}

fn unit(word: &str, before: Option<&str>) -> Option<String> {
    if before == Some("degree") && SCALES.contains(&word) {
        return Some(word.to_owned());
    }
    let lower = word.to_lowercase();
    UNITS.iter().find(|spellings| spellings.contains(&lower.as_str())).map(|spellings| spellings[0].to_owned())
}
