//! `rollout-fleet reach`: whether this host could work for a run on another one. `tandem doctor --join` calls it.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use shared::{
    RunDir,
    channel::{
        fleet::{Orders, Report, WorkerEnd},
        frame::FRAME_VERSION,
        incarnation,
    },
    run::workers::now,
};
use shared_fleet::{Probe, ZenohWorker, probe};
use shared_store::Store;

use super::worker::JoinFlags;
use crate::weights::{MODEL, prefix, sees_versions};

/// How long each stage may take.
const WITHIN: Duration = Duration::from_secs(10);
/// Bytes that are read of the store.
const BYTES: u64 = 8 << 20;
/// Seconds by which the clocks may differ. With more, certificates seem too old or too new.
const CLOCK_S: f64 = 60.0;

/// Flags of `rollout-fleet reach`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where and how.
    #[command(flatten)]
    pub join: JoinFlags,
}

/// Runs the subcommand.
///
/// # Errors
/// The first stage that does not work.
pub fn run(args: &Args) -> Result<ExitCode> {
    let options = args.join.options()?;
    let mut found = probe(&options, WITHIN);
    say(&found);
    if let Some((_, error)) = found.failed.take() {
        return Err(error.into());
    }
    let build = found.coordinator_build.as_deref().unwrap_or_default();
    ensure!(
        build == env!("CARGO_PKG_VERSION") && found.coordinator_frames.is_none_or(|frames| frames == FRAME_VERSION),
        "the run is version {build} and this program is {}; use one build",
        env!("CARGO_PKG_VERSION")
    );
    // A caller without a name is no worker, and is told of the run all the same.
    let report = Report { build: build.to_owned(), clock: now(), ..Report::default() };
    let mut end = ZenohWorker::join(&options, incarnation(), WITHIN)?;
    let orders = end.exchange(&report, WITHIN).context("the coordinator answers no call")?;
    look_at_store(args, &orders)?;
    Ok(ExitCode::SUCCESS)
}

fn say(found: &Probe) {
    let milliseconds = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    if let (Some(address), Some(seconds)) = (found.address, found.tcp_connect_s) {
        line("network", &format!("{address} takes connections, after {}", milliseconds(seconds)));
    }
    if let Some(seconds) = found.tls_handshake_s {
        line("certificates", &format!("both sides accept each other's, after {}", milliseconds(seconds)));
    }
    if let Some(seconds) = found.join_s {
        line("run", &format!("lets this host in, after {}", milliseconds(seconds)));
    }
    if let (Some(seconds), Some(build)) = (found.round_trip_s, &found.coordinator_build) {
        line("answers", &format!("come after {}; the run is version {build}", milliseconds(seconds)));
    }
    if let Some(ahead) = found.clock_ahead_s {
        let remark =
            if ahead.abs() > CLOCK_S { "; set one of them, or certificates will seem out of date" } else { "" };
        line("clock", &format!("the run's is {ahead:+.2} s ahead of this host's{remark}"));
    }
}

fn look_at_store(args: &Args, orders: &Orders) -> Result<()> {
    if let Some(reason) = &orders.refused {
        anyhow::bail!("the run would not take this host: {reason}");
    }
    let facts = orders.facts.as_ref().context("the coordinator says nothing of its run")?;
    let place = args.join.store.as_deref().unwrap_or(&facts.store);
    if let Some(run_dir) = facts.run_dir.as_ref().map(RunDir::new) {
        sees_versions(&run_dir)?;
        line("weights", &format!("{} can be read", run_dir.weights().display()));
    }
    let store = Store::open(place).context("--store says where the store is for this host")?;
    let name = match &facts.run_dir {
        Some(_) => Some((MODEL.to_owned(), facts.model)),
        None => orders.edition.as_ref().map(|edition| (prefix(edition.version), edition.blake3)),
    };
    let known = name.as_ref().map(|(prefix, blake3)| (prefix.as_str(), blake3));
    let read = store.probe_reading(known, BYTES, &()).context("--store says where the store is for this host")?;
    if facts.run_dir.is_some() {
        line("store", &format!("{} can be read; it has the model's configuration and tokenizer", store.place()));
    } else if read.bytes == 0 {
        line("store", &format!("{} can be read; no version is there yet", store.place()));
    } else {
        let rate = read.bytes as f64 / read.read_s.max(1e-9) / 1e6;
        line("store", &format!("{} can be read, with {rate:.0} MB/s", store.place()));
    }
    Ok(())
}

fn line(subject: &str, detail: &str) {
    shared::tell!("ok    {subject:<14} {detail}");
}
