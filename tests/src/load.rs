//! Many clients of an endpoint at once: for the test of `tandem serve` under load, and for its measurement by the
//! example `load` of `rollout-serve`.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use shared::generation::rng::Stream;

use crate::tiny_model::{CHARACTERS, write_tokenizer};

/// Longest time between two pieces of an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Errors that are kept; the others are counted.
const MOST_ERRORS: usize = 20;

/// What clients do: each asks for one completion after the other, as a stream.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Clients at once.
    pub clients: usize,
    /// Time after which no request is begun.
    pub time: Duration,
    /// Tokens of each prompt. No two prompts are the same.
    pub prompt_tokens: usize,
    /// Tokens of each completion.
    pub completion_tokens: usize,
    /// Adapters that the clients ask in turns, by the names of [`adapter_name`]; 0 asks the model that is served.
    pub adapters: usize,
    /// Time between two looks at the memory of the server.
    pub look: Duration,
}

/// The name of an adapter that clients ask.
#[must_use]
pub fn adapter_name(number: usize) -> String {
    format!("adapter-{number}")
}

/// A look at a server.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Time since the beginning.
    pub at: Duration,
    /// Bytes of its resident memory.
    pub resident: u64,
    /// Completions that are whole.
    pub completions: u64,
}

/// What has come of a load.
#[derive(Debug)]
pub struct Outcome {
    /// Until the last answer was whole.
    pub time: Duration,
    /// Completions of the right length.
    pub completions: u64,
    /// Tokens of these.
    pub tokens: u64,
    /// Times from a request to its first token, in order.
    pub first_token: Vec<Duration>,
    /// The first errors.
    pub errors: Vec<String>,
    /// All errors.
    pub failed: u64,
    /// The server's memory over time.
    pub looks: Vec<Look>,
}

impl Outcome {
    /// The time that a share of the first tokens took at most; none without any.
    #[must_use]
    pub fn first_token_at(&self, share: f64) -> Option<Duration> {
        let last = self.first_token.len().checked_sub(1)?;
        self.first_token.get((share * last as f64).round() as usize).copied()
    }
}

/// What all clients add to.
#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    completions: AtomicU64,
    failed: AtomicU64,
    errors: Mutex<Vec<String>>,
    first_token: Mutex<Vec<Duration>>,
}

impl Load {
    /// Asks the server with this process id at this port of the machine. `each` is told of every look.
    ///
    /// # Panics
    /// When the process is not there.
    #[must_use]
    pub fn run(&self, port: u16, server: u32, mut each: impl FnMut(&Look)) -> Outcome {
        let (counts, begun) = (Counts::default(), Instant::now());
        let mut looks = Vec::new();
        thread::scope(|scope| {
            let counts = &counts;
            let client = |number| scope.spawn(move || self.client(number, port, begun, counts));
            let clients: Vec<_> = (0..self.clients).map(client).collect();
            let mut next = begun + self.look;
            while clients.iter().any(|client| !client.is_finished()) {
                thread::sleep(Duration::from_millis(5));
                if Instant::now() >= next {
                    let completions = counts.completions.load(Relaxed);
                    looks.push(Look { at: begun.elapsed(), resident: resident(server), completions });
                    each(looks.last().expect("one was added"));
                    next += self.look;
                }
            }
        });
        let time = begun.elapsed();
        let completions = counts.completions.into_inner();
        let mut first_token = counts.first_token.into_inner().expect("no client panics with the lock");
        first_token.sort_unstable();
        let errors = counts.errors.into_inner().expect("no client panics with the lock");
        let failed = counts.failed.into_inner();
        let tokens = completions * self.completion_tokens as u64;
        Outcome { time, completions, tokens, first_token, errors, failed, looks }
    }

    /// One client, on one connection as long as that holds.
    fn client(&self, number: usize, port: u16, begun: Instant, counts: &Counts) {
        let mut connection = None;
        let model = number.checked_rem(self.adapters).map(adapter_name);
        while begun.elapsed() < self.time {
            let number = counts.begun.fetch_add(1, Relaxed);
            match self.ask(&mut connection, port, number, model.as_deref()) {
                Ok(first_token) => {
                    counts.completions.fetch_add(1, Relaxed);
                    counts.first_token.lock().expect("no client panics with the lock").push(first_token);
                }
                Err(error) => {
                    counts.failed.fetch_add(1, Relaxed);
                    let mut errors = counts.errors.lock().expect("no client panics with the lock");
                    if errors.len() < MOST_ERRORS {
                        errors.push(format!("request {number}: {error}"));
                    }
                    connection = None;
                    // A server that is gone refuses at once, and again.
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// A completion as a stream. Returns the time to its first token.
    fn ask(
        &self,
        connection: &mut Option<BufReader<TcpStream>>,
        port: u16,
        number: u64,
        model: Option<&str>,
    ) -> io::Result<Duration> {
        let mut stream = Stream::new(&[number]);
        let ids: Vec<u64> = (0..self.prompt_tokens).map(|_| 1 + stream.below(CHARACTERS as u64 - 1)).collect();
        let body = json!({ "model": model, "prompt": ids, "max_tokens": self.completion_tokens, "seed": number,
            "ignore_eos": true, "stream": true, "stream_options": { "include_usage": true },
            "return_token_ids": true });
        let body = body.to_string();
        let begun = Instant::now();
        let reader = match connection {
            Some(reader) => reader,
            none => none.insert(connect(port)?),
        };
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        reader.get_mut().write_all(request.as_bytes())?;
        let head = head_of(reader)?;
        if !head.starts_with("HTTP/1.1 200 ") || !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            return Err(wrong(format!("it is answered with {head}")));
        }
        let (mut first_token, mut tokens, mut usage, mut is_done) = (None, 0, Value::Null, false);
        let mut pieces = BufReader::new(Pieces { reader, left: 0, ended: false });
        let mut line = String::new();
        while pieces.read_line(&mut line)? > 0 {
            if let Some(event) = line.trim_end().strip_prefix("data: ") {
                is_done = event == "[DONE]";
                if event.contains("\"token_ids\":[") {
                    first_token.get_or_insert_with(|| begun.elapsed());
                    tokens += 1;
                } else if event.contains("\"error\"") {
                    return Err(wrong(event.to_owned()));
                } else if event.contains("\"completion_tokens\"") {
                    usage = serde_json::from_str(event).map_err(io::Error::from)?;
                }
            }
            line.clear();
        }
        let usage = &usage["usage"];
        let expected = [("prompt_tokens", self.prompt_tokens), ("completion_tokens", self.completion_tokens)];
        let is_whole = is_done && expected.iter().all(|(name, count)| usage[*name] == *count);
        match first_token.filter(|_| is_whole && tokens >= self.completion_tokens) {
            Some(first_token) => Ok(first_token),
            None => Err(wrong(format!("the answer is not whole: {tokens} tokens, done {is_done}, usage {usage}"))),
        }
    }
}

fn wrong(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn connect(port: u16) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// The head of an answer.
fn head_of(reader: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(wrong(format!("the connection ended after {head:?}")));
        }
    }
    Ok(head)
}

/// A body that comes in pieces, each behind its length.
struct Pieces<'a, R> {
    reader: &'a mut R,
    /// Bytes of the piece that were not read.
    left: usize,
    ended: bool,
}

impl<R: BufRead> Pieces<'_, R> {
    /// The length of the next piece, behind the end of the one before.
    fn next(&mut self) -> io::Result<usize> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        if line == "\r\n" {
            line.clear();
            self.reader.read_line(&mut line)?;
        }
        let length = usize::from_str_radix(line.trim_end(), 16);
        length.map_err(|_| wrong(format!("{line:?} is no length of a piece")))
    }
}

impl<R: BufRead> Read for Pieces<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            self.left = self.next()?;
            if self.left == 0 {
                self.ended = true;
                let mut line = String::new();
                self.reader.read_line(&mut line)?;
            }
        }
        if self.left == 0 {
            // The reader below would wait for what comes after.
            return Ok(0);
        }
        let most = self.left.min(buffer.len());
        let read = self.reader.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            return Err(wrong("the connection ended within a piece".to_owned()));
        }
        self.left -= read;
        Ok(read)
    }
}

/// Bytes of the resident memory of a process.
///
/// # Panics
/// When there is no such process.
#[must_use]
pub fn resident(process: u32) -> u64 {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_else(|| panic!("{path}: {status}"));
    let kib = line.trim().trim_end_matches(" kB").parse::<u64>();
    kib.unwrap_or_else(|error| panic!("{line}: {error}")) * 1024
}

/// The model, or a folder with its files and a tokenizer of letters, if it has none: the built-in models of
/// `cargo xtask bench` have none.
///
/// # Errors
/// When files cannot be read or written.
pub fn with_tokenizer(model: &Path) -> io::Result<Option<tempfile::TempDir>> {
    if model.join("tokenizer.json").exists() {
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    for entry in fs::read_dir(model)? {
        let entry = entry?;
        let (from, to) = (entry.path().canonicalize()?, folder.path().join(entry.file_name()));
        // A model may not have symbolic links to elsewhere.
        if from.is_file() && fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to)?;
        }
    }
    write_tokenizer(folder.path());
    Ok(Some(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails where more is read than there is.
    struct Nothing;

    impl Read for Nothing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("a connection that stays open would be waited for");
        }
    }

    #[test]
    fn what_comes_after_a_body_is_not_waited_for() {
        let mut bytes = BufReader::new((&b"1\r\n!\r\n0\r\n\r\n"[..]).chain(Nothing));
        let mut text = String::new();
        Pieces { reader: &mut bytes, left: 0, ended: false }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "!");
    }

    #[test]
    fn pieces_are_read_to_their_end_and_not_beyond() {
        let mut bytes = BufReader::new(&b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\nHTTP/1.1"[..]);
        let mut text = String::new();
        Pieces { reader: &mut bytes, left: 0, ended: false }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello!");
        text.clear();
        bytes.read_to_string(&mut text).unwrap();
        assert_eq!(text, "HTTP/1.1");
        let mut cut = BufReader::new(&b"5\r\nhel"[..]);
        assert!(Pieces { reader: &mut cut, left: 0, ended: false }.read_to_string(&mut String::new()).is_err());
    }

    #[test]
    fn a_share_of_first_tokens_is_found_in_order() {
        let first_token = (0..101).map(Duration::from_millis).collect();
        let (errors, looks, time) = (Vec::new(), Vec::new(), Duration::ZERO);
        let outcome = Outcome { time, completions: 0, tokens: 0, first_token, errors, failed: 0, looks };
        let at = [0.0, 0.5, 0.99, 1.0].map(|share| outcome.first_token_at(share).unwrap().as_millis());
        assert_eq!(at, [0, 50, 99, 100]);
    }
}
