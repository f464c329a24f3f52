//! The samplers on other hosts, all of them together.

use crate::metrics::metric::section;

section! {
    "Workers", "Samplers on other hosts, in runs with `listen`: all of them together, since the last step where it is \
        a matter of time. What each of them does is on the page and in the report. `rollout/…` says the same of all of \
        them as of one sampler.";

    /// Workers that could make completions at the end of the step.
    ///
    /// As many as were started. Fewer: some were lost, or dropped with a reason that the page shows.
    metric FLEET_WORKERS = "fleet/workers" { unit: Count, source: "Tandem", when: "`listen`", chart: WORKERS "workers" }

    /// Completion tokens that all workers together made per second, over the half minute or so before the end of the
    /// step.
    ///
    /// Grows with `fleet/workers` until the learner or the store is the bottleneck.
    metric FLEET_TOKENS_PER_S = "fleet/tokens_per_s" {
        unit: TokensPerSecond, source: "Tandem", when: "`listen`", chart: FLEET_THROUGHPUT "all workers"
    }

    /// The largest number of versions that a worker was behind the newest one at the end of the step.
    ///
    /// 0 or 1. More: a worker fetches for longer than a step takes; its row on the page has bytes and seconds.
    metric FLEET_STALENESS_MAX = "fleet/staleness_max" { unit: Count, source: "Tandem", when: "`listen`" }

    /// Leases that were taken back because no token came of them for `lease_timeout` seconds, or because their worker
    /// was gone.
    ///
    /// 0 while no worker leaves. More: workers are lost, or slower than `lease_timeout` allows.
    metric FLEET_LEASES_EXPIRED = "fleet/leases_expired" {
        unit: Count, source: "Tandem", when: "`listen`", chart: FLEET_LOST "leases that ran out"
    }

    /// Completions that a worker made although another's had come first. They do not count, and cost their tokens.
    ///
    /// 0, but after leases that ran out.
    metric FLEET_COMPLETIONS_TWICE = "fleet/completions_twice" {
        unit: Count, source: "Tandem", when: "`listen`", chart: FLEET_LOST "completions made twice"
    }

    /// Prompts that were made again elsewhere (`verify_share`) and came out the same.
    ///
    /// At most `verify_share` times the prompts of a step; 0 with `verify_share` 0. Less where steps are short: a check
    /// is left out where new weights come before it was made, and where 64 others wait. The host of the run makes the
    /// checks of a single worker.
    metric FLEET_VERIFIED = "fleet/verified" { unit: Count, source: "Tandem", when: "`listen`" }

    /// Prompts that were made again elsewhere and came out as something else.
    ///
    /// 0. More: a worker computes something else than the others. It is dropped and named.
    metric FLEET_DISPUTED = "fleet/disputed" {
        unit: Count, source: "Tandem", when: "`listen`", chart: FLEET_LOST "disputed prompts"
    }

    /// Bytes written to the store of the weights.
    ///
    /// Those of a version, and of the differences that lead to it; 0 where workers read versions in the run directory.
    metric FLEET_STORED_BYTES = "fleet/stored_bytes" {
        unit: Bytes, source: "Tandem", when: "`listen`", chart: FLEET_BYTES "written"
    }

    /// Bytes that all workers together fetched from it.
    ///
    /// Usually at most `fleet/stored_bytes` times `fleet/workers`: a worker fetches a difference where one leads from
    /// the version that it has, and the whole version otherwise; more where workers came anew or were behind.
    metric FLEET_FETCHED_BYTES = "fleet/fetched_bytes" {
        unit: Bytes, source: "Tandem", when: "`listen`", chart: FLEET_BYTES "fetched"
    }

    /// Time in which no worker was at work.
    ///
    /// 0. More: the run waited for somebody to start `tandem worker`.
    metric FLEET_ALONE_S = "fleet/alone_s" { unit: Seconds, source: "Tandem", when: "`listen`" }
}
