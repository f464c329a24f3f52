//! The learner: groups in, new policy weights out, over libtorch.
//!
//! [`model`] is the decoder, [`batch`] what one forward pass holds, [`advantage`] and [`loss`] the algorithm,
//! [`optimizer`] and [`schedule`] the update of a [`trained`] model; [`step`] joins them into a training step.
//! [`publish`] and [`checkpoint`] write what others read, [`guard`] acts when a run is in trouble, [`pair`] is the
//! learner's half of the pair, [`commands`] the command line. [`critic`] is PPO's value model; [`sft`] and
//! [`reward_model`] train without a sampler. [`ranks`] connects the processes of one learner.
//!
//! Past [`advantage`] and [`loss`] nothing knows which method is being trained. Nothing here loads ONNX Runtime.
//!
//! The binary links the CPU half of libtorch. For CUDA, [`device`] opens the other half before libtorch is first used,
//! so one binary serves both.

// Tensor names end in their dimensions: B rows, S positions, N completion tokens, H hidden, V vocabulary.
#![allow(non_snake_case)]
// Whoever reads stderr may be gone: see `shared::process::command_line`.
#![warn(clippy::print_stderr)]

pub mod advantage;
pub mod batch;
pub mod canaries;
pub mod checkpoint;
pub mod commands;
pub mod constraint;
pub mod conversation;
pub mod cores;
pub mod crew;
pub mod critic;
pub mod device;
pub mod error;
pub mod exit;
pub mod guard;
mod host;
pub mod kl;
pub mod loss;
pub mod mismatch;
pub mod model;
pub mod optimizer;
pub mod pair;
pub mod publish;
pub mod ragged;
pub mod ranks;
pub mod refusal;
pub mod replay;
pub mod reward_model;
pub mod schedule;
pub mod sft;
pub mod step;
pub mod support;
pub mod text;
pub mod trained;
pub mod verl;

pub use error::LearnerError;
