//! Arithmetic as Python evaluates it, for texts that nobody has checked.
//!
//! Whole numbers stay whole under `+ - * // **` and become floats under `/`; `**` binds to the right and tighter than a
//! sign before it. Unlike `eval`, it always ends at once: whole numbers are bounded by 128 bits, nesting by 200 levels,
//! and complex numbers do not exist. An expression out of bounds has no value.
//!
//! The same expressions have exact values as fractions: [`value`] takes any [`Arithmetic`].

use super::rational::Rational;

/// Deepest nesting of parentheses and signs (CPython's tokenizer allows 200 parentheses).
const MAX_DEPTH: usize = 200;

/// A Python number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// `int`, bounded.
    Int(i128),
    /// `float`.
    Float(f64),
}

impl Number {
    /// `abs(self - target)`.
    #[must_use]
    pub fn distance(self, target: i64) -> f64 {
        match self {
            Self::Int(n) => n.abs_diff(i128::from(target)) as f64,
            Self::Float(x) => (x - target as f64).abs(),
        }
    }

    /// The nearest float.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Int(n) => n as f64,
            Self::Float(x) => x,
        }
    }
}

/// The value of an expression of digits, `+ - * / // ** ( ) .` and white space; `None` where Python would raise an
/// exception, and beyond the bounds.
#[must_use]
pub fn evaluate(text: &str) -> Option<Number> {
    value(text).ok()
}

/// The value of such an expression among other numbers.
///
/// # Errors
/// Why it has none.
pub fn value<N: Arithmetic>(text: &str) -> Result<N, Invalid> {
    let mut parser = Parser { rest: text.trim().as_bytes(), depth: 0 };
    let value = parser.sum()?;
    if parser.rest.is_empty() { Ok(value) } else { Err(Invalid::Form) }
}

/// Why an expression has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It is no expression.
    #[error("this is no expression of numbers, + - * / // ** and parentheses")]
    Form,
    /// A division by zero.
    #[error("division by zero")]
    ByZero,
    /// A number leaves its bounds.
    #[error("a number is too large")]
    TooLarge,
    /// A power that these numbers do not have.
    #[error("a power with this exponent has no exact value")]
    Power,
}

/// An operator between two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `//`, towards minus infinity.
    FloorDivide,
}

/// Numbers that expressions can be evaluated among.
pub trait Arithmetic: Copy {
    /// The number that digits and points stand for.
    ///
    /// # Errors
    /// What is no number, or a number out of bounds.
    fn read(text: &str) -> Result<Self, Invalid>;

    /// The number with the other sign.
    ///
    /// # Errors
    /// When the result is out of bounds.
    fn negative(self) -> Result<Self, Invalid>;

    /// The result of an operator.
    ///
    /// # Errors
    /// When there is none, or it is out of bounds.
    fn apply(operator: Operator, left: Self, right: Self) -> Result<Self, Invalid>;

    /// `self ** exponent`.
    ///
    /// # Errors
    /// When there is no such power, or it is out of bounds.
    fn power(self, exponent: Self) -> Result<Self, Invalid>;
}

struct Parser<'a> {
    rest: &'a [u8],
    depth: usize,
}

impl Parser<'_> {
    /// sum := product (("+" | "-") product)*
    fn sum<N: Arithmetic>(&mut self) -> Result<N, Invalid> {
        let mut left = self.product()?;
        loop {
            let operator = match self.rest.first() {
                Some(b'+') => Operator::Add,
                Some(b'-') => Operator::Subtract,
                _ => return Ok(left),
            };
            self.skip(1);
            left = N::apply(operator, left, self.product()?)?;
        }
    }

    /// product := sign (("*" | "/" | "//") sign)*
    fn product<N: Arithmetic>(&mut self) -> Result<N, Invalid> {
        let mut left = self.sign()?;
        loop {
            let (operator, width) = match self.rest {
                [b'/', b'/', ..] => (Operator::FloorDivide, 2),
                [b'/', ..] => (Operator::Divide, 1),
                [b'*', ..] => (Operator::Multiply, 1),
                _ => return Ok(left),
            };
            self.skip(width);
            left = N::apply(operator, left, self.sign()?)?;
        }
    }

    /// sign := ("+" | "-") sign | power
    fn sign<N: Arithmetic>(&mut self) -> Result<N, Invalid> {
        let negative = match self.rest.first() {
            Some(b'-') => true,
            Some(b'+') => false,
            _ => return self.power(),
        };
        self.skip(1);
        let value = self.nested(Self::sign::<N>)?;
        if negative { value.negative() } else { Ok(value) }
    }

    /// power := atom ("**" sign)?
    fn power<N: Arithmetic>(&mut self) -> Result<N, Invalid> {
        let base: N = self.atom()?;
        if !self.rest.starts_with(b"**") {
            return Ok(base);
        }
        self.skip(2);
        base.power(self.nested(Self::sign::<N>)?)
    }

    /// atom := "(" sum ")" | number
    fn atom<N: Arithmetic>(&mut self) -> Result<N, Invalid> {
        if self.rest.first() != Some(&b'(') {
            return self.number();
        }
        self.skip(1);
        let value = self.nested(Self::sum::<N>)?;
        if self.rest.first() != Some(&b')') {
            return Err(Invalid::Form);
        }
        self.skip(1);
        Ok(value)
    }

    fn number<N: Arithmetic>(&mut self) -> Result<N, Invalid> {
        let length = self.rest.iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
        let text = std::str::from_utf8(&self.rest[..length]).expect("digits and points are ASCII");
        let points = text.bytes().filter(|byte| *byte == b'.').count();
        // Python refuses leading zeros, except in zero itself.
        let leading = points == 0 && text.starts_with('0') && text.bytes().any(|byte| byte != b'0');
        if leading || points > 1 || points == length {
            return Err(Invalid::Form);
        }
        let value = N::read(text)?;
        self.skip(length);
        Ok(value)
    }

    fn nested<N>(&mut self, rule: fn(&mut Self) -> Result<N, Invalid>) -> Result<N, Invalid> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Invalid::Form);
        }
        let value = rule(self);
        self.depth -= 1;
        value
    }

    /// Passes over a token and the blanks after it.
    fn skip(&mut self, width: usize) {
        let rest = &self.rest[width..];
        let blanks = rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\x0c')).count();
        self.rest = &rest[blanks..];
    }
}

impl Arithmetic for Number {
    fn read(text: &str) -> Result<Self, Invalid> {
        if text.contains('.') {
            return text.parse().map(Self::Float).map_err(|_| Invalid::Form);
        }
        text.parse().map(Self::Int).map_err(|_| Invalid::TooLarge)
    }

    fn negative(self) -> Result<Self, Invalid> {
        match self {
            Self::Int(n) => n.checked_neg().map(Self::Int).ok_or(Invalid::TooLarge),
            Self::Float(x) => Ok(Self::Float(-x)),
        }
    }

    fn apply(operator: Operator, left: Self, right: Self) -> Result<Self, Invalid> {
        let divides = matches!(operator, Operator::Divide | Operator::FloorDivide);
        if divides && right.as_f64() == 0.0 {
            return Err(Invalid::ByZero);
        }
        if let (Self::Int(a), Self::Int(b)) = (left, right) {
            let value = match operator {
                Operator::Add => a.checked_add(b),
                Operator::Subtract => a.checked_sub(b),
                Operator::Multiply => a.checked_mul(b),
                Operator::FloorDivide => floor_divide(a, b),
                Operator::Divide => return Ok(Self::Float(a as f64 / b as f64)),
            };
            return value.map(Self::Int).ok_or(Invalid::TooLarge);
        }
        let (a, b) = (left.as_f64(), right.as_f64());
        Ok(Self::Float(match operator {
            Operator::Add => a + b,
            Operator::Subtract => a - b,
            Operator::Multiply => a * b,
            Operator::Divide => a / b,
            Operator::FloorDivide => (a / b).floor(),
        }))
    }

    fn power(self, exponent: Self) -> Result<Self, Invalid> {
        if let (Self::Int(a), Self::Int(b)) = (self, exponent)
            && b >= 0
        {
            return int_power(a, b).map(Self::Int).ok_or(Invalid::TooLarge);
        }
        let (a, b) = (self.as_f64(), exponent.as_f64());
        if a == 0.0 && b < 0.0 {
            return Err(Invalid::ByZero);
        }
        // A complex number.
        if a < 0.0 && b.fract() != 0.0 {
            return Err(Invalid::Power);
        }
        let value = a.powf(b);
        // OverflowError.
        let fits = value.is_finite() || !a.is_finite() || !b.is_finite();
        if fits { Ok(Self::Float(value)) } else { Err(Invalid::TooLarge) }
    }
}

impl Arithmetic for Rational {
    fn read(text: &str) -> Result<Self, Invalid> {
        Self::decimal(text).ok_or(Invalid::TooLarge)
    }

    fn negative(self) -> Result<Self, Invalid> {
        Ok(Self::negative(self))
    }

    fn apply(operator: Operator, left: Self, right: Self) -> Result<Self, Invalid> {
        let quotient = || left.multiply(right.inverse()?);
        let value = match operator {
            Operator::Add => left.add(right),
            Operator::Subtract => left.add(Self::negative(right)),
            Operator::Multiply => left.multiply(right),
            _ if right.is_zero() => return Err(Invalid::ByZero),
            Operator::Divide => quotient(),
            Operator::FloorDivide => quotient().and_then(|exact| Self::integer(exact.top().div_euclid(exact.bottom()))),
        };
        value.ok_or(Invalid::TooLarge)
    }

    fn power(self, exponent: Self) -> Result<Self, Invalid> {
        let exponent = exponent.whole().ok_or(Invalid::Power)?;
        if self.is_zero() && exponent < 0 {
            return Err(Invalid::ByZero);
        }
        let times = exponent.unsigned_abs();
        let power = |base: i128| int_power(base, i128::try_from(times).ok()?);
        let (top, bottom) = if exponent < 0 { (self.bottom(), self.top()) } else { (self.top(), self.bottom()) };
        let value = power(top).zip(power(bottom)).and_then(|(top, bottom)| Self::new(top, bottom));
        value.ok_or(Invalid::TooLarge)
    }
}

/// Division towards minus infinity.
fn floor_divide(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn int_power(base: i128, exponent: i128) -> Option<i128> {
    match base {
        // These fit whatever the exponent.
        0 | 1 => Some(if exponent == 0 { 1 } else { base }),
        -1 => Some(if exponent % 2 == 0 { 1 } else { -1 }),
        _ => base.checked_pow(u32::try_from(exponent).ok()?),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_pythons() {
        use Number::{Float, Int};
        for (text, value) in [
            ("1 + 2 * 3", Int(7)),
            ("(1+2)*3", Int(9)),
            ("8 / 3 * 3", Float(8.0)),
            ("6/2", Float(3.0)),
            ("7 // 2", Int(3)),
            ("-7 // 2", Int(-4)),
            ("7 // -2", Int(-4)),
            ("-8 // 2", Int(-4)),
            ("7. // 2", Float(3.0)),
            ("2 ** 3 ** 2", Int(512)),
            ("-2 ** 2", Int(-4)),
            ("(-2) ** 2", Int(4)),
            ("2 ** -1", Float(0.5)),
            ("2 ** - - 1", Int(2)),
            ("4 ** .5", Float(2.0)),
            ("- - 5", Int(5)),
            ("+5", Int(5)),
            ("1.5 + .5", Float(2.0)),
            ("5.", Float(5.0)),
            ("0", Int(0)),
            ("00", Int(0)),
            ("0 ** 0", Int(1)),
            ("1 ** 99999999999", Int(1)),
            ("\t1 +\t2 ", Int(3)),
        ] {
            assert_eq!(evaluate(text), Some(value), "{text}");
        }
    }

    #[test]
    fn what_raises_in_python_has_no_value() {
        for text in [
            "",
            "()",
            "1 +",
            "* 2",
            "1 +* 2 3",
            "3 4",
            "3(4)",
            "(1",
            "1)",
            "1 / 0",
            "1 // 0",
            "0 ** -1",
            "007",
            "1.2.3",
            ".",
            "...",
            "1 * * 2",
            "1 / / 2",
            "(1+2)*3 = 9",
            "x",
            "1e3",
            "10.0 ** 999",
            "1\u{a0}+ 2",
            "1 +\n2",
        ] {
            assert_eq!(evaluate(text), None, "{text}");
        }
    }

    #[test]
    fn hostile_expressions_end_at_once() {
        let started = std::time::Instant::now();
        for text in [
            "9 ** 9 ** 9 ** 9".to_owned(),
            "99999999 ** 99999999".to_owned(),
            "(".repeat(1_000_000),
            "-".repeat(1_000_000),
            "1 ** ".repeat(1_000_000),
            "9".repeat(1_000_000),
        ] {
            assert_eq!(evaluate(&text), None);
        }
        assert_eq!(evaluate(&format!("1{}", "+1".repeat(100_000))), Some(Number::Int(100_001)));
        assert!(started.elapsed().as_secs_f64() < 1.0, "{:?}", started.elapsed());
    }

    #[test]
    fn fractions_stay_exact() {
        let exact = |text: &str| value::<Rational>(text);
        let ratio = |top, bottom| Ok(Rational::new(top, bottom).unwrap());
        for (text, expected) in [
            ("1/3 + 1/6", ratio(1, 2)),
            ("0.1 + 0.2", ratio(3, 10)),
            ("8 / 3 * 3", ratio(8, 1)),
            ("-7 // 2", ratio(-4, 1)),
            ("7.5 // 2", ratio(3, 1)),
            ("7 // -2", ratio(-4, 1)),
            ("2 ** -3", ratio(1, 8)),
            ("(-2/3) ** 3", ratio(-8, 27)),
            ("(-2/3) ** -3", ratio(-27, 8)),
            ("0 ** 0", ratio(1, 1)),
            ("- - 5", ratio(5, 1)),
            ("12345678901234567890 * 1000000000", ratio(12_345_678_901_234_567_890_000_000_000, 1)),
            ("1 / (2 - 2)", Err(Invalid::ByZero)),
            ("1 // 0", Err(Invalid::ByZero)),
            ("0 ** -1", Err(Invalid::ByZero)),
            ("4 ** .5", Err(Invalid::Power)),
            ("9 ** 99", Err(Invalid::TooLarge)),
            ("9 ** 9 ** 9 ** 9", Err(Invalid::TooLarge)),
            ("1 +", Err(Invalid::Form)),
            ("1.2.3", Err(Invalid::Form)),
            (".", Err(Invalid::Form)),
            ("007", Err(Invalid::Form)),
            ("x", Err(Invalid::Form)),
        ] {
            assert_eq!(exact(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in r"[0-9+*/(). -]{0,60}") {
            let _ = evaluate(&text);
            let _ = value::<Rational>(&text);
        }
    }
}
