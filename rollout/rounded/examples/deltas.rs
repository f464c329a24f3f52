//! Bytes and seconds of version directories on their way, each as a difference to the one before:
//! `cargo run --release -p rollout-rounded --example deltas -- run/checkpoint-1 run/checkpoint-2 …`
//!
//! A line for each format and pair of versions. It has the seconds of a clock and behind them those of the cores, which
//! tell more on a machine that does other things as well.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Instant,
};

use rollout_rounded::{INDEX_FILE, Index, RoundedError, difference, round, unpack};
use shared::{WeightManifest, config::RolloutDtype};

const COLUMNS: &str = "| | whole, MB | difference, MB | of it embedding, MB | round, s | difference, s | unpack whole, \
    s | unpack difference, s |\n\
                       |---|---|---|---|---|---|---|---|";
const EMBEDDING: &str = "model.embed_tokens.weight";

fn main() -> Result<(), RoundedError> {
    let versions: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    println!("{COLUMNS}");
    for dtype in [RolloutDtype::Auto, RolloutDtype::Bf16x3, RolloutDtype::Bf16, RolloutDtype::Int8] {
        let place = env::temp_dir().join(format!("tandem-deltas-{}-{dtype}", std::process::id()));
        fs::create_dir_all(&place)?;
        let result = measure(&versions, dtype, &place);
        fs::remove_dir_all(&place)?;
        result?;
    }
    Ok(())
}

fn measure(versions: &[PathBuf], dtype: RolloutDtype, place: &Path) -> Result<(), RoundedError> {
    let [older, newer, change] = ["older", "newer", "change"].map(|name| place.join(name));
    let [base, whole, out] = ["base", "whole", "out"].map(|name| place.join(name));
    for (number, version) in versions.iter().enumerate() {
        let (all, rounding) = timed(|| round(version, dtype, &newer))?;
        let (_, unpacking) = timed(|| unpack(&newer, None, &whole))?;
        if number > 0 {
            let (changed, comparing) = timed(|| difference(&newer, &older, &change))?;
            let (_, applying) = timed(|| unpack(&change, Some(&base), &out))?;
            let bytes = [all.packed, changed.packed, bytes_of(EMBEDDING, &change)?];
            let bytes = bytes.map(|bytes| format!("{:.2}", bytes as f64 / 1e6)).join(" | ");
            let times = [rounding, comparing, unpacking, applying];
            let times = times.map(|[clock, cores]| format!("{clock:.2} ({cores:.2})")).join(" | ");
            println!("| {dtype}, {} | {bytes} | {times} |", version.display());
            [&older, &change, &base, &out].into_iter().try_for_each(fs::remove_dir_all)?;
        }
        fs::rename(&newer, &older)?;
        fs::rename(&whole, &base)?;
    }
    Ok(())
}

/// Bytes of a tensor in a packed directory.
fn bytes_of(name: &str, packed: &Path) -> Result<u64, RoundedError> {
    let manifest = WeightManifest::read_alone(packed)?;
    let index = Index::read(&packed.join(INDEX_FILE), &manifest)?;
    let of_name = manifest.tensors.iter().zip(&index.tensors).filter(|(entry, _)| entry.name == name);
    Ok(of_name.flat_map(|(_, tensor)| &tensor.blocks).flat_map(|block| &block.1).map(|&length| u64::from(length)).sum())
}

/// The result of `work`, with the seconds of a clock and of the cores.
fn timed<T>(work: impl FnOnce() -> Result<T, RoundedError>) -> Result<(T, [f64; 2]), RoundedError> {
    let (begun, used) = (Instant::now(), core_seconds());
    Ok((work()?, [begun.elapsed().as_secs_f64(), core_seconds() - used]))
}

fn core_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9
}
