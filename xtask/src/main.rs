//! `cargo xtask`: the project's developer commands.
//!
//! The crate depends on nothing native and on few crates, so it builds in seconds on a fresh clone and can say what is
//! missing before anything long begins.

#![forbid(unsafe_code)]

mod bench;
mod docs;
mod host;
mod methods;
mod prerequisites;
mod setup;
mod steps;
mod tidy;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::host::Host;

/// Developer commands of the workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch libtorch and ONNX Runtime into `.native/`; does nothing when they are there.
    Setup {
        /// Fetch the CUDA builds (about 3 GB) instead of the CPU builds.
        #[arg(long)]
        cuda: bool,
    },
    /// Set up, build, and run `tandem demo`; every further argument goes to it.
    Demo {
        /// Arguments of `tandem demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Set up, then check formatting, house rules and lints, and build and run all tests.
    Test,
    /// What continuous integration runs (`.ci/run`).
    Ci,
    /// Set up, build, and measure sampler and learner on a small built-in matrix.
    Bench {
        /// Hugging Face model directory to measure instead of the built-in ones.
        #[arg(long)]
        model: Option<PathBuf>,
    },
    /// Set up, build, train the demo's task with every method, and write `docs/methods.md` (a quarter of an hour).
    Methods {
        /// Only methods whose name contains this; the table is printed instead of written.
        #[arg(long)]
        only: Option<String>,
    },
    /// Write `docs/configuration.md` and `docs/losses.md` from the options and methods in the code.
    Docs,
    /// Check the house rules that no other tool checks.
    Tidy,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let host = Host::current()?;
    prerequisites::check(&host)?;
    match command {
        Command::Setup { cuda } => setup::run(&host, cuda),
        Command::Demo { args } => steps::demo(&host, &args),
        Command::Test => steps::test(&host),
        Command::Ci => steps::ci(&host),
        Command::Bench { model } => bench::run_matrix(&host, model),
        Command::Methods { only } => methods::run(&host, only.as_deref()),
        Command::Docs => docs::write(&host),
        Command::Tidy => tidy::check(&host.root),
    }
}
