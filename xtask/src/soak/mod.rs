//! `cargo xtask soak`: trains the demo's task asynchronously and under faults, for as long as the user asks; its
//! resources must not grow.

mod figures;
mod plot;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    host::Host,
    steps::{build, run},
};
use figures::{Figures, SERIES};

/// Faults per step, in addition to the kills of the launcher.
const CHAOS: &str = "seed=1,kill=0.01,stop=0.002,disk=0.002";
/// Time between two measurements.
const INTERVAL: Duration = Duration::from_secs(5);
/// The launcher is killed after so many measurements, and its run is resumed.
const LOOKS_OF_A_LIFE: usize = 60;
/// How long the pair may take to end in order.
const FAREWELL: Duration = Duration::from_secs(60);

/// Flags of `cargo xtask soak`.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// How long, in minutes
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Where the run and `samples.csv` and `soak.svg` go; it must not exist
    #[arg(long, value_name = "DIR", default_value = "runs/soak")]
    out: PathBuf,
}

/// Trains under faults, then plots and judges the measurements.
///
/// # Errors
/// A run that ends by itself or cannot be resumed, a figure that has grown, or leftovers.
pub fn soak(host: &Host, args: &SoakArgs) -> Result<()> {
    build(host)?;
    let out = host.root.join(&args.out);
    ensure!(!out.exists(), "--out {}: exists", out.display());
    let mut warm = host.command(host.binary("tandem"));
    warm.args(["demo", "--warm-up-only", "--output-dir"]).arg(out.join("demo"));
    run(warm)?;

    let left_before = figures::segments();
    let (begun, length) = (Instant::now(), Duration::from_secs(60 * args.minutes));
    let mut seen: Vec<Figures> = Vec::new();
    let mut resumed = 0;
    let mut launcher = start(host, &out, false)?;
    while begun.elapsed() < length {
        thread::sleep(INTERVAL);
        if let Some(status) = launcher.try_wait()? {
            bail!("the run ended by itself ({status}); see {}", out.join("stderr").display());
        }
        seen.push(Figures::of(launcher.id(), &out.join("demo/run"), begun.elapsed()));
        if seen.len().is_multiple_of(LOOKS_OF_A_LIFE) {
            launcher.kill()?;
            launcher.wait()?;
            launcher = start(host, &out, true)?;
            resumed += 1;
        }
    }
    end(&mut launcher, &out)?;
    let steps = seen.last().map_or(0, |last| last.steps);
    println!("{} minutes, {steps} steps, the launcher killed {resumed} times; {CHAOS}", args.minutes);
    figures::write(&out.join("samples.csv"), &seen)?;
    fs::write(out.join("soak.svg"), plot::draw(&seen))?;
    let left = figures::segments();
    ensure!(left <= left_before, "{} entries are left in shared memory, {left_before} were there before", left);
    judge(&seen)
}

/// Starts a launcher whose output is appended to a file.
fn start(host: &Host, out: &Path, resumes: bool) -> Result<Child> {
    let file = || File::options().create(true).append(true).open(out.join("stderr"));
    let mut command = host.command(host.binary("tandem"));
    command.arg("train").arg(out.join("demo/run.toml"));
    command.args(["--max_staleness", "2", "--max_steps", "10000000", "--save_steps", "20", "--save_total_limit", "2"]);
    command.args([
        "--learning_rate",
        "2e-4",
        "--lr_scheduler_type",
        "constant",
        "--warmup_ratio",
        "0",
        "--chaos",
        CHAOS,
    ]);
    if resumes {
        command.args(["--resume_from_checkpoint", "latest"]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file()?);
    command.spawn().context("cannot start tandem")
}

fn end(launcher: &mut Child, out: &Path) -> Result<()> {
    kill_process(Pid::from_child(launcher), Signal::TERM)?;
    let begun = Instant::now();
    while launcher.try_wait()?.is_none() {
        if begun.elapsed() > FAREWELL {
            launcher.kill()?;
            bail!("the run does not end in order; see {}", out.join("stderr").display());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Compares the last third with the second: in the first, the run has not yet reached its full size.
fn judge(seen: &[Figures]) -> Result<()> {
    let third = seen.len() / 3;
    ensure!(third > 0, "too short to be judged");
    let mut grown = Vec::new();
    for series in &SERIES {
        let of = |part: &[Figures]| {
            let mut values: Vec<f64> = part.iter().map(|figures| (series.value)(figures)).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (before, after) = (of(&seen[third..2 * third]), of(&seen[2 * third..]));
        println!("{:<34} {before:>8.1} {after:>8.1} {}", series.name, series.unit);
        if after > before * 1.1 + series.slack {
            grown.push(series.name);
        }
    }
    ensure!(grown.is_empty(), "has grown from the second third to the last: {}", grown.join(", "));
    Ok(())
}
