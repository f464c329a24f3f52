//! The ledger of dynamic sampling.

use crate::metrics::metric::section;

section! {
    "Dynamic sampling", "The ledger of `dynamic_sampling`: every group that was made for a step is used or dropped.";

    /// Prompts used up for the step: groups used, dropped and dropped as stale together.
    ///
    /// One to three times `dynamic_sampling/used`.
    metric DYNAMIC_SAMPLING_GENERATED = "dynamic_sampling/generated" { unit: Count, source: "Tandem",
        when: "`dynamic_sampling`" }

    /// Groups trained on.
    ///
    /// The same in every step.
    metric DYNAMIC_SAMPLING_USED = "dynamic_sampling/used" { unit: Count, source: "Tandem", when: "`dynamic_sampling`" }

    /// Groups used that were made under an earlier version of the weights.
    ///
    /// 0 with `max_staleness` 0.
    metric DYNAMIC_SAMPLING_CARRIED = "dynamic_sampling/carried" { unit: Count, source: "Tandem",
        when: "`dynamic_sampling`" }

    /// Groups dropped because they had no contrast.
    ///
    /// Grows as prompts are solved. Near `dynamic_sampling/generated`: most of the sampling is in vain; choose other
    /// prompts.
    metric DYNAMIC_SAMPLING_DROPPED = "dynamic_sampling/dropped" {
        unit: Count, source: "Tandem, after verl's `training/filter_groups`", when: "`dynamic_sampling`"
    }

    /// Groups dropped because they had become older than `max_staleness`.
    ///
    /// 0, or a few after a restart.
    metric DYNAMIC_SAMPLING_DROPPED_STALE = "dynamic_sampling/dropped_stale" { unit: Count, source: "Tandem",
        when: "`dynamic_sampling`" }

    /// Groups without contrast that were used because `dynamic_sampling_max_attempts` was reached.
    ///
    /// 0. They teach nothing: the prompts are too hard or too easy, or a reward is constant.
    metric DYNAMIC_SAMPLING_FILLER = "dynamic_sampling/filler" { unit: Count, source: "Tandem",
        when: "`dynamic_sampling`" }

    /// Completion tokens of all dropped groups.
    ///
    /// What the contrast costs; compare with `completions/num_tokens`.
    metric DYNAMIC_SAMPLING_DROPPED_TOKENS = "dynamic_sampling/dropped_tokens" {
        unit: Tokens, source: "Tandem", when: "`dynamic_sampling`"
    }

    /// Mean reward of the groups dropped for want of contrast; `null` without any.
    ///
    /// Near the highest reward: prompts have become too easy; near the lowest: they are too hard.
    metric DYNAMIC_SAMPLING_DROPPED_REWARD_MEAN = "dynamic_sampling/dropped_reward_mean" {
        unit: Points, source: "Tandem", when: "`dynamic_sampling`"
    }
}
