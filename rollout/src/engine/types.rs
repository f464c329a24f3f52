//! What goes into the engine and what comes out. The engine sees token ids only.

use std::{path::PathBuf, sync::Arc};

use crate::kernels::{element::KvFormat, packed::Format};
use shared::{FinishReason, PolicyVersion, PromptId, SamplingParams, TokenLogprob, config::Device};

/// What computes the model on the CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernels {
    /// The operators of this program over packed weights and paged keys and values, for fp32 on the CPU; elsewhere as
    /// [`Kernels::Stock`].
    #[default]
    Packed,
    /// The operators of ONNX Runtime on the published graph.
    Stock,
}

/// What the linear layers compute in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutDtype {
    /// The element type of the export.
    #[default]
    Auto,
    /// Bytes, with a scale for each output and, from call to call, for each row of the input; every version is rounded
    /// anew when it is loaded. Log-probs are those of the rounded model. For [`Kernels::Packed`].
    Int8,
}

impl RolloutDtype {
    pub(super) fn format(self) -> Format {
        match self {
            Self::Auto => Format::Float,
            Self::Int8 => Format::Byte,
        }
    }
}

/// What keys and values are stored as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// The element type of the export.
    #[default]
    Auto,
    /// Bytes, with a scale for each position and head, rounded once when a position is stored: a quarter of the memory,
    /// and of what a step reads. Log-probs are those of attention over the rounded keys and values. For
    /// [`Kernels::Packed`].
    Int8,
}

impl KvDtype {
    pub(super) fn format(self) -> KvFormat {
        match self {
            Self::Auto => KvFormat::Float,
            Self::Int8 => KvFormat::Byte,
        }
    }
}

/// Sizes and resources of an engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Where the graph runs.
    pub device: Device,
    /// What computes it.
    pub kernels: Kernels,
    /// What the linear layers compute in.
    pub rollout_dtype: RolloutDtype,
    /// What keys and values are stored as.
    pub kv_dtype: KvDtype,
    /// Threads of the graph and of the sampler.
    pub threads: usize,
    /// Sequences decoded at once (vLLM `max_num_seqs`).
    pub max_num_seqs: usize,
    /// Prompt tokens prefilled between two decode steps (vLLM `max_num_batched_tokens`). A prompt is never cut, and at
    /// least one goes through, however long.
    pub max_num_batched_tokens: usize,
    /// Longest prompt plus completion (vLLM `max_model_len`).
    pub max_model_len: usize,
    /// Whether idle graph threads spin for a moment between operators: faster on cores of their own, slower on cores
    /// shared with another busy process (the learner).
    pub spinning: bool,
    /// Whether new weights will be swapped in: the memory plan then counts a second session.
    pub hot_swap: bool,
}

/// Watches the tokens of one completion for a stop string.
pub trait StopWatch: Send {
    /// Takes the next token; true ends the completion (the token is kept).
    fn push(&mut self, token: u32) -> bool;
}

/// One prompt to be completed `num_generations` times.
#[derive(Clone)]
pub struct GroupRequest {
    /// The caller's name for the group; comes back with every sequence.
    pub tag: u64,
    /// Key of the randomness.
    pub prompt_id: PromptId,
    /// Key of the randomness: the epoch of the dataset.
    pub epoch: u32,
    /// The prompt.
    pub prompt_ids: Arc<[u32]>,
    /// Number of completions; sample indices are `0..num_generations`.
    pub num_generations: u32,
    /// How tokens are drawn.
    pub sampling: Arc<SamplingParams>,
    /// Own completion lengths per sample, for benchmarks with ragged lengths; wins over `max_completion_length`.
    pub lengths: Option<Arc<[u32]>>,
    /// Makes a watch for each completion; absent without stop strings.
    pub stop_watch: Option<Arc<dyn Fn() -> Box<dyn StopWatch> + Send + Sync>>,
}

/// A completion that has ended.
#[derive(Debug, Clone)]
pub struct FinishedSequence {
    /// The group's tag.
    pub tag: u64,
    /// Index within the group.
    pub sample: u32,
    /// Sampled tokens; the end-of-sequence token, if one came, is the last.
    pub token_ids: Vec<u32>,
    /// One entry per token.
    pub logprobs: Vec<TokenLogprob>,
    /// Runs of weight versions, `(first token index, version)`.
    pub versions: Vec<(u32, PolicyVersion)>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Seconds from admission of the group to the first token.
    pub ttft_seconds: f64,
    /// Seconds from admission of the group to the last token.
    pub total_seconds: f64,
}

/// A version of the weights on disk: a folder with `model.onnx`, `weights.data` and `manifest.json`.
#[derive(Debug, Clone)]
pub struct WeightSource {
    /// The folder.
    pub dir: PathBuf,
    /// The version it holds.
    pub version: PolicyVersion,
}

/// How a swap of weights went.
#[derive(Debug, Clone, Copy)]
pub struct SwapReport {
    /// The version now in use.
    pub version: PolicyVersion,
    /// Seconds from the request to the first usable session.
    pub seconds: f64,
    /// Seconds that the step loop stood still.
    pub stall_seconds: f64,
}
