//! An endpoint over HTTP in OpenAI's forms, for the engine of the sampler: `tandem serve`, and runs with agents.
//!
//! One thread drives the engine, by the one loop of `rollout::generate`. Requests are tasks of tokio. A request reads
//! its body (`request`), hands token ids to the [`desk`], which is the loop's `Work`, and gets tokens back over a
//! channel of its own. So a client that reads slowly, or not at all, holds up nobody. The desk adds no scheduler:
//! batching is the engine's own. The engine sees token ids only; texts are made in [`answer`].
//!
//! | room | subject |
//! |---|---|
//! | [`error`] | refusals, in OpenAI's form |
//! | [`metrics`] | what `/metrics` says |
//! | [`models`] | the model that is served, and adapters on it |
//! | `request` | fields of a body, each taken, ignored or refused by name |
//! | [`desk`] | requests to the engine, tokens from it |
//! | [`answer`] | tokens to choices and chunks |
//! | [`routes`] | one file per kind of route |
//! | [`server`] | sockets and signals |
//! | [`agent`] | the endpoint inside a run: a generator whose completions are those of agents |
//! | [`run`] | the parts of a run with agents, for `rollout-serve run` |
//! | [`command`], [`adapter_flags`] | the flags of `rollout-serve serve` |

// What is told may find nobody who reads it: see `shared::process::command_line`.
#![warn(clippy::print_stderr)]

pub mod adapter_flags;
pub mod agent;
pub mod answer;
pub mod command;
pub mod desk;
pub mod error;
pub mod metrics;
pub mod models;
mod request;
pub mod routes;
pub mod run;
pub mod server;
#[cfg(test)]
mod testing;
