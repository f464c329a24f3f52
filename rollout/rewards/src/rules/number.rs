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
    let plain = text.replace('$', "");
    let plain = plain.trim().trim_end_matches(['.', '%']).trim();
    let plain = if THOUSANDS.is_match(plain) { plain.replace(',', "") } else { plain.to_owned() };
    // `inf`, `nan` and exponents are numbers to Rust and words to everyone else.
    let digits_only = plain.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+'));
    if digits_only { plain.parse().ok() } else { None }
}
