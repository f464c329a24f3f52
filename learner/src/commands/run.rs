//! `learner run`: the training half of the pair.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use shared::{
    RunDir,
    channel::{RunId, iox::IoxLearner},
    config::{self, torchrun::Torchrun},
    process::{
        exit::ENDED_BY_SIGNAL,
        heartbeat::{self, Deadlines},
        session, signals,
    },
};

use crate::{
    cores,
    device::{self, RankHere},
    error::LearnerError,
    pair::{Outcome, run as train},
};

/// Flags of `learner run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directory with the resolved config.toml.
    #[arg(long)]
    pub run_dir: PathBuf,
    /// Id of the run, which `tandem train` gives to both processes that it starts.
    #[arg(long)]
    pub run_id: Option<RunId>,
}

/// Trains until the last step; SIGTERM, SIGINT or SIGHUP ends the run in order, with a checkpoint. The exit code tells
/// the two apart.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    heartbeat::start()?;
    let run_dir = RunDir::new(&args.run_dir);
    let id = RunId::join(&run_dir, args.run_id).map_err(LearnerError::from)?;
    let config = session::config(&run_dir)?;
    config.validate()?;
    let stop = signals::listen(Deadlines::of(&config)).context("signals cannot be handled")?;
    let here = RankHere::first(&config, Torchrun::of_run(&config)?.as_ref());
    let device = device::open_of_rank(config.learner_device, here)?;
    let threads = cores::set_threads(Torchrun::threads_of_rank(&config));
    tracing::info!("learner on {device:?} with {threads} threads");
    // Ranks with different numbers of threads would round differently, and move apart.
    if config.max_staleness > 0
        && config.learner_ranks == 1
        && [config.learner_device, config.rollout_device] == [config::Device::Cpu; 2]
    {
        cores::borrow_from_sampler(config.threads(cores::all()).0);
    }
    let end = IoxLearner::open(&run_dir, id)?;
    Ok(match train((&run_dir, id), &config, device, end, &stop)? {
        Outcome::Finished => {
            tracing::info!("every step is done");
            ExitCode::SUCCESS
        }
        Outcome::Stopped => {
            tracing::info!("stopped as asked; every completed step is in a checkpoint");
            ExitCode::from(ENDED_BY_SIGNAL)
        }
    })
}
