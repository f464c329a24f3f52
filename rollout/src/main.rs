//! `rollout`: the sampler of the pair, and generation on its own.

// What is told may find nobody who reads it: see `shared::process::command_line`.
#![warn(clippy::print_stderr)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rollout::{
    commands::{
        bench, chat, check, check_rewards, compare, constraint::NoGrammars, end, eval, evaluate, explain, generate,
        logits, rewards, run, tune,
    },
    pair::LocalEngine,
};
use rollout_rewards::contain;
use shared::{
    process::{command_line, described, logging, signals},
    system::native,
};
use shared_bounds::Metered;

/// Samples groups of completions from a language model over ONNX Runtime.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The sampling half of a training pair (started by `tandem train`).
    Run(run::Args),
    /// What a run would be refused for (asked by `tandem train --dry-run`).
    #[command(hide = true)]
    Check(check::Args),
    /// Complete prompts, given as texts or by a file.
    ///
    /// One completion is printed as it is made. Several are headed by lines that say which they are.
    Generate(generate::Args),
    /// Talk with a model in the terminal.
    ///
    /// Each line is a message, and the answer is printed as it is made; lines may come from a pipe. `/help` lists the
    /// commands of a conversation.
    Chat(chat::Args),
    /// Measure generation: prefill, decode, latencies, time by phase.
    Bench(bench::Args),
    /// Find the batching flags that suit a model and this machine.
    ///
    /// They are tried on a step with a distribution of lengths like that of a run; flags that are given stay as they
    /// are.
    Tune(tune::Args),
    /// Score a model on a dataset: avg@k, pass@k and maj@k.
    ///
    /// maj@k takes a prompt's most frequent answer, where the first reward function extracts one. Each figure has a 95
    /// % interval over the prompts: Wilson's where every prompt counts as 0 or 1, as with one completion; else
    /// Student's t, on standard errors clustered by prompt. The table is on stderr; the last line is the same as JSON.
    Eval(eval::Args),
    /// The evaluation of a run on request, also of an export (asked by `tandem export` and by tandem_rl).
    #[command(hide = true)]
    Evaluate(evaluate::Args),
    /// Say whether one model does better than another beyond chance.
    ///
    /// Both complete the same prompts; shares of right completions and mean rewards are compared prompt by prompt.
    Compare(compare::Args),
    /// What became of a completion of a run, and why.
    Explain(explain::Args),
    /// List the reward functions.
    Rewards(rewards::Args),
    /// Try the reward functions of a run on sample completions.
    ///
    /// Each function sees a few rows of the dataset with completions that are empty, plain, overlong and, where the row
    /// has an answer, right. `tandem train` does the same before it starts, and refuses what cannot work.
    CheckRewards(check_rewards::Args),
    /// What an exported folder says of rows of tokens (asked by a comparison with its model).
    #[command(hide = true)]
    Logits(logits::Args),
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
    let command = command_line::read::<Cli>(Cli::command()).command;
    // What functions print is for the log of a run; their errors are told as findings.
    let level = match command {
        Command::CheckRewards(_) | Command::Evaluate(_) => "error",
        // They say by themselves what they are at.
        Command::Generate(_) | Command::Chat(_) | Command::Eval(_) | Command::Compare(_) => "warn",
        _ => "info",
    };
    logging::init_from(level);
    let done = |()| ExitCode::SUCCESS;
    let result = match command {
        Command::Run(args) => run::run(&args, &LocalEngine),
        Command::Check(args) => check::run(&args).map(done),
        Command::Generate(args) => generate::run(&args, &NoGrammars).map(done),
        Command::Chat(args) => chat::run(&args).map(done),
        Command::Bench(args) => bench::run(&args).map(done),
        Command::Tune(args) => tune::run(&args).map(done),
        Command::Eval(args) => eval::run(&args).map(done),
        Command::Evaluate(args) => evaluate::run(&args).map(done),
        Command::Compare(args) => compare::run(&args).map(done),
        Command::Explain(args) => explain::run(&args).map(done),
        Command::Rewards(args) => rewards::run(&args).map(done),
        Command::CheckRewards(args) => check_rewards::run(&args),
        Command::Logits(args) => logits::run(&args).map(done),
    };
    end(result)
}
