//! Problems of countdown, and a program that solves them aloud.
//!
//! A problem is made from its solution: numbers are combined at random until one is left, which is the target if it
//! lies in `1..=100`. More than half of the examples of the warm start are an equation and nothing else. The others are
//! what somebody without a plan would write: attempts with other results, then the attempt that reaches the target, and
//! its equation.

use std::{collections::HashSet, fmt::Write};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use shared::generation::rng::Stream;

/// Largest number that an attempt may pass through.
const LARGEST: u32 = 999;
/// Share of the examples that are an equation and nothing else. A model that imitates them mostly guesses; GRPO finds
/// out which of the two pays.
const GUESSED: f64 = 0.6;
/// Share of the other examples that begin with no, one, two and three attempts with other results, in tenths.
const ATTEMPTS_BEFORE: [u64; 4] = [4, 3, 2, 1];
/// Share of the problems that have two, three and four numbers, in fifths: as in the held-out problems.
const NUMBERS: [(u64, usize); 3] = [(1, 2), (2, 3), (2, 4)];
/// Share of steps that multiply, and of those that divide, where the numbers allow it.
const RARE: f64 = 0.08;

/// Numbers, and the target that they should be combined to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Problem {
    target: u32,
    nums: Vec<u32>,
}

impl Problem {
    /// One row of a file with `target` and `nums`.
    pub fn parse(line: &str) -> Result<Self> {
        let row: Value = serde_json::from_str(line)?;
        let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let target = number(&row["target"]).context("`target` is no number")?;
        let nums = row["nums"].as_array().and_then(|list| list.iter().map(number).collect());
        Ok(Self { target, nums: nums.context("`nums` is no list of numbers")? })
    }

    /// The model's input.
    pub fn prompt(&self) -> String {
        let nums: Vec<String> = self.nums.iter().map(u32::to_string).collect();
        format!("{}:{}\n", self.target, nums.join(","))
    }

    /// A row for GRPO and evaluation.
    pub fn row(&self) -> Value {
        json!({ "prompt": self.prompt(), "nums": self.nums, "target": self.target })
    }

    /// The problem with its numbers sorted: the same for all their orders.
    fn sorted(&self) -> Self {
        let mut same = self.clone();
        same.nums.sort_unstable();
        same
    }
}

/// Numbers combined until one was left.
struct Attempt {
    value: u32,
    /// `86-(54+23)`.
    expression: String,
    /// `54+23=77,86-77=9`.
    steps: String,
}

impl Attempt {
    /// Combines at random; `None` where a number grew beyond [`LARGEST`].
    fn at_random(nums: &[u32], random: &mut Stream) -> Option<Self> {
        let mut parts: Vec<(u32, String)> = nums.iter().map(|n| (*n, n.to_string())).collect();
        let mut steps = Vec::new();
        loop {
            let a = parts.swap_remove(random.below(parts.len() as u64) as usize);
            let b = parts.swap_remove(random.below(parts.len() as u64) as usize);
            let (a, b) = if a.0 < b.0 { (b, a) } else { (a, b) };
            let (operator, value) = operation(a.0, b.0, random);
            if value > LARGEST {
                return None;
            }
            steps.push(format!("{}{operator}{}={value}", a.0, b.0));
            let expression = format!("{}{operator}{}", a.1, b.1);
            if parts.is_empty() {
                return Some(Self { value, expression, steps: steps.join(",") });
            }
            parts.push((value, format!("({expression})")));
        }
    }
}

/// An operator for `a >= b`, and the result.
fn operation(a: u32, b: u32, random: &mut Stream) -> (char, u32) {
    let draw = random.next_f64();
    if draw < RARE && a * b <= LARGEST {
        ('*', a * b)
    } else if (RARE..2.0 * RARE).contains(&draw) && b > 0 && a.is_multiple_of(b) {
        ('/', a / b)
    } else if random.next_f64() < 0.5 {
        ('+', a + b)
    } else {
        ('-', a - b)
    }
}

/// Makes an endless number of problems that are not held out.
pub struct Maker<'a> {
    held_out: HashSet<Problem>,
    random: &'a mut Stream,
}

impl<'a> Maker<'a> {
    /// `held_out` never comes up, in whatever order of its numbers.
    pub fn new(held_out: &[Problem], random: &'a mut Stream) -> Self {
        Self { held_out: held_out.iter().map(Problem::sorted).collect(), random }
    }

    /// A row of the warm start: `prompt` and `completion`.
    pub fn solved(&mut self) -> Value {
        let (problem, solution) = self.draw();
        let mut text = String::new();
        if self.random.next_f64() >= GUESSED {
            for _ in 0..weighted(ATTEMPTS_BEFORE.iter().copied(), self.random) {
                let _ = writeln!(text, "{}", self.elsewhere(&problem).steps);
            }
            let _ = writeln!(text, "{}", solution.steps);
        }
        let _ = write!(text, "<answer>{}</answer>", solution.expression);
        json!({ "prompt": problem.prompt(), "completion": text })
    }

    /// A problem.
    pub fn problem(&mut self) -> Problem {
        self.draw().0
    }

    /// A problem and its solution.
    fn draw(&mut self) -> (Problem, Attempt) {
        let count = NUMBERS[weighted(NUMBERS.iter().map(|n| n.0), self.random)].1;
        let largest = if count < 4 { 50 } else { 100 };
        loop {
            let nums: Vec<u32> = (0..count).map(|_| 1 + self.random.below(largest) as u32).collect();
            let Some(solution) = Attempt::at_random(&nums, self.random) else { continue };
            let problem = Problem { target: solution.value, nums };
            if (1..=100).contains(&problem.target) && !self.held_out.contains(&problem.sorted()) {
                return (problem, solution);
            }
        }
    }

    /// An attempt with another result than the target.
    fn elsewhere(&mut self, problem: &Problem) -> Attempt {
        loop {
            match Attempt::at_random(&problem.nums, self.random) {
                Some(attempt) if attempt.value != problem.target => return attempt,
                _ => {}
            }
        }
    }
}

/// An index, drawn with probabilities in proportion to the weights.
fn weighted(weights: impl Iterator<Item = u64> + Clone, random: &mut Stream) -> usize {
    let mut draw = random.below(weights.clone().sum());
    let drawn = |weight: u64| {
        let found = draw < weight;
        draw = draw.saturating_sub(weight);
        found
    };
    weights.map(drawn).position(|found| found).expect("the draw is below the sum of the weights")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_out() -> Vec<Problem> {
        crate::HELD_OUT.lines().map(|line| Problem::parse(line).unwrap()).collect()
    }

    /// Value of an expression of whole numbers in which every operation within another one has parentheses.
    fn value(expression: &str) -> i64 {
        let mut depth = 0;
        let split = expression.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '(') - i32::from(*c == ')');
            depth == 0 && "+-*/".contains(*c)
        });
        let Some((at, operator)) = split else {
            let inner = expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
            return inner.map_or_else(|| expression.parse().unwrap(), value);
        };
        let (a, b) = (value(&expression[..at]), value(&expression[at + 1..]));
        match operator {
            '+' => a + b,
            '-' => a - b,
            '*' => a * b,
            _ if a % b == 0 => a / b,
            _ => panic!("{expression}: no whole number"),
        }
    }

    #[test]
    fn every_solved_example_ends_in_an_equation_that_gives_the_target() {
        let mut random = Stream::new(&[1]);
        let mut maker = Maker::new(&[], &mut random);
        let (mut guessed, mut attempts) = (0, [0; 4]);
        for _ in 0..1000 {
            let row = maker.solved();
            let (prompt, completion) = (row["prompt"].as_str().unwrap(), row["completion"].as_str().unwrap());
            let (target, nums) = prompt.trim_end().split_once(':').unwrap();
            let (aloud, answer) = completion.split_once("<answer>").unwrap();
            let equation = answer.strip_suffix("</answer>").unwrap();
            assert_eq!(value(equation), target.parse::<i64>().unwrap(), "{completion}");
            let sorted = |text: &str| {
                let words = text.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
                let mut list: Vec<u32> = words.map(|word| word.parse().unwrap()).collect();
                list.sort_unstable();
                list
            };
            assert_eq!(sorted(equation), sorted(nums), "{completion}");
            for step in aloud.trim_end().split(['\n', ',']).filter(|step| !step.is_empty()) {
                let (left, right) = step.split_once('=').unwrap();
                assert_eq!(value(left), right.parse::<i64>().unwrap(), "{completion}");
            }
            let wrong: Vec<&str> = aloud.lines().rev().skip(1).collect();
            assert!(wrong.iter().all(|line| !line.ends_with(&format!("={target}"))), "{completion}");
            match aloud {
                "" => guessed += 1,
                _ => attempts[wrong.len()] += 1,
            }
        }
        assert!((560..640).contains(&guessed), "{guessed}");
        assert!(attempts.iter().zip([160, 120, 80, 40]).all(|(found, mean)| (mean - 40..mean + 40).contains(found)));
    }

    #[test]
    fn problems_that_are_held_out_do_not_come_up() {
        let mut random = Stream::new(&[2]);
        let common: Vec<Problem> = {
            let mut maker = Maker::new(&[], &mut random);
            (0..2000).map(|_| maker.problem()).filter(|problem| problem.nums.len() == 2).collect()
        };
        let mut random = Stream::new(&[2]);
        let mut maker = Maker::new(&common, &mut random);
        let mut turned = common.clone();
        turned.iter_mut().for_each(|problem| problem.nums.reverse());
        for _ in 0..2000 {
            let problem = maker.problem();
            assert!(!common.contains(&problem) && !turned.contains(&problem), "{problem:?}");
        }
    }

    #[test]
    fn held_out_problems_are_of_two_three_and_four_numbers() {
        let counts = held_out().iter().fold([0; 5], |mut counts, problem| {
            counts[problem.nums.len()] += 1;
            counts
        });
        assert_eq!(counts, [0, 0, 100, 200, 200]);
    }
}
