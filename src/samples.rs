//! The completions of a step, as the learner keeps them in `completions/step-N.jsonl`.

use std::{cmp::Ordering, collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

/// Longest file of completions that is read.
const MOST_BYTES: u64 = 256 << 20;
/// Steps for which completions are waited for: they are written beside the next step.
pub const MOST_AWAITED: u64 = 4;

/// One line, as far as TensorBoard's events and the terminal need it.
#[derive(Debug, Deserialize)]
pub struct Sample {
    pub prompt: String,
    pub completion: String,
    /// What each reward function gave.
    pub rewards: BTreeMap<String, Option<f64>>,
    /// Weighted sum of these.
    pub reward: Option<f64>,
    pub tokens: f64,
}

/// The completions of a file, none of one that cannot be read; `None` while it is not there. Lines that are no samples are left
/// out.
pub fn read(path: &Path) -> Option<Vec<Sample>> {
    let what = fs::metadata(path).ok()?;
    // A pipe would hold the launcher up.
    let readable = what.is_file() && what.len() <= MOST_BYTES;
    let bytes = if readable { fs::read(path).unwrap_or_default() } else { Vec::new() };
    Some(bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// Those with a reward, the best first.
pub fn ranked(samples: &[Sample]) -> Vec<&Sample> {
    let mut ranked: Vec<&Sample> = samples.iter().filter(|sample| sample.reward.is_some()).collect();
    ranked.sort_by(|a, b| b.reward.partial_cmp(&a.reward).unwrap_or(Ordering::Equal));
    ranked
}
