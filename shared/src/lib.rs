//! The parts that both processes of the pair must agree on: identifiers, sampling parameters, the group that crosses
//! the channel, the model directory, the run directory, the weight manifest, metrics and configuration.
//!
//! This crate does no model mathematics and links neither ONNX Runtime nor libtorch, so both processes and the
//! launcher, which needs no native library, can use it.
//!
//! The rooms of this crate, the lowest first. A room uses only rooms above it in this table.
//!
//! | room | contents |
//! |---|---|
//! | `declare` | types, bounds and choices for the declaration of options |
//! | [`system`] | memory, load and native libraries of the machine; devices, kernels and element types |
//! | [`generation`] | identifiers, episodes, groups, sampling parameters, random numbers |
//! | [`files`] | atomic writes, journals, folders that the user names, names of a run's files |
//! | [`metrics`] | declared metrics and their records |
//! | [`methods`] | losses, advantage estimators and reductions, each as a description |
//! | [`config`] | options, endpoints, torchrun's variables |
//! | [`channel`] | messages between processes, and their transports |
//! | [`model`] | `config.json`, model directories, manifests of weights, canaries |
//! | [`run`] | ledger, notices, checkpoints, versions, memory plan |
//! | [`process`] | messages at the terminal, log, exit codes, signals, heartbeat |
//!
//! [`RunDir`] names every file of a run. [`files::atomic`] writes a file whole or not at all. Journals and
//! TensorBoard's events are exceptions: they grow.

pub mod channel;
pub mod config;
mod declare;
pub mod files;
pub mod generation;
pub mod methods;
pub mod metrics;
pub mod model;
pub mod process;
pub mod run;
pub mod system;

pub use channel::weights::{WeightReceiver, WeightSender};
pub use files::run_dir::RunDir;
pub use generation::{
    episode::{Episode, FinishReason, Segment, TokenLogprob, Why},
    group::{
        Completion, Contrast, Dropped, EpisodeEnd, Exchange, Group, Logged, Messages, Note, Notes, Placed, Provenance,
        RewardOutcome, Scored, StepScore, weighted_sum,
    },
    ids::{GroupId, PolicyVersion, PromptId, Step},
    routing::Routing,
    sampling::SamplingParams,
};
pub use model::{
    base_format::BaseFormat,
    canaries::Canaries,
    manifest::{TensorEntry, TensorRole, WeightManifest},
    model_config::{
        Activation, Architecture, AttentionGate, AttentionKind, BlockNames, DeltaRule, Experts, Head, LayerKind, Mamba,
        ModelConfig, PerLayerInput, QueryScaling, RopeScaling, Rotary, ShortConv, StateParts,
    },
    model_dir::{GenerationConfig, ModelDir},
};
pub use run::ledger::{LedgerGroup, LedgerState};
pub use system::compute::Dtype;
