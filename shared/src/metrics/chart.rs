//! The charts of a report. The declaration of a metric names its chart.

/// A chart over the steps of a run.
#[derive(Debug)]
pub struct Chart {
    /// Heading of its group.
    pub group: &'static str,
    /// Its own heading, which is unique.
    pub title: &'static str,
    /// One line on its content.
    pub note: &'static str,
    /// Values are shown by their decimal logarithm.
    pub logarithmic: bool,
    /// Curves are parts of a sum, one upon the other.
    pub stacked: bool,
    /// Long curves get a moving average.
    pub smooth: bool,
    /// Hidden as long as all values are 0.
    pub hidden_at_zero: bool,
}

impl Chart {
    const fn new(group: &'static str, title: &'static str, note: &'static str) -> Self {
        Self { group, title, note, logarithmic: false, stacked: false, smooth: true, hidden_at_zero: false }
    }

    const fn logarithmic(self) -> Self {
        Self { logarithmic: true, smooth: false, ..self }
    }

    const fn stacked(self) -> Self {
        Self { stacked: true, smooth: false, ..self }
    }

    const fn not_smooth(self) -> Self {
        Self { smooth: false, ..self }
    }

    const fn hidden_at_zero(self) -> Self {
        Self { hidden_at_zero: true, ..self }
    }
}

/// Declares charts: a constant for each one, and the list of all in the order of the report.
macro_rules! charts {
    ($($name:ident = $chart:expr;)*) => {
        $(pub(super) const $name: &Chart = &$chart;)*

        /// Every chart that a run can have, in the order of the report.
        pub const CHARTS: &[&Chart] = &[$($name),*];
    };
}

const LEARNING: &str = "Learning";
const OPTIMISATION: &str = "Optimisation";
const PAIR: &str = "The pair";
const FLEET: &str = "Workers";

charts! {
    REWARD = Chart::new(LEARNING, "Reward", "mean over the completions of a step");
    REWARD_BY_FUNCTION = Chart::new(LEARNING, "Reward by function", "mean score before weighting");
    LOGGED = Chart::new(LEARNING, "Logged by reward functions", "mean of the values of a step");
    EVALUATION = Chart::new(LEARNING, "Evaluation", "share of right answers").not_smooth();
    LENGTH = Chart::new(LEARNING, "Completion length", "tokens");
    ENTROPY = Chart::new(LEARNING, "Entropy", "mean per token, in nats");
    SHARES = Chart::new(LEARNING, "Shares", "truncated completions; groups with equal rewards");
    KL = Chart::new(OPTIMISATION, "KL to the reference", "mean per token, by the chosen estimator");
    CLIPPED = Chart::new(OPTIMISATION, "Clip ratio", "share of tokens that the method clips or caps").hidden_at_zero();
    GRADIENT = Chart::new(OPTIMISATION, "Gradient norm", "before clipping");
    LOSS = Chart::new(OPTIMISATION, "Loss", "says little in GRPO: watch the reward");
    LEARNING_RATE = Chart::new(OPTIMISATION, "Learning rate", "after warm-up and schedule").not_smooth();
    MISMATCH = Chart::new(PAIR, "Sampler against learner", "mismatch_kl; logarithmic").logarithmic();
    DIFFERENCE = Chart::new(PAIR, "Difference of \
        log-probs", "absolute, sampler against learner; logarithmic").logarithmic();
    STEP_TIME = Chart::new(PAIR, "Step time", "seconds of the learner, by phase").stacked();
    IDLE = Chart::new(PAIR, "Idle", "share of the time in which a half waits for the other");
    THROUGHPUT = Chart::new(PAIR, "Throughput", "completion tokens per second");
    SWAP = Chart::new(PAIR, "Weight swap", "seconds until the sampler runs new weights");
    STALENESS = Chart::new(PAIR, "Staleness", "versions between sampling and training").hidden_at_zero();
    WORKERS = Chart::new(FLEET, "Workers", "at work at the end of the step").not_smooth();
    FLEET_THROUGHPUT = Chart::new(FLEET, "Throughput of the workers", "completion tokens per second, all of them");
    FLEET_BYTES = Chart::new(FLEET, "Bytes of weights", "written to the store, and fetched from it");
    FLEET_LOST = Chart::new(FLEET, "Work done again", "leases that ran out; completions made twice; disputed \
        prompts").not_smooth().hidden_at_zero();
}
