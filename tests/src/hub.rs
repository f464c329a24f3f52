//! A server with as much of the Hugging Face Hub's protocol as downloads need, and with faults on demand.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Files of at least so many bytes are in large-file storage, from which they are fetched through a redirect.
const LARGE: usize = 1000;

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
    /// path; a request with the query `there` is answered as usual.
    pub redirect: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    /// Commits by repository (`models/owner/name`), the last one being `main`.
    repositories: HashMap<String, Vec<Commit>>,
    faults: Faults,
    requests: Vec<String>,
    /// The tokens of the requests, if any.
    tokens: Vec<Option<String>>,
}

#[derive(Debug)]
struct Commit {
    id: String,
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
        commits.push(Commit { id: id.clone(), files });
        id
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

/// The parts of a request that matter here.
struct Request {
    path: String,
    range: Option<usize>,
    single: bool,
    token: Option<String>,
}

fn request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut request = Request { path, range: None, single: false, token: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        let Some((key, value)) = line.split_once(": ") else { continue };
        match key.to_ascii_lowercase().as_str() {
            "range" => {
                let range = value.trim_start_matches("bytes=");
                request.single = range == "0-0";
                request.range = range.split('-').next().and_then(|from| from.parse().ok());
            }
            "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    Some(request)
}

fn answer(mut stream: TcpStream, state: &Mutex<State>, endpoint: &str) -> std::io::Result<()> {
    let Some(request) = request(&stream) else { return Ok(()) };
    let mut state = state.lock().expect("no thread panics with it");
    let faults = state.faults.clone();
    if faults.down {
        return Ok(());
    }
    let range = request.range.filter(|_| !request.single).map(|from| format!(" from {from}")).unwrap_or_default();
    state.requests.push(format!("{}{range}", request.path));
    state.tokens.push(request.token.clone());
    if let Some(place) = faults.redirect.filter(|_| !request.path.ends_with("?there")) {
        let place = place.replace("{path}", request.path.split('?').next().unwrap_or_default());
        return head(&mut stream, "302 Found", &[("Location", &place)]);
    }
    if faults.token.is_some_and(|token| request.token.as_deref() != Some(token)) {
        return head(
            &mut stream,
            "401 Unauthorized",
            &[("X-Error-Message", "Invalid credentials in Authorization header")],
        );
    }
    let path = request.path.split('?').next().unwrap_or_default().trim_start_matches('/').to_owned();
    if let Some(rest) = path.strip_prefix("api/") {
        let (repository, revision) = rest.split_once("/revision/").unwrap_or((rest, "main"));
        return match found(&state, repository, revision) {
            Ok(commit) => {
                let body = described(commit, faults.longer).to_string();
                head(
                    &mut stream,
                    "200 OK",
                    &[("Content-Type", "application/json"), ("Content-Length", &body.len().to_string())],
                )?;
                stream.write_all(body.as_bytes())
            }
            Err(code) => head(&mut stream, "404 Not Found", &[("X-Error-Code", code)]),
        };
    }
    if faults.gated {
        return head(&mut stream, "403 Forbidden", &[("X-Error-Code", "GatedRepo")]);
    }
    if let Some(hash) = path.strip_prefix("cdn/") {
        let files = state.repositories.values().flatten().flat_map(|commit| &commit.files);
        let bytes = files.map(|(_, bytes)| bytes).find(|bytes| hex(&Sha256::digest(bytes)) == hash).cloned();
        let bytes = bytes.expect("only what was redirected is asked for");
        return body(stream, state, &request, bytes, &[]);
    }
    let (repository, rest) = path.split_once("/resolve/").unwrap_or((&path, ""));
    let repository =
        if repository.starts_with("datasets/") { repository.to_owned() } else { format!("models/{repository}") };
    let (revision, file) = rest.split_once('/').unwrap_or((rest, ""));
    let Ok(commit) = found(&state, &repository, revision) else {
        return head(&mut stream, "404 Not Found", &[("X-Error-Code", "RepoNotFound")]);
    };
    let Some((_, bytes)) = commit.files.iter().find(|(name, _)| name == file) else {
        return head(&mut stream, "404 Not Found", &[("X-Error-Code", "EntryNotFound")]);
    };
    let (id, bytes) = (commit.id.clone(), bytes.clone());
    if bytes.len() >= LARGE {
        let hash = hex(&Sha256::digest(&bytes));
        let (place, tag) = (format!("{endpoint}/cdn/{hash}"), format!("\"{hash}\""));
        return head(
            &mut stream,
            "302 Found",
            &[("Location", &place), ("X-Linked-Etag", &tag), ("X-Repo-Commit", &id)],
        );
    }
    let tag = format!("\"{}\"", git(&bytes));
    body(stream, state, &request, bytes, &[("ETag", &tag), ("X-Repo-Commit", &id)])
}

fn found<'a>(state: &'a State, repository: &str, revision: &str) -> Result<&'a Commit, &'static str> {
    let commits = state.repositories.get(repository).ok_or("RepoNotFound")?;
    let named = commits.iter().find(|commit| commit.id == revision);
    named.or_else(|| commits.last().filter(|_| revision == "main")).ok_or("RevisionNotFound")
}

fn described(commit: &Commit, longer: u64) -> Value {
    let file = |(name, bytes): &(String, Vec<u8>)| {
        let mut file = json!({ "rfilename": name, "size": bytes.len() as u64 + longer, "blobId": git(bytes) });
        if bytes.len() >= LARGE {
            file["lfs"] = json!({ "sha256": hex(&Sha256::digest(bytes)), "size": bytes.len() });
        }
        file
    };
    json!({ "sha": commit.id, "siblings": commit.files.iter().map(file).collect::<Vec<_>>() })
}

fn head(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)]) -> std::io::Result<()> {
    let headers: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let length = if headers.contains("Content-Length") { "" } else { "Content-Length: 0\r\n" };
    write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n{headers}{length}\r\n")
}

/// Sends the requested part of a file, or what the faults make of it.
fn body(
    mut stream: TcpStream,
    mut state: MutexGuard<'_, State>,
    request: &Request,
    mut bytes: Vec<u8>,
    headers: &[(&str, &str)],
) -> std::io::Result<()> {
    let (total, from) = (bytes.len(), request.range.unwrap_or(0));
    if from >= total {
        return head(&mut stream, "416 Range Not Satisfiable", &[("Content-Range", &format!("bytes */{total}"))]);
    }
    if state.faults.wrong {
        bytes[total / 2] ^= 1;
    }
    let to = if request.single { 1 } else { total };
    let part = &bytes[from..to];
    let (range, length) = (format!("bytes {from}-{}/{total}", to - 1), part.len().to_string());
    let headers = [headers, &[("Content-Range", &range), ("Content-Length", &length)]].concat();
    head(&mut stream, "206 Partial Content", &headers)?;
    let silent = state.faults.silent.filter(|&many| many < part.len());
    let cut = match &mut state.faults.cut {
        Some((many, times)) if *many < part.len() && *times > 0 => {
            *times -= 1;
            Some(*many)
        }
        _ => None,
    };
    drop(state);
    stream.write_all(&part[..silent.or(cut).unwrap_or(part.len())])?;
    stream.flush()?;
    if silent.is_some() {
        thread::sleep(Duration::from_secs(30));
    }
    Ok(())
}
