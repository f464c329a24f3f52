//! Completions as JSONL rows.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, ensure};
use rollout_rewards::RewardFunction;
use serde_json::{Map, Value, json};
use shared::{RewardOutcome, TokenLogprob, atomic, config::RewardFailure};

use super::complete::{Completions, Sample};
use crate::data::{Dataset, PromptRow};

/// Names and weights of the reward functions.
pub struct Scoring {
    /// Names, in the order of the outcomes.
    pub names: Vec<String>,
    /// Weights, likewise.
    pub weights: Vec<f64>,
}

impl Scoring {
    /// Of these functions.
    pub fn new(functions: &[RewardFunction], weights: Vec<f64>) -> Self {
        Self { names: functions.iter().map(|f| f.name().to_owned()).collect(), weights }
    }

    /// What a completion earns in all; one on which a function failed earns nothing, as in training by default.
    pub fn reward(&self, outcomes: &[RewardOutcome]) -> Option<f64> {
        RewardFailure::Exclude.reward(outcomes, self.weights.iter().copied())
    }

    /// One line per function that failed somewhere: how often, and why the first time.
    pub fn failures(&self, completions: &Completions) -> Vec<String> {
        let of_function = |(index, name): (usize, &String)| {
            let mut reasons = completions.rows.iter().flatten().filter_map(|sample| match &sample.rewards[index] {
                RewardOutcome::Failed(reason) => Some(reason),
                _ => None,
            });
            let first = reasons.next()?;
            Some(format!("reward function `{name}` failed {} times, first: {first}", 1 + reasons.count()))
        };
        self.names.iter().enumerate().filter_map(of_function).collect()
    }
}

/// Refuses, before any work is done, an output that could not be written after it.
///
/// # Errors
/// The flag and the path, and what is wrong with it.
pub fn check_writable(flag: &str, path: &Path) -> anyhow::Result<()> {
    ensure!(!path.is_dir(), "{flag} {}: is a folder; name a file", path.display());
    if atomic::is_special(path) {
        return Ok(());
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(parent.is_dir(), "{flag} {}: no such folder: {}", path.display(), parent.display());
    let probe = parent.join(format!(".tmp-{}-probe", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&probe)
        .and_then(|_| fs::remove_file(&probe))
        .with_context(|| format!("{flag} {}: cannot be written", path.display()))
}

/// Refuses to write over what is read.
///
/// # Errors
/// When both paths lead to one file.
pub fn require_other(read_flag: &str, read: &Path, flag: &str, written: &Path) -> anyhow::Result<()> {
    let same = matches!((read.canonicalize(), written.canonicalize()), (Ok(a), Ok(b)) if a == b && b.is_file());
    ensure!(!same, "{flag} {}: is the file of {read_flag}; name another one", written.display());
    Ok(())
}

/// Writes one row per completion, ordered by prompt and sample; the file appears whole.
///
/// # Errors
/// Any error of the file system.
pub fn write(path: &Path, dataset: &Dataset, completions: &Completions, scoring: &Scoring) -> anyhow::Result<()> {
    atomic::write_with(path, |file| {
        for (prompt, samples) in dataset.rows().iter().zip(&completions.rows) {
            for (index, sample) in samples.iter().enumerate() {
                serde_json::to_writer(&mut *file, &row(prompt, index, sample, scoring)).map_err(io::Error::from)?;
                file.write_all(b"\n")?;
            }
        }
        Ok::<_, io::Error>(())
    })
    .context("--output")
}

/// One completion. `logprobs` are those of the full distribution at temperature 1; with truncated sampling there are
/// also those under the distribution that the tokens were drawn from, and the sizes of its support.
fn row(prompt: &PromptRow, index: usize, sample: &Sample, scoring: &Scoring) -> Value {
    let logprobs: Vec<f32> = sample.logprobs.iter().map(|l| l.logprob).collect();
    let mut row = json!({
        "prompt_id": prompt.prompt_id,
        "sample": index,
        "prompt": prompt.prompt_text,
        "prompt_ids": prompt.prompt_ids.as_ref(),
        "token_ids": sample.token_ids,
        "text": sample.text,
        "finish_reason": sample.finish_reason.as_str(),
        "logprobs": logprobs,
    });
    if sample.logprobs.iter().any(|l| l.kept_count > 0) {
        row["sampling_logprobs"] = sample.logprobs.iter().map(TokenLogprob::sampling_logprob).collect();
        row["kept_counts"] = sample.logprobs.iter().map(|l| l.kept_count).collect();
    }
    if scoring.names.is_empty() {
        return row;
    }
    let named = scoring.names.iter().zip(&sample.rewards);
    row["reward"] = scoring.reward(&sample.rewards).into();
    row["rewards"] =
        named.clone().map(|(name, outcome)| (name.clone(), outcome.score().into())).collect::<Map<_, Value>>().into();
    let steps: Map<String, Value> = named
        .clone()
        .filter_map(|(name, outcome)| match outcome {
            RewardOutcome::Steps(steps) => {
                Some((name.clone(), steps.iter().map(|s| json!([s.end, s.score])).collect::<Value>()))
            }
            _ => None,
        })
        .collect();
    if !steps.is_empty() {
        row["reward_steps"] = steps.into();
    }
    let errors: Map<String, Value> = named
        .filter_map(|(name, outcome)| match outcome {
            RewardOutcome::Failed(reason) => Some((name.clone(), reason.clone().into())),
            _ => None,
        })
        .collect();
    if !errors.is_empty() {
        row["reward_errors"] = errors.into();
    }
    row
}
