//! The parts that both processes of the pair must agree on: identifiers, sampling parameters, the group that crosses
//! the channel, the model directory, the run directory, the weight manifest, metrics and configuration.
//!
//! This crate does no model mathematics and links neither ONNX Runtime nor libtorch, so both processes and the
//! launcher, which needs no native library, can use it.
//!
//! [`RunDir`] names every file of a run. [`atomic`] writes a file whole or not at all, and through no link;
//! [`atomic::write_output`] is for files that the user names. Journals and TensorBoard's events are exceptions: they
//! grow.
//!
//! | subject | modules |
//! |---|---|
//! | what a run is told | [`config`], `declare`, [`methods`], [`compute`], [`sampling`], [`session`], [`torchrun`] |
//! | what is generated | [`ids`], [`episode`], [`group`] |
//! | what passes between processes | [`channel`], [`endpoint`], [`heartbeat`], [`signals`], [`exit`] |
//! | models and versions | [`model_config`], [`model_dir`], [`manifest`], [`canaries`], [`versions`], [`weights`] |
//! | files of a run | [`run_dir`], [`atomic`], [`checkpoints`], [`resume`], [`journal`], [`records`], [`output_dir`] |
//! | what a run says of itself | [`metrics`], [`notices`], [`ledger`], [`prompts`], [`workers`] |
//! | the machine | [`memory`], [`memory_plan`], [`disk_room`], [`load`], [`native`] |
//! | programs at the terminal | [`command_line`], [`logging`], [`pace`] |
//! | random numbers | [`rng`] |

pub mod atomic;
pub mod canaries;
pub mod channel;
pub mod checkpoints;
pub mod command_line;
pub mod compute;
pub mod config;
mod declare;
pub mod disk_room;
pub mod endpoint;
pub mod episode;
pub mod exit;
pub mod group;
pub mod heartbeat;
pub mod ids;
pub mod journal;
pub mod ledger;
pub mod load;
pub mod logging;
pub mod manifest;
pub mod memory;
pub mod memory_plan;
pub mod methods;
pub mod metrics;
pub mod model_config;
pub mod model_dir;
pub mod native;
pub mod notices;
pub mod output_dir;
pub mod pace;
pub mod prompts;
pub mod records;
pub mod resume;
pub mod rng;
pub mod run_dir;
pub mod sampling;
pub mod session;
pub mod signals;
pub mod testing;
pub mod torchrun;
pub mod versions;
pub mod weights;
pub mod workers;

pub use canaries::Canaries;
pub use compute::Dtype;
pub use episode::{Episode, FinishReason, Segment, TokenLogprob, Why};
pub use group::{
    Completion, Contrast, Dropped, Group, Placed, Provenance, RewardOutcome, Scored, StepScore, weighted_sum,
};
pub use ids::{GroupId, PolicyVersion, PromptId, Step};
pub use ledger::{LedgerGroup, LedgerState};
pub use manifest::{TensorEntry, TensorRole, WeightManifest};
pub use model_config::{Activation, Architecture, Head, LayerKind, ModelConfig, RopeScaling, Rotary};
pub use model_dir::{GenerationConfig, ModelDir};
pub use run_dir::RunDir;
pub use sampling::SamplingParams;
pub use weights::{WeightReceiver, WeightSender};
