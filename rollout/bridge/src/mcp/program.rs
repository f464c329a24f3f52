//! A server that is a program: messages are lines of its standard input and output.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, BufRead, Read, Write},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::unix::pipe,
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    asks::{self, is_asked},
    client::{Answer, CallError},
};
use crate::MAX_MESSAGE;

/// Longest piece of a line that is quoted.
const QUOTED: usize = 80;

/// Lines of standard error that are kept as the last words.
const KEPT: usize = 20;

/// Longest line of them, in bytes; a longer one is kept in pieces.
const MAX_LINE: u64 = 4 << 10;

/// How long a program that has closed its output may take to end, so that its exit status can be told.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// A program. Dropping it ends it. What it writes to standard error goes on to that of the bridge.
#[derive(Debug)]
pub struct Program {
    child: Mutex<Child>,
    messages: mpsc::UnboundedSender<Value>,
    waiting: Waiting,
    words: Words,
    /// Reads the words until there are no more.
    log: JoinHandle<()>,
}

/// The last words, the last line last.
type Words = Arc<Mutex<VecDeque<String>>>;

/// Who waits for an answer, or for the reason why it cannot be read, by the id of the request.
type Requests = HashMap<u64, oneshot::Sender<Result<Value, String>>>;

/// The open requests; none once the program has ended.
type Waiting = Arc<Mutex<Option<Requests>>>;

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    /// Starts a command line with `/bin/sh`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(line: &str) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (words, stderr) = (Words::default(), child.stderr.take().expect("it is piped"));
        let log = thread::spawn({
            let words = Arc::clone(&words);
            move || follow(stderr, &words)
        });
        let (stdin, stdout) = (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
        let (stdin, stdout) =
            (pipe::Sender::from_owned_fd(stdin.into())?, pipe::Receiver::from_owned_fd(stdout.into())?);
        let (messages, taken) = mpsc::unbounded_channel();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        tokio::spawn(write(stdin, taken));
        tokio::spawn(read(stdout, Arc::clone(&waiting), messages.clone()));
        Ok(Self { child: Mutex::new(child), messages, waiting, words, log })
    }

    /// Whether it has closed its output.
    pub fn has_ended(&self) -> bool {
        locked(&self.waiting).is_none()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the program ends before it has answered, or answers what is no JSON.
    pub async fn send(&self, message: &Value) -> Result<Answer, CallError> {
        match self.exchange(message).await {
            Some(answer) => answer.map_err(CallError::Gone),
            None => Err(CallError::Gone(self.end().await)),
        }
    }

    /// The answer to a message; none where none can come.
    async fn exchange(&self, message: &Value) -> Option<Result<Answer, String>> {
        let Some(id) = message["id"].as_u64() else {
            self.messages.send(message.clone()).ok()?;
            return Some(Ok(Answer::default()));
        };
        let (sender, answer) = oneshot::channel();
        locked(&self.waiting).as_mut()?.insert(id, sender);
        self.messages.send(message.clone()).ok()?;
        let message = answer.await.ok()?;
        Some(message.map(|message| Answer { message: Some(message), session: None }))
    }

    /// How it ended, and its last words in further lines.
    pub async fn end(&self) -> String {
        let mut status = None;
        // The output closes a moment before the program is gone and its last words are read.
        let _ = timeout(LAST_MOMENT, async {
            while status.is_none() || !self.log.is_finished() {
                sleep(Duration::from_millis(1)).await;
                status = self.status();
            }
        })
        .await;
        let end = match status {
            Some(status) => format!("the program of the server has ended ({status})"),
            None => "the program of the server answers no more".to_owned(),
        };
        let words = locked(&self.words);
        std::iter::once(&end).chain(&*words).map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn status(&self) -> Option<ExitStatus> {
        locked(&self.child).try_wait().ok().flatten()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let mut child = locked(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Passes on what a program writes to standard error, and keeps the last lines. A thread of its own does it: whoever
/// reads the errors of the bridge may be slow, and answers must not wait for that.
fn follow(stderr: ChildStderr, words: &Words) {
    let mut reader = io::BufReader::new(stderr);
    let mut line = Vec::new();
    while matches!(reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line), Ok(1..)) {
        let _ = io::stderr().write_all(&line);
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            let mut words = locked(words);
            if words.len() == KEPT {
                words.pop_front();
            }
            words.push_back(text.trim_end().to_owned());
        }
        line.clear();
    }
}

async fn write(mut stdin: pipe::Sender, mut messages: mpsc::UnboundedReceiver<Value>) {
    while let Some(message) = messages.recv().await {
        if stdin.write_all(format!("{message}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(stdout: pipe::Receiver, waiting: Waiting, answers: mpsc::UnboundedSender<Value>) {
    let mut lines = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = (&mut lines).take(MAX_MESSAGE as u64).read_until(b'\n', &mut line).await.unwrap_or_default();
        if length == 0 || length == MAX_MESSAGE {
            // Whoever waits hears that nothing comes.
            *locked(&waiting) = None;
            return;
        }
        let message = match serde_json::from_slice::<Value>(&line) {
            Ok(message) => message,
            Err(error) => {
                // Whoever waits for it would wait as long as it may.
                let line = String::from_utf8_lossy(&line);
                if let Some(waits) = number_in(&line).and_then(|id| locked(&waiting).as_mut()?.remove(&id)) {
                    let quoted: String = line.trim().chars().take(QUOTED).collect();
                    let _ = waits.send(Err(format!("the server's answer is no JSON ({error}): `{quoted}`")));
                }
                continue;
            }
        };
        if is_asked(&message) {
            if let Some(answer) = asks::answer(&message) {
                let _ = answers.send(answer);
            }
            continue;
        }
        let waits = message["id"].as_u64().and_then(|id| locked(&waiting).as_mut()?.remove(&id));
        if let Some(waits) = waits {
            let _ = waits.send(Ok(message));
        }
    }
}

/// The id in a line that is no JSON.
fn number_in(line: &str) -> Option<u64> {
    let (_, rest) = line.trim_start().strip_prefix('{')?.split_once("\"id\"")?;
    let digits = rest.trim_start().strip_prefix(':')?.trim_start();
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
