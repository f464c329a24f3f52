//! Arithmetic as Python evaluates it, for texts that nobody has checked.
//!
//! Whole numbers stay whole under `+ - * // **` and become floats under `/`; `**` binds to the right and tighter than a
//! sign before it. Unlike `eval`, it always ends at once: whole numbers are bounded by 128 bits, nesting by 200 levels,
//! and complex numbers do not exist. An expression out of bounds has no value.

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
    let mut parser = Parser { rest: text.trim().as_bytes(), depth: 0 };
    let value = parser.sum()?;
    parser.rest.is_empty().then_some(value)
}

#[derive(Clone, Copy)]
enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
}

struct Parser<'a> {
    rest: &'a [u8],
    depth: usize,
}

impl Parser<'_> {
    /// sum := product (("+" | "-") product)*
    fn sum(&mut self) -> Option<Number> {
        let mut left = self.product()?;
        loop {
            let operator = match self.rest.first() {
                Some(b'+') => Operator::Add,
                Some(b'-') => Operator::Subtract,
                _ => return Some(left),
            };
            self.skip(1);
            left = apply(operator, left, self.product()?)?;
        }
    }

    /// product := sign (("*" | "/" | "//") sign)*
    fn product(&mut self) -> Option<Number> {
        let mut left = self.sign()?;
        loop {
            let (operator, width) = match self.rest {
                [b'/', b'/', ..] => (Operator::FloorDivide, 2),
                [b'/', ..] => (Operator::Divide, 1),
                [b'*', ..] => (Operator::Multiply, 1),
                _ => return Some(left),
            };
            self.skip(width);
            left = apply(operator, left, self.sign()?)?;
        }
    }

    /// sign := ("+" | "-") sign | power
    fn sign(&mut self) -> Option<Number> {
        let negative = match self.rest.first() {
            Some(b'-') => true,
            Some(b'+') => false,
            _ => return self.power(),
        };
        self.skip(1);
        let value = self.nested(Self::sign)?;
        match value {
            Number::Int(n) if negative => n.checked_neg().map(Number::Int),
            Number::Float(x) if negative => Some(Number::Float(-x)),
            _ => Some(value),
        }
    }

    /// power := atom ("**" sign)?
    fn power(&mut self) -> Option<Number> {
        let base = self.atom()?;
        if !self.rest.starts_with(b"**") {
            return Some(base);
        }
        self.skip(2);
        let exponent = self.nested(Self::sign)?;
        power(base, exponent)
    }

    /// atom := "(" sum ")" | number
    fn atom(&mut self) -> Option<Number> {
        if self.rest.first() != Some(&b'(') {
            return self.number();
        }
        self.skip(1);
        let value = self.nested(Self::sum)?;
        if self.rest.first() != Some(&b')') {
            return None;
        }
        self.skip(1);
        Some(value)
    }

    fn number(&mut self) -> Option<Number> {
        let length = self.rest.iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
        let text = std::str::from_utf8(&self.rest[..length]).expect("digits and points are ASCII");
        let value = if text.contains('.') {
            Number::Float(text.parse().ok()?)
        } else {
            // Python refuses leading zeros, except in zero itself.
            let value: i128 = text.parse().ok()?;
            if text.starts_with('0') && value != 0 {
                return None;
            }
            Number::Int(value)
        };
        self.skip(length);
        Some(value)
    }

    fn nested(&mut self, rule: fn(&mut Self) -> Option<Number>) -> Option<Number> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
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

fn apply(operator: Operator, left: Number, right: Number) -> Option<Number> {
    if let (Number::Int(a), Number::Int(b)) = (left, right) {
        return match operator {
            Operator::Add => a.checked_add(b).map(Number::Int),
            Operator::Subtract => a.checked_sub(b).map(Number::Int),
            Operator::Multiply => a.checked_mul(b).map(Number::Int),
            Operator::FloorDivide => floor_divide(a, b).map(Number::Int),
            Operator::Divide => (b != 0).then(|| Number::Float(a as f64 / b as f64)),
        };
    }
    let (a, b) = (left.as_f64(), right.as_f64());
    match operator {
        Operator::Add => Some(Number::Float(a + b)),
        Operator::Subtract => Some(Number::Float(a - b)),
        Operator::Multiply => Some(Number::Float(a * b)),
        Operator::Divide => (b != 0.0).then(|| Number::Float(a / b)),
        Operator::FloorDivide => (b != 0.0).then(|| Number::Float((a / b).floor())),
    }
}

/// Division towards minus infinity.
fn floor_divide(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn power(base: Number, exponent: Number) -> Option<Number> {
    if let (Number::Int(a), Number::Int(b)) = (base, exponent)
        && b >= 0
    {
        return int_power(a, b).map(Number::Int);
    }
    let (a, b) = (base.as_f64(), exponent.as_f64());
    if (a == 0.0 && b < 0.0) || (a < 0.0 && b.fract() != 0.0) {
        // ZeroDivisionError, and a complex number.
        return None;
    }
    let value = a.powf(b);
    // OverflowError.
    (value.is_finite() || !a.is_finite() || !b.is_finite()).then_some(Number::Float(value))
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

    proptest! {
        #[test]
        fn any_text_is_survived(text in r"[0-9+*/(). -]{0,60}") {
            let _ = evaluate(&text);
        }
    }
}
