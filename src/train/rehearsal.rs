//! The reward functions on sample completions, before anything else is started.

use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use shared::{config::TrainConfig, config::layers, logging::LOG_VARIABLE};

use crate::{binaries, output, signals, supervise::describe};

const POLL: Duration = Duration::from_millis(5);

/// After this long, the user is told what is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// Has `rollout check-rewards` try the functions of a run: what is odd about them is told, and what cannot work is refused. An
/// entry that names only the file of a Python function gets the function's name, which metrics go by.
///
/// # Errors
/// A function that cannot work, a dataset or tokenizer that cannot be used, or a wish to end.
pub fn rehearse(config: &mut TrainConfig) -> Result<()> {
    let answer = ask(&layers::to_toml(config))?;
    let entries = answer.as_array().into_iter().flatten().filter_map(|function| function["entry"].as_str());
    config.reward_funcs = entries.map(str::to_owned).collect();
    Ok(())
}

fn ask(config: &str) -> Result<Value> {
    signals::check()?;
    let mut command = binaries::command(&binaries::find("rollout")?);
    command.args(["check-rewards", "--json", "/dev/stdin"]).env(LOG_VARIABLE, "error").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start rollout")?;
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    // One that has ended says itself why.
    let _ = stdin.write_all(config.as_bytes());
    drop(stdin);
    let status = wait(&mut child)?;
    let text = |reader: JoinHandle<String>| reader.join().expect("reading a pipe does not panic");
    let (stdout, stderr) = (text(stdout), text(stderr));
    let error = relay(&stderr);
    if !status.success() {
        bail!(error.unwrap_or_else(|| format!("rollout check-rewards: {}", describe(status))));
    }
    serde_json::from_str(stdout.trim()).context("rollout check-rewards did not answer with JSON")
}

fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read until an error stands.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    let begin = Instant::now();
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child process")? {
            return Ok(status);
        }
        if let Err(interrupted) = signals::check() {
            // It ends the functions' processes as well.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let _ = child.wait();
            return Err(interrupted.into());
        }
        if !told && begin.elapsed() > PATIENCE {
            output::tell("trying the reward functions on sample completions (`rehearse_rewards`)");
            told = true;
        }
        thread::sleep(POLL);
    }
}

/// Tells what a program said, but for its error, which is returned.
fn relay(stderr: &str) -> Option<String> {
    let mut error = None;
    for line in stderr.lines() {
        match line.strip_prefix("error: ") {
            Some(reason) => error = Some(reason.to_owned()),
            None => output::tell(line),
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_program_is_its_last_line_that_is_one() {
        assert_eq!(relay("warning: a\n  Traceback\nerror: `f` failed\n").as_deref(), Some("`f` failed"));
        assert_eq!(relay("warning: a\n"), None);
    }
}
