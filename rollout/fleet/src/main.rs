//! `rollout-fleet`: the sampler of a run with workers, and the workers.

// What is told may find nobody who reads it: see `shared::process::command_line`.
#![warn(clippy::print_stderr)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rollout::commands::{end, run};
use rollout_fleet::{
    commands::{check, reach, worker},
    coordinator::FleetFactory,
};
use rollout_rewards::contain;
use shared::{
    process::{command_line, described, signals},
    system::native,
};
use shared_bounds::Metered;
use shared_fleet::{RefusedCalls, init_logging};

/// Samples for a run with workers on any hosts.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The sampling half of a run with workers (started by `tandem train`).
    Run(run::Args),
    /// What the coordinator of a run would be refused for (asked by `tandem train --dry-run`).
    #[command(hide = true)]
    Check(check::Args),
    /// Sample for a run on another host.
    ///
    /// The run is one of `tandem train` with `listen`. A worker needs nothing of it but the address: model, weights and
    /// prompts come by themselves. It may come and go at any time, and ends with the run.
    Worker(worker::Args),
    /// Say whether this host could work for a run on another one (asked by `tandem doctor --join`).
    #[command(hide = true)]
    Reach(reach::Args),
}

/// Counts what parsers of foreign files take.
#[global_allocator]
static MEMORY: Metered = Metered;

fn main() -> ExitCode {
    if let Some(code) = contain::run_if_asked().or_else(|| described::run_if_asked(Cli::command)) {
        return code;
    }
    // SAFETY: nothing before has started a thread.
    unsafe { native::disable_telemetry() };
    signals::make_oversized_writes_errors();
    let command = Cli::parse_from(command_line::words()).command;
    // Only a coordinator is called.
    let refused = if matches!(command, Command::Run(_)) { RefusedCalls::Explained } else { RefusedCalls::AsLogged };
    init_logging("info", refused);
    end(match command {
        Command::Run(args) => run::run(&args, &FleetFactory),
        Command::Check(args) => check::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Worker(args) => worker::run(&args),
        Command::Reach(args) => reach::run(&args),
    })
}
