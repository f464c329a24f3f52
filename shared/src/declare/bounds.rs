//! Ranges of numbers.

use std::fmt;

/// The range of an option's numbers: finite numbers between two ends, either of which may be missing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The lower end, and whether it belongs to the range.
    pub low: Option<(f64, bool)>,
    /// The upper end, and whether it belongs to the range.
    pub high: Option<(f64, bool)>,
    /// Whether infinity is allowed too.
    pub infinite: bool,
    /// Unit of the bounds, or the reason for them, for messages.
    pub because: Option<&'static str>,
}

impl Bounds {
    /// All finite numbers.
    pub const FINITE: Self = Self { low: None, high: None, infinite: false, because: None };

    /// Whether a number lies within.
    #[must_use]
    pub fn contain(&self, value: f64) -> bool {
        let above = self.low.is_none_or(|(low, included)| value > low || (included && value == low));
        let below = self.high.is_none_or(|(high, included)| value < high || (included && value == high));
        above && below && (value.is_finite() || (self.infinite && value == f64::INFINITY))
    }

    /// What to give instead of a number outside, in words that follow "must be". An end that infinity does not break
    /// says nothing of why it is refused.
    #[must_use]
    pub fn instead_of(&self, outside: f64) -> String {
        let has_one_end = self.low.is_some() != self.high.is_some();
        let why = if has_one_end && !self.infinite && !outside.is_finite() { "finite and " } else { "" };
        format!("{why}{self}")
    }
}

/// The range, in words that follow "must be": `above 0`, `in [0, 1)`.
impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (None, None) => f.write_str("a finite number")?,
            (Some((low, true)), None) => write!(f, "at least {low}")?,
            (Some((low, false)), None) => write!(f, "above {low}")?,
            (None, Some((high, true))) => write!(f, "at most {high}")?,
            (None, Some((high, false))) => write!(f, "below {high}")?,
            (Some((low, with_low)), Some((high, with_high))) => {
                let (open, close) = (if with_low { '[' } else { '(' }, if with_high { ']' } else { ')' });
                write!(f, "in {open}{low}, {high}{close}")?;
            }
        }
        if self.infinite {
            f.write_str(" (inf = no bound)")?;
        }
        self.because.map_or(Ok(()), |because| write!(f, " ({because})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_belong_to_the_range_where_it_says_so() {
        let half_open = Bounds { low: Some((0.0, true)), high: Some((1.0, false)), ..Bounds::FINITE };
        assert_eq!([-0.1, 0.0, 0.9, 1.0].map(|value| half_open.contain(value)), [false, true, true, false]);
        assert_eq!(half_open.to_string(), "in [0, 1)");
        let above = Bounds { low: Some((2.0, false)), because: Some("a reason"), ..Bounds::FINITE };
        assert_eq!([2.0, 2.1, f64::NAN, f64::INFINITY].map(|value| above.contain(value)), [false, true, false, false]);
        assert_eq!(above.to_string(), "above 2 (a reason)");
        for value in [f64::INFINITY, f64::NAN] {
            assert_eq!(above.instead_of(value), "finite and above 2 (a reason)");
        }
        assert_eq!(above.instead_of(1.0), "above 2 (a reason)");
        assert_eq!(half_open.instead_of(f64::INFINITY), "in [0, 1)");
        assert_eq!(Bounds::FINITE.instead_of(f64::INFINITY), "a finite number");
        let cap = Bounds { low: Some((0.0, false)), infinite: true, ..Bounds::FINITE };
        assert!(cap.contain(f64::INFINITY) && !cap.contain(f64::NEG_INFINITY) && !cap.contain(f64::NAN));
    }
}
