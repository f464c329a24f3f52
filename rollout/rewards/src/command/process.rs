//! A process that is asked by lines.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Longest answer, in bytes.
const MAX_LINE: u64 = 64 << 20;

/// Longest line of the log, in bytes; a longer one is shown in pieces.
const MAX_LOG_LINE: u64 = 64 << 10;

/// How long a process that has closed its output may take to end, so that its exit status can be told.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// It ended, or closed its output, before it answered.
    #[error("the command ended without an answer{0}")]
    Ended(String),
    /// The deadline passed; the process was killed.
    #[error("no answer within the deadline; the command was killed and is started again for the next call")]
    Late,
    /// The answer is no line of text.
    #[error("{0}")]
    Line(String),
}

/// The groups of all processes that have not been dropped. Each is led by a child that has not been waited for, so its
/// number is that of no other group.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn groups() -> MutexGuard<'static, Vec<Pid>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills every process that is still there; for the end of the program, which waits for no call that hangs.
pub fn end_all() {
    groups().iter().copied().for_each(kill);
}

/// A running process. Its pipes are served by threads, so that neither a process that does not read nor one that does
/// not write can block the caller. Dropping it kills it with all that it started, whether or not it has ended itself.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    requests: Sender<Vec<u8>>,
    answers: Receiver<Result<String, String>>,
}

impl Process {
    /// Starts a command line with the shell.
    pub fn start(run: &str) -> Result<Self, String> {
        let mut groups = groups();
        let mut child = Command::new("/bin/sh")
            .args(["-c", run])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that the shell's children can be killed with it.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("`{run}` cannot be started: {e}"))?;
        groups.push(Pid::from_child(&child));
        drop(groups);
        let (requests, written) = unbounded();
        let (read, answers) = bounded(16);
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        thread::spawn(move || write_requests(stdin, &written));
        thread::spawn(move || read_answers(stdout, &read));
        let run = run.to_owned();
        thread::spawn(move || log_lines(stderr, &run));
        Ok(Self { child, requests, answers })
    }

    /// Whether it runs and has said nothing that it was not asked for: such a line would be taken for the next answer.
    pub fn is_ready(&self) -> bool {
        self.end().is_none() && self.answers.is_empty()
    }

    /// How it ended, if it has. It is not waited for by that, so that its group can still be killed.
    fn end(&self) -> Option<String> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let end = waitid(WaitId::Pid(Pid::from_child(&self.child)), look).ok()??;
        Some(match end.exit_status() {
            Some(status) => format!("exit status: {status}"),
            None => format!("signal: {}", end.terminating_signal()?),
        })
    }

    /// Writes a line and waits for the one that answers it.
    pub fn ask(&self, request: &str, deadline: Option<Instant>) -> Result<String, AskError> {
        if self.requests.send(request.as_bytes().to_vec()).is_err() {
            return Err(self.ended());
        }
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
        // The output closes a moment before the process is gone.
        let patience = Instant::now() + LAST_MOMENT;
        let mut end = self.end();
        while end.is_none() && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
            end = self.end();
        }
        AskError::Ended(end.map(|end| format!(" ({end})")).unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let (mut groups, own) = (groups(), Pid::from_child(&self.child));
        kill(own);
        groups.retain(|&group| group != own);
        drop(groups);
        let _ = self.child.wait();
    }
}

/// Kills a group of [`GROUPS`].
fn kill(group: Pid) {
    // It fails only where nobody is left to be killed.
    let _ = kill_process_group(group, Signal::KILL);
}

/// Brings to the log what a process writes to stderr, text or not.
fn log_lines(stderr: ChildStderr, run: &str) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    while matches!(reader.by_ref().take(MAX_LOG_LINE).read_until(b'\n', &mut line), Ok(1..)) {
        tracing::info!("`{run}`: {}", String::from_utf8_lossy(&line).trim_end());
        line.clear();
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
