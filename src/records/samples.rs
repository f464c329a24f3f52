//! The completions of a step, as the learner keeps them in `completions/step-N.jsonl`.

use std::{cmp::Ordering, collections::BTreeMap, io, path::Path};

use serde::Deserialize;
use shared::files::journal::{self, Entry};

/// Longest file of completions that is read.
const MOST_BYTES: u64 = 256 << 20;
/// Steps for which completions are waited for: the learner writes them during the next step.
pub const MOST_AWAITED: u64 = 4;

/// One line, as far as TensorBoard's events and the terminal need it.
#[derive(Debug, Deserialize)]
pub struct Sample {
    pub prompt: String,
    pub completion: String,
    /// The score of each reward function.
    pub rewards: BTreeMap<String, Option<f64>>,
    /// Weighted sum of the scores.
    pub reward: Option<f64>,
    pub tokens: f64,
}

impl Entry for Sample {
    fn step(&self) -> Option<u64> {
        Some(0)
    }
}

/// The completions of a file, none if it cannot be read; `None` while it is missing. Lines that are
/// no samples are left out.
pub fn read(path: &Path) -> Option<Vec<Sample>> {
    let bytes = match shared_bounds::read(path, MOST_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        bytes => bytes.unwrap_or_default(),
    };
    Some(journal::parse(&bytes).0)
}

/// Completions with a reward, the best first.
pub fn ranked(samples: &[Sample]) -> Vec<&Sample> {
    let mut ranked: Vec<&Sample> = samples.iter().filter(|sample| sample.reward.is_some()).collect();
    ranked.sort_by(|a, b| b.reward.partial_cmp(&a.reward).unwrap_or(Ordering::Equal));
    ranked
}
