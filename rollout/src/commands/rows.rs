//! Completions as JSONL rows.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use shared::{Completion, RewardOutcome, RolloutGroup, TokenLogprob, atomic, config::RewardFailure};

/// One line per reward function that failed somewhere: how often, and why the first time.
#[must_use]
pub fn failures(groups: &[RolloutGroup]) -> Vec<String> {
    let names = groups.first().map(|group| group.reward_names.as_slice()).unwrap_or_default();
    let completions = || groups.iter().flat_map(|group| &group.completions);
    let of_function = |(index, (name, _)): (usize, &(String, f64))| {
        let mut reasons = completions().filter_map(|completion| match &completion.rewards[index] {
            RewardOutcome::Failed(reason) => Some(reason),
            _ => None,
        });
        let first = reasons.next()?;
        Some(format!("reward function `{name}` failed {} times, first: {first}", 1 + reasons.count()))
    };
    names.iter().enumerate().filter_map(of_function).collect()
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
    File::create(&probe)
        .and_then(|_| fs::remove_file(&probe))
        .with_context(|| format!("{flag} {}: cannot be written", path.display()))
}

/// As [`check_writable`], of `--output`; refuses also to write over what is read.
///
/// # Errors
/// As [`check_writable`], and when both paths lead to one file.
pub fn check_output(written: &Path, read_flag: &str, read: &Path) -> anyhow::Result<()> {
    check_writable("--output", written)?;
    let same = matches!((read.canonicalize(), written.canonicalize()), (Ok(a), Ok(b)) if a == b && b.is_file());
    ensure!(!same, "--output {}: is the file of {read_flag}; name another one", written.display());
    Ok(())
}

/// Writes one row per completion, ordered by prompt and sample; the file appears whole.
///
/// # Errors
/// Any error of the file system.
pub fn write(path: &Path, groups: &[RolloutGroup]) -> anyhow::Result<()> {
    atomic::write_output_with(path, |file| {
        for group in groups {
            for completion in &group.completions {
                serde_json::to_writer(&mut *file, &row(group, completion)).map_err(io::Error::from)?;
                file.write_all(b"\n")?;
            }
        }
        Ok::<_, io::Error>(())
    })
    .context("--output")
}

/// One completion. `logprobs` are those of the full distribution at temperature 1; with truncated sampling there are
/// also those under the distribution that the tokens were drawn from, and the sizes of its support.
fn row(group: &RolloutGroup, completion: &Completion) -> Value {
    let logprobs: Vec<f32> = completion.logprobs.iter().map(|l| l.logprob).collect();
    let mut row = json!({
        "prompt_id": group.prompt_id,
        "sample": completion.sample,
        "prompt": group.prompt_text,
        "prompt_ids": group.prompt_ids,
        "token_ids": completion.token_ids,
        "text": completion.text,
        "finish_reason": completion.finish_reason.as_str(),
        "logprobs": logprobs,
    });
    if completion.logprobs.iter().any(|l| l.kept_count > 0) {
        row["sampling_logprobs"] = completion.logprobs.iter().map(TokenLogprob::sampling_logprob).collect();
        row["kept_counts"] = completion.logprobs.iter().map(|l| l.kept_count).collect();
    }
    if group.reward_names.is_empty() {
        return row;
    }
    let weights = group.reward_names.iter().map(|(_, weight)| *weight);
    // One on which a function failed earns nothing, as in training by default.
    row["reward"] = RewardFailure::Exclude.reward(&completion.rewards, weights).into();
    let named = group.reward_names.iter().map(|(name, _)| name).zip(&completion.rewards);
    let mut rewards = [("rewards", Map::new()), ("reward_steps", Map::new()), ("reward_errors", Map::new())];
    let [(_, scores), (_, steps), (_, errors)] = &mut rewards;
    for (name, outcome) in named {
        scores.insert(name.clone(), outcome.score().into());
        match outcome {
            RewardOutcome::Steps(found) => {
                steps.insert(name.clone(), found.iter().map(|s| json!([s.end, s.score])).collect());
            }
            RewardOutcome::Failed(reason) => {
                errors.insert(name.clone(), reason.clone().into());
            }
            RewardOutcome::Score(_) | RewardOutcome::NotApplicable => {}
        }
    }
    for (key, by_function) in rewards.into_iter().filter(|(_, by_function)| !by_function.is_empty()) {
        row[key] = by_function.into();
    }
    row
}
