//! `tandem`: starts the pair, keeps it alive, shows its progress and writes its report.

// What is told may find nobody who reads it: see `output`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod binaries;
mod demo;
mod doctor;
mod import_config;
mod iterate;
mod output;
mod report;
mod signals;
mod summary;
mod supervise;
mod tail;
mod tool;
mod train;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use signals::Interrupted;

/// GRPO post-training of language models in two processes: an ONNX Runtime sampler and a libtorch learner.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a model: start sampler and learner, restart what dies, show the progress, write the report.
    Train(train::Args),
    /// Train in rounds, each with a reward model trained further and the last policy as reference (iterative GRPO).
    Iterate(iterate::Args),
    /// Watch a tiny model learn arithmetic in a few minutes.
    Demo(demo::Args),
    /// Write the report of a run (again).
    Report(report::Args),
    /// Turn a configuration of TRL, verl or RLinf into a run.toml, and list what has no counterpart.
    ImportConfig(import_config::Args),
    /// Check the machine: native libraries, processor, memory, shared memory, GPU, disk.
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    run(Cli::parse_from(words()).command).unwrap_or_else(|error| match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => {
            output::tell(interrupted);
            ExitCode::from(interrupted.exit_code())
        }
        None => {
            output::tell(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    })
}

fn run(command: Command) -> Result<ExitCode> {
    if matches!(command, Command::Train(_) | Command::Iterate(_) | Command::Demo(_)) {
        signals::listen()?;
    }
    match command {
        Command::Train(args) => train::run(&args),
        Command::Iterate(args) => iterate::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Report(args) => report::run(&args),
        Command::ImportConfig(args) => import_config::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    }
}

/// The command line, with a `--help` among the free-form options of `train` moved to where the parser sees it.
fn words() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let asks = words.iter().skip(2).any(|word| word == "--help" || word == "-h");
    if asks && words[1] == "train" { [&words[..2], &["--help".into()]].concat() } else { words }
}
