//! What only the sampler can check before a run: tokenizer, chat template, rows, reward functions, weights.

use std::{io::Write, process::Stdio, thread};

use anyhow::{Context, Result, anyhow, bail};
use shared::config::{TrainConfig, layers};

use crate::binaries;

/// Asks the sampler what it will refuse of a resolved configuration.
///
/// # Errors
/// When the sampler cannot be asked.
pub fn problems(config: &TrainConfig) -> Result<Vec<anyhow::Error>> {
    let mut command = binaries::command(&binaries::find("rollout")?);
    command.arg("check").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start rollout")?;
    let (mut stdin, toml) = (child.stdin.take().expect("stdin is a pipe"), layers::to_toml(config));
    // From a thread of its own, as the child may write before it has read. One that ends before says so by its status.
    let writer = thread::spawn(move || drop(stdin.write_all(toml.as_bytes())));
    let output = child.wait_with_output().context("cannot wait for rollout")?;
    writer.join().expect("writing to a pipe does not panic");
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        bail!("rollout check ended with {}: {last}", output.status);
    }
    let found: Vec<String> =
        serde_json::from_slice(&output.stdout).context("rollout check did not answer with a list")?;
    Ok(found.into_iter().map(|problem| anyhow!(problem)).collect())
}
