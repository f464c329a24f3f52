//! A calculator with exact numbers.

use rollout_rewards::rules::{expression, rational::Rational};
use serde_json::{Value, json};

use super::{Arguments, Tool};

/// `builtin:calculator`
pub const TOOL: Tool = Tool { entry: "calculator", name: NAME, schema, call };

const NAME: &str = "calculate";

/// Longest expression, in bytes.
const LONGEST: usize = 10_000;

fn schema() -> Value {
    json!({"type": "function", "function": {
        "name": NAME,
        "description": "Computes the exact value of an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "Numbers joined by + - * / // ** and parentheses, such as (12 + 7) * 3.",
                },
            },
            "required": ["expression"],
        },
        "return": {"type": "string", "description": "The value."},
    }})
}

fn call(arguments: &Arguments) -> Result<String, String> {
    let text = super::text(NAME, "expression", arguments)?;
    if text.len() > LONGEST {
        return Err(format!("the expression has more than {LONGEST} characters"));
    }
    expression::value(text).map(shown).map_err(|invalid| invalid.to_string())
}

/// A number as a model writes it: whole, with decimals where these end, else as a fraction.
fn shown(number: Rational) -> String {
    decimals(number).unwrap_or_else(|| format!("{}/{}", number.top(), number.bottom()))
}

fn decimals(number: Rational) -> Option<String> {
    let (mut rest, mut twos, mut fives) = (number.bottom(), 0_u32, 0_u32);
    while rest % 2 == 0 {
        (rest, twos) = (rest / 2, twos + 1);
    }
    while rest % 5 == 0 {
        (rest, fives) = (rest / 5, fives + 1);
    }
    if rest != 1 {
        return None;
    }
    let places = twos.max(fives);
    let scale = 10_i128.checked_pow(places)?;
    let digits = number.top().checked_mul(scale / number.bottom())?;
    if places == 0 {
        return Some(digits.to_string());
    }
    let sign = if digits < 0 { "-" } else { "" };
    let (digits, scale) = (digits.unsigned_abs(), scale.unsigned_abs());
    Some(format!("{sign}{}.{:0width$}", digits / scale, digits % scale, width = places as usize))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn calculate(expression: &str) -> Result<String, String> {
        call(json!({"expression": expression}).as_object().unwrap())
    }

    /// A warm start shows the model the tool that training gives it.
    #[test]
    fn the_warm_start_of_the_example_names_the_same_tool() {
        let (_, script) = include_str!("../../../../examples/calculator/make.py").split_once("SCHEMA = ").unwrap();
        let (literal, _) = script.split_once("\n}\n").unwrap();
        let lines: Vec<&str> = literal.lines().map(str::trim).collect();
        let literal = format!("{}}}", lines.concat()).replace(",}", "}");
        assert_eq!(serde_json::from_str::<Value>(&literal).unwrap(), schema());
    }

    #[test]
    fn values_are_exact_and_written_as_people_write_them() {
        for (expression, value) in [
            ("12 + 7", "19"),
            ("(12 + 7) * 3", "57"),
            ("-7 / 2", "-3.5"),
            ("1 / 3", "1/3"),
            ("-2 / 6", "-1/3"),
            ("1 / 3 * 3", "1"),
            ("0.1 + 0.2", "0.3"),
            ("1 / 8 - 1", "-0.875"),
            ("-1 / 100", "-0.01"),
            ("7 // 2", "3"),
            ("2 ** 100", "1267650600228229401496703205376"),
            ("123456789 * 987654321", "121932631112635269"),
        ] {
            assert_eq!(calculate(expression).as_deref(), Ok(value), "{expression}");
        }
    }

    #[test]
    fn what_has_no_value_says_why() {
        for (expression, reason) in [
            ("1 / (2 - 2)", "division by zero"),
            ("2 ** 200", "a number is too large"),
            ("9 ** 9 ** 9", "a number is too large"),
            ("2 ** 0.5", "a power with this exponent has no exact value"),
            ("two plus two", "this is no expression of numbers, + - * / // ** and parentheses"),
            ("", "this is no expression of numbers, + - * / // ** and parentheses"),
        ] {
            assert_eq!(calculate(expression).unwrap_err(), reason, "{expression}");
        }
        assert!(calculate(&"1+".repeat(LONGEST)).unwrap_err().contains("more than"));
    }

    #[test]
    fn wrong_arguments_are_refused_as_python_refuses_them() {
        let refused = |arguments: Value| call(arguments.as_object().unwrap()).unwrap_err();
        assert_eq!(refused(json!({})), "calculate() missing 1 required positional argument: 'expression'");
        assert_eq!(
            refused(json!({"expression": "1", "digits": 2})),
            "calculate() got an unexpected keyword argument 'digits'"
        );
        assert_eq!(refused(json!({"expression": 5})), "expression must be a text");
    }

    proptest! {
        #[test]
        fn sums_are_those_of_whole_numbers(a in any::<i64>(), b in any::<i64>()) {
            let sum = i128::from(a) + i128::from(b);
            prop_assert_eq!(calculate(&format!("{a} + {b}")), Ok(sum.to_string()));
        }

        #[test]
        fn a_value_with_decimals_is_the_value(top in -1_000_000_i64..1_000_000, places in 0_u32..9) {
            let shown = calculate(&format!("{top} / {}", 10_i64.pow(places))).unwrap();
            let again = calculate(&format!("({shown}) * {}", 10_i64.pow(places))).unwrap();
            prop_assert_eq!(again, top.to_string());
        }
    }
}
