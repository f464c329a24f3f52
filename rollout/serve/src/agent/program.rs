//! The program of an agent: it gets a row and a key, and says at its end how it went.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam::channel::{RecvTimeoutError, Sender};
use rollout_rewards::program::{Containment, Ender, Kept, LastWords};
use shared::config::RewardHost;

/// How often a program that has closed its output is asked whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// How an agent ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// By itself, with exit code 0, after this last line of output.
    Done(String),
    /// With this reward, a finite number.
    Rewarded(f64),
    /// In another way.
    Failed(String),
    /// It was ended, because its time was over.
    Late(String),
}

/// A group and the index of a sample in it.
pub type Place = (u64, u32);

/// What begins an agent for each sample.
pub trait Starter: Send {
    /// Begins one for a row, a JSON object, whose requests have this key. The outcome comes with `place`. Dropping what
    /// is returned ends the agent, unless it has ended, and its outcome still comes.
    ///
    /// # Errors
    /// Why it cannot begin.
    fn start(
        &self,
        key: String,
        row: Arc<str>,
        place: Place,
        tell: Sender<(Place, Outcome)>,
    ) -> io::Result<Box<dyn Send>>;
}

/// What is started for each sample.
pub struct Program {
    command: String,
    containment: Containment,
    dir: PathBuf,
    url: String,
    timeout: Duration,
}

/// An agent at work.
#[derive(Default)]
pub struct Running {
    ender: Arc<OnceLock<Ender>>,
    is_given_up: Arc<AtomicBool>,
}

impl Running {
    /// Ends it, unless it has ended. Its outcome still comes.
    pub fn give_up(&self) {
        if self.is_given_up.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(ender) = self.ender.get() {
            ender.end();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Program {
    /// A command line for the shell, with the permissions and limits of reward programs. It has the network in any
    /// case: the endpoint, at `url`, is reached by it.
    ///
    /// # Errors
    /// A folder of the containment that is not there.
    pub fn new(command: &str, host: &RewardHost, url: String, timeout: Duration) -> Result<Self, String> {
        let mut host = host.clone();
        host.bounds.network = true;
        let containment = Containment::of(&host)?;
        Ok(Self { command: command.to_owned(), containment, dir: host.dir, url, timeout })
    }

    fn work(&self, key: &str, row: &str, ender: &OnceLock<Ender>, is_given_up: &AtomicBool) -> Result<Outcome, String> {
        let deadline = Instant::now() + self.timeout;
        let (mut command, scratch) =
            self.containment.command("/bin/sh".as_ref(), &["-c".into(), self.command.clone().into()], &self.dir)?;
        command.env("OPENAI_BASE_URL", format!("{}/v1", self.url)).env("OPENAI_API_KEY", key);
        let words = LastWords::default();
        let mut kept = Kept::start((command, scratch), &self.command, &words)?;
        let _ = ender.set(kept.ender());
        if is_given_up.load(Ordering::SeqCst) {
            return Err("the sampler gave it up".into());
        }
        // A program that does not read its row has closed the pipe, which is its own affair.
        let _ = kept.last_requests().send(format!("{row}\n").into_bytes());
        let late = || {
            let seconds = self.timeout.as_secs_f64();
            Outcome::Late(format!("`{}` has not ended within {seconds} s (`agent_timeout`)", self.command))
        };
        let mut last = String::new();
        loop {
            match kept.answers().recv_deadline(deadline) {
                // A channel that is never empty does not look at the time.
                Ok(Ok(_)) if Instant::now() >= deadline => return Ok(late()),
                Ok(Ok(line)) if line.trim().is_empty() => {}
                Ok(Ok(line)) => last = line.trim().to_owned(),
                Ok(Err(reason)) => return Err(format!("`{}`: {reason}", self.command)),
                Err(RecvTimeoutError::Timeout) => return Ok(late()),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        while kept.end().is_none() {
            if Instant::now() >= deadline {
                return Ok(late());
            }
            thread::sleep(PAUSE);
        }
        let end = kept.ended();
        if end.contains("exit status: 0)") {
            return Ok(Outcome::Done(last));
        }
        let lines = words.lines();
        let said = lines.last().map(|line| format!(": {line}")).unwrap_or_default();
        let reason = format!("`{}` ended without success{end}{said}", self.command);
        Err(self.containment.explained(reason, &lines.join("\n")))
    }
}

impl Starter for Arc<Program> {
    /// Starts it on a thread of its own.
    fn start(
        &self,
        key: String,
        row: Arc<str>,
        place: Place,
        tell: Sender<(Place, Outcome)>,
    ) -> io::Result<Box<dyn Send>> {
        let running = Running::default();
        let (program, ender) = (Arc::clone(self), Arc::clone(&running.ender));
        let is_given_up = Arc::clone(&running.is_given_up);
        let work = move || {
            let outcome = program.work(&key, &row, &ender, &is_given_up).unwrap_or_else(Outcome::Failed);
            // There is nothing left to end, which would take the lock of all processes that start.
            is_given_up.store(true, Ordering::SeqCst);
            // Without a sampler nobody wants to know.
            let _ = tell.send((place, outcome));
        };
        thread::Builder::new().name("agent".into()).spawn(work)?;
        Ok(Box::new(running))
    }
}
