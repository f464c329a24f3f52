//! A process that is asked by lines.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

/// Longest answer, in bytes.
const MAX_LINE: u64 = 64 << 20;

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

/// A running process. Its pipes are served by threads, so that neither a process that does not read nor one that does
/// not write can block the caller. Dropping it kills it with all that it started.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    requests: Sender<Vec<u8>>,
    answers: Receiver<Result<String, String>>,
}

impl Process {
    /// Starts a command line with the shell.
    pub fn start(run: &str) -> Result<Self, String> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", run])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that the shell's children can be killed with it.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("`{run}` cannot be started: {e}"))?;
        let (requests, written) = unbounded();
        let (read, answers) = bounded(16);
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        thread::spawn(move || write_requests(stdin, &written));
        thread::spawn(move || read_answers(stdout, &read));
        let run = run.to_owned();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                tracing::info!("`{run}`: {line}");
            }
        });
        Ok(Self { child, requests, answers })
    }

    /// Whether it runs and has said nothing that it was not asked for: such a line would be taken for the next answer.
    pub fn is_ready(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None)) && self.answers.is_empty()
    }

    /// Writes a line and waits for the one that answers it.
    pub fn ask(&mut self, request: &str, deadline: Option<Instant>) -> Result<String, AskError> {
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

    fn ended(&mut self) -> AskError {
        // The output closes a moment before the process is gone.
        let patience = Instant::now() + LAST_MOMENT;
        let mut status = None;
        while status.is_none() && Instant::now() < patience {
            status = self.child.try_wait().ok().flatten();
            thread::sleep(Duration::from_millis(1));
        }
        AskError::Ended(status.map(|status| format!(" ({status})")).unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = self.child.id() as libc::pid_t;
        if matches!(self.child.try_wait(), Ok(None)) {
            // SAFETY: the child has not been waited for, so the number is that of its group and of no other process.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
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
