//! `learner rank`: a further rank of a run's learner.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use shared::{
    config::{layers::Overrides, torchrun::Torchrun},
    process::{
        command_line,
        exit::{AGAIN, HOPELESS},
        signals,
    },
};

use super::above_zero;
use crate::{
    crew::{self, LetGo, Rendezvous},
    error::LearnerError,
};

/// Flags of `learner rank`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the model on this host, where it is another than the run's.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Folder of the critic's model on this host, where the run names one and it is elsewhere here.
    #[arg(long)]
    pub critic_model: Option<PathBuf>,
    /// Seconds to wait for the first rank.
    #[arg(long, default_value_t = 600.0)]
    pub patience: f64,
    /// Which rank it is, from 1, of those that the first rank starts itself.
    #[arg(long, hide = true, requires = "meeting")]
    pub rank: Option<usize>,
    /// File that they meet at.
    #[arg(long, hide = true, requires = "rank")]
    pub meeting: Option<PathBuf>,
}

/// Trains with the first rank until the first rank lets this one go, or is gone. The exit code says which, and whether
/// it would be of use to start this rank again.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    above_zero("--patience", args.patience)?;
    let place = match (args.rank, &args.meeting) {
        (Some(rank), Some(meeting)) => {
            // Signals that end a run are for the first rank, which ends this one.
            set_parent_process_death_signal(Some(Signal::KILL)).context("it could outlive the first rank")?;
            signals::leave_to_others().context("signals cannot be handled")?;
            crew::show_life()?;
            Rendezvous::Child { meeting: meeting.clone(), rank }
        }
        _ => match told() {
            Ok(told) => Rendezvous::Told(told),
            Err(error) => return Ok(hopeless(error)),
        },
    };
    let folders = [("model", &args.model), ("critic_model", &args.critic_model)];
    let given =
        |(key, folder): (&str, &Option<PathBuf>)| Some((key.to_owned(), folder.as_ref()?.display().to_string()));
    let overrides: Overrides = folders.into_iter().filter_map(given).collect();
    let counted = matches!(place, Rendezvous::Told(_));
    let mut report = |step: u64| {
        if counted {
            // Whoever started it may not listen.
            let _ = writeln!(io::stdout(), "step {step}").and_then(|()| io::stdout().flush());
        }
    };
    let served = crew::serve(&place, &overrides, Duration::from_secs_f64(args.patience), &mut report);
    Ok(match served {
        Ok(LetGo::ForGood) => ExitCode::SUCCESS,
        Ok(LetGo::Again) => ExitCode::from(AGAIN),
        Err(error @ (LearnerError::Peer(_) | LearnerError::Torch(_) | LearnerError::Io(_))) => return Err(error.into()),
        Err(error) => hopeless(error.into()),
    })
}

/// Says why it would be of no use to start the rank again.
fn hopeless(error: anyhow::Error) -> ExitCode {
    command_line::fail(error, HOPELESS)
}

/// What torchrun's variables say of this rank.
fn told() -> anyhow::Result<Torchrun> {
    let Some(told) = Torchrun::from_env()? else {
        bail!("a rank needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as torchrun sets them");
    };
    if told.rank == 0 {
        bail!("RANK is 0, and the first rank of a learner is that of `tandem train`: start it with these variables");
    }
    Ok(told)
}
