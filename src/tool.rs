//! Runs one of the other programs to its end.

use std::{fs, fs::File, io::Read, path::Path, process::Stdio, thread, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    binaries, signals,
    supervise::{Process, describe},
};

/// How long a program may take to follow SIGTERM before it is killed.
const AFTER_TERM: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// Runs `name` with the given words and returns what it wrote on stdout; its log goes to a file.
///
/// # Errors
/// When the program fails, with its own error line, or the user asks for the end, which ends the program too.
pub fn run(name: &str, args: &[&str], log: &Path) -> Result<String> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    signals::check()?;
    let mut command = binaries::command(&binaries::find(name)?);
    command.args(args).stdout(Stdio::piped()).stderr(file);
    let mut process = Process::spawn(command, log)?;
    let mut pipe = process.stdout().expect("stdout is a pipe");
    let stdout = thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = loop {
        if let Err(interrupted) = signals::check() {
            process.end_within(Duration::ZERO, AFTER_TERM)?;
            return Err(interrupted.into());
        }
        match process.poll()? {
            Some(status) => break status,
            None => thread::sleep(POLL),
        }
    };
    if !status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        let reason = text.lines().rev().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned);
        let reason = reason.unwrap_or_else(|| describe(status));
        bail!("{name} {}: {reason} (log: {})", verb(args), log.display());
    }
    let bytes = stdout.join().expect("reading a pipe does not panic");
    let bytes = bytes.with_context(|| format!("the output of {name} cannot be read"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// As [`run`], for programs whose last line is a JSON document.
///
/// # Errors
/// When the program fails or ends with anything else.
pub fn answer(name: &str, args: &[&str], log: &Path) -> Result<Value> {
    let text = run(name, args, log)?;
    let last = text.trim_end().lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .with_context(|| format!("{name} {} did not end with JSON, but with `{last}`", verb(args)))
}

fn verb<'a>(args: &[&'a str]) -> &'a str {
    args.first().copied().unwrap_or_default()
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
