//! Exact rational numbers of bounded size.

/// A fraction in lowest terms with a positive denominator. An operation has no result where it leaves 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rational {
    top: i128,
    bottom: i128,
}

impl Rational {
    /// Nought.
    pub const ZERO: Self = Self { top: 0, bottom: 1 };
    /// One.
    pub const ONE: Self = Self { top: 1, bottom: 1 };

    /// The fraction `top / bottom`.
    #[must_use]
    pub fn new(top: i128, bottom: i128) -> Option<Self> {
        // The least number has no negative.
        if bottom == 0 || top == i128::MIN || bottom == i128::MIN {
            return None;
        }
        let divisor = gcd(top.abs(), bottom.abs()).max(1) * bottom.signum();
        Some(Self { top: top / divisor, bottom: bottom / divisor })
    }

    /// A whole number.
    #[must_use]
    pub fn integer(value: i128) -> Option<Self> {
        Self::new(value, 1)
    }

    /// Digits with at most one point.
    #[must_use]
    pub fn decimal(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{whole}{fraction}");
        Self::new(digits.parse().ok()?, 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)
    }

    /// Its numerator, with the sign.
    #[must_use]
    pub fn top(self) -> i128 {
        self.top
    }

    /// Its denominator, which is positive.
    #[must_use]
    pub fn bottom(self) -> i128 {
        self.bottom
    }

    /// Whether it is nought.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.top == 0
    }

    /// Whether it is less than nought.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.top < 0
    }

    /// The number, if it is whole.
    #[must_use]
    pub fn whole(self) -> Option<i128> {
        (self.bottom == 1).then_some(self.top)
    }

    /// The sum.
    #[must_use]
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        let divisor = gcd(self.bottom, other.bottom);
        let left = self.top.checked_mul(other.bottom / divisor)?;
        let right = other.top.checked_mul(self.bottom / divisor)?;
        Self::new(left.checked_add(right)?, self.bottom.checked_mul(other.bottom / divisor)?)
    }

    /// The product.
    #[must_use]
    pub fn multiply(self, other: Self) -> Option<Self> {
        let (a, b) = (Self::new(self.top, other.bottom)?, Self::new(other.top, self.bottom)?);
        Self::new(a.top.checked_mul(b.top)?, a.bottom.checked_mul(b.bottom)?)
    }

    /// The number with the other sign.
    #[must_use]
    pub fn negative(self) -> Self {
        Self { top: -self.top, bottom: self.bottom }
    }

    /// One divided by it; none of nought.
    #[must_use]
    pub fn inverse(self) -> Option<Self> {
        Self::new(self.bottom, self.top)
    }

    /// The nearest float.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.top as f64 / self.bottom as f64
    }
}

/// Greatest common divisor of numbers that are not negative.
#[must_use]
pub fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(top: i128, bottom: i128) -> Rational {
        Rational::new(top, bottom).unwrap()
    }

    #[test]
    fn fractions_are_in_lowest_terms() {
        assert_eq!(ratio(6, -4), ratio(-3, 2));
        assert_eq!(ratio(1, 3).add(ratio(1, 6)), Some(ratio(1, 2)));
        assert_eq!(ratio(2, 3).multiply(ratio(-3, 4)), Some(ratio(-1, 2)));
        assert_eq!(ratio(-2, 3).inverse(), Some(ratio(-3, 2)));
        assert_eq!(Rational::decimal("12.50"), Some(ratio(25, 2)));
        assert_eq!(Rational::decimal(".5"), Some(ratio(1, 2)));
    }

    #[test]
    fn what_leaves_the_range_has_no_result() {
        let large = Rational::integer(i128::MAX).unwrap();
        assert_eq!(large.add(Rational::ONE), None);
        assert_eq!(large.multiply(ratio(2, 1)), None);
        assert_eq!(Rational::new(1, 0), None);
        assert_eq!(Rational::new(i128::MIN, 1), None);
        assert_eq!(Rational::ZERO.inverse(), None);
        assert_eq!(Rational::decimal(&"9".repeat(60)), None);
    }
}
