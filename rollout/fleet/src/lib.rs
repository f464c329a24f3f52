//! Samplers on other hosts, for a run with `listen`: the coordinator beside the learner, and the workers.
//!
//! The step loop, the plan, the dataset and the rewards of a run are those of the crate `rollout`. What differs is the
//! [`Generate`](rollout::generate::Generate) behind them: the [`coordinator`] leases what the plan has begun
//! to workers and gives back what they have made. A completion depends on weights, seed, prompt, sample and sampling
//! parameters alone, so it does not matter who makes it, how often, or when.
//!
//! A worker asks, and the coordinator answers. A lease ends when no token comes of it for `lease_timeout`, or when the
//! connection is gone for some seconds. Its samples then wait for another worker, and the first completion counts. A
//! lease that takes three times as long as usual is given to an idle worker as well. Nothing that a worker sends is
//! believed before it has been looked at. The engine beside the learner also scores what workers with other kernels
//! make, and looks at versions that workers refuse.
//!
//! | room | subject |
//! |---|---|
//! | [`commands`] | one file per subcommand of `rollout-fleet` |
//! | [`coordinator`] | the generator of a run with workers: scheduler, pool, verification |
//! | [`worker`] | the other side |
//! | [`messages`] | what both sides put into messages, and make of them |
//! | [`scores`] | reward functions beside a worker's engine, where the run wants that |
//! | `weights` | versions on their way into the store, and out of it |
//!
//! The messages themselves are declared in `shared::channel::fleet`, their transport is `shared-fleet`, and the store
//! is `shared-store`. The package is no default member of the workspace: transport and store bring more than a hundred
//! crates, and a run on one host has no use for them.

// What is told may find nobody who reads it: see `shared::process::command_line`.
#![warn(clippy::print_stderr)]

pub mod commands;
pub mod coordinator;
pub mod messages;
pub mod scores;
mod weights;
pub mod worker;
