//! Rewards of completions.

use crate::metrics::metric::section;

section! {
    "Rewards", "What the completions of a step earned, over those that count (not aborted, not too stale).";

    /// Mean reward of the completions: the weighted sum of their functions' scores, before a KL penalty is taken off.
    /// `null` when no completion has one.
    ///
    /// Rises, with the noise of some dozens of prompts per step. Level from the start: see `frac_reward_zero_std` and
    /// `rewards/{name}/failed`. Rising while `eval_accuracy` does not: the policy exploits a reward, or learns its
    /// prompts by heart.
    metric REWARD = "reward" { unit: Points, source: "TRL", chart: REWARD "reward" }

    /// Standard deviation of the rewards of all completions of the step.
    ///
    /// Falls as prompts are solved. At 0 there is nothing to learn from.
    metric REWARD_STD = "reward_std" { unit: Points, source: "TRL" }

    /// Share of completions in groups whose completions all earned the same. Such a group has no advantage, so
    /// its rewards do not train the policy; a KL term does, and the entropy bonus, and the
    /// penalty of `loss_type` dro or kl_cov.
    ///
    /// Below a half. Near 1 from the start: the prompts are far too hard or a reward is constant; near 1 later: they
    /// are too easy by now. `dynamic_sampling` replaces such groups.
    metric FRAC_REWARD_ZERO_STD = "frac_reward_zero_std" { unit: Share, source: "TRL", chart: SHARES "equal rewards" }

    /// Mean score of one reward function, before weighting, over the completions that it scored.
    ///
    /// Shows which function moves `reward`. One that rises while the function that matters falls is weighted too much.
    family REWARDS_MEAN = "rewards/{name}/mean" { unit: Points, source: "TRL", chart: REWARD_BY_FUNCTION "{name}" }

    /// Standard deviation of one function's scores over the completions of the step.
    ///
    /// 0 means that the function has no influence on any advantage.
    family REWARDS_STD = "rewards/{name}/std" { unit: Points, source: "TRL" }

    /// Completions for which the function failed: it raised an error, ran out of time or gave no usable answer.
    ///
    /// 0. The reasons are in `logs/rollout.log`.
    family REWARDS_FAILED = "rewards/{name}/failed" { unit: Count, source: "Tandem" }

    /// Completions for which the function abstained: it has no opinion on them.
    ///
    /// 0, unless the function is meant for a part of the prompts.
    family REWARDS_ABSTAINED = "rewards/{name}/abstained" { unit: Count, source: "Tandem" }

    /// What reward functions log as a metric: the mean of all values of the step.
    ///
    /// As the function means it. TRL records it without a prefix, where it could hide a metric of the trainer.
    family LOGGED = "logged/{name}" {
        unit: Number,
        source: "TRL `{name}`",
        when: "a reward function that logs metrics",
        chart: LOGGED "{name}"
    }
}
