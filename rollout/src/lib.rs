//! The sampler: continuous batching over ONNX Runtime. Prompts go in, scored groups of completions come out.
//!
//! Read in this order: [`data`] (rows to token ids), [`engine`] (token ids to completions), [`sampling`] (logits to a
//! token), [`generate`] (the seam before the engine, and the loop over it), [`reward`] (completions to scores),
//! [`assembly`] (sequences to scored groups), [`structured_outputs`] (completions that follow an expression),
//! [`turns`] (completions that are conversations), [`evaluation`] (groups to metrics), [`pair`] (the half of the
//! training pair that runs in this process). [`commands`] holds one file per subcommand, [`trace`] records a timeline
//! of all of it. The arithmetic of the engine's own kernels is the crate `rollout-kernels`, reward functions are
//! `rollout-rewards`, environments `rollout-environments`, and samplers on other hosts `rollout-fleet`, which is built
//! on this crate. This crate never links libtorch.

// A message may find nobody who reads it: see `shared::process::command_line`.
#![warn(clippy::print_stderr)]

pub mod assembly;
pub mod commands;
pub mod conversation;
pub mod data;
pub mod engine;
pub mod evaluation;
pub mod generate;
pub mod pair;
pub mod reward;
pub mod sampling;
pub mod structured_outputs;
pub mod trace;
pub mod turns;
