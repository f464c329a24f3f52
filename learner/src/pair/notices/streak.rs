//! Steps in a row.

use shared::config::TrainConfig;

/// Steps in a row that a sign has to last: one step is a few prompts, which may all be hard by chance. A run with fewer
/// has none to wait for.
const STEPS: u64 = 3;

/// Counts the steps in a row of which something holds.
pub struct Streak {
    needed: u64,
    steps: u64,
}

impl Streak {
    /// One that is long enough after [`STEPS`], or after all steps of a short run.
    pub fn new(config: &TrainConfig) -> Self {
        Self { needed: STEPS.min(config.max_steps.unwrap_or(STEPS)), steps: 0 }
    }

    /// Counts a step; whether it is long enough by now.
    pub fn is_long(&mut self, holds: bool) -> bool {
        self.steps = if holds { self.steps + 1 } else { 0 };
        self.steps >= self.needed
    }

    /// The steps of the streak that ends with `last`, in words.
    pub fn words(&self, last: u64) -> String {
        steps((last + 1).saturating_sub(self.steps), last)
    }
}

/// `step 3`, or `steps 1 to 3`.
pub fn steps(first: u64, last: u64) -> String {
    if first == last { format!("step {last}") } else { format!("steps {first} to {last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_is_long_after_three_steps_in_a_row_or_after_all_that_there_are() {
        let mut streak = Streak::new(&TrainConfig::default());
        let found = [true, true, false, true, true, true, true].map(|holds| streak.is_long(holds));
        assert_eq!(found, [false, false, false, false, false, true, true]);
        assert_eq!(streak.words(7), "steps 4 to 7");
        let mut short = Streak::new(&TrainConfig { max_steps: Some(1), ..TrainConfig::default() });
        assert!(short.is_long(true));
        assert_eq!(short.words(1), "step 1");
    }
}
