//! `tandem`: starts the pair, keeps it alive, shows its progress and writes its report.

// What is told may find nobody who reads it: see `terminal::output`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod card;
mod commands;
mod demo;
mod doctor;
mod import_config;
mod iterate;
mod new;
mod programs;
mod push;
mod records;
mod report;
mod report_to;
mod supervise;
mod sweep;
mod tensorboard;
mod terminal;
mod train;
mod ui;
mod view;

use std::{convert::Infallible, env, ffi::OsString, process::ExitCode};

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use commands::{
    completions, export,
    halves::{self, Delegated},
    learner_rank, man, merge, schema,
};
use shared::{
    process::exit::{ERROR, NOTHING_LEARNED},
    run::notices::NothingLearned,
};
use shared_bounds::{Metered, OneLine};
use terminal::{
    help, output,
    signals::{self, Interrupted},
};

/// GRPO post-training of language models in two processes: an ONNX Runtime sampler and a libtorch learner.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a run.toml to begin with.
    ///
    /// The file has model, dataset and reward functions that are given, and as comments the options that are changed
    /// first, with their meanings and defaults, the columns of the dataset and how prompts are made of it. Everything
    /// that is named is looked at before the file is written; names on the Hub are not downloaded.
    New(new::Args),
    /// Train a model with GRPO or another method.
    ///
    /// Starts sampler and learner, restarts what dies, shows the progress and writes the report.
    Train(train::Args),
    /// Train with each combination of values, and compare.
    ///
    /// Makes a run for each combination, one after another or several at once, and a table of the results. Runs that
    /// differ in their seed alone are repetitions: settings are compared over their seeds with a paired t-test. The
    /// same command goes on where it was interrupted, and a run that fails is a row of the table.
    Sweep(sweep::Args),
    /// Train in rounds, each with a reward model trained further.
    ///
    /// The last policy of a round is the reference of the next (iterative GRPO).
    Iterate(iterate::Args),
    /// Watch a tiny model learn arithmetic in a few minutes.
    Demo(demo::Args),
    /// Show runs on a page, while they go on and after.
    ///
    /// Curves of one or several runs, what sampler and learner wait for, notices, options side by side, and every
    /// completion with its rewards and tokens. The page needs no network and changes nothing.
    Ui(ui::Args),
    /// Write the report of a run (again).
    Report(report::Args),
    /// Write a model as ONNX, or a published version as Hugging Face.
    ///
    /// Takes the Hugging Face directory of a supported model. Writes model.onnx (prefill and decode in one
    /// graph), weights.data (all weights) and manifest.json (what lies where in weights.data). Any ONNX Runtime opens
    /// model.onnx; the weights can be replaced without touching the graph.
    Export(export::Args),
    /// Write a LoRA adapter and its base as one model.
    ///
    /// Takes a PEFT directory, adds its updates to the weights of the base that it names, and writes the whole model as
    /// a Hugging Face directory (fp32) with the tokenizer. What was written is read again and compared before it is
    /// called done.
    Merge(merge::Args),
    /// Send a model with its card to the Hugging Face Hub.
    ///
    /// Makes one commit of the files of a model: weights, configuration, tokenizer, chat templates and README.md, which
    /// is written from the records of the run if the folder has none. Nothing else of a checkpoint is sent, and nothing
    /// is visible before the end. A new repository is private. The token is that of HF_TOKEN or of `hf auth login`.
    Push(push::Args),
    /// Turn a configuration of TRL, verl or RLinf into a run.toml.
    ///
    /// Lists what has no counterpart.
    ImportConfig(import_config::Args),
    /// Print the JSON schema of run.toml, for editors.
    ///
    /// Draft 7, with types, bounds, defaults and meanings of all options. Write it to a file beside run.toml (`tandem
    /// schema > run.schema.json`) and begin run.toml with the line `#:schema ./run.schema.json`: editors with Taplo
    /// (Even Better TOML) then complete and check the options.
    Schema(schema::Args),
    /// Print what a shell completes: bash, zsh or fish.
    ///
    /// All commands with their flags, and all options of `tandem train` with their values. Of commands whose program is
    /// not beside `tandem`, the names alone. For bash, write it to ~/.local/share/bash-completion/completions/tandem.
    /// For zsh, write it as _tandem into a folder of `fpath`. For fish, write it to
    /// ~/.config/fish/completions/tandem.fish.
    Completions(completions::Args),
    /// Write manual pages of tandem and its commands.
    ///
    /// One for each command; that of `tandem train` has all options. Commands whose program is not beside `tandem` have
    /// none, and are listed on the page of tandem.
    Man(man::Args),
    /// Be a further rank of a run's learner.
    ///
    /// For a learner of several ranks on several hosts: torchrun, Slurm, Kubernetes or ssh start it with torchrun's
    /// variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), `tandem train` being rank 0. Comes back when a rank is
    /// gone.
    LearnerRank(learner_rank::Args),
    /// Check the machine: libraries, processor, memory, GPU, disk.
    Doctor(doctor::Args),
}

/// Counts what parsers of foreign files take.
#[global_allocator]
static MEMORY: Metered = Metered;

fn main() -> ExitCode {
    // SAFETY: this is the first thing that the process does, so it has no other thread.
    unsafe { shared::system::native::disable_telemetry() };
    shared::process::signals::make_oversized_writes_errors();
    let is_incomplete = |code: &ExitCode| *code == ExitCode::SUCCESS && output::is_lost();
    let code = program().map(|code| if is_incomplete(&code) { ExitCode::from(ERROR) } else { code });
    code.unwrap_or_else(|error| {
        if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
            output::tell(interrupted);
            return ExitCode::from(interrupted.exit_code());
        }
        for problem in error.downcast_ref().and_then(train::Problems::list).iter().flatten() {
            output::tell(format_args!("- {}", OneLine(problem)));
        }
        let code = if error.is::<NothingLearned>() { NOTHING_LEARNED } else { ERROR };
        shared::process::command_line::fail(error, code)
    })
}

fn program() -> Result<ExitCode> {
    let words: Vec<OsString> = env::args_os().collect();
    if let Some((command, words)) = halves::delegated(words.get(1..).unwrap_or_default()) {
        let never: Infallible = command.become_half(words)?;
        match never {}
    }
    let matches = command_line().get_matches_from(spelt(words));
    run(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command)
}

/// Our own commands, `tandem train` with all of its options: for shells and manual pages.
fn own_commands() -> clap::Command {
    Cli::command().mut_subcommand("train", |train| train::described(&train))
}

/// What clap knows: our own commands and, for help and for the nearest name of a misspelt one, those of the halves.
fn command_line() -> clap::Command {
    let named = |command: clap::Command| {
        let name = format!("tandem {}", command.get_name());
        command.display_name(name)
    };
    let of_halves = halves::COMMANDS.iter().map(Delegated::by_name);
    help::grouped(Cli::command().subcommands(of_halves).mut_subcommands(named))
}

fn run(command: Command) -> Result<ExitCode> {
    if matches!(
        command,
        Command::New(_) | Command::Train(_) | Command::Sweep(_) | Command::Iterate(_) | Command::Demo(_)
    ) {
        signals::listen()?;
    }
    match command {
        Command::New(args) => new::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Iterate(args) => iterate::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Ui(args) => ui::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Push(args) => push::run(&args),
        Command::ImportConfig(args) => import_config::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::LearnerRank(args) => learner_rank::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    }
}

/// The words as clap reads them. `train` and `sweep` sort their options themselves, so only a `--help` among them is
/// moved to where clap sees it.
fn spelt(words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|command| command != "train" && command != "sweep") {
        return shared::process::command_line::with_dashes(words);
    }
    let asks = words.iter().skip(2).any(|word| word == "--help" || word == "-h");
    if asks { [&words[..2], &["--help".into()]].concat() } else { words }
}
