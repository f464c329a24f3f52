//! `learner rank`: a further rank of a run's learner.

use std::{io, path::PathBuf};

use anyhow::Context;
use rustix::process::{Signal, set_parent_process_death_signal};
use shared::{ModelDir, RunDir, config::layers, signals};

use crate::{checkpoint, cores, device, ranks};

/// Flags of `learner rank`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directory with the resolved config.toml.
    #[arg(long)]
    pub run_dir: PathBuf,
    /// Which rank it is, from 1.
    #[arg(long)]
    pub rank: usize,
    /// File that the ranks meet at.
    #[arg(long)]
    pub meeting: PathBuf,
    /// Checkpoint that the run goes on from.
    #[arg(long)]
    pub checkpoint: Option<PathBuf>,
}

/// Trains with the first rank until that is gone. Signals that end a run are for the first rank, which ends this one.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("it could outlive the first rank")?;
    signals::leave_to_others().context("signals cannot be handled")?;
    ranks::show_life()?;
    let config = layers::load(Some(&RunDir::new(&args.run_dir).config()), &Vec::new())?;
    let device = device::open(config.learner_device)?;
    cores::set_threads(config.threads_of_rank());
    let model = ModelDir::open(&config.model)?;
    let (trainer, _) = checkpoint::open_trainer(&config, &model, args.checkpoint.as_deref(), device)?;
    Ok(ranks::serve(&config, trainer, args.rank, &args.meeting, io::stdin().lock())?)
}
