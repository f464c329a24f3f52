//! `learner`: the training half of the pair, and what can be done with a policy on its own.

// Whoever reads stderr may be gone: see `shared::process::command_line`.
#![warn(clippy::print_stderr)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use learner::{
    commands::{bench, init, logprobs, rank, replay, reward_model, run, score, sft},
    error::LearnerError,
};
use shared::process::{
    command_line, described,
    exit::{ERROR, HOPELESS},
    logging, signals,
};
use shared_bounds::Metered;

/// Trains language models over libtorch.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The training half of a pair (started by `tandem train`).
    Run(run::Args),
    /// A further rank of a run's learner, by torchrun's variables (`tandem learner-rank` starts it again).
    Rank(rank::Args),
    /// Supervised warm start on prompt/completion rows.
    Sft(sft::Args),
    /// Train a reward model on pairs of completions.
    ///
    /// The better one stands first.
    RewardModel(reward_model::Args),
    /// Scores of given completions by a reward model.
    Score(score::Args),
    /// Train a kept step of a run again, with any method, and compare.
    Replay(replay::Args),
    /// Log-probs of given completions.
    Logprobs(logprobs::Args),
    /// Measure training steps on synthetic completions.
    Bench(bench::Args),
    /// Write random weights into a model directory that has none.
    Init(init::Args),
}

/// Counts the memory that parsers of foreign files take.
#[global_allocator]
static MEMORY: Metered = Metered;

fn main() -> ExitCode {
    learner::exit::skip_destructors();
    learner::refusal::catch(program)
}

fn program() -> ExitCode {
    if let Some(code) = described::run_if_asked(Cli::command) {
        return code;
    }
    signals::make_oversized_writes_errors();
    logging::init();
    let command = Cli::parse_from(command_line::words()).command;
    if let Err(error) = learner::device::prepare_environment() {
        tracing::warn!("libtorch will be slower, because the program cannot start itself again: {error}");
    }
    let done = |()| ExitCode::SUCCESS;
    let result = match command {
        Command::Run(args) => run::run(&args),
        Command::Rank(args) => rank::run(&args),
        Command::Sft(args) => sft::run(&args).map(done),
        Command::RewardModel(args) => reward_model::run(&args).map(done),
        Command::Score(args) => score::run(&args).map(done),
        Command::Replay(args) => replay::run(&args).map(done),
        Command::Logprobs(args) => logprobs::run(&args).map(done),
        Command::Bench(args) => bench::run(&args).map(done),
        Command::Init(args) => init::run(&args).map(done),
    };
    result.unwrap_or_else(|error| {
        let hopeless = error.downcast_ref().is_some_and(LearnerError::is_hopeless);
        command_line::fail(error, if hopeless { HOPELESS } else { ERROR })
    })
}
