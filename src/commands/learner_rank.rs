//! `tandem learner-rank`: starts `learner rank`, and starts it again when a rank of the learner is gone.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader},
    path::Path,
    process::{ExitCode, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use shared::{
    process::exit::{AGAIN, HOPELESS},
    tell,
};

use crate::programs::binaries;

/// Exit code of a command line that cannot be read.
const UNREADABLE: i32 = 2;
/// Pause before a rank is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Words of `tandem learner-rank`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How often in a row it comes back without having made a step.
    #[arg(long, default_value_t = 3)]
    max_restarts: u32,
    /// Flags of the rank itself: --model, --critic-model, --patience.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    flags: Vec<OsString>,
}

/// Runs `tandem learner-rank`.
///
/// # Errors
/// A rank that ends again and again.
pub fn run(args: &Args) -> Result<ExitCode> {
    let program = binaries::find("learner")?;
    let mut failures = 0;
    loop {
        let (status, steps) = once(&program, &args.flags)?;
        match status.code() {
            Some(0) => return Ok(ExitCode::SUCCESS),
            // The rank has said why; clap has, for flags that it does not know.
            Some(code) if code == i32::from(HOPELESS) || code == UNREADABLE => return Ok(ExitCode::FAILURE),
            Some(code) if code == i32::from(AGAIN) => {
                failures = 0;
                continue;
            }
            _ => failures = if steps > 0 { 1 } else { failures + 1 },
        }
        if failures > args.max_restarts {
            bail!(
                "the rank has ended {failures} times in a row without a step, the last time by {status} \
                 (--max-restarts)"
            );
        }
        tell!("the rank has ended ({status}) and comes again ({failures} of {} times)", args.max_restarts);
        thread::sleep(PAUSE);
    }
}

/// One life of the rank: how it ended, and after how many steps.
fn once(program: &Path, flags: &[OsString]) -> Result<(ExitStatus, usize)> {
    let mut command = binaries::command(program);
    command.arg("rank").args(flags).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let steps = child.stdout.take().map_or(0, |stdout| BufReader::new(stdout).lines().map_while(Result::ok).count());
    Ok((child.wait()?, steps))
}
