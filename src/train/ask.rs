//! Asks the sampler's program about a configuration before the run exists.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use shared::{
    config::{TrainConfig, layers},
    process::{logging::LOG_VARIABLE, pace::Pace},
};

use crate::{
    programs::{binaries, describe},
    terminal::{output, signals},
};

const POLL: Duration = Duration::from_millis(5);

/// Runs a command of `rollout` that reads a configuration from stdin and answers with JSON on stdout. Its messages on
/// stderr are shown to the user, and `purpose` if it takes long and does not say so itself.
///
/// # Errors
/// The command's own error, an answer that is none, or a signal.
pub fn ask<T: DeserializeOwned>(words: &[impl AsRef<OsStr>], config: &TrainConfig, purpose: Option<&str>) -> Result<T> {
    ask_program("rollout", words, config, purpose)
}

/// As [`ask`], for a command of another program.
///
/// # Errors
/// As [`ask`].
pub fn ask_program<T: DeserializeOwned>(
    program: &str,
    words: &[impl AsRef<OsStr>],
    config: &TrainConfig,
    purpose: Option<&str>,
) -> Result<T> {
    signals::check()?;
    let mut command = binaries::command(&binaries::find(program)?);
    command.args(words).env(LOG_VARIABLE, "error").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let (stdout, stderr) = (read(child.stdout.take()), relay(child.stderr.take()));
    // A program that has ended says itself why.
    let _ = stdin.write_all(layers::to_toml(config).as_bytes());
    drop(stdin);
    let status = wait(&mut child, purpose)?;
    let (stdout, error) = (joined(stdout), joined(stderr));
    let name = || format!("{program} {}", words[0].as_ref().display());
    if !status.success() {
        bail!(error.unwrap_or_else(|| format!("{}: {}", name(), describe(status))));
    }
    serde_json::from_str(stdout.trim()).with_context(|| format!("{} did not answer with JSON", name()))
}

fn joined<T>(reader: JoinHandle<T>) -> T {
    reader.join().expect("reading a pipe does not panic")
}

fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes that were read before an error count.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child, purpose: Option<&str>) -> Result<ExitStatus> {
    let mut pace = Pace::default();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child process")? {
            return Ok(status);
        }
        if let Err(interrupted) = signals::check() {
            // SIGTERM also ends the processes of its reward functions.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let _ = child.wait();
            return Err(interrupted.into());
        }
        if let Some(purpose) = purpose
            && pace.is_due()
        {
            output::tell(format_args!("{purpose}: {} s", pace.seconds()));
        }
        thread::sleep(POLL);
    }
}

/// Shows a program's messages to the user as they come, except for its error, which is returned.
fn relay(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Option<String>> {
    thread::spawn(move || {
        let mut error = None;
        let lines = pipe.map(|pipe| BufReader::new(pipe).split(b'\n').map_while(Result::ok));
        for line in lines.into_iter().flatten() {
            let line = String::from_utf8_lossy(&line);
            match line.strip_prefix("error: ") {
                Some(reason) => error = Some(reason.to_owned()),
                None => output::tell(line),
            }
        }
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_program_is_its_last_line_that_is_one() {
        let error = |said: &'static str| joined(relay(Some(said.as_bytes())));
        assert_eq!(error("warning: a\n  Traceback\nerror: `f` failed\n").as_deref(), Some("`f` failed"));
        assert_eq!(error("warning: a\n"), None);
    }
}
