//! The number of tokens that go through the learner at once, if it is not configured.

use crate::system::compute::Device;

/// The rows of one optimiser update, from the learner's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Longest prompt, in tokens.
    pub prompt: u64,
    /// Longest completion.
    pub completion: u64,
    /// Completions with the same prompt.
    pub group: u64,
    /// Completions of an update.
    pub rows: u64,
}

/// How much longer than in one endless pass a budget may take by [`Workload::cost`]. Models of 5M and of 135M were
/// measured to be as fast with half a group of 1,088 tokens, at a cost of 1.10, as with larger budgets, and a fifth
/// slower with a quarter.
const TOLERANCE: f64 = 0.10;

/// Cost of a pass beside that of its tokens, as a number of tokens: weights are read and gradients are read and written
/// once for each pass, operations are started, and products of few rows are slow. In bf16, products take less time, and
/// the rest takes as much: with AMX, a model of 135M was measured to take 17.5 s with half a group of 1,088 tokens,
/// 14.7 s with a group, and 13.2 s with two. These figures would give twice the number below; each token takes memory.
/// Measured on the CPU, assumed for a GPU.
fn cost_of_a_pass(device: Device, bf16: bool) -> f64 {
    match (device, bf16) {
        (Device::Cpu, false) => 20.0,
        (Device::Cpu, true) => 100.0,
        (Device::Cuda | Device::Tensorrt, _) => 400.0,
    }
}

impl Workload {
    /// Tokens of a group, counting its prompt once.
    fn whole(&self) -> u64 {
        self.prompt + self.group * self.completion
    }

    /// Tokens of an update, the most that a pass can have.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.rows.div_ceil(self.group.max(1)).saturating_mul(self.whole())
    }

    /// Work on texts without common prompts, of at most `longest` tokens, in updates of `rows` rows.
    #[must_use]
    pub fn apart(longest: usize, rows: usize) -> Self {
        Self { prompt: 0, completion: longest as u64, group: 1, rows: rows as u64 }
    }

    /// The smallest budget that is as fast as larger ones on a device, in bf16 or not. It is lowered to `affordable`
    /// tokens, but not below the longest row, which then goes alone.
    #[must_use]
    pub fn budget(&self, device: Device, bf16: bool, affordable: u64) -> u64 {
        let of_a_pass = cost_of_a_pass(device, bf16);
        let fast = |budget: &u64| self.cost(*budget, of_a_pass) <= 1.0 + TOLERANCE;
        let enough = self.budgets().find(fast).unwrap_or(u64::MAX);
        let found = self.budgets().take_while(|&budget| budget <= enough.min(affordable)).last();
        found.unwrap_or(self.prompt + self.completion)
    }

    /// Budgets that waste nothing, ascending: some completions of a group, then whole groups, up to those of an update.
    fn budgets(&self) -> impl Iterator<Item = u64> {
        let (torn, whole) = (1..self.group.max(1), self.whole());
        let groups = 1..=self.rows.div_ceil(self.group.max(1)).max(1);
        let torn = torn.map(|rows| self.prompt + rows * self.completion);
        torn.chain(groups.map(move |groups| groups.saturating_mul(whole)))
    }

    /// Time of an update, relative to a single pass without a limit. If a group is split, its prompt is computed once
    /// for each part.
    fn cost(&self, budget: u64, of_a_pass: f64) -> f64 {
        let in_part = (budget.saturating_sub(self.prompt) / self.completion.max(1)).clamp(1, self.group.max(1));
        let parts = self.group.max(1).div_ceil(in_part);
        let computed = parts * self.prompt + self.group * self.completion;
        computed as f64 / self.whole().max(1) as f64 * (1.0 + of_a_pass / budget.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(of: [u64; 4], affordable: u64) -> u64 {
        let [prompt, completion, group, rows] = of;
        Workload { prompt, completion, group, rows }.budget(Device::Cpu, false, affordable)
    }

    #[test]
    fn a_budget_holds_whole_groups_where_their_prompts_are_long() {
        // Computing a short prompt twice is acceptable, a long one not.
        assert_eq!(budget([64, 128, 8, 32], u64::MAX), 64 + 4 * 128);
        assert_eq!(budget([256, 128, 8, 32], u64::MAX), 256 + 8 * 128);
        // Small groups are batched, long completions go one by one.
        assert_eq!(budget([50, 10, 5, 1000], u64::MAX), 200);
        assert_eq!(budget([64, 2048, 4, 8], u64::MAX), 2112);
        assert_eq!(budget([10, 10, 4, 8], u64::MAX), 100, "no larger than an update");
    }

    #[test]
    fn what_is_not_affordable_is_torn_and_a_row_is_the_least() {
        assert_eq!(budget([64, 128, 8, 32], 64 + 4 * 128 - 1), 64 + 3 * 128);
        assert_eq!(budget([64, 128, 8, 32], 200), 192);
        assert_eq!(budget([64, 128, 8, 32], 191), 192);
    }

    #[test]
    fn bf16_and_a_gpu_take_more_at_once() {
        let workload = Workload { prompt: 64, completion: 128, group: 8, rows: 128 };
        assert_eq!(workload.budget(Device::Cpu, true, u64::MAX), 1088);
        assert_eq!(workload.budget(Device::Cuda, false, u64::MAX), 4 * 1088);
        assert_eq!(workload.budget(Device::Cuda, true, u64::MAX), 4 * 1088);
    }
}
