//! A process that is asked by lines.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use crossbeam::channel::RecvTimeoutError;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    answer::{self, shortened},
    kept::Kept,
    words::LastWords,
};

/// How long a process that does not number its answers is watched for a surplus line: before its first request, after
/// each of its first answers, and after every answer once the program has said too much.
const SETTLING: Duration = Duration::from_millis(250);
const FIRST_ANSWERS: u64 = 3;

/// After later requests, such a process is watched for this much longer than its slowest answer took.
const SETTLED: Duration = Duration::from_millis(3);

/// The factor by which each later answer shrinks the time of the slowest one.
const FORGETTING: f64 = 0.75;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// It cannot be started.
    #[error("{0}")]
    Start(String),
    /// It ended, or closed its output, before it answered.
    #[error("the process ended without an answer{0}")]
    Ended(String),
    /// The deadline passed; the process was killed.
    #[error("no answer within the deadline; the process was killed and is started again for the next call")]
    Late,
    /// The deadline passed, and the process goes on loading.
    #[error("no answer within the deadline: the process is still loading")]
    Loading,
    /// It answers only when its input ends.
    #[error(
        "no answer until the input ended: the program has to flush its standard output after every line, in Python \
         with print(…, flush=True)"
    )]
    Unflushed,
    /// It says that it cannot work.
    #[error("{reason}")]
    Refused {
        /// Why, in one line.
        reason: String,
        /// Where that arose.
        traceback: Option<String>,
    },
    /// It said something before it was asked.
    #[error(
        "wrote `{0}` to its standard output before it was asked; only answers may be written there, the rest to \
         standard error"
    )]
    Unasked(String),
    /// It said more than an answer.
    #[error(
        "wrote `{0}` behind its answer; one line answers one request, and an answer of the form {{\"id\": \
         …, \"scores\": […]}}, with the `id` of the request, is told from others; the scores before may have been late \
         answers"
    )]
    Surplus(String),
    /// The answer is no line of text.
    #[error("{0}")]
    Line(String),
}

/// A running process that answers one request at a time. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Process {
    kept: Kept,
    /// Its name in messages.
    label: String,
    begun: Instant,
    /// The number of the last request.
    asked: u64,
    /// Whether its answers have the numbers of their requests.
    numbers: bool,
    /// The time of its slowest answer without a number: see [`FORGETTING`].
    slowest: Duration,
    /// Whether the program said more than it was asked before.
    says_more: bool,
    /// Answers that were thrown away.
    late: u64,
    /// Its greeting; `None` until it is ready.
    greeting: Option<Greeting>,
}

/// What a process says when it is ready; nothing where it says nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct Greeting {
    /// The name of its function.
    pub name: String,
    /// Whether the function asks for `environments`.
    pub asks_for_environments: bool,
}

impl Process {
    /// Starts a contained command with its folder. Messages call it `label`. With `greets`, its first line says that it
    /// is ready.
    pub fn start(command: (Command, TempDir), label: &str, words: &LastWords, greets: bool) -> Result<Self, String> {
        Ok(Self {
            kept: Kept::start(command, label, words)?,
            label: label.to_owned(),
            begun: Instant::now(),
            asked: 0,
            numbers: greets,
            slowest: Duration::ZERO,
            says_more: false,
            late: 0,
            greeting: (!greets).then(Greeting::default),
        })
    }

    /// Watches every later answer as closely as the first ones: the program has said more than it was asked.
    pub fn watch(&mut self) {
        self.says_more = true;
    }

    /// Whether it runs.
    pub fn is_ready(&self) -> bool {
        self.kept.end().is_none()
    }

    /// A line since its last answer, which nobody asked for. Where answers have no numbers, it could be taken for the
    /// next one.
    pub fn unasked(&self) -> Option<AskError> {
        let asked = self.asked > 0 && !self.numbers && self.kept.end().is_none();
        asked.then(|| self.surplus(Duration::ZERO)).flatten().map(AskError::Surplus)
    }

    /// Waits for what it says when it is ready. Other lines before that are passed over.
    pub fn greeting(&mut self, deadline: Option<Instant>) -> Result<Greeting, AskError> {
        loop {
            if let Some(greeting) = &self.greeting {
                return Ok(greeting.clone());
            }
            let line = self.next_line(deadline)?;
            let said = answer::parse(&line).unwrap_or_default();
            if let Some(reason) = said["error"].as_str() {
                let traceback = said["traceback"].as_str().map(str::to_owned);
                return Err(AskError::Refused { reason: reason.to_owned(), traceback });
            }
            let asks_for_environments = said["environments"] == Value::Bool(true);
            let greeting = |name: &str| Greeting { name: name.to_owned(), asks_for_environments };
            self.greeting = said["ready"].as_str().map(greeting);
        }
    }

    /// Writes the next request and waits for the line that answers it. `request` makes the line for a number.
    pub fn ask(&mut self, request: impl Fn(u64) -> String, deadline: Option<Instant>) -> Result<String, AskError> {
        if self.asked == 0
            && !self.numbers
            && let Some(line) = self.surplus(SETTLING.saturating_sub(self.begun.elapsed()))
        {
            return Err(AskError::Unasked(line));
        }
        if let Some(surplus) = self.unasked() {
            return Err(surplus);
        }
        self.asked += 1;
        let begun = Instant::now();
        if self.kept.requests().send(request(self.asked).into_bytes()).is_err() {
            return Err(self.ended());
        }
        loop {
            let line = self.next_line(deadline)?;
            match answer::number(&line) {
                Some(number) if number == self.asked => {
                    self.numbers = true;
                    return Ok(line);
                }
                // Nothing else is asked meanwhile, and another answer may never come.
                None if self.numbers && answer::is_wrong(&line, self.asked) => return Ok(line),
                // A program that numbers one answer numbers all of them.
                number if number.is_some() || self.numbers => self.throw_away(number),
                _ => break self.settled(line, begun),
            }
        }
    }

    /// Counts an answer to no request or to an earlier one. The log tells of the first of these.
    fn throw_away(&mut self, number: Option<u64>) {
        self.late += 1;
        if self.late == 1 {
            let what =
                number.map_or("a line without a number".to_owned(), |number| format!("an answer to request {number}"));
            tracing::warn!(
                "`{}`: {what} came in the place of one to request {}, and is thrown away",
                self.label,
                self.asked
            );
        }
    }

    /// Returns an answer without a number, if no line follows it for a while: of two lines, nobody could tell which is
    /// the answer. If the first was a late line, the answer follows within the time that answers take. So a line that
    /// comes sooner than other answers did is held back until that time is over.
    fn settled(&mut self, line: String, begun: Instant) -> Result<String, AskError> {
        let taken = begun.elapsed();
        let rest = self.slowest.saturating_sub(taken) + SETTLED;
        let patience = if self.asked <= FIRST_ANSWERS || self.says_more { rest.max(SETTLING) } else { rest };
        // A program may load during its first request.
        if self.asked > 1 {
            self.slowest = taken.max(self.slowest.mul_f64(FORGETTING));
        }
        match self.surplus(patience) {
            None => Ok(line),
            // A program that starts slowly has the first request before it prints what it prints at its start.
            Some(_) if self.asked == 1 && serde_json::from_str::<Value>(&line).is_err() => {
                Err(AskError::Unasked(shortened(line.trim())))
            }
            Some(surplus) => Err(AskError::Surplus(surplus)),
        }
    }

    /// A line that it writes within `patience` without being asked, shortened for a message.
    fn surplus(&self, patience: Duration) -> Option<String> {
        let line = self.kept.answers().recv_timeout(patience).ok()?;
        Some(shortened(line.unwrap_or_else(|reason| reason).trim()))
    }

    /// As [`Process::ask`], and closes the input after the line.
    pub fn ask_last(mut self, request: &str, deadline: Option<Instant>) -> Result<String, AskError> {
        let requests = self.kept.last_requests();
        if requests.send(request.as_bytes().to_vec()).is_err() {
            return Err(self.ended());
        }
        drop(requests);
        self.next_line(deadline)
    }

    fn next_line(&self, deadline: Option<Instant>) -> Result<String, AskError> {
        let answer = match deadline {
            Some(deadline) => self.kept.answers().recv_deadline(deadline),
            None => self.kept.answers().recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(answer) => answer.map_err(AskError::Line),
            Err(RecvTimeoutError::Timeout) => Err(AskError::Late),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn ended(&self) -> AskError {
        AskError::Ended(self.kept.ended())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(surplus) = self.unasked() {
            tracing::warn!("`{}` {surplus}", self.label);
        }
    }
}
