//! Additions of two-digit numbers with the digits' sums written out, split into three sets.

use std::fmt::Write;

use serde_json::json;
use shared::generation::rng;

/// `a + b` with two digits each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    a: u32,
    b: u32,
}

impl Problem {
    /// The model's prompt.
    pub fn prompt(self) -> String {
        format!("{}+{}=", self.a, self.b)
    }

    /// The right answer.
    pub fn answer(self) -> String {
        (self.a + self.b).to_string()
    }

    /// A worked addition: units, then tens with the carry (or, by mistake, without it), then the answer.
    fn worked(self, forgets_carry: bool) -> String {
        let units = self.a % 10 + self.b % 10;
        let carry = u32::from(self.carries() && !forgets_carry);
        let tens = self.a / 10 + self.b / 10 + carry;
        let shown_carry = if carry == 1 { "+1" } else { "" };
        format!(
            "<reasoning>{}+{}={units},{}+{}{shown_carry}={tens}</reasoning><answer>{tens}{}</answer>",
            self.a % 10,
            self.b % 10,
            self.a / 10,
            self.b / 10,
            units % 10
        )
    }

    /// Whether the units add up to ten or more.
    fn carries(self) -> bool {
        self.a % 10 + self.b % 10 >= 10
    }

    /// How often the teacher forgets the carry: the larger the sum of the units, the more often, so that the model
    /// learns one sum after another to carry, rather than all at once. With a teacher who always forgets, GRPO would
    /// never sample a carry and could not reward it.
    fn forgotten(self) -> f64 {
        let above_ten = (self.a % 10 + self.b % 10).saturating_sub(10);
        0.55 + 0.04 * f64::from(above_ten)
    }

    /// A row for GRPO and evaluation.
    fn row(self) -> serde_json::Value {
        json!({ "prompt": self.prompt(), "answer": self.answer() })
    }
}

/// Problems of the demo.
#[derive(Debug)]
pub struct Problems {
    /// Examples of the warm start, worked by a teacher who mostly forgets the carry: a model that imitates him gets
    /// every addition without a carry right, and the others wrong.
    warm_up: Vec<(Problem, String)>,
    /// Prompts of GRPO, few enough to come up several times, so that the report can show the same ones early and late.
    pub train: Vec<Problem>,
    /// Problems that neither the warm start nor GRPO trains on.
    pub held_out: Vec<Problem>,
}

/// Number of held-out problems.
const HELD_OUT: usize = 300;
/// Number of examples of the warm start.
const WARM_UP: usize = 3000;
/// Number of prompts of GRPO.
const TRAIN: usize = 1200;

impl Problems {
    /// Splits all additions of two two-digit numbers; the same seed gives the same split.
    pub fn new(seed: u64) -> Self {
        let all: Vec<Problem> = rng::permutation(90 * 90, &[seed])
            .into_iter()
            .map(|i| Problem { a: 10 + i / 90, b: 10 + i % 90 })
            .collect();
        let (held_out, rest) = all.split_at(HELD_OUT);
        let mut moods = rng::Stream::new(&[seed, 1]);
        let warm_up = rest[..WARM_UP].iter().map(|p| (*p, p.worked(moods.next_f64() < p.forgotten()))).collect();
        Self { warm_up, train: rest[rest.len() - TRAIN..].to_vec(), held_out: held_out.to_vec() }
    }

    /// JSONL rows of the warm start.
    pub fn warm_up_rows(&self) -> String {
        lines(self.warm_up.iter().map(|(p, worked)| json!({ "prompt": p.prompt(), "completion": worked })))
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
    fn the_sum_is_written_out_with_and_without_the_carry() {
        let worked = |a, b, forgets| Problem { a, b }.worked(forgets);
        assert_eq!(worked(47, 38, false), "<reasoning>7+8=15,4+3+1=8</reasoning><answer>85</answer>");
        assert_eq!(worked(47, 38, true), "<reasoning>7+8=15,4+3=7</reasoning><answer>75</answer>");
        assert_eq!(worked(95, 95, false), "<reasoning>5+5=10,9+9+1=19</reasoning><answer>190</answer>");
        for forgets in [true, false] {
            assert_eq!(worked(12, 34, forgets), "<reasoning>2+4=6,1+3=4</reasoning><answer>46</answer>");
        }
    }

    #[test]
    fn held_out_problems_are_never_trained_on() {
        for seed in [1, 2] {
            let problems = Problems::new(seed);
            let held_out: HashSet<Problem> = problems.held_out.iter().copied().collect();
            assert_eq!((held_out.len(), problems.train.len(), problems.warm_up.len()), (HELD_OUT, TRAIN, WARM_UP));
            let shown = problems.warm_up.iter().map(|(problem, _)| problem);
            assert!(problems.train.iter().chain(shown).all(|p| !held_out.contains(p)));
        }
        assert_ne!(Problems::new(1).held_out, Problems::new(2).held_out);
        assert_eq!(Problems::new(1).held_out, Problems::new(1).held_out);
    }

    #[test]
    fn the_teacher_is_right_without_a_carry_and_mostly_wrong_with_one() {
        let problems = Problems::new(7);
        let right = |p: &Problem, worked: &str| worked.ends_with(&format!("<answer>{}</answer>", p.answer()));
        let (carry, easy): (Vec<_>, Vec<_>) = problems.warm_up.iter().partition(|(p, _)| p.carries());
        assert!(easy.iter().all(|(p, worked)| right(p, worked)));
        let share = carry.iter().filter(|(p, worked)| right(p, worked)).count() as f64 / carry.len() as f64;
        assert!((0.3..0.4).contains(&share), "{share}");
        let carrying = problems.held_out.iter().filter(|p| p.carries()).count() as f64 / HELD_OUT as f64;
        assert!((0.35..0.55).contains(&carrying), "{carrying}");
    }

    #[test]
    fn the_longest_worked_addition_fits_the_completion_length() {
        let longest = Problems::new(0).train.iter().map(|p| p.worked(false).len()).max().unwrap();
        // Four tags are one token each, and one token ends the completion.
        let tags = "<reasoning></reasoning><answer></answer>".len();
        assert!(longest - tags + 4 < crate::demo::MAX_COMPLETION_LENGTH as usize, "{longest}");
    }
}
