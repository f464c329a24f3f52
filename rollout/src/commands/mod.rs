//! One file per subcommand: its flags (a clap `Args`) and a `run` function. The rest is what several of them share.

pub mod bench;
pub mod check;
pub mod check_rewards;
pub mod compare;
mod complete;
pub mod eval;
pub mod explain;
pub mod flags;
pub mod generate;
mod journal;
mod progress;
pub mod reach;
pub mod rewards;
mod rows;
pub mod run;
pub mod tune;
pub mod worker;

use std::io::{self, Write};

use anyhow::Context;
use serde_json::Value;

/// The result of a subcommand: one line of JSON on stdout.
fn print(line: &Value) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{line}").context("stdout")
}
