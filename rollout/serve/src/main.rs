//! `rollout-serve`: an endpoint over HTTP for a model, the sampler of runs with agents, and completions that follow a
//! grammar.

// What is told may find nobody who reads it: see `shared::process::command_line`.
#![warn(clippy::print_stderr)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rollout::commands::{end, generate, run};
use rollout_constraint::OfCommandLine;
use rollout_rewards::contain;
use rollout_serve::{command, run::AgentFactory};
use shared::{
    process::{command_line, described, logging, signals},
    system::native,
};
use shared_bounds::Metered;

/// Answers requests over HTTP with a model, and makes completions that follow a grammar.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer requests over HTTP in OpenAI's forms.
    ///
    /// Clients of OpenAI's API work with it: completions, chats, log-probs, streams. docs/serving.md lists the routes,
    /// and the fields that are taken, ignored and refused.
    Serve(Box<command::Args>),
    /// The sampling half of a run with agents (started by `tandem train`).
    Run(run::Args),
    /// Complete prompts, given as texts or by a file.
    ///
    /// One completion is printed as it is made. Several are headed by lines that say which they are.
    Generate(Box<generate::Args>),
}

/// Counts what parsers of foreign files take.
#[global_allocator]
static MEMORY: Metered = Metered;

fn main() -> ExitCode {
    if let Some(code) = contain::run_if_asked().or_else(|| described::run_if_asked(flags)) {
        return code;
    }
    // SAFETY: nothing before has started a thread.
    unsafe { native::disable_telemetry() };
    signals::make_oversized_writes_errors();
    let command = command_line::read::<Cli>(flags()).command;
    logging::init_from(if matches!(command, Command::Run(_)) { "info" } else { "warn" });
    end(match command {
        Command::Serve(args) => command::run(&args),
        Command::Run(args) => run::run(&args, &AgentFactory),
        Command::Generate(args) => generate::run(&args, &OfCommandLine).map(|()| ExitCode::SUCCESS),
    })
}

/// The command line. Two flags mean something else to an endpoint than to a run.
fn flags() -> clap::Command {
    Cli::command().mut_subcommand("serve", |serve| {
        serve
            .mut_arg("max_model_len", |flag| flag.help(command::max_model_len_help()))
            .mut_arg("max_num_seqs", |flag| flag.help(command::max_num_seqs_help()))
    })
}
