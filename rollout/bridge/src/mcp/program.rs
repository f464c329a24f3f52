//! A server that is a program: messages are lines of its standard input and output.

use std::{
    collections::HashMap,
    io,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::unix::pipe,
    sync::{mpsc, oneshot},
};

use super::client::{Answer, CallError};
use crate::MAX_MESSAGE;

/// Longest piece of a line that is quoted.
const QUOTED: usize = 80;

/// A program. Dropping it ends it. It writes its errors where the bridge does.
#[derive(Debug)]
pub struct Program {
    child: Child,
    messages: mpsc::UnboundedSender<Value>,
    waiting: Waiting,
}

/// Who waits for an answer, or for the reason why it cannot be read, by the id of the request.
type Requests = HashMap<u64, oneshot::Sender<Result<Value, String>>>;

/// The open requests; none once the program has ended.
type Waiting = Arc<Mutex<Option<Requests>>>;

fn locked(waiting: &Waiting) -> MutexGuard<'_, Option<Requests>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    /// Starts a command line with `/bin/sh`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(line: &str) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
        let (stdin, stdout) =
            (pipe::Sender::from_owned_fd(stdin.into())?, pipe::Receiver::from_owned_fd(stdout.into())?);
        let (messages, taken) = mpsc::unbounded_channel();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        tokio::spawn(write(stdin, taken));
        tokio::spawn(read(stdout, Arc::clone(&waiting), messages.clone()));
        Ok(Self { child, messages, waiting })
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
        let ended = || CallError::Gone("the program of the server has ended".to_owned());
        let Some(id) = message["id"].as_u64() else {
            self.messages.send(message.clone()).map_err(|_| ended())?;
            return Ok(Answer::default());
        };
        let (sender, answer) = oneshot::channel();
        locked(&self.waiting).as_mut().ok_or_else(ended)?.insert(id, sender);
        self.messages.send(message.clone()).map_err(|_| ended())?;
        let message = answer.await.map_err(|_| ended())?.map_err(CallError::Gone)?;
        Ok(Answer { message: Some(message), session: None })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        if let Some(method) = message["method"].as_str() {
            // The server asks: it gets a sign of life, and else hears that nothing more is known here.
            let answer = match (method, &message["id"]) {
                (_, Value::Null) => continue,
                ("ping", id) => json!({"jsonrpc": "2.0", "id": id, "result": {}}),
                (_, id) => {
                    let error = json!({"code": -32601, "message": "Method not found"});
                    json!({"jsonrpc": "2.0", "id": id, "error": error})
                }
            };
            let _ = answers.send(answer);
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
