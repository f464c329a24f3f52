//! What a Hub does with what is sent to it: repositories, branches, large files and commits.

use std::{
    io::{self, BufReader},
    net::TcpStream,
    sync::Mutex,
    thread,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::{
    Commit, MAIN, State, git, head, hex, json_body,
    reading::found,
    request::{Request, part},
    unknown_token,
};

/// Files with these ends are in the store of large files, as `.gitattributes` of a new repository says.
const LARGE: [&str; 3] = [".safetensors", ".bin", ".onnx"];

/// Faults of what is sent to a Hub.
#[derive(Debug, Clone, Default)]
pub struct WriteFaults {
    /// Refuses requests.
    pub refuse: Option<Refusal>,
    /// Closes the connection after so many bytes of a large file, so many times.
    pub cut: Option<(usize, u32)>,
    /// Takes nothing more after so many bytes of a large file.
    pub silent: Option<usize>,
    /// Takes large files in parts of so many bytes.
    pub parts: Option<usize>,
    /// Takes large files by the protocol Xet alone.
    pub xet: bool,
    /// Leaves a file out, as a `.gitignore` would.
    pub ignore: Option<&'static str>,
    /// Makes a commit and closes the connection instead of an answer, so many times.
    pub lost: u32,
    /// Makes public repositories whatever is asked for.
    pub public: bool,
    /// Lets this happen right before a commit is made: another one, of somebody else.
    pub overtaken: bool,
    /// Finds fault with the head of a card.
    pub card: Option<&'static str>,
}

/// A refusal of some requests.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// A part of the path of the requests.
    pub path: &'static str,
    /// The status.
    pub status: u16,
    /// The words.
    pub words: String,
    /// How often.
    pub times: u32,
    /// The header `Retry-After`.
    pub retry_after: Option<u32>,
}

/// An answer: a status, and JSON.
type Answer = (&'static str, Value);

const OK: &str = "200 OK";

fn no(status: &'static str, words: &str) -> Answer {
    (status, json!({ "error": words }))
}

pub(super) fn answer(
    mut stream: TcpStream,
    mut incoming: BufReader<TcpStream>,
    state: &Mutex<State>,
    request: &Request,
    endpoint: &str,
) -> io::Result<()> {
    let lock = || state.lock().expect("no thread panics with it");
    let is_upload = request.path.starts_with("/store/") && request.method == "PUT";
    if is_upload {
        let silent = lock().faults.writes.silent;
        let cut = match &mut lock().faults.writes.cut {
            Some((many, times)) if *times > 0 => {
                *times -= 1;
                Some(*many)
            }
            _ => None,
        };
        if let Some(many) = cut.or(silent) {
            let _ = part(&mut incoming, many);
            if silent.is_some() {
                thread::sleep(Duration::from_secs(30));
            }
            return Ok(());
        }
    }
    let Some(content) = request.content(&mut incoming) else { return Ok(()) };
    let mut state = lock();
    state.contents.push((request.path.clone(), content.clone()));
    if let Some(refusal) = &mut state.faults.writes.refuse
        && request.path.contains(refusal.path)
        && refusal.times > 0
    {
        refusal.times -= 1;
        let status = format!("{} No", refusal.status);
        let wait = refusal.retry_after.map(|seconds| seconds.to_string());
        let headers = [("X-Error-Message", refusal.words.as_str())];
        let wait = wait.iter().map(|wait| ("Retry-After", wait.as_str()));
        return head(&mut stream, &status, &headers.into_iter().chain(wait).collect::<Vec<_>>());
    }
    if request.path.starts_with("/store/") {
        return store(&mut stream, &mut state, request, content);
    }
    let known = |token: &str| state.faults.token.is_none_or(|known| known == token);
    if !request.token.as_deref().is_some_and(known) {
        return unknown_token(&mut stream);
    }
    let before = state.faults.writes.lost;
    let (status, body) = route(&mut state, &request.path, &content, endpoint);
    if state.faults.writes.lost < before {
        return Ok(());
    }
    json_body(&mut stream, status, &body)
}

/// The store of large files, which knows nothing of tokens.
fn store(stream: &mut TcpStream, state: &mut State, request: &Request, content: Vec<u8>) -> io::Result<()> {
    if !request.has_length() {
        return head(stream, "411 Length Required", &[]);
    }
    let path = request.path.trim_start_matches("/store/");
    let (oid, rest) = path.split_once('/').unwrap_or((path, ""));
    let is = |bytes: &[u8]| hex(&Sha256::digest(bytes)) == oid;
    let whole = match rest {
        "" => content,
        "complete" => {
            let json: Value = serde_json::from_slice(&content).unwrap_or_default();
            let mut whole = Vec::new();
            for named in json["parts"].as_array().into_iter().flatten() {
                let number = named["partNumber"].as_u64().unwrap_or_default() as usize;
                let part = state.parts.get(&(oid.to_owned(), number));
                match part.filter(|part| named["etag"] == json!(format!("\"{}\"", git(part)))) {
                    Some(part) => whole.extend(part),
                    None => return head(stream, "400 Bad Request", &[("X-Error-Message", "no such part")]),
                }
            }
            whole
        }
        number => {
            let tag = format!("\"{}\"", git(&content));
            state.parts.insert((oid.to_owned(), number.parse().unwrap_or_default()), content);
            return head(stream, OK, &[("ETag", &tag)]);
        }
    };
    if !is(&whole) {
        return head(stream, "400 Bad Request", &[("X-Error-Message", "the content has another hash")]);
    }
    state.store.insert(oid.to_owned(), whole);
    head(stream, OK, &[])
}

fn route(state: &mut State, path: &str, content: &[u8], endpoint: &str) -> Answer {
    let path = path.split('?').next().unwrap_or_default();
    let json: Value = serde_json::from_slice(content).unwrap_or_default();
    if path == "/api/repos/create" {
        return create(state, &json, endpoint);
    }
    if path == "/api/validate-yaml" {
        return match state.faults.writes.card {
            Some(fault) => ("400 Bad Request", json!({ "errors": [{ "message": fault }], "warnings": [] })),
            None => (OK, json!({ "errors": [], "warnings": [] })),
        };
    }
    if let Some(oid) = path.strip_prefix("/verify/") {
        let is_there = state.store.get(oid).is_some_and(|bytes| json["size"] == json!(bytes.len()));
        return if is_there { (OK, json!({})) } else { no("404 Not Found", "it is not there") };
    }
    if let Some(name) = path.strip_suffix(".git/info/lfs/objects/batch") {
        let repository = format!("models{name}");
        let known = state.repositories.contains_key(&repository);
        return if known { batch(state, &json, endpoint) } else { no("404 Not Found", "Repository not found") };
    }
    let Some((repository, action)) = path.strip_prefix("/api/").and_then(|rest| {
        let mut parts = rest.splitn(4, '/');
        let name = format!("{}/{}/{}", parts.next()?, parts.next()?, parts.next()?);
        Some((name, parts.next()?))
    }) else {
        return no("404 Not Found", "no such route");
    };
    let (action, revision) = action.split_once('/').unwrap_or((action, MAIN));
    let revision = revision.replace("%2F", "/");
    if !state.repositories.contains_key(&repository) {
        return no("404 Not Found", "Repository not found");
    }
    match action {
        "branch" => branch(state, &repository, &revision),
        "preupload" => preupload(state, &repository, &revision, &json),
        "commit" => commit(state, &repository, &revision, content, endpoint),
        _ => no("404 Not Found", "no such route"),
    }
}

fn create(state: &mut State, wish: &Value, endpoint: &str) -> Answer {
    let (owner, name) = (wish["organization"].as_str().unwrap_or("me"), wish["name"].as_str().unwrap_or_default());
    let repository = format!("models/{owner}/{name}");
    if state.repositories.contains_key(&repository) {
        let url = format!("{endpoint}/{owner}/{name}");
        return ("409 Conflict", json!({ "error": "You already created this model repo", "url": url }));
    }
    let first = vec![(".gitattributes".to_owned(), b"*.safetensors filter=lfs\n".to_vec())];
    let id = hex(&Sha1::digest(&repository));
    let commit = Commit { id, branch: MAIN.to_owned(), summary: String::new(), files: first };
    state.repositories.insert(repository.clone(), vec![commit]);
    if wish["visibility"] == "private" && !state.faults.writes.public {
        state.private.push(repository);
    }
    (OK, json!({ "url": format!("{endpoint}/{owner}/{name}"), "name": format!("{owner}/{name}") }))
}

fn branch(state: &mut State, repository: &str, name: &str) -> Answer {
    if found(state, repository, name).is_ok() {
        return no("409 Conflict", "Reference already exists");
    }
    let Ok(main) = found(state, repository, MAIN) else { return no("404 Not Found", "Revision not found") };
    let id = hex(&Sha1::digest(format!("{} {name}", main.id)));
    let commit = Commit { id, branch: name.to_owned(), summary: String::new(), files: main.files.clone() };
    state.repositories.entry(repository.to_owned()).or_default().push(commit);
    (OK, json!({}))
}

fn is_large(name: &str, size: u64) -> bool {
    LARGE.iter().any(|end| name.ends_with(end)) || size > 10_000_000
}

fn preupload(state: &State, repository: &str, revision: &str, json: &Value) -> Answer {
    let Ok(commit) = found(state, repository, revision) else { return no("404 Not Found", "Revision not found") };
    let mut files = Vec::new();
    for file in json["files"].as_array().into_iter().flatten() {
        let (Some(path), Some(size)) = (file["path"].as_str(), file["size"].as_u64()) else {
            return no("400 Bad Request", "a file has no path or no size");
        };
        let sample = file["sample"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
        if sample.is_none_or(|sample| sample.len() as u64 != size.min(512)) {
            return no("400 Bad Request", "the sample is not the beginning of the file");
        }
        let large = is_large(path, size);
        let there = commit.files.iter().find(|(name, _)| name == path).map(|(_, bytes)| bytes);
        let oid = there.map(|bytes| if large { hex(&Sha256::digest(bytes)) } else { git(bytes) });
        let ignored = state.faults.writes.ignore == Some(path);
        let mode = if large { "lfs" } else { "regular" };
        files.push(json!({ "path": path, "uploadMode": mode, "shouldIgnore": ignored, "oid": oid }));
    }
    (OK, json!({ "files": files }))
}

fn batch(state: &State, json: &Value, endpoint: &str) -> Answer {
    let transfers: Vec<&str> = json["transfers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let parts = state.faults.writes.parts;
    let transfer = match (state.faults.writes.xet, parts) {
        (true, _) => "xet",
        (false, Some(_)) if transfers.contains(&"multipart") => "multipart",
        (false, _) => "basic",
    };
    let object = |object: &Value| {
        let (oid, size) = (object["oid"].as_str().unwrap_or_default(), object["size"].as_u64().unwrap_or_default());
        if state.store.contains_key(oid) {
            return json!({ "oid": oid, "size": size });
        }
        let verify = json!({ "href": format!("{endpoint}/verify/{oid}") });
        let upload = match parts.filter(|_| transfer == "multipart") {
            None => json!({ "href": format!("{endpoint}/store/{oid}") }),
            Some(chunk) => {
                let mut header = json!({ "chunk_size": chunk.to_string() });
                for number in 1..=(size as usize).div_ceil(chunk) {
                    header[format!("{number:05}")] = json!(format!("{endpoint}/store/{oid}/{number}"));
                }
                json!({ "href": format!("{endpoint}/store/{oid}/complete"), "header": header })
            }
        };
        json!({ "oid": oid, "size": size, "actions": { "upload": upload, "verify": verify } })
    };
    let objects: Vec<Value> = json["objects"].as_array().into_iter().flatten().map(object).collect();
    (OK, json!({ "transfer": transfer, "objects": objects }))
}

/// All of a commit, or nothing.
fn commit(state: &mut State, repository: &str, revision: &str, content: &[u8], endpoint: &str) -> Answer {
    if std::mem::take(&mut state.faults.writes.overtaken) {
        let lines = json!({ "key": "header", "value": { "summary": "of somebody else" } });
        let _ = commit(state, repository, revision, lines.to_string().as_bytes(), endpoint);
    }
    let Ok(before) = found(state, repository, revision) else { return no("404 Not Found", "Revision not found") };
    let mut files = before.files.clone();
    let mut summary = None;
    for line in content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Ok(line) = serde_json::from_slice::<Value>(line) else { return no("400 Bad Request", "no JSON") };
        let value = &line["value"];
        let path = value["path"].as_str().unwrap_or_default();
        match line["key"].as_str().unwrap_or_default() {
            "header" => {
                if value["parentCommit"].as_str().is_some_and(|parent| parent != before.id) {
                    return no("412 Precondition Failed", "A commit has happened since. Please refresh and try again.");
                }
                summary = value["summary"].as_str().map(str::to_owned);
            }
            "file" => {
                let text = value["content"].as_str().unwrap_or_default();
                let Ok(bytes) = BASE64_STANDARD.decode(text) else { return no("400 Bad Request", "no base64") };
                put(&mut files, path, bytes);
            }
            "lfsFile" => {
                let stored = state.store.get(value["oid"].as_str().unwrap_or_default());
                match stored.filter(|bytes| value["size"] == json!(bytes.len()) && value["algo"] == "sha256") {
                    Some(bytes) => put(&mut files, path, bytes.clone()),
                    None => return no("400 Bad Request", "LFS pointer pointed to a file that does not exist"),
                }
            }
            "deletedFile" => {
                let many = files.len();
                files.retain(|(name, _)| name != path);
                if files.len() == many {
                    return no("404 Not Found", "A file with this name doesn't exist");
                }
            }
            other => return no("400 Bad Request", &format!("what is {other}?")),
        }
    }
    let Some(summary) = summary.filter(|summary| !summary.is_empty()) else {
        return no("400 Bad Request", "the commit has no summary");
    };
    let commits = state.repositories.entry(repository.to_owned()).or_default();
    let id = hex(&Sha1::digest(format!("{repository} {revision} {} {summary}", commits.len())));
    commits.push(Commit { id: id.clone(), branch: revision.to_owned(), summary, files });
    state.faults.writes.lost = state.faults.writes.lost.saturating_sub(1);
    (
        OK,
        json!({ "commitOid": id, "commitUrl": format!("{endpoint}/{repository}/commit/{id}"), "pullRequestUrl": null }),
    )
}

fn put(files: &mut Vec<(String, Vec<u8>)>, path: &str, bytes: Vec<u8>) {
    files.retain(|(name, _)| name != path);
    files.push((path.to_owned(), bytes));
}
