//! Expressions of one value.

use super::{polynomial::Polynomial, tokens::Token, value::Value};
use crate::rules::rational::Rational;

/// Deepest nesting.
const MAX_DEPTH: usize = 24;
/// Most work for an expression, counted in products of two terms.
const MAX_WORK: usize = 40_000;
/// Work to factor the number under a root.
const ROOT_WORK: usize = 4_000;
/// Letters that form a product where two or three stand side by side.
const FACTORS: [char; 6] = ['a', 'b', 'c', 'x', 'y', 'z'];

/// The value of the expression at the start of the tokens, and how many of them it takes. `None` for tokens that are no
/// expression, have several readings, or go beyond the bounds.
pub(super) fn value(tokens: &[Token]) -> Option<(Value, usize)> {
    let mut parser = Parser { tokens, next: 0, depth: 0, work: 0 };
    let value = parser.over()?;
    Some((value, parser.next))
}

struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
    depth: usize,
    work: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.next)
    }

    fn at(&self, symbol: char) -> bool {
        self.peek().is_some_and(|token| token.is(symbol))
    }

    fn eat(&mut self, symbol: char) -> Option<()> {
        let found = self.at(symbol);
        self.next += usize::from(found);
        found.then_some(())
    }

    fn spend(&mut self, work: usize) -> Option<()> {
        self.work += work;
        (self.work <= MAX_WORK).then_some(())
    }

    fn combine(
        &mut self,
        a: &Value,
        b: &Value,
        operation: impl FnOnce(&Value, &Value) -> Option<Value>,
    ) -> Option<Value> {
        self.spend(a.terms() * b.terms())?;
        operation(a, b)
    }

    /// sum := [sign] term (sign term)*
    fn sum(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let negative = self.sign().unwrap_or(false);
        let mut sum = self.signed_term(negative)?;
        while let Some(negative) = self.sign() {
            let term = self.signed_term(negative)?;
            sum = self.combine(&sum, &term, Value::add)?;
        }
        self.depth -= 1;
        Some(sum)
    }

    fn sign(&mut self) -> Option<bool> {
        if self.eat('-').is_some() {
            return Some(true);
        }
        self.eat('+').map(|()| false)
    }

    fn signed_term(&mut self, negative: bool) -> Option<Value> {
        let term = self.term()?;
        if negative { term.negative() } else { Some(term) }
    }

    /// term := power (("*" | "/") [sign] power | power)*
    fn term(&mut self) -> Option<Value> {
        let mut product = self.power()?;
        let mut divided = false;
        loop {
            let times = self.eat('*').is_some();
            let over = !times && self.eat('/').is_some();
            // `1/2x` may mean two things.
            if !times && !over && (divided || !self.begins_factor()?) {
                return (!divided || !self.begins_factor()?).then_some(product);
            }
            let negative = (times || over) && self.sign().unwrap_or(false);
            let factor = self.power()?;
            let factor = if negative { factor.negative()? } else { factor };
            divided |= over;
            product = self.combine(&product, &factor, if over { Value::divide } else { Value::multiply })?;
        }
    }

    /// Whether a factor follows without a sign of multiplication; `None` for a number, which needs the sign.
    fn begins_factor(&self) -> Option<bool> {
        match self.peek() {
            Some(Token::Number { .. }) => None,
            Some(Token::Symbol('(' | '{')) => Some(true),
            Some(Token::Word(word)) => Some(letters(word).is_some() || word == "sqrt"),
            Some(Token::Command(name)) => Some(greek(name).is_some() || matches!(name.as_str(), "frac" | "sqrt")),
            _ => Some(false),
        }
    }

    /// power := primary ["^" exponent]
    fn power(&mut self) -> Option<Value> {
        let base = self.primary()?;
        if !self.at('^') || self.degrees_follow() {
            return Some(base);
        }
        self.next += 1;
        let exponent = self.exponent()?;
        // `a^b^c` is read in two ways.
        if self.at('^') && !self.degrees_follow() {
            return None;
        }
        let times = exponent.as_rational().and_then(Rational::whole).map_or(1, i128::unsigned_abs).min(64) as usize;
        self.spend(ROOT_WORK / 10 + times * base.terms() * base.terms())?;
        let power = base.power(&exponent)?;
        self.spend(times * base.terms() * power.terms())?;
        Some(power)
    }

    fn degrees_follow(&self) -> bool {
        let degrees = |token: &Token| matches!(token, Token::Word(word) if word == "degrees");
        match &self.tokens[self.next..] {
            [_, open, word, ..] if open.is('{') => degrees(word),
            [_, word, ..] => degrees(word),
            _ => false,
        }
    }

    fn exponent(&mut self) -> Option<Value> {
        let negative = self.sign().unwrap_or(false);
        let value = match self.peek()? {
            Token::Number { .. } => self.number()?,
            Token::Symbol('{') => self.group('{', '}')?,
            Token::Symbol('(') => self.group('(', ')')?,
            _ => return None,
        };
        if negative { value.negative() } else { Some(value) }
    }

    fn group(&mut self, open: char, close: char) -> Option<Value> {
        self.eat(open)?;
        let value = if open == '{' { self.over()? } else { self.sum()? };
        self.eat(close)?;
        Some(value)
    }

    /// A sum, or a fraction as in `1 \over 2`.
    fn over(&mut self) -> Option<Value> {
        let top = self.sum()?;
        if !self.peek().is_some_and(|token| token.is_command("over")) {
            return Some(top);
        }
        self.next += 1;
        let bottom = self.sum()?;
        self.combine(&top, &bottom, Value::divide)
    }

    fn primary(&mut self) -> Option<Value> {
        match self.peek()? {
            Token::Number { .. } => self.number_or_mixed(),
            Token::Symbol('(') => self.group('(', ')'),
            Token::Symbol('{') => self.group('{', '}'),
            Token::Word(word) if word == "sqrt" => {
                self.next += 1;
                let value = self.group('(', ')')?;
                self.root(&value, 2)
            }
            Token::Word(word) => {
                let letters = letters(word)?;
                self.next += 1;
                let one = Value::rational(Rational::ONE);
                letters.into_iter().try_fold(one, |product, letter| product.multiply(&letter))
            }
            Token::Command(name) => self.command(name),
            Token::Text(_) | Token::Symbol(_) => None,
        }
    }

    fn command(&mut self, name: &str) -> Option<Value> {
        self.next += 1;
        match name {
            "frac" => {
                let (top, bottom) = (self.argument()?, self.argument()?);
                self.combine(&top, &bottom, Value::divide)
            }
            "sqrt" => {
                let index = if self.at('[') { self.group('[', ']')?.as_rational()?.whole()? } else { 2 };
                let value = if self.at('(') { self.group('(', ')')? } else { self.argument()? };
                self.root(&value, index)
            }
            name => Some(Value::of(Polynomial::letter(greek(name)?))),
        }
    }

    fn root(&mut self, value: &Value, index: i128) -> Option<Value> {
        self.spend(ROOT_WORK)?;
        value.root(index)
    }

    /// A group in braces or one digit.
    fn argument(&mut self) -> Option<Value> {
        match self.peek()? {
            Token::Symbol('{') => self.group('{', '}'),
            Token::Number { text, .. } if text.len() == 1 => self.number(),
            Token::Command(name) if greek(name).is_some() => self.command(name),
            Token::Word(word) if word.chars().count() == 1 => self.primary(),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Value> {
        match self.peek()? {
            Token::Number { text, .. } => {
                self.next += 1;
                Some(Value::rational(Rational::decimal(text)?))
            }
            _ => None,
        }
    }

    /// A number, in scientific notation (`1.5e3`) or with a fraction behind it (`3\frac{1}{2}`, `3 1/2`).
    fn number_or_mixed(&mut self) -> Option<Value> {
        let whole = self.number()?;
        match &self.tokens[self.next..] {
            [Token::Word(e), Token::Number { text, .. }, ..] if e == "e" || e == "E" => {
                self.next += 2;
                scientific(&whole, text.parse().ok()?)
            }
            // With a small letter, it may be Euler's number.
            [Token::Word(e), minus, Token::Number { text, .. }, ..] if e == "E" && minus.is('-') => {
                self.next += 3;
                scientific(&whole, -text.parse::<i128>().ok()?)
            }
            [Token::Word(e), sign, Token::Number { .. }, ..] if e == "e" && (sign.is('-') || sign.is('+')) => None,
            [Token::Number { text: a, .. }, slash, Token::Number { text: b, .. }, ..] if slash.is('/') => {
                self.next += 3;
                mixed(&whole, a, b)
            }
            [frac, rest @ ..] if frac.is_command("frac") => match rest {
                [o1, Token::Number { text: a, .. }, c1, o2, Token::Number { text: b, .. }, c2, ..]
                    if o1.is('{') && c1.is('}') && o2.is('{') && c2.is('}') =>
                {
                    self.next += 7;
                    mixed(&whole, a, b)
                }
                [Token::Number { text: a, .. }, Token::Number { text: b, .. }, ..] => {
                    self.next += 3;
                    mixed(&whole, a, b)
                }
                _ => Some(whole),
            },
            _ => Some(whole),
        }
    }
}

fn scientific(number: &Value, exponent: i128) -> Option<Value> {
    let ten = Value::rational(Rational::integer(10)?);
    number.multiply(&ten.power(&Value::rational(Rational::integer(exponent)?))?)
}

/// A whole number and a fraction of whole numbers below 1.
fn mixed(whole: &Value, top: &str, bottom: &str) -> Option<Value> {
    whole.as_rational()?.whole()?;
    let (top, bottom): (i128, i128) = (top.parse().ok()?, bottom.parse().ok()?);
    (top < bottom).then_some(())?;
    whole.add(&Value::rational(Rational::new(top, bottom)?))
}

/// The factors that the letters of a text stand for; `None` for a word.
fn letters(word: &str) -> Option<Vec<Value>> {
    let letters: Vec<char> = word.chars().take(4).collect();
    let factor = |letter: char| match letter {
        'i' => Value::of(Polynomial::imaginary_unit()),
        letter => Value::of(Polynomial::letter(letter)),
    };
    match letters.as_slice() {
        _ if word == "pi" => Some(vec![factor('π')]),
        [letter] => Some(vec![factor(*letter)]),
        few if few.len() <= 3 && few.iter().all(|letter| FACTORS.contains(letter)) => {
            Some(few.iter().map(|&letter| factor(letter)).collect())
        }
        _ => None,
    }
}

/// Greek letters by their commands.
fn greek(name: &str) -> Option<char> {
    let letters = [
        ("pi", 'π'),
        ("alpha", 'α'),
        ("beta", 'β'),
        ("gamma", 'γ'),
        ("theta", 'θ'),
        ("lambda", 'λ'),
        ("mu", 'μ'),
        ("omega", 'ω'),
        ("phi", 'φ'),
    ];
    letters.iter().find(|(command, _)| *command == name).map(|(_, letter)| *letter)
}
