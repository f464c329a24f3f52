//! One file per subcommand: its flags (a clap `Args`) and a `run` function. The rest is what several of them share.

pub mod adapters;
pub mod bench;
pub mod chat;
pub mod check;
pub mod check_rewards;
pub mod compare;
mod complete;
pub mod constraint;
pub mod eval;
pub mod evaluate;
pub mod explain;
pub mod flags;
pub mod generate;
mod journal;
pub mod logits;
pub mod model;
mod printed;
mod progress;
mod prompts;
pub mod rewards;
mod rows;
pub mod run;
mod tools;
pub mod tune;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context;
use serde_json::Value;
use shared::process::{command_line, exit};

/// Ends the programs of reward functions, tells an error, and returns the exit code for the result of a subcommand.
#[must_use]
pub fn end(result: anyhow::Result<ExitCode>) -> ExitCode {
    rollout_rewards::end_all();
    result.unwrap_or_else(|error| command_line::fail(error, exit::ERROR))
}

/// The result of a subcommand: one line of JSON on stdout.
fn print(line: &Value) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{line}").context("stdout")
}
