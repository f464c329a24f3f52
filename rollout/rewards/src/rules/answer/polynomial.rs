//! Sums of products with rational coefficients: the normal form in which expressions are compared.
//!
//! The factors of a product are letters, one square root of a square-free whole number, and the imaginary unit. π and e
//! are letters. In this form no two different sums are equal for all values of the letters, and none is equal by
//! accident: square roots of different square-free numbers are linearly independent over the rationals, and π is
//! transcendental.

use std::collections::BTreeMap;

use crate::rules::rational::{Rational, gcd};

/// Most terms of a sum.
const MAX_TERMS: usize = 40;
/// Largest power of a letter.
const MAX_POWER: u32 = 40;
/// Largest number under a root that is factored.
const MAX_ROOT: i128 = 100_000_000;

/// A product of letters, a root and the imaginary unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Product {
    letters: BTreeMap<char, u32>,
    root: i128,
    imaginary: bool,
}

impl Product {
    const ONE: Self = Self { letters: BTreeMap::new(), root: 1, imaginary: false };

    /// The product of two products, and the rational factor that falls out of it.
    fn multiply(&self, other: &Self) -> Option<(Self, Rational)> {
        let mut letters = self.letters.clone();
        for (&letter, &power) in &other.letters {
            let total = letters.entry(letter).or_default();
            *total += power;
            if *total > MAX_POWER {
                return None;
            }
        }
        let common = gcd(self.root, other.root);
        let root = (self.root / common).checked_mul(other.root / common).filter(|&root| root <= MAX_ROOT)?;
        let minus = self.imaginary && other.imaginary;
        let factor = Rational::integer(if minus { -common } else { common })?;
        Some((Self { letters, root, imaginary: self.imaginary != other.imaginary }, factor))
    }
}

/// A sum of products; without terms it is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Polynomial(BTreeMap<Product, Rational>);

impl Polynomial {
    pub fn constant(value: Rational) -> Self {
        let mut terms = BTreeMap::new();
        if !value.is_zero() {
            terms.insert(Product::ONE, value);
        }
        Self(terms)
    }

    pub fn letter(letter: char) -> Self {
        let letters = BTreeMap::from([(letter, 1)]);
        Self(BTreeMap::from([(Product { letters, ..Product::ONE }, Rational::ONE)]))
    }

    pub fn imaginary_unit() -> Self {
        Self(BTreeMap::from([(Product { imaginary: true, ..Product::ONE }, Rational::ONE)]))
    }

    /// The square root of a rational number.
    pub fn root(of: Rational) -> Option<Self> {
        let magnitude = if of.is_negative() { of.negative() } else { of };
        // √(a/b) = √(ab) / b
        let (outside, root) = square_free(magnitude.top().checked_mul(magnitude.bottom())?)?;
        let product = Product { root: root.max(1), imaginary: of.is_negative(), letters: BTreeMap::new() };
        let factor = Rational::new(outside, magnitude.bottom())?;
        Some(if factor.is_zero() { Self(BTreeMap::new()) } else { Self(BTreeMap::from([(product, factor)])) })
    }

    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of terms.
    pub fn terms(&self) -> usize {
        self.0.len()
    }

    /// The value, if it is a rational number.
    pub fn rational(&self) -> Option<Rational> {
        match self.0.iter().next() {
            None => Some(Rational::ZERO),
            Some((product, value)) if self.0.len() == 1 && *product == Product::ONE => Some(*value),
            Some(_) => None,
        }
    }

    pub fn add(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        other.0.iter().try_for_each(|(product, value)| sum.add_term(product.clone(), *value))?;
        Some(sum)
    }

    pub fn multiply(&self, other: &Self) -> Option<Self> {
        let mut result = Self(BTreeMap::new());
        for (a, x) in &self.0 {
            for (b, y) in &other.0 {
                let (product, factor) = a.multiply(b)?;
                result.add_term(product, x.multiply(*y)?.multiply(factor)?)?;
            }
        }
        Some(result)
    }

    pub fn scale(&self, by: Rational) -> Option<Self> {
        self.multiply(&Self::constant(by))
    }

    fn add_term(&mut self, product: Product, value: Rational) -> Option<()> {
        let sum = self.0.get(&product).copied().unwrap_or(Rational::ZERO).add(value)?;
        if sum.is_zero() {
            self.0.remove(&product);
        } else {
            self.0.insert(product, sum);
        }
        (self.0.len() <= MAX_TERMS).then_some(())
    }

    pub fn has_letter(&self, letter: char) -> bool {
        self.0.keys().any(|product| product.letters.contains_key(&letter))
    }

    /// The value, where there is no other letter than π and e and no imaginary part.
    pub fn as_f64(&self) -> Option<f64> {
        self.0.iter().map(|(product, value)| Some(value.as_f64() * product_value(product)?)).sum()
    }
}

fn product_value(product: &Product) -> Option<f64> {
    let letters = product.letters.iter().map(|(letter, &power)| {
        let base = match letter {
            'π' => std::f64::consts::PI,
            'e' => std::f64::consts::E,
            _ => return None,
        };
        Some(base.powi(power as i32))
    });
    let letters: f64 = letters.product::<Option<f64>>()?;
    (!product.imaginary).then_some(letters * (product.root as f64).sqrt())
}

/// The greatest k and the rest r with n = k²·r.
fn square_free(n: i128) -> Option<(i128, i128)> {
    if n == 0 {
        return Some((0, 1));
    }
    // The root of a square, of any size, needs no factoring.
    let whole = (n as f64).sqrt() as i128;
    if let Some(root) = (whole - 1..=whole + 1).find(|&k| k.checked_mul(k) == Some(n)) {
        return Some((root, 1));
    }
    if n > MAX_ROOT {
        return None;
    }
    let (mut outside, mut rest, mut k) = (1, n, 2);
    while k * k <= rest {
        while rest % (k * k) == 0 {
            rest /= k * k;
            outside *= k;
        }
        k += 1;
    }
    Some((outside, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: i128) -> Polynomial {
        Polynomial::constant(Rational::integer(n).unwrap())
    }

    #[test]
    fn sums_and_products_have_one_form() {
        let x = Polynomial::letter('x');
        let sum = x.add(&number(1)).unwrap();
        let difference = x.add(&number(-1)).unwrap();
        let expected = x.multiply(&x).unwrap().add(&number(-1)).unwrap();
        assert_eq!(sum.multiply(&difference), Some(expected));
    }

    #[test]
    fn roots_are_square_free() {
        let root = |n| Polynomial::root(Rational::integer(n).unwrap()).unwrap();
        assert_eq!(root(16), number(4));
        assert_eq!(root(0), number(0));
        assert_eq!(Some(root(12)), root(3).scale(Rational::integer(2).unwrap()));
        assert_eq!(root(2).multiply(&root(6)), root(3).scale(Rational::integer(2).unwrap()));
        assert_eq!(root(-4).multiply(&root(-4)), Some(number(-4)));
        assert_eq!(Polynomial::root(Rational::new(1, 4).unwrap()).unwrap().rational(), Rational::new(1, 2));
        assert_eq!(Polynomial::root(Rational::integer(10i128.pow(30)).unwrap()), Some(number(10i128.pow(15))));
        assert_eq!(Polynomial::root(Rational::integer(10i128.pow(30) + 1).unwrap()), None);
    }
}
