//! `completions/step-N.jsonl`: what was sampled, what it earned and what it was taken for.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};
use shared::{FinishReason, RewardOutcome, atomic};

use crate::{ragged::Ragged, step::StepBatch};

/// One sampled completion.
#[derive(Debug, Serialize)]
struct Record<'a> {
    step: u64,
    prompt_id: u64,
    sample: u32,
    prompt: &'a str,
    completion: &'a str,
    rewards: Map<String, Value>,
    /// Why reward functions failed, where any did.
    #[serde(skip_serializing_if = "Map::is_empty")]
    reward_errors: Map<String, Value>,
    reward: Option<f64>,
    /// Mean over its tokens; null for a completion without tokens.
    advantage: Option<f64>,
    finish_reason: FinishReason,
    version: u64,
    tokens: usize,
}

/// Writes the completions of a step; `step` is the number of steps completed with it.
///
/// # Errors
/// Any error of the file system.
pub fn write(path: &Path, step: u64, batch: &StepBatch<'_>, advantages: &Ragged<f64>) -> std::io::Result<()> {
    let mut text = Vec::new();
    for (i, row) in batch.rows.iter().enumerate() {
        let outcomes = row.group.reward_names.iter().zip(&row.completion.rewards);
        let record = Record {
            step,
            prompt_id: row.group.prompt_id.0,
            sample: row.completion.sample,
            prompt: &row.group.prompt_text,
            completion: &row.completion.text,
            reward_errors: outcomes.clone().filter_map(failure).collect(),
            rewards: outcomes.map(|((name, _), outcome)| (name.clone(), outcome.score().into())).collect(),
            reward: batch.rewards.rewards[i],
            advantage: mean(&advantages[i]),
            finish_reason: row.completion.finish_reason,
            version: row.completion.versions.first().map_or(row.group.policy_version, |(_, version)| *version).0,
            tokens: row.completion.token_ids.len(),
        };
        serde_json::to_writer(&mut text, &record)?;
        text.push(b'\n');
    }
    atomic::write(path, &text)
}

fn failure(((name, _), outcome): (&(String, f64), &RewardOutcome)) -> Option<(String, Value)> {
    match outcome {
        RewardOutcome::Failed(reason) => Some((name.clone(), reason.clone().into())),
        _ => None,
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    // Equal advantages, the rule for most methods, are written to the last bit as they are.
    let first = *values.first()?;
    let equal = values.iter().all(|&value| value == first);
    Some(if equal { first } else { values.iter().sum::<f64>() / values.len() as f64 })
}
