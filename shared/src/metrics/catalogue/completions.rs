//! Lengths, ends and other properties of completions.

use crate::metrics::metric::section;

section! {
    "Completions", "Lengths of the completions of a step. A completion is terminated when it ended by itself, with an \
        end token or a stop string, and truncated when it reached `max_completion_length`.";

    /// Mean length.
    ///
    /// Moves with what the reward favours. Rising to the limit with a level reward: the loss or the reward favours
    /// length.
    metric COMPLETIONS_MEAN_LENGTH = "completions/mean_length" { unit: Tokens, source: "TRL", chart: LENGTH "mean" }

    /// Shortest completion.
    ///
    /// At 1, with a falling mean: the policy ends at once, since nothing it can write earns anything.
    metric COMPLETIONS_MIN_LENGTH = "completions/min_length" { unit: Tokens, source: "TRL", chart: LENGTH "min" }

    /// Longest completion.
    ///
    /// At `max_completion_length` whenever something is truncated.
    metric COMPLETIONS_MAX_LENGTH = "completions/max_length" { unit: Tokens, source: "TRL", chart: LENGTH "max" }

    /// Mean length of the terminated completions; `null` without any.
    ///
    /// Near `completions/mean_length` when little is truncated.
    metric COMPLETIONS_MEAN_TERMINATED_LENGTH = "completions/mean_terminated_length" { unit: Tokens, source: "TRL" }

    /// Shortest terminated completion; `null` without any.
    ///
    /// At 1: the policy sometimes ends at once.
    metric COMPLETIONS_MIN_TERMINATED_LENGTH = "completions/min_terminated_length" { unit: Tokens, source: "TRL" }

    /// Longest terminated completion; `null` without any.
    ///
    /// Well below `max_completion_length`: the limit could be lower at no loss.
    metric COMPLETIONS_MAX_TERMINATED_LENGTH = "completions/max_terminated_length" { unit: Tokens, source: "TRL" }

    /// Sampled tokens of all completions of the step.
    ///
    /// With `step_time` it makes the throughput that the progress line and the report show.
    metric COMPLETIONS_NUM_TOKENS = "completions/num_tokens" { unit: Tokens, source: "Tandem" }

    /// Share of completions that are truncated.
    ///
    /// Below 0.1. A truncated completion rarely earns anything, so a high share teaches brevity and little else; raise
    /// `max_completion_length`, or leave such completions out with `mask_truncated_completions`.
    metric COMPLETIONS_CLIPPED_RATIO = "completions/clipped_ratio" { unit: Share, source: "TRL",
        chart: SHARES "truncated" }

    /// Completions that were given up before their end. They are not trained on.
    ///
    /// 0. The reason is in `logs/rollout.log`.
    metric SAMPLE_ABORTED = "sample/aborted" { unit: Count, source: "Tandem, after verl's `response/aborted_ratio`" }

    /// Completions without a reward because one of their reward functions failed (`reward_failure` exclude). They are
    /// not trained on.
    ///
    /// 0. `rewards/{name}/failed` says of which function; the reasons are in the log and with the completions.
    metric SAMPLE_REWARD_FAILED = "sample/reward_failed" { unit: Count, source: "Tandem" }

    /// Completions that were made for the step, by what became of them: trained, truncated, off_policy,
    /// off_policy_masked, low_entropy, early_stopped, critic_warmup, reward_failed, environment_failed, abstained,
    /// stale, no_contrast, step_skipped, aborted.
    ///
    /// Mostly trained. The ledger of the run has the state of each, and tandem explain tells of one.
    family LEDGER = "ledger/{name}" { unit: Count, source: "Tandem" }
}
