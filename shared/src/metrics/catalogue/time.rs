//! Where the time of a step goes.

use crate::metrics::metric::section;

section! {
    "Time", "Where the time of a step goes. `perf/…` are phases of the learner, `rollout/…` what the sampler said of \
        itself since the last step. With `max_staleness` 0 the two take turns, and one side's work is the other's \
        wait.";

    /// Waiting for the groups of the step.
    ///
    /// With `max_staleness` 0 the time of generation and scoring. With staleness near 0 when the sampler is fast
    /// enough.
    metric PERF_ROLLOUT_WAIT_S = "perf/rollout_wait_s" {
        unit: Seconds, source: "TRL (async GRPO)", chart: STEP_TIME "waiting for groups"
    }

    /// Log-probs of the old policy, where a pass of their own is needed.
    ///
    /// 0, or about a third of `perf/fwd_bwd_s`.
    metric PERF_OLD_LOGPS_S = "perf/old_logps_s" { unit: Seconds, source: "Tandem", chart: STEP_TIME "old log-probs" }

    /// Log-probs of the reference.
    ///
    /// 0 with `beta` 0, else about a third of `perf/fwd_bwd_s`.
    metric PERF_REF_LOGPS_S = "perf/ref_logps_s" { unit: Seconds, source: "Tandem",
        chart: STEP_TIME "reference log-probs" }

    /// Forward and backward passes.
    ///
    /// Proportional to the tokens trained on.
    metric PERF_FWD_BWD_S = "perf/fwd_bwd_s" { unit: Seconds, source: "TRL (async GRPO)",
        chart: STEP_TIME "forward and backward" }

    /// Clipping of the gradient and AdamW; with `learner_ranks` above 1, gradients and parameters on their way among
    /// the ranks, too.
    ///
    /// Proportional to the number of updates.
    metric PERF_OPTIMIZER_S = "perf/optimizer_s" { unit: Seconds, source: "TRL (async GRPO)",
        chart: STEP_TIME "optimiser" }

    /// The guard's look at the step before the weights are moved.
    ///
    /// Far below 1 % of the step.
    metric PERF_GUARD_S = "perf/guard_s" { unit: Seconds, source: "Tandem" }

    /// Accounting for every completion of the step: the ledger, the completions and what the loss did with their
    /// tokens. The files go to disk beside the next step.
    ///
    /// Below 1 % of the step.
    metric PERF_LEDGER_S = "perf/ledger_s" { unit: Seconds, source: "Tandem" }

    /// Writing the new version of the weights, its checksum included, and announcing it.
    ///
    /// That of a copy of the weights in memory, or to the disk where shared memory is too small (the start of the run
    /// says so); near 0 in steps that `publish_every` leaves out.
    metric PERF_PUBLISH_S = "perf/publish_s" { unit: Seconds, source: "Tandem", chart: STEP_TIME "publishing" }

    /// The learner's time for the conformity gate, a part of its time for publishing: a pass over a few tokens, and the
    /// norms of the parameters.
    ///
    /// Below 1 % of the step, more where completions are short and in the first step; 0 without `conformity_gate`, and
    /// in steps that `publish_every` leaves out.
    metric PERF_GATE_S = "perf/gate_s" { unit: Seconds, source: "Tandem" }

    /// Share of the step in which the learner waited for groups.
    ///
    /// With `max_staleness` above 0 it shows, with `rollout/idle_share`, which half is the bottleneck: the other one
    /// waits for it. Its threads take cores that the waiting half leaves.
    metric PERF_IDLE_SHARE = "perf/idle_share" { unit: Share, source: "Tandem", chart: IDLE "learner" }

    /// The sampler's last change of weights, from noticing the version to the first session with it.
    ///
    /// Some milliseconds for small models, proportional to their size.
    metric ROLLOUT_SWAP_S = "rollout/swap_s" { unit: Seconds, source: "Tandem", chart: SWAP "swap" }

    /// The conformity gate's part of `rollout/swap_s`: hashes and norms of the tensors, and a pass over a few tokens.
    ///
    /// About 1 % of the step, more where completions are short; 0 without `conformity_gate`.
    metric ROLLOUT_GATE_S = "rollout/gate_s" { unit: Seconds, source: "Tandem" }

    /// Seconds for which the change of weights held up the sampler's loop.
    ///
    /// Below a millisecond: weights are loaded beside the loop.
    metric ROLLOUT_SWAP_STALL_S = "rollout/swap_stall_s" { unit: Seconds, source: "Tandem", chart: SWAP "standstill" }

    /// Time that the sampler spent generating.
    ///
    /// With staleness near `step_time` where generation is the bottleneck.
    metric ROLLOUT_BUSY_S = "rollout/busy_s" { unit: Seconds, source: "Tandem" }

    /// Time that the sampler spent waiting for weights, or for room in the channel.
    ///
    /// With staleness near 0 where generation is the bottleneck.
    metric ROLLOUT_IDLE_S = "rollout/idle_s" { unit: Seconds, source: "Tandem" }

    /// Share of its time that the sampler spent waiting.
    ///
    /// With `max_staleness` 0 what the learner takes of a step. With more, a larger `max_staleness` or `publish_every`
    /// shortens waits for weights, but not those for a learner that is slower than the sampler.
    metric ROLLOUT_IDLE_SHARE = "rollout/idle_share" { unit: Share, source: "Tandem", chart: IDLE "sampler" }

    /// Completion tokens per second of `rollout/busy_s`; `null` when nothing was generated.
    ///
    /// Steady. It falls as completions get longer, since attention goes over more positions.
    metric ROLLOUT_TOKENS_PER_S = "rollout/tokens_per_s" {
        unit: TokensPerSecond, source: "Tandem", chart: THROUGHPUT "generation alone"
    }
}
