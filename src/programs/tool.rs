//! Runs one of the other programs to its end.

use std::{fmt::Display, fs, io::Read, path::Path, process::Stdio, thread, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use shared::{
    config::{self, TrainConfig, layers},
    process::pace::Pace,
};
use toml::Table;

use super::{Process, binaries, describe};
use crate::terminal::{output, signals};

/// How long a program may take to follow SIGTERM before it is killed.
const AFTER_TERM: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// A command line: a subcommand, and flags with their values.
#[derive(Debug)]
pub struct Words(pub Vec<String>);

impl Words {
    /// A subcommand without flags.
    pub fn of(subcommand: &str) -> Self {
        Self(vec![subcommand.to_owned()])
    }

    /// Adds a flag and its value, in one word: a value may begin with a dash.
    pub fn with(mut self, flag: &str, value: impl Display) -> Self {
        self.0.push(format!("--{flag}={value}"));
        self
    }

    /// Adds a flag with the value of a run's option: once for each item of a list, and not at all if the option is
    /// absent.
    pub fn with_option(self, config: &TrainConfig, flag: &str, key: &str) -> Self {
        let key = config::option(key).expect("the key of an option").key;
        // Read from the text, in which single precision has the digits that the user gave.
        let mut values: Table = layers::to_toml(config).parse().expect("a configuration is valid TOML");
        let values = match values.remove(key) {
            Some(toml::Value::Array(list)) => list,
            value => Vec::from_iter(value),
        };
        let flag = flag.replace('_', "-");
        values.iter().fold(self, |words, value| match value {
            toml::Value::String(text) => words.with(&flag, text),
            value => words.with(&flag, value),
        })
    }
}

/// Runs `name` with the given words and returns its stdout; its log goes to a file.
///
/// # Errors
/// When the program fails, with its own error line, or the user asks for the end, which also ends the program.
pub fn run(name: &str, words: &Words, log: &Path) -> Result<String> {
    let reported = run_reported(name, words, log, &format!("  {}", words.0[0]), AFTER_TERM);
    reported.with_context(|| format!("{name} {}", words.0[0]))
}

/// As [`run`], with words that stand before each report of the progress, and with the time that the program may take to
/// end once the user has asked for the end.
///
/// # Errors
/// As [`run`].
pub fn run_reported(name: &str, words: &Words, log: &Path, label: &str, after_term: Duration) -> Result<String> {
    let file = shared::files::atomic::append(log)?;
    file.set_len(0).with_context(|| log.display().to_string())?;
    signals::check()?;
    let mut command = binaries::command(&binaries::find(name)?);
    command.args(&words.0).stdout(Stdio::piped()).stderr(file);
    let mut process = Process::spawn(command, log)?;
    let mut pipe = process.stdout().expect("stdout is a pipe");
    let stdout = thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    });
    let (mut pace, mut said) = (Pace::default(), String::new());
    let status = loop {
        if pace.is_due() {
            let now = latest(log).filter(|now| *now != said);
            let seconds = || format!("{} s by now", pace.seconds());
            output::tell(format_args!("{label}: {}", now.clone().unwrap_or_else(seconds)));
            said = now.unwrap_or(said);
        }
        if let Err(interrupted) = signals::check() {
            process.end(after_term)?;
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
        bail!("{reason} (log: {})", log.display());
    }
    let bytes = stdout.join().expect("reading a pipe does not panic");
    let bytes = bytes.with_context(|| format!("the output of {name} cannot be read"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A program's last report of its progress: the end of the last line of its log that has a figure such as `3/700`, from
/// that figure on.
fn latest(log: &Path) -> Option<String> {
    let text = fs::read_to_string(log).ok()?;
    let is_figure = |word: &str| {
        let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        word.trim_end_matches([':', ',']).split_once('/').is_some_and(|(done, of)| number(done) && number(of))
    };
    let words = |line: &str| {
        let all: Vec<&str> = line.split_whitespace().collect();
        let at = all.iter().position(|word| is_figure(word))?;
        // `step 3/700` is kept with its name; the words before belong to the log.
        let from = at.saturating_sub(usize::from(at > 0 && all[at - 1] == "step"));
        Some(all[from..].join(" "))
    };
    text.lines().rev().find_map(words)
}

/// As [`run`], for programs whose last line is a JSON document.
///
/// # Errors
/// When the program fails or its output does not end with a JSON document.
pub fn answer(name: &str, words: &Words, log: &Path) -> Result<Value> {
    let text = run(name, words, log)?;
    let last = text.trim_end().lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .with_context(|| format!("{name} {} did not end with JSON, but with `{last}`", words.0[0]))
}

/// A number in such an answer.
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
    fn how_far_a_program_is_stands_in_the_last_line_with_figures() {
        let log = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(latest(log.path()), None);
        let lines = "2026-11-26T10:00:00Z  INFO learner::sft: 4000 rows\n2026-11-26T10:00:04Z  INFO \
            learner::commands::sft: step 120/700: loss 0.41, 4.0 s\n2026-11-26T10:00:05Z  WARN a/b is odd\n";
        fs::write(log.path(), lines).unwrap();
        assert_eq!(latest(log.path()).as_deref(), Some("step 120/700: loss 0.41, 4.0 s"));
        fs::write(log.path(), "120/300 completions, 12/30 prompts, after 8 s\n").unwrap();
        assert_eq!(latest(log.path()).as_deref(), Some("120/300 completions, 12/30 prompts, after 8 s"));
    }

    #[test]
    fn a_missing_number_is_named() {
        let answer = serde_json::json!({ "avg@1": 0.5, "seconds": null });
        assert_eq!(number(&answer, "avg@1").unwrap(), 0.5);
        assert!(number(&answer, "seconds").unwrap_err().to_string().contains("`seconds`"));
    }
}
