//! `report_to`: sends a run's metrics to experiment trackers.
//!
//! The trackers' packages are in Python, and so is the program that talks to them: it runs beside the pair and follows
//! the files that the run writes anyway. The run does not wait for it, and goes on without it if it fails.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shared::{RunDir, config::TrainConfig};
use shared_bounds::OneLine;

use crate::terminal::output;

const FOLLOW: &str = include_str!("follow.py");
/// Name of its log.
const LOG: &str = "report_to";
/// How long a tracker may take to begin, and to end: it may talk to a server.
const PATIENCE: Duration = Duration::from_secs(120);

/// Looks for the packages of the trackers that the configuration names.
///
/// # Errors
/// A Python that cannot be started, and a package that it does not have.
pub fn check(config: &TrainConfig) -> Result<()> {
    let trackers: Vec<&str> = config.trackers().collect();
    if trackers.is_empty() {
        return Ok(());
    }
    let mut command = program(config);
    let looked = command.arg("--check").args(trackers).stdin(Stdio::null()).output();
    let looked = looked.with_context(|| no_python(config))?;
    if looked.status.success() { Ok(()) } else { Err(refusal(&String::from_utf8_lossy(&looked.stderr))) }
}

/// The program that speaks to trackers, without its arguments.
fn program(config: &TrainConfig) -> Command {
    let mut command = Command::new(&config.reward_python);
    command.args(["-c", FOLLOW]);
    command
}

fn no_python(config: &TrainConfig) -> String {
    format!("`report_to`: `{}` cannot be started; `reward_python` names the interpreter", config.reward_python)
}

/// The error of a program that has ended with these words.
fn refusal(words: &str) -> anyhow::Error {
    let reason = words.trim_end().lines().last().unwrap_or("it ended without a word");
    anyhow!("`report_to`: {}", OneLine(reason))
}

/// The program beside the run. It ends when its standard input closes, so also when the launcher is killed.
#[derive(Debug)]
pub struct Reporter {
    child: Child,
    stdin: Option<ChildStdin>,
    log: String,
}

impl Reporter {
    /// Starts the trackers that the configuration names, and waits until they have begun.
    ///
    /// # Errors
    /// A tracker that cannot begin: its package is missing, or it has no key.
    pub fn start(config: &TrainConfig, run: &RunDir) -> Result<Option<Self>> {
        let trackers: Vec<&str> = config.trackers().collect();
        if trackers.is_empty() {
            return Ok(None);
        }
        let path = run.log(LOG);
        let log = shared::files::atomic::append(&path)?;
        log.set_len(0).with_context(|| path.display().to_string())?;
        let name = config.run_name.clone().unwrap_or_else(|| crate::view::run::name_of(run));
        let mut command = program(config);
        command.arg(run.root()).arg(name).args(trackers);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        // Ctrl-C is for the launcher: the last figures still have to be sent then.
        command.process_group(0);
        let started = command.spawn();
        let mut child = started.with_context(|| no_python(config))?;
        let mut reporter = Self { stdin: child.stdin.take(), log: path.display().to_string(), child };
        reporter.tell(&options(run)?);
        reporter.wait_until_ready().map(Some)
    }

    /// Writes the first line. A program that has ended already says why in its log, which is read next.
    fn tell(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{line}");
        }
    }

    fn wait_until_ready(mut self) -> Result<Self> {
        let mut stdout = self.child.stdout.take().context("its output is a pipe")?;
        let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        if poll(&mut fds, Some(&patience)).map_err(io::Error::from)? == 0 {
            bail!("`report_to`: nothing was heard for {} s; {} may say why", PATIENCE.as_secs(), self.log);
        }
        let mut word = [0; 6];
        if stdout.read_exact(&mut word).is_err() {
            return Err(refusal(&fs::read_to_string(&self.log).unwrap_or_default()));
        }
        Ok(self)
    }

    /// Waits until everything has been sent.
    pub fn finish(mut self) {
        drop(self.stdin.take());
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(50)),
                Ok(Some(status)) if status.success() => return,
                ended => {
                    let how = ended
                        .map_or_else(|e| e.to_string(), |status| status.map(|s| s.to_string()).unwrap_or_default());
                    return output::tell(format_args!("warning: `report_to` failed ({how}); {} says why", self.log));
                }
            }
        }
        output::tell(format_args!(
            "warning: `report_to` is not done after {} s and was ended; see {}",
            PATIENCE.as_secs(),
            self.log
        ));
    }
}

/// The options of a run as JSON: not every Python reads TOML.
fn options(run: &RunDir) -> Result<String> {
    let path = run.config();
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let options: toml::Table = toml::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(serde_json::to_string(&options)?)
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
