//! The recorded events.

/// Something that takes time. Numbers are those of the moment when it ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// One call of [`Engine::advance`](crate::engine::Engine::advance), which contains the next four.
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
        /// Number of their tokens.
        tokens: usize,
    },
    /// The graph on running sequences.
    Decode {
        /// Number of sequences.
        rows: usize,
        /// Positions that they attend to, all together.
        positions: u64,
    },
    /// Drawing tokens.
    Sample {
        /// Number of tokens.
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
    /// The step loop stands still while it takes new weights into use.
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

/// How an event is shown.
pub(super) struct Shown {
    /// Number of its line of the timeline, `tid` of the file, which is also the order of display. Events of one line
    /// nest or follow each other.
    pub track: usize,
    pub track_name: String,
    pub name: &'static str,
    /// The figures that the timeline shows when the event is selected.
    pub arguments: Vec<(&'static str, u64)>,
    /// Values that are drawn as curves.
    pub counters: Vec<(&'static str, u64)>,
}

impl Event {
    pub(super) fn shown(self) -> Shown {
        let (track, track_name, name, arguments) = match self {
            Self::Generate { tokens } => (1, "generation", "generate", vec![("tokens", tokens)]),
            Self::Step { .. } => (2, "engine steps", "step", vec![]),
            Self::Wait => (2, "engine steps", "wait", vec![]),
            Self::Prefill { tokens } => (3, "prefill", "prefill", vec![("tokens", tokens as u64)]),
            Self::Decode { rows, positions } => {
                (4, "decode", "decode", vec![("rows", rows as u64), ("positions", positions)])
            }
            Self::Sample { rows } => (5, "sampler", "sample", vec![("rows", rows as u64)]),
            Self::KvCopy => (6, "KV copies", "copy", vec![]),
            Self::LoadWeights { version } => (7, "weights: load", "load", vec![("version", version)]),
            Self::SwapWeights { version } => (8, "weights: swap", "swap", vec![("version", version)]),
            Self::Reward { thread, function, completions } => {
                let arguments = vec![("function", function as u64), ("completions", completions as u64)];
                (9 + thread, "rewards", "reward", arguments)
            }
        };
        let track_name = match self {
            Self::Reward { thread, .. } => format!("{track_name} {thread}"),
            _ => track_name.to_owned(),
        };
        let counters = match self {
            Self::Step { running, waiting, kv_bytes } => {
                vec![("running", running as u64), ("waiting", waiting as u64), ("KV bytes", kv_bytes)]
            }
            _ => vec![],
        };
        Shown { track, track_name, name, arguments, counters }
    }
}
