//! Figures of a run as people read them.

use std::fmt;

/// From this size on, a figure is written in scientific notation.
const LARGE: f64 = 1e9;
/// Below this size as well, where no precision bounds the number of its digits.
const SMALL: f64 = 1e-6;

/// A reward or another figure of a run. It is written as any number, with the precision, the sign and the width that
/// are asked for. One of extreme size is written in scientific notation: 1e300 would have three hundred digits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure(pub f64);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        let is_long = size >= LARGE || size > 0.0 && size < SMALL && f.precision().is_none();
        if is_long && size.is_finite() { fmt::LowerExp::fmt(&self.0, f) } else { fmt::Display::fmt(&self.0, f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_extreme_size_have_few_digits() {
        for (value, with_digits, without) in [
            (1e300, "1.0000e300", "1e300"),
            (-1.25e300, "-1.2500e300", "-1.25e300"),
            (f64::MAX, "1.7977e308", "1.7976931348623157e308"),
            (1e9, "1.0000e9", "1e9"),
            (999_999_999.5, "999999999.5000", "999999999.5"),
            (0.5, "0.5000", "0.5"),
            (-0.0, "-0.0000", "-0"),
            (0.0, "0.0000", "0"),
            (1e-300, "0.0000", "1e-300"),
            (f64::INFINITY, "inf", "inf"),
            (f64::NAN, "NaN", "NaN"),
        ] {
            let figure = Figure(value);
            assert_eq!((format!("{figure:.4}"), format!("{figure}")), (with_digits.to_owned(), without.to_owned()));
        }
        assert_eq!(format!("{:+.2} {:>9.1}|", Figure(1e12), Figure(2.0)), "+1.00e12       2.0|");
        assert_eq!(format!("{:>9.1}|", Figure(1e12)), "   1.0e12|");
    }
}
