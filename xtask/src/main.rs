//! `cargo xtask`: the project's developer commands.
//!
//! The crate depends on nothing native and on few crates. So it builds in seconds on a fresh clone, and can report
//! missing programs before anything long begins.

#![forbid(unsafe_code)]

mod bench;
mod book;
mod conformity;
mod cross;
mod dist;
mod docs;
mod fuzz;
mod gpu_proof;
mod host;
mod lanes;
mod lints;
mod markdown;
mod methods;
mod model;
mod prerequisites;
mod setup;
mod soak;
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
    /// Set up, build, and run a program of `examples/`; every further argument goes to it.
    Example {
        /// Folder in `examples/` with a `main.rs`.
        name: String,
        /// Arguments of the program.
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
    /// Set up, build, and pack what shows this project on a machine with an NVIDIA GPU and no network: at most 60 MB.
    ///
    /// The GPU's libraries get there in two ways. libtorch is that of the machine's own torch 2.11 (LIBTORCH, or the
    /// one of its python3), with CUDA's libraries beside it; ONNX Runtime for CUDA is carried in pieces, which
    /// --libraries makes. On the machine, `cat onnxruntime.tar.gz.* | tar xz` beside the unpacked bundle, and run
    /// `./xtask gpu-proof-run --out DIR` until nothing is left: at most 8 minutes a call, 25 in all.
    GpuProof(gpu_proof::BundleArgs),
    /// Measure what `gpu-proof` packed, on the machine that has the GPU.
    ///
    /// Needs neither Rust nor a network. Each result is a line of results.jsonl as soon as it is there, and a call goes
    /// on where the last one ended. What fails or is missing is named, and the rest goes on. table.md says what all of
    /// it means.
    GpuProofRun(gpu_proof::RunArgs),
    /// Set up, build, and train the demo's task for an hour, asynchronously and with chaos: what it takes must not
    /// grow.
    Soak(soak::SoakArgs),
    /// Set up, build, and compare with torch, transformers, TRL, PEFT and ONNX Runtime in Python (5 GB, once).
    Conformity(conformity::Args),
    /// Set up, build, and pack programs and libraries for machines without Rust: an archive, a Python wheel, a
    /// Dockerfile.
    ///
    /// The same work tree and compiler make the same bytes. docs/install.md says what a user does with them.
    Dist(dist::Args),
    /// Write the pages of `docs/` that come from the code, and the guide as a book (`target/book`, with mdBook).
    Docs,
    /// Try everything that is parsed with bytes that nobody meant, guided by coverage (libFuzzer, on stable Rust).
    Fuzz(fuzz::Args),
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
    // That command is for machines without Rust.
    if !matches!(command, Command::GpuProofRun(_)) {
        prerequisites::check(&host)?;
    }
    match command {
        Command::GpuProof(args) => gpu_proof::pack(&host, &args),
        Command::GpuProofRun(args) => gpu_proof::run(args),
        Command::Setup { cuda } => setup::run(&host, cuda),
        Command::Demo { args } => steps::demo(&host, &args),
        Command::Example { name, args } => steps::example(&host, &name, &args),
        Command::Test => steps::test(&host),
        Command::Ci => steps::ci(&host),
        Command::Bench { model } => bench::run_matrix(&host, model),
        Command::Methods { only } => methods::run(&host, only.as_deref()),
        Command::Soak(args) => soak::soak(&host, &args),
        Command::Conformity(args) => conformity::run(&host, &args),
        Command::Dist(args) => dist::run(&host, &args),
        Command::Docs => docs::write(&host),
        Command::Fuzz(args) => fuzz::fuzz(&host, &args),
        Command::Tidy => tidy::check(&host.root),
    }
}
