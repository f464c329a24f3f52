//! `rollout run`: the sampling half of a training pair.

use std::{path::PathBuf, process::ExitCode};

use anyhow::ensure;
use shared::{RunDir, channel::RunId, process::exit::ENDED_BY_SIGNAL};

use crate::pair::{self, Ended, GeneratorFactory};

/// Flags of `rollout run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directory with the resolved `config.toml`, shared with `learner run`
    #[arg(long, env = "TANDEM_RUN_DIR", value_name = "DIR")]
    pub run_dir: PathBuf,
    /// Id of the run, which `tandem train` gives to both processes that it starts
    #[arg(long, value_name = "ID")]
    pub run_id: Option<RunId>,
}

/// Runs the subcommand with the generator of `factory`. The exit code tells the launcher whether the run is over.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args, factory: &dyn GeneratorFactory) -> anyhow::Result<ExitCode> {
    ensure!(
        args.run_dir.is_dir(),
        "--run-dir {}: no such folder; `tandem train` makes it and starts both processes",
        args.run_dir.display()
    );
    Ok(match pair::run(&RunDir::new(&args.run_dir), args.run_id, factory)? {
        Ended::RunOver => ExitCode::SUCCESS,
        Ended::BySignal => ExitCode::from(ENDED_BY_SIGNAL),
    })
}
