//! Runs one of the other programs to its end and takes the JSON of its last line.

use std::{fs, fs::File, path::Path};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{binaries, supervise::describe};

/// Runs `name` with the given words; its log goes to a file.
///
/// # Errors
/// When the program fails, with its own error line, or says something else than JSON at its end.
pub fn run(name: &str, args: &[&str], log: &Path) -> Result<Value> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let mut command = binaries::command(&binaries::find(name)?);
    let output = command.args(args).stderr(file).output().with_context(|| format!("cannot start {name}"))?;
    let verb = args.first().copied().unwrap_or_default();
    if !output.status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        let reason = text.lines().rev().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned);
        let reason = reason.unwrap_or_else(|| describe(output.status));
        bail!("{name} {verb}: {reason} (log: {})", log.display());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.trim_end().lines().last().unwrap_or_default();
    serde_json::from_str(last).with_context(|| format!("{name} {verb} did not end with JSON, but with `{last}`"))
}

/// A number of such an answer.
///
/// # Errors
/// When it is missing.
pub fn number(answer: &Value, key: &str) -> Result<f64> {
    answer[key].as_f64().with_context(|| format!("`{key}` is missing in {answer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_number_is_named() {
        let answer = serde_json::json!({ "avg@1": 0.5, "seconds": null });
        assert_eq!(number(&answer, "avg@1").unwrap(), 0.5);
        assert!(number(&answer, "seconds").unwrap_err().to_string().contains("`seconds`"));
    }
}
