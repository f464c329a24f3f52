//! `[ … ]`, `[[ … ]]` and `(( … ))`: true, false, or not known here.

use brush_parser::ast::{BinaryPredicate, ExtendedTestExpr, UnaryPredicate};

use super::{Word, pattern, run::Shell};

/// A word of a condition as text: a variable that nothing sets is empty, as in a shell without that variable.
fn text(word: &Word) -> Option<&str> {
    match word.unset() {
        None => Some(word),
        Some(unset) if unset.absent && word.starts_with('$') => Some(""),
        Some(_) => None,
    }
}

/// `[ … ]` and `test …`.
pub fn test(words: &[Word]) -> Option<bool> {
    let plain = |word: &Word| word.unset().is_none().then(|| word.to_string());
    if let Some(at) = words.iter().position(|word| &**word == "-o") {
        return either(test(&words[..at]), test(&words[at + 1..]));
    }
    if let Some(at) = words.iter().position(|word| &**word == "-a") {
        return both(test(&words[..at]), test(&words[at + 1..]));
    }
    match words {
        [] => Some(false),
        [not, rest @ ..] if &**not == "!" && !rest.is_empty() => test(rest).map(|holds| !holds),
        [word] => Some(!text(word)?.is_empty()),
        [operator, word] => match plain(operator)?.as_str() {
            "-z" => Some(text(word)?.is_empty()),
            "-n" => Some(!text(word)?.is_empty()),
            _ => None,
        },
        [left, operator, right] => {
            let (left, right) = (text(left)?, text(right)?);
            match plain(operator)?.as_str() {
                "=" | "==" => Some(left == right),
                "!=" => Some(left != right),
                name => numbers(name, left, right),
            }
        }
        _ => None,
    }
}

fn numbers(name: &str, left: &str, right: &str) -> Option<bool> {
    let (left, right): (i64, i64) = (left.trim().parse().ok()?, right.trim().parse().ok()?);
    Some(match name {
        "-eq" => left == right,
        "-ne" => left != right,
        "-lt" => left < right,
        "-le" => left <= right,
        "-gt" => left > right,
        "-ge" => left >= right,
        _ => return None,
    })
}

fn both(left: Option<bool>, right: Option<bool>) -> Option<bool> {
    match (left, right) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn either(left: Option<bool>, right: Option<bool>) -> Option<bool> {
    both(left.map(|holds| !holds), right.map(|holds| !holds)).map(|holds| !holds)
}

impl Shell {
    /// `[[ … ]]`.
    pub fn extended_test(&mut self, expression: &ExtendedTestExpr) -> Option<bool> {
        match expression {
            ExtendedTestExpr::And(left, right) => both(self.extended_test(left), self.extended_test(right)),
            ExtendedTestExpr::Or(left, right) => either(self.extended_test(left), self.extended_test(right)),
            ExtendedTestExpr::Not(of) => self.extended_test(of).map(|holds| !holds),
            ExtendedTestExpr::Parenthesized(of) => self.extended_test(of),
            ExtendedTestExpr::UnaryTest(predicate, word) => {
                let value = self.in_one(&word.value);
                self.depends_on(&value);
                match predicate {
                    UnaryPredicate::StringHasZeroLength => Some(text(&value)?.is_empty()),
                    UnaryPredicate::StringHasNonZeroLength => Some(!text(&value)?.is_empty()),
                    UnaryPredicate::ShellVariableIsSetAndAssigned => {
                        let name = text(&value)?;
                        let is_set = self.is_set(name);
                        if !is_set {
                            self.misses(name);
                        }
                        Some(is_set)
                    }
                    _ => None,
                }
            }
            ExtendedTestExpr::BinaryTest(predicate, left, right) => {
                let quoted = right.value.contains(['"', '\'']);
                let (left, right) = (self.in_one(&left.value), self.in_one(&right.value));
                self.depends_on(&left);
                self.depends_on(&right);
                let (left, right) = (text(&left)?, text(&right)?);
                let alike = || if quoted { left == right } else { pattern::matches(right, left) };
                // Character classes are not understood.
                let clear = quoted || !right.contains('[');
                match predicate {
                    BinaryPredicate::StringExactlyMatchesPattern if clear => Some(alike()),
                    BinaryPredicate::StringDoesNotExactlyMatchPattern if clear => Some(!alike()),
                    BinaryPredicate::StringExactlyMatchesString => Some(left == right),
                    BinaryPredicate::StringDoesNotExactlyMatchString => Some(left != right),
                    BinaryPredicate::ArithmeticEqualTo => numbers("-eq", left, right),
                    BinaryPredicate::ArithmeticNotEqualTo => numbers("-ne", left, right),
                    BinaryPredicate::ArithmeticLessThan => numbers("-lt", left, right),
                    BinaryPredicate::ArithmeticLessThanOrEqualTo => numbers("-le", left, right),
                    BinaryPredicate::ArithmeticGreaterThan => numbers("-gt", left, right),
                    BinaryPredicate::ArithmeticGreaterThanOrEqualTo => numbers("-ge", left, right),
                    _ => None,
                }
            }
        }
    }
}
