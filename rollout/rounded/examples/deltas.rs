//! Bytes and seconds of version directories on their way, each as a difference to the one before:
//! `cargo run --release -p rollout-rounded --example deltas -- run/checkpoint-1 run/checkpoint-2 …`
//!
//! A line for each format and pair of versions. Seconds are those of a clock, and behind them those of the cores: on a machine
//! that does other things as well, these tell more.

use std::{
    env,
    path::{Path, PathBuf},
    time::Instant,
};

use rollout_rounded::{RoundedError, difference, round, unpack};
use shared::{atomic, config::RolloutDtype};

/// Seconds of the clock and of the cores.
type Times = [f64; 2];

const NAMES: [&str; 6] =
    ["whole, MB", "difference, MB", "round, s", "difference, s", "unpack whole, s", "unpack difference, s"];

fn main() -> Result<(), RoundedError> {
    let versions: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let place = env::temp_dir().join(format!("tandem-deltas-{}", std::process::id()));
    let result = formats(&versions, &place);
    std::fs::remove_dir_all(&place)?;
    result
}

fn formats(versions: &[PathBuf], place: &Path) -> Result<(), RoundedError> {
    println!("| | {} |\n|---|{}", NAMES.join(" | "), "---|".repeat(NAMES.len()));
    for dtype in [RolloutDtype::Auto, RolloutDtype::Bf16x3, RolloutDtype::Bf16, RolloutDtype::Int8] {
        let [older, newer, change, base, out] =
            ["older", "newer", "change", "base", "out"].map(|name| place.join(name));
        for (number, version) in versions.iter().enumerate() {
            let (whole, rounding) = timed(|| round(version, dtype, &newer))?;
            let (_, unpacking) = timed(|| unpack(&newer, None, &out))?;
            if number > 0 {
                let (changed, comparing) = timed(|| difference(&newer, &older, &change))?;
                let (_, unpacking_change) = timed(|| unpack(&change, Some(&base), &out))?;
                let bytes = [whole.packed, changed.packed].map(|bytes| format!("{:.2}", bytes as f64 / 1e6));
                let times = [rounding, comparing, unpacking, unpacking_change];
                let times = times.map(|[clock, cores]| format!("{clock:.2} ({cores:.2})"));
                println!("| {dtype}, {} | {} | {} |", version.display(), bytes.join(" | "), times.join(" | "));
            }
            for (from, to) in [(&newer, &older), (&out, &base)] {
                let _ = std::fs::remove_dir_all(to);
                std::fs::rename(from, to)?;
            }
        }
        atomic::remove_dir(place)?;
    }
    std::fs::create_dir_all(place)?;
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> Result<T, RoundedError>) -> Result<(T, Times), RoundedError> {
    let (begun, used) = (Instant::now(), core_seconds());
    Ok((work()?, [begun.elapsed().as_secs_f64(), core_seconds() - used]))
}

fn core_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9
}
