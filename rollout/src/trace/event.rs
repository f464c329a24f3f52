//! What is recorded.

/// Something that takes time. Numbers are those of the moment when it ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// One call of [`Engine::step`](crate::engine::Engine::step), which contains the next four.
    Step {
        /// Sequences in slots.
        running: usize,
        /// Sequences that have not started.
        waiting: usize,
        /// Bytes of keys and values in use.
        kv_bytes: u64,
    },
    /// The graph on prompts, or on a piece of one.
    Prefill {
        /// How many of their tokens.
        tokens: usize,
    },
    /// The graph on running sequences.
    Decode {
        /// How many.
        rows: usize,
        /// Positions that they attend to, all together.
        positions: u64,
    },
    /// Drawing tokens.
    Sample {
        /// How many.
        rows: usize,
    },
    /// Copies within the KV cache.
    KvCopy,
    /// One call of a reward function, on a thread of their pool.
    Reward {
        /// The thread.
        thread: usize,
        /// Index of the function.
        function: usize,
        /// Completions scored.
        completions: usize,
    },
    /// Weights read, packed and probed beside generation.
    LoadWeights {
        /// The version.
        version: u64,
    },
    /// The step loop stands still while it takes them into use.
    SwapWeights {
        /// The version.
        version: u64,
    },
    /// The sampler has nothing to do.
    Wait,
    /// A repeat of a benchmark, or all of a generation.
    Generate {
        /// Tokens sampled.
        tokens: u64,
    },
}

/// A line of the timeline, by its number in the file. Events of one track nest or follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Track {
    Whole,
    Steps,
    Prefill,
    Decode,
    Sampler,
    KvCopies,
    LoadWeights,
    SwapWeights,
    Rewards(usize),
}

impl Track {
    /// `tid` of the file, which is also the order of display.
    pub fn number(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Steps => 2,
            Self::Prefill => 3,
            Self::Decode => 4,
            Self::Sampler => 5,
            Self::KvCopies => 6,
            Self::LoadWeights => 7,
            Self::SwapWeights => 8,
            Self::Rewards(thread) => 9 + thread,
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Whole => "generation".into(),
            Self::Steps => "engine steps".into(),
            Self::Prefill => "prefill".into(),
            Self::Decode => "decode".into(),
            Self::Sampler => "sampler".into(),
            Self::KvCopies => "KV copies".into(),
            Self::LoadWeights => "weights: load".into(),
            Self::SwapWeights => "weights: swap".into(),
            Self::Rewards(thread) => format!("rewards {thread}"),
        }
    }
}

impl Event {
    pub(super) fn track(self) -> Track {
        match self {
            Self::Generate { .. } => Track::Whole,
            Self::Step { .. } | Self::Wait => Track::Steps,
            Self::Prefill { .. } => Track::Prefill,
            Self::Decode { .. } => Track::Decode,
            Self::Sample { .. } => Track::Sampler,
            Self::KvCopy => Track::KvCopies,
            Self::LoadWeights { .. } => Track::LoadWeights,
            Self::SwapWeights { .. } => Track::SwapWeights,
            Self::Reward { thread, .. } => Track::Rewards(thread),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Generate { .. } => "generate",
            Self::Step { .. } => "step",
            Self::Wait => "wait",
            Self::Prefill { .. } => "prefill",
            Self::Decode { .. } => "decode",
            Self::Sample { .. } => "sample",
            Self::KvCopy => "copy",
            Self::LoadWeights { .. } => "load",
            Self::SwapWeights { .. } => "swap",
            Self::Reward { .. } => "reward",
        }
    }

    /// What the timeline shows of a selected event.
    pub(super) fn arguments(self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Generate { tokens } => vec![("tokens", tokens)],
            Self::Prefill { tokens } => vec![("tokens", tokens as u64)],
            Self::Decode { rows, positions } => vec![("rows", rows as u64), ("positions", positions)],
            Self::Sample { rows } => vec![("rows", rows as u64)],
            Self::Reward { function, completions, .. } => {
                vec![("function", function as u64), ("completions", completions as u64)]
            }
            Self::LoadWeights { version } | Self::SwapWeights { version } => vec![("version", version)],
            Self::Step { .. } | Self::KvCopy | Self::Wait => vec![],
        }
    }

    /// Values that are drawn as curves.
    pub(super) fn counters(self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Step { running, waiting, kv_bytes } => {
                vec![("running", running as u64), ("waiting", waiting as u64), ("KV bytes", kv_bytes)]
            }
            _ => vec![],
        }
    }
}
