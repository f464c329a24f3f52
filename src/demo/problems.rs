//! Additions of two-digit numbers with the digits' sums written out, and how they are shared out.

use std::fmt::Write;

use serde_json::json;
use shared::rng;

/// `a + b` with two digits each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    a: u32,
    b: u32,
}

impl Problem {
    /// What the model is given.
    pub fn prompt(self) -> String {
        format!("{}+{}=", self.a, self.b)
    }

    /// The right answer.
    pub fn answer(self) -> String {
        (self.a + self.b).to_string()
    }

    /// A right completion: units, then tens with the carry, then the answer.
    pub fn completion(self) -> String {
        let units = self.a % 10 + self.b % 10;
        let tens = self.a / 10 + self.b / 10 + units / 10;
        let carry = if self.carries() { "+1" } else { "" };
        format!(
            "<reasoning>{}+{}={units},{}+{}{carry}={tens}</reasoning><answer>{}</answer>",
            self.a % 10,
            self.b % 10,
            self.a / 10,
            self.b / 10,
            self.answer()
        )
    }

    /// Whether the units add up to ten or more.
    fn carries(self) -> bool {
        self.a % 10 + self.b % 10 >= 10
    }

    /// A row for GRPO and evaluation.
    fn row(self) -> serde_json::Value {
        json!({ "prompt": self.prompt(), "answer": self.answer() })
    }

    /// A row for the supervised warm start.
    fn example(self) -> serde_json::Value {
        json!({ "prompt": self.prompt(), "completion": self.completion() })
    }
}

/// Problems of the demo. `held_out` shares no problem with the other two.
#[derive(Debug)]
pub struct Problems {
    /// Examples of the warm start: few of them carry, so that this is what remains to be learnt.
    pub warm_up: Vec<Problem>,
    /// Prompts of GRPO: all that are not held out.
    pub train: Vec<Problem>,
    /// Never trained on.
    pub held_out: Vec<Problem>,
}

/// Number of held-out problems.
const HELD_OUT: usize = 300;
/// Number of examples of the warm start.
const WARM_UP: usize = 2400;
/// Of this many examples of the warm start one carries.
const CARRY_EVERY: usize = 24;

impl Problems {
    /// Shares out all additions of two two-digit numbers; the same seed gives the same shares.
    pub fn new(seed: u64) -> Self {
        let all: Vec<Problem> = rng::permutation(90 * 90, &[seed])
            .into_iter()
            .map(|i| Problem { a: 10 + i / 90, b: 10 + i % 90 })
            .collect();
        let (held_out, train) = all.split_at(HELD_OUT);
        let (hard, easy): (Vec<Problem>, Vec<Problem>) = train.iter().partition(|p| p.carries());
        let carrying = WARM_UP / CARRY_EVERY;
        let warm_up = [&easy[..WARM_UP - carrying], &hard[..carrying]].concat();
        Self { warm_up, train: train.to_vec(), held_out: held_out.to_vec() }
    }

    /// JSONL rows of the warm start.
    pub fn warm_up_rows(&self) -> String {
        lines(self.warm_up.iter().map(|p| p.example()))
    }
}

/// JSONL rows of prompts with their answers.
pub fn prompt_rows(problems: &[Problem]) -> String {
    lines(problems.iter().map(|p| p.row()))
}

fn lines(rows: impl Iterator<Item = serde_json::Value>) -> String {
    rows.fold(String::new(), |mut text, row| {
        let _ = writeln!(text, "{row}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn completions_write_out_the_sum() {
        let completion = |a, b| Problem { a, b }.completion();
        assert_eq!(completion(47, 38), "<reasoning>7+8=15,4+3+1=8</reasoning><answer>85</answer>");
        assert_eq!(completion(12, 34), "<reasoning>2+4=6,1+3=4</reasoning><answer>46</answer>");
        assert_eq!(completion(95, 95), "<reasoning>5+5=10,9+9+1=19</reasoning><answer>190</answer>");
    }

    #[test]
    fn held_out_problems_are_never_trained_on() {
        for seed in [1, 2] {
            let problems = Problems::new(seed);
            let held_out: HashSet<Problem> = problems.held_out.iter().copied().collect();
            assert_eq!(held_out.len(), HELD_OUT);
            assert_eq!(problems.train.len() + HELD_OUT, 8100);
            assert_eq!(problems.warm_up.len(), WARM_UP);
            assert!(problems.train.iter().chain(&problems.warm_up).all(|p| !held_out.contains(p)));
        }
        assert_ne!(Problems::new(1).held_out, Problems::new(2).held_out);
        assert_eq!(Problems::new(1).held_out, Problems::new(1).held_out);
    }

    #[test]
    fn held_out_problems_carry_as_often_as_all_do() {
        let share = |list: &[Problem]| list.iter().filter(|p| p.carries()).count() as f64 / list.len() as f64;
        let problems = Problems::new(7);
        assert!((0.35..0.55).contains(&share(&problems.held_out)));
        assert!(share(&problems.warm_up) < 0.1);
    }
}
