//! Numbers as people write them.

use std::sync::LazyLock;

use regex::Regex;

/// A number with thousands separators.
pub(super) static THOUSANDS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$").expect("a valid pattern"));

/// A number as text, the same for the same number.
pub(super) fn in_digits(number: f64) -> String {
    // -0 is 0.
    (number + 0.0).to_string()
}

/// The value of a text that is a number: optional sign and `$`, thousands separators, a closing full stop or percent
/// sign.
#[must_use]
pub fn number(text: &str) -> Option<f64> {
    plain(text)?.parse().ok()
}

/// The digits of such a text, with sign and point.
fn plain(text: &str) -> Option<String> {
    let plain = text.replace('$', "");
    let plain = plain.trim().trim_end_matches(['.', '%']).trim();
    let plain = if THOUSANDS.is_match(plain) { plain.replace(',', "") } else { plain.to_owned() };
    // `inf`, `nan` and exponents are numbers to Rust and words to everyone else.
    let digits_only = plain.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+'));
    (digits_only && plain.parse::<f64>().is_ok()).then_some(plain)
}

/// A whole number in its only spelling, with all its digits.
fn whole(text: &str) -> Option<String> {
    let plain = plain(text)?;
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, plain.trim_start_matches('+')),
    };
    let (digits, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = digits.trim_start_matches('0');
    let sign = if negative && !digits.is_empty() { "-" } else { "" };
    let digits = if digits.is_empty() { "0" } else { digits };
    decimals.bytes().all(|b| b == b'0').then(|| format!("{sign}{digits}"))
}

/// Whether two texts are the same whole number, to the last digit; none where one is no whole number.
pub(super) fn same_whole(a: &str, b: &str) -> Option<bool> {
    Some(whole(a)? == whole(b)?)
}

/// Whether two texts are the same number; none where one is no number.
pub(super) fn same_number(a: &str, b: &str) -> Option<bool> {
    let (x, y) = (number(a)?, number(b)?);
    Some(same_whole(a, b).unwrap_or(x == y))
}

/// A number in its only spelling, for votes.
pub(super) fn vote_of_number(text: &str) -> Option<String> {
    whole(text).or_else(|| number(text).map(in_digits))
}

/// A number whose only comma stands before decimals, with a point in its place; none where it may separate thousands.
pub(super) fn decimal_comma(text: &str) -> Option<String> {
    let separates = !THOUSANDS.is_match(text) && text.matches(',').count() == 1 && !text.contains('.');
    let (whole, decimals) = text.split_once(',').filter(|_| separates)?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (digits(whole.trim_start_matches(['-', '+'])) && digits(decimals)).then(|| format!("{whole}.{decimals}"))
}
