//! `$((…))`: whole numbers of 64 bits, as in bash.

use brush_parser::{
    arithmetic,
    ast::{ArithmeticExpr, ArithmeticTarget, BinaryOperator, UnaryAssignmentOperator, UnaryOperator},
};

use super::{Word, run::Shell};

/// How often a variable may stand for an expression with variables.
const DEEPEST: usize = 16;

impl Shell {
    /// The value of an expression; none if it is not known.
    pub fn arithmetic(&mut self, expression: &str) -> Option<i64> {
        let text = self.in_quotes(expression);
        if text.unset().is_some() || text.len() > 4096 {
            return None;
        }
        self.value_of(&text, 0)
    }

    fn value_of(&mut self, text: &str, depth: usize) -> Option<i64> {
        if text.trim().is_empty() {
            return Some(0);
        }
        self.evaluate(&arithmetic::parse(text.trim()).ok()?, depth)
    }

    fn evaluate(&mut self, expression: &ArithmeticExpr, depth: usize) -> Option<i64> {
        match expression {
            ArithmeticExpr::Literal(number) => Some(*number),
            ArithmeticExpr::Reference(target) => self.target(target, depth),
            ArithmeticExpr::UnaryOp(operator, of) => {
                let value = self.evaluate(of, depth)?;
                Some(match operator {
                    UnaryOperator::UnaryPlus => value,
                    UnaryOperator::UnaryMinus => value.wrapping_neg(),
                    UnaryOperator::BitwiseNot => !value,
                    UnaryOperator::LogicalNot => i64::from(value == 0),
                })
            }
            ArithmeticExpr::BinaryOp(operator, left, right) => {
                let left = self.evaluate(left, depth)?;
                match operator {
                    BinaryOperator::LogicalAnd if left == 0 => return Some(0),
                    BinaryOperator::LogicalOr if left != 0 => return Some(1),
                    _ => {}
                }
                binary(operator, left, self.evaluate(right, depth)?)
            }
            ArithmeticExpr::Conditional(condition, yes, no) => {
                let chosen = if self.evaluate(condition, depth)? == 0 { no } else { yes };
                self.evaluate(chosen, depth)
            }
            ArithmeticExpr::Assignment(target, value) => {
                let value = self.evaluate(value, depth)?;
                self.put_target(target, value)
            }
            ArithmeticExpr::BinaryAssignment(operator, target, value) => {
                let (before, value) = (self.target(target, depth)?, self.evaluate(value, depth)?);
                self.put_target(target, binary(operator, before, value)?)
            }
            ArithmeticExpr::UnaryAssignment(operator, target) => {
                let before = self.target(target, depth)?;
                let (step, first) = match operator {
                    UnaryAssignmentOperator::PrefixIncrement => (1, false),
                    UnaryAssignmentOperator::PrefixDecrement => (-1, false),
                    UnaryAssignmentOperator::PostfixIncrement => (1, true),
                    UnaryAssignmentOperator::PostfixDecrement => (-1, true),
                };
                let after = self.put_target(target, before.wrapping_add(step))?;
                Some(if first { before } else { after })
            }
        }
    }

    /// The value of a variable, which may be an expression itself.
    fn target(&mut self, target: &ArithmeticTarget, depth: usize) -> Option<i64> {
        let value = match target {
            ArithmeticTarget::Variable(name) => self.scalar(name),
            ArithmeticTarget::ArrayElement(name, index) => {
                let index = self.evaluate(index, depth)?;
                self.element(name, index)
            }
        };
        let value = value?;
        if value.unset().is_some() || depth >= DEEPEST {
            return None;
        }
        self.value_of(&value, depth + 1)
    }

    fn put_target(&mut self, target: &ArithmeticTarget, value: i64) -> Option<i64> {
        let ArithmeticTarget::Variable(name) = target else { return None };
        self.put(name, Word::known(value.to_string()));
        Some(value)
    }
}

fn binary(operator: &BinaryOperator, left: i64, right: i64) -> Option<i64> {
    let shift = || u32::try_from(right).ok().filter(|bits| *bits < 64);
    Some(match operator {
        BinaryOperator::Power => left.checked_pow(u32::try_from(right).ok()?)?,
        BinaryOperator::Multiply => left.wrapping_mul(right),
        BinaryOperator::Divide => left.checked_div(right)?,
        BinaryOperator::Modulo => left.checked_rem(right)?,
        BinaryOperator::Comma => right,
        BinaryOperator::Add => left.wrapping_add(right),
        BinaryOperator::Subtract => left.wrapping_sub(right),
        BinaryOperator::ShiftLeft => left << shift()?,
        BinaryOperator::ShiftRight => left >> shift()?,
        BinaryOperator::LessThan => i64::from(left < right),
        BinaryOperator::LessThanOrEqualTo => i64::from(left <= right),
        BinaryOperator::GreaterThan => i64::from(left > right),
        BinaryOperator::GreaterThanOrEqualTo => i64::from(left >= right),
        BinaryOperator::Equals => i64::from(left == right),
        BinaryOperator::NotEquals => i64::from(left != right),
        BinaryOperator::BitwiseAnd => left & right,
        BinaryOperator::BitwiseXor => left ^ right,
        BinaryOperator::BitwiseOr => left | right,
        BinaryOperator::LogicalAnd | BinaryOperator::LogicalOr => i64::from(right != 0),
    })
}
