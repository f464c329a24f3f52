//! A server with as much of the Hugging Face Hub's protocol as downloads and uploads need, and with faults on demand.

mod reading;
mod request;
mod writing;

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use sha1::Sha1;
use sha2::Digest;

use request::Request;
pub use writing::{Refusal, WriteFaults};

/// Files of at least so many bytes are in large-file storage, from which they are fetched through a redirect.
const LARGE: usize = 1000;

/// The branch that every repository has.
const MAIN: &str = "main";

/// A Hub on this machine.
#[derive(Debug)]
pub struct Hub {
    /// The value for `HF_ENDPOINT`.
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

/// Faults of a Hub.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Closes the connection after so many bytes of a longer body, so many times.
    pub cut: Option<(usize, u32)>,
    /// Falls silent after so many bytes of a longer body.
    pub silent: Option<usize>,
    /// Sends other bytes than those of the hash.
    pub wrong: bool,
    /// Answers only requests with this token.
    pub token: Option<&'static str>,
    /// Wants terms to be accepted before it sends a file.
    pub gated: bool,
    /// Lists files as so many bytes longer than they are.
    pub longer: u64,
    /// Answers no request.
    pub down: bool,
    /// Answers every request, for a file or not, with a redirect to this address, in which `{path}` stands for the
    /// path; a request with the query `there`, or for the store of large files, is answered as usual.
    pub redirect: Option<String>,
    /// Faults of what is sent to it.
    pub writes: WriteFaults,
}

#[derive(Debug, Default)]
struct State {
    /// Commits by repository (`models/owner/name`), the last one being `main`.
    repositories: HashMap<String, Vec<Commit>>,
    faults: Faults,
    requests: Vec<String>,
    /// The tokens of the requests, if any.
    tokens: Vec<Option<String>>,
    /// What was sent, each with its path.
    contents: Vec<(String, Vec<u8>)>,
    /// Repositories that only those see who may.
    private: Vec<String>,
    /// The store of large files, by their SHA-256.
    store: HashMap<String, Vec<u8>>,
    /// Parts of large files that are not whole yet, by SHA-256 and number.
    parts: HashMap<(String, usize), Vec<u8>>,
}

#[derive(Debug)]
struct Commit {
    id: String,
    branch: String,
    summary: String,
    files: Vec<(String, Vec<u8>)>,
}

impl Hub {
    /// A Hub without repositories.
    ///
    /// # Panics
    /// When this machine has no loopback.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it starts a thread")]
    pub fn new() -> Self {
        Self::on("127.0.0.1")
    }

    /// A Hub at another address of this machine.
    ///
    /// # Panics
    /// When this machine does not have it.
    #[must_use]
    pub fn on(host: &str) -> Self {
        let listener = TcpListener::bind((host, 0)).expect("a port on loopback");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, own) = (Arc::clone(&state), endpoint.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, endpoint) = (Arc::clone(&shared), own.clone());
                // An error because the client went away does not matter.
                thread::spawn(move || drop(answer(stream, &state, &endpoint)));
            }
        });
        Self { endpoint, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with it")
    }

    /// Makes the files the newest commit of a repository (`models/owner/name`, `datasets/owner/name`), and returns the
    /// commit.
    #[must_use]
    pub fn commit<B: Into<Vec<u8>>>(&self, repository: &str, files: impl IntoIterator<Item = (String, B)>) -> String {
        let files: Vec<(String, Vec<u8>)> = files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
        let mut state = self.state();
        let commits = state.repositories.entry(repository.to_owned()).or_default();
        let id = hex(&Sha1::digest(format!("{repository} {} {:?}", commits.len(), files.len())));
        commits.push(Commit { id: id.clone(), branch: MAIN.to_owned(), summary: String::new(), files });
        id
    }

    /// The files of the newest commit of a branch; none if there is no such branch.
    #[must_use]
    pub fn files(&self, repository: &str, branch: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        let state = self.state();
        let commit = state.repositories.get(repository)?.iter().rfind(|commit| commit.branch == branch)?;
        Some(commit.files.iter().cloned().collect())
    }

    /// The first lines of the messages of all commits that were sent to a repository, in order; none if it is not
    /// there.
    #[must_use]
    pub fn summaries(&self, repository: &str) -> Option<Vec<String>> {
        let state = self.state();
        let commits = state.repositories.get(repository)?.iter().map(|commit| commit.summary.clone());
        Some(commits.filter(|summary| !summary.is_empty()).collect())
    }

    /// Whether a repository is private.
    #[must_use]
    pub fn is_private(&self, repository: &str) -> bool {
        self.state().private.iter().any(|known| known == repository)
    }

    /// Makes a repository private.
    pub fn hide(&self, repository: &str) {
        self.state().private.push(repository.to_owned());
    }

    /// How many large files the store has.
    #[must_use]
    pub fn stored(&self) -> usize {
        self.state().store.len()
    }

    /// What was sent since the last call, each with its path, in order.
    #[must_use]
    pub fn contents(&self) -> Vec<(String, Vec<u8>)> {
        std::mem::take(&mut self.state().contents)
    }

    /// Sets the faults; earlier ones end.
    pub fn faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The tokens of the requests since the last call, in order.
    #[must_use]
    pub fn tokens(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.state().tokens)
    }

    /// The requests since the last call: method, path and range, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn git(bytes: &[u8]) -> String {
    let head = format!("blob {}\0", bytes.len());
    hex(&Sha1::digest([head.as_bytes(), bytes].concat()))
}

fn answer(mut stream: TcpStream, state: &Mutex<State>, endpoint: &str) -> std::io::Result<()> {
    let Ok(incoming) = stream.try_clone() else { return Ok(()) };
    let mut incoming = BufReader::new(incoming);
    let Some(request) = request::head(&mut incoming) else { return Ok(()) };
    let faults = state.lock().expect("no thread panics with it").faults.clone();
    if faults.down {
        return Ok(());
    }
    note(state, &request);
    let stays = request.path.ends_with("?there") || request.path.starts_with("/store/");
    if let Some(place) = faults.redirect.filter(|_| !stays) {
        // A client that is still sending would not read the answer.
        let _ = request.content(&mut incoming);
        let place = place.replace("{path}", request.path.split('?').next().unwrap_or_default());
        let status = if request.method == "GET" { "302 Found" } else { "307 Temporary Redirect" };
        return head(&mut stream, status, &[("Location", &place)]);
    }
    if request.method != "GET" {
        return writing::answer(stream, incoming, state, &request, endpoint);
    }
    let state = state.lock().expect("no thread panics with it");
    if faults.token.is_some_and(|token| request.token.as_deref() != Some(token)) {
        return unknown_token(&mut stream);
    }
    reading::answer(stream, state, &request, endpoint)
}

/// Remembers a request.
fn note(state: &Mutex<State>, request: &Request) {
    let mut state = state.lock().expect("no thread panics with it");
    let range = request.range.filter(|_| !request.single).map(|from| format!(" from {from}")).unwrap_or_default();
    let method = if request.method == "GET" { String::new() } else { format!("{} ", request.method) };
    state.requests.push(format!("{method}{}{range}", request.path));
    state.tokens.push(request.token.clone());
}

fn unknown_token(stream: &mut TcpStream) -> std::io::Result<()> {
    head(stream, "401 Unauthorized", &[("X-Error-Message", "Invalid credentials in Authorization header")])
}

fn head(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)]) -> std::io::Result<()> {
    let headers: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let length = if headers.contains("Content-Length") { "" } else { "Content-Length: 0\r\n" };
    write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n{headers}{length}\r\n")
}

/// Answers with JSON.
fn json_body(stream: &mut TcpStream, status: &str, body: &serde_json::Value) -> std::io::Result<()> {
    let body = body.to_string();
    head(stream, status, &[("Content-Type", "application/json"), ("Content-Length", &body.len().to_string())])?;
    stream.write_all(body.as_bytes())
}
