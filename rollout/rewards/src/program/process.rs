//! A process that is asked by lines.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    answer::{self, shortened},
    log,
    words::LastWords,
};

/// Longest answer, in bytes.
const MAX_LINE: u64 = 16 << 20;

/// Most answers that wait to be taken. A process that writes more of them has to wait.
const MAX_ANSWERS: usize = 4;

/// How long a keeper may take to end all that it keeps, before it is killed itself.
const TO_END: Duration = Duration::from_secs(6);

/// How long a process that has closed its output may take to end, so that its exit status can be told.
const LAST_MOMENT: Duration = Duration::from_millis(500);

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

/// The keepers of all processes that have not been dropped. They are children that have not been waited for.
#[derive(Debug)]
struct Keepers {
    all: Vec<Pid>,
    /// Whether no more may be started.
    closed: bool,
}

static KEEPERS: Mutex<Keepers> = Mutex::new(Keepers { all: Vec::new(), closed: false });

fn keepers() -> MutexGuard<'static, Keepers> {
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends every process and lets no other begin. The sampler calls this at its end and does not wait for calls that hang.
pub fn end_all() {
    let mut keepers = keepers();
    keepers.closed = true;
    keepers.all.iter().copied().for_each(ask_to_end);
}

/// Asks a keeper to end all that it keeps, and itself. The signal fails only where the keeper has ended.
fn ask_to_end(keeper: Pid) {
    let _ = kill_process(keeper, Signal::TERM);
}

/// A running process and its keeper (see [`crate::contain`]), which is the child of this process. Threads serve its
/// pipes, so that neither a process that does not read nor one that does not write can block the caller. Dropping it
/// ends it and all that it started, whether or not it has ended itself.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// The folder that it writes to.
    _scratch: TempDir,
    /// Why it was ended, if it was.
    verdict: Arc<OnceLock<String>>,
    requests: Sender<Vec<u8>>,
    answers: Receiver<Result<String, String>>,
    log: JoinHandle<()>,
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
    greeting: Option<String>,
}

impl Process {
    /// Starts a contained command with its folder. Messages call it `label`. With `greets`, its first line says that it
    /// is ready.
    pub fn start(
        (mut command, scratch): (Command, TempDir),
        label: &str,
        words: &LastWords,
        greets: bool,
    ) -> Result<Self, String> {
        let mut keepers = keepers();
        if keepers.closed {
            return Err(format!("`{label}` is not started: the sampler is about to end"));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own gets no signals from the terminal and can be killed as a whole.
        command.process_group(0);
        let mut child = command.spawn().map_err(|e| format!("`{label}` cannot be started: {e}"))?;
        keepers.all.push(Pid::from_child(&child));
        drop(keepers);
        let (requests, written) = unbounded();
        let (read, answers) = bounded(MAX_ANSWERS);
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        thread::spawn(move || write_requests(stdin, &written));
        thread::spawn(move || read_answers(stdout, &read));
        let (name, words, verdict) = (label.to_owned(), words.clone(), Arc::default());
        let told = Arc::clone(&verdict);
        let log = thread::spawn(move || log::follow(stderr, &name, &words, &told));
        Ok(Self {
            child,
            _scratch: scratch,
            verdict,
            requests,
            answers,
            log,
            label: label.to_owned(),
            begun: Instant::now(),
            asked: 0,
            numbers: greets,
            slowest: Duration::ZERO,
            says_more: false,
            late: 0,
            greeting: (!greets).then(String::new),
        })
    }

    /// Watches every later answer as closely as the first ones: the program has said more than it was asked.
    pub fn watch(&mut self) {
        self.says_more = true;
    }

    /// Whether it runs.
    pub fn is_ready(&self) -> bool {
        self.end().is_none()
    }

    /// A line since its last answer, which nobody asked for. Where answers have no numbers, it could be taken for the
    /// next one.
    pub fn unasked(&self) -> Option<AskError> {
        let asked = self.asked > 0 && !self.numbers && self.end().is_none();
        asked.then(|| self.surplus(Duration::ZERO)).flatten().map(AskError::Surplus)
    }

    /// Waits for what it says when it is ready. Other lines before that are passed over.
    pub fn greeting(&mut self, deadline: Option<Instant>) -> Result<String, AskError> {
        loop {
            if let Some(greeting) = &self.greeting {
                return Ok(greeting.clone());
            }
            let line = self.next_line(deadline)?;
            let said: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(reason) = said["error"].as_str() {
                let traceback = said["traceback"].as_str().map(str::to_owned);
                return Err(AskError::Refused { reason: reason.to_owned(), traceback });
            }
            self.greeting = said["ready"].as_str().map(str::to_owned);
        }
    }

    /// How it ended, if it has. This does not reap it, so that its group can still be killed.
    fn end(&self) -> Option<String> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let end = waitid(WaitId::Pid(Pid::from_child(&self.child)), look).ok()??;
        Some(match end.exit_status() {
            Some(status) => format!("exit status: {status}"),
            None => format!("signal: {}", end.terminating_signal()?),
        })
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
        if self.requests.send(request(self.asked).into_bytes()).is_err() {
            return Err(self.ended());
        }
        loop {
            let line = self.next_line(deadline)?;
            match answer::number(&line) {
                Some(number) if number == self.asked => {
                    self.numbers = true;
                    return Ok(line);
                }
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
        let line = self.answers.recv_timeout(patience).ok()?;
        Some(shortened(line.unwrap_or_else(|reason| reason).trim()))
    }

    /// As [`Process::ask`], and closes the input after the line.
    pub fn ask_last(mut self, request: &str, deadline: Option<Instant>) -> Result<String, AskError> {
        let (last, _) = bounded(0);
        let requests = std::mem::replace(&mut self.requests, last);
        if requests.send(request.as_bytes().to_vec()).is_err() {
            return Err(self.ended());
        }
        drop(requests);
        self.next_line(deadline)
    }

    fn next_line(&self, deadline: Option<Instant>) -> Result<String, AskError> {
        let answer = match deadline {
            Some(deadline) => self.answers.recv_deadline(deadline),
            None => self.answers.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(answer) => answer.map_err(AskError::Line),
            Err(RecvTimeoutError::Timeout) => Err(AskError::Late),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn ended(&self) -> AskError {
        // The output closes a moment before the process is gone and its last words are read.
        let patience = Instant::now() + LAST_MOMENT;
        let mut end = self.end();
        while (end.is_none() || !self.log.is_finished()) && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
            end = self.end();
        }
        let end = self.verdict.get().cloned().or(end);
        AskError::Ended(end.map(|end| format!(" ({end})")).unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(surplus) = self.unasked() {
            tracing::warn!("`{}` {surplus}", self.label);
        }
        let own = Pid::from_child(&self.child);
        ask_to_end(own);
        let patience = Instant::now() + TO_END;
        while self.end().is_none() && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        let mut keepers = keepers();
        // It fails only where no process of the group is left.
        let _ = kill_process_group(own, Signal::KILL);
        keepers.all.retain(|&keeper| keeper != own);
        drop(keepers);
        let _ = self.child.wait();
    }
}

fn write_requests(mut stdin: ChildStdin, requests: &Receiver<Vec<u8>>) {
    for request in requests {
        // A process that no longer reads is noticed by its missing answer.
        if stdin.write_all(&request).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read_answers(stdout: ChildStdout, answers: &Sender<Result<String, String>>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let answer = match read {
            Ok(0) | Err(_) => return,
            Ok(length) if length as u64 == MAX_LINE => Err(format!("the answer is longer than {MAX_LINE} bytes")),
            Ok(_) => String::from_utf8(line).map_err(|_| "the answer is no UTF-8".to_owned()),
        };
        let unusable = answer.is_err();
        if answers.send(answer).is_err() || unusable {
            return;
        }
    }
}
