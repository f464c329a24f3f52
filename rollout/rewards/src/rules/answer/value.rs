//! Values of expressions: quotients of sums, exact, or constants known to within rounding.

use super::polynomial::Polynomial;
use crate::rules::rational::Rational;

/// Largest exponent that is multiplied out.
const MAX_EXPONENT: i128 = 40;
/// Relative distance within which two rounded constants are equal.
const EQUAL: f64 = 1e-9;
/// Relative distance from which they are different. Between the two distances, nobody can tell.
const DIFFERENT: f64 = 1e-6;

/// The value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// A quotient; the second is not 0.
    Exact(Polynomial, Polynomial),
    /// A constant with rounding errors.
    Rounded(f64),
}

impl Value {
    pub fn rational(value: Rational) -> Self {
        Self::of(Polynomial::constant(value))
    }

    pub fn of(polynomial: Polynomial) -> Self {
        Self::Exact(polynomial, Polynomial::constant(Rational::ONE))
    }

    /// The value, if it is a rational number.
    pub fn as_rational(&self) -> Option<Rational> {
        match self {
            Self::Exact(top, bottom) => top.rational()?.multiply(bottom.rational()?.inverse()?),
            Self::Rounded(_) => None,
        }
    }

    /// The value, if it is a real constant.
    pub fn as_f64(&self) -> Option<f64> {
        let value = match self {
            Self::Exact(top, bottom) => top.as_f64()? / bottom.as_f64()?,
            Self::Rounded(value) => *value,
        };
        value.is_finite().then_some(value)
    }

    /// Number of terms: what an operation costs is the product of two.
    pub fn terms(&self) -> usize {
        match self {
            Self::Exact(top, bottom) => top.terms() + bottom.terms(),
            Self::Rounded(_) => 1,
        }
    }

    /// Makes the denominator 1 where it is a number.
    fn quotient(top: Polynomial, bottom: Polynomial) -> Option<Self> {
        match bottom.rational() {
            Some(number) => Some(Self::of(top.scale(number.inverse()?)?)),
            None => Some(Self::Exact(top, bottom)),
        }
    }

    fn rounded(value: f64) -> Option<Self> {
        value.is_finite().then_some(Self::Rounded(value))
    }

    pub fn add(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Exact(a, b), Self::Exact(c, d)) if b == d => Self::quotient(a.add(c)?, b.clone()),
            (Self::Exact(a, b), Self::Exact(c, d)) => {
                Self::quotient(a.multiply(d)?.add(&c.multiply(b)?)?, b.multiply(d)?)
            }
            _ => Self::rounded(self.as_f64()? + other.as_f64()?),
        }
    }

    pub fn multiply(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Exact(a, b), Self::Exact(c, d)) => Self::quotient(a.multiply(c)?, b.multiply(d)?),
            _ => Self::rounded(self.as_f64()? * other.as_f64()?),
        }
    }

    pub fn negative(&self) -> Option<Self> {
        self.multiply(&Self::rational(Rational::integer(-1)?))
    }

    pub fn divide(&self, other: &Self) -> Option<Self> {
        self.multiply(&other.inverse()?)
    }

    fn inverse(&self) -> Option<Self> {
        match self {
            Self::Exact(top, _) if top.is_zero() => None,
            Self::Exact(top, bottom) => Self::quotient(bottom.clone(), top.clone()),
            Self::Rounded(value) => Self::rounded(value.recip()),
        }
    }

    /// The power. Sums with letters take whole exponents only; constants take others too, with rounding.
    pub fn power(&self, exponent: &Self) -> Option<Self> {
        match exponent.as_rational().and_then(Rational::whole) {
            Some(n) if n.abs() <= MAX_EXPONENT => {
                let base = if n < 0 { self.inverse()? } else { self.clone() };
                let start = Self::rational(Rational::ONE);
                (0..n.abs()).try_fold(start, |product, _| product.multiply(&base))
            }
            // Beyond this a double says nothing.
            Some(_) => None,
            None if exponent.as_rational() == Rational::new(1, 2) => self.root(2),
            None => {
                let base = self.as_f64().filter(|&base| base > 0.0)?;
                Self::rounded(base.powf(exponent.as_f64()?))
            }
        }
    }

    /// The root of a constant: exact for square roots of rational numbers and for whole roots of whole numbers.
    pub fn root(&self, index: i128) -> Option<Self> {
        if !(2..=MAX_EXPONENT).contains(&index) {
            return None;
        }
        if let Some(number) = self.as_rational() {
            let exact = if index == 2 { Polynomial::root(number) } else { None };
            if let Some(root) = exact {
                return Some(Self::of(root));
            }
            if let Some(root) = whole_root(number, index as u32) {
                return Some(Self::rational(root));
            }
        }
        let value = self.as_f64()?;
        let odd = index % 2 == 1;
        match value {
            value if value >= 0.0 => Self::rounded(value.powf(1.0 / index as f64)),
            value if odd => Self::rounded(-(-value).powf(1.0 / index as f64)),
            _ => None,
        }
    }

    /// Whether two values are the same: `None` when that cannot be told.
    pub fn same(&self, other: &Self) -> Option<bool> {
        match (self, other) {
            (Self::Exact(a, b), Self::Exact(c, d)) => {
                let difference = a.multiply(d)?.add(&c.multiply(b)?.scale(Rational::integer(-1)?)?)?;
                if difference.is_zero() {
                    return Some(true);
                }
                // Nobody knows whether π and e are independent of each other.
                let open = difference.has_letter('π') && difference.has_letter('e');
                if open { close(self.as_f64()?, other.as_f64()?).filter(|same| !same) } else { Some(false) }
            }
            _ => close(self.as_f64()?, other.as_f64()?),
        }
    }
}

fn close(a: f64, b: f64) -> Option<bool> {
    let distance = (a - b).abs() / a.abs().max(b.abs()).max(f64::MIN_POSITIVE);
    match distance {
        distance if distance <= EQUAL => Some(true),
        distance if distance >= DIFFERENT => Some(false),
        _ => None,
    }
}

/// The root of a whole number, if the root is whole too.
fn whole_root(of: Rational, index: u32) -> Option<Rational> {
    let number = of.whole()?;
    if number < 0 && index.is_multiple_of(2) {
        return None;
    }
    let near = (number.abs() as f64).powf(1.0 / f64::from(index)).round() as i128 * number.signum();
    (near.checked_pow(index) == Some(number)).then(|| Rational::integer(near)).flatten()
}
