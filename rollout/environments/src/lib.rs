//! Environments: what answers the tool calls of a conversation, and may reward it at its end.
//!
//! [`Environment`] is the trait, for one conversation. [`Environments`] runs those of all conversations of a run beside
//! generation, and reports [`Event`]s. [`Sources`] says where they come from:
//!
//! | room | subject |
//! |---|---|
//! | `builtin` | tools and environments in Rust: a calculator, a maze of text |
//! | `process` | environments in contained processes, which are asked by lines |
//! | `python` | such a process of the user's interpreter, with tools and classes as TRL takes them |
//! | `program` | such a process of any program |
//! | `joined` | the tools and the environment of a row as one environment |
//! | `plan` | entries of the options to the tools of every row |
//! | `reply` | replies in TRL's words |
//!
//! A tool that raises an error is answered with that error, as in TRL. A [`Failure`] is another matter: the environment
//! itself broke, was late or died. Then the conversation has no reward, which is not a reward of 0.
//!
//! The crate needs no engine and no tokenizer.

#![forbid(unsafe_code)]

mod builtin;
mod environment;
mod environments;
mod failure;
mod joined;
mod plan;
mod process;
mod program;
mod python;
mod reply;
mod sources;
#[cfg(test)]
mod testing;

pub use environment::{BoxFuture, Environment, Opening, Reply, Sample, Step, ToolCall, Turn};
pub use environments::{Environments, Event, Rating};
pub use failure::{Failure, RowError, StartError};
pub use sources::Sources;
