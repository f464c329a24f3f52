//! A process that reads lines and writes lines, below a keeper.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tempfile::TempDir;

use super::{log, words::LastWords};

/// Longest line that a process may write, in bytes.
const MAX_LINE: u64 = 16 << 20;

/// Most lines that wait to be taken. A process that writes more of them has to wait.
const MAX_ANSWERS: usize = 4;

/// How long a keeper may take to end all that it keeps, before it is killed itself.
const TO_END: Duration = Duration::from_secs(6);

/// How long a process that has closed its output may take to end, so that its exit status can be told.
const LAST_MOMENT: Duration = Duration::from_millis(500);

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

/// Ends a [`Kept`] process that another thread owns.
#[derive(Debug, Clone, Copy)]
pub struct Ender(Pid);

impl Ender {
    /// Asks the process to end, with all that it started. Nothing happens where it has been dropped.
    pub fn end(self) {
        // While the list has the keeper, nobody has waited for it, and no other process has its number.
        let keepers = keepers();
        if keepers.all.contains(&self.0) {
            ask_to_end(self.0);
        }
    }
}

/// A running process and its keeper (see [`crate::contain`]), which is the child of this process. Threads serve its
/// pipes, so that neither a process that does not read nor one that does not write can block the caller. Dropping it
/// ends it and all that it started, whether or not it has ended itself.
#[derive(Debug)]
pub struct Kept {
    child: Child,
    /// The folder that it writes to.
    _scratch: TempDir,
    /// Why it was ended, if it was.
    verdict: Arc<OnceLock<String>>,
    requests: Sender<Vec<u8>>,
    answers: Receiver<Result<String, String>>,
    log: JoinHandle<()>,
}

impl Kept {
    /// Starts a contained command with its folder ([`Containment::command`](super::Containment::command)). Messages
    /// call it `label`. What it writes to standard error goes to the log, and the last lines of that to `words`.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start((mut command, scratch): (Command, TempDir), label: &str, words: &LastWords) -> Result<Self, String> {
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
        Ok(Self { child, _scratch: scratch, verdict, requests, answers, log })
    }

    /// Takes the lines that it reads, each with its end. Sending never waits.
    #[must_use]
    pub fn requests(&self) -> &Sender<Vec<u8>> {
        &self.requests
    }

    /// The lines that it writes; an error for one that is too long, after which none follows. Bytes that are no text
    /// stand in a line as replacement characters: a line that matters is not lost for one that does not. The channel is
    /// closed when it has closed its output.
    #[must_use]
    pub fn answers(&self) -> &Receiver<Result<String, String>> {
        &self.answers
    }

    /// Closes its input after what has been sent and what the returned sender will send.
    pub fn last_requests(&mut self) -> Sender<Vec<u8>> {
        std::mem::replace(&mut self.requests, bounded(0).0)
    }

    /// What ends it from another thread.
    #[must_use]
    pub fn ender(&self) -> Ender {
        Ender(Pid::from_child(&self.child))
    }

    /// How it ended, if it has. This does not reap it, so that its group can still be killed.
    #[must_use]
    pub fn end(&self) -> Option<String> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let end = waitid(WaitId::Pid(Pid::from_child(&self.child)), look).ok()??;
        Some(match end.exit_status() {
            Some(status) => format!("exit status: {status}"),
            None => format!("signal: {}", end.terminating_signal()?),
        })
    }

    /// How a process that has closed its output ended, in parentheses for the end of a message; empty where it goes on.
    #[must_use]
    pub fn ended(&self) -> String {
        // The output closes a moment before the process is gone and its last words are read.
        let patience = Instant::now() + LAST_MOMENT;
        let mut end = self.end();
        while (end.is_none() || !self.log.is_finished()) && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
            end = self.end();
        }
        let end = self.verdict.get().cloned().or(end);
        end.map(|end| format!(" ({end})")).unwrap_or_default()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
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

fn read_answers(stdout: impl Read, answers: &Sender<Result<String, String>>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let answer = match read {
            Ok(0) | Err(_) => return,
            Ok(length) if length as u64 == MAX_LINE => Err(format!("the answer is longer than {MAX_LINE} bytes")),
            Ok(_) => Ok(String::from_utf8_lossy(&line).into_owned()),
        };
        let unusable = answer.is_err();
        if answers.send(answer).is_err() || unusable {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_no_text_costs_no_line() {
        let (read, answers) = bounded(MAX_ANSWERS);
        read_answers(&b"caf\xe9\n0.5\n"[..], &read);
        drop(read);
        let lines: Vec<_> = answers.iter().collect();
        assert_eq!(lines, [Ok("caf\u{fffd}\n".to_owned()), Ok("0.5\n".to_owned())]);
    }
}
