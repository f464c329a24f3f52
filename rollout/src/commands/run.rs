//! `rollout run`: the sampling half of a training pair.

use std::path::PathBuf;

use anyhow::ensure;
use shared::RunDir;

use crate::pair;

/// Flags of `rollout run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directory with the resolved `config.toml`, shared with `learner run`
    #[arg(long, env = "TANDEM_RUN_DIR", value_name = "DIR")]
    pub run_dir: PathBuf,
}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.run_dir.is_dir(),
        "--run-dir {}: no such folder; `tandem train` makes it and starts both processes",
        args.run_dir.display()
    );
    pair::run(&RunDir::new(&args.run_dir))
}
