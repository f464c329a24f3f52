//! What a Hub answers to those who download.

use std::{
    io::{self, Write},
    net::TcpStream,
    sync::MutexGuard,
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Commit, LARGE, State, git, head, hex, json_body, request::Request};

pub(super) fn answer(
    mut stream: TcpStream,
    state: MutexGuard<'_, State>,
    request: &Request,
    endpoint: &str,
) -> io::Result<()> {
    let faults = state.faults.clone();
    let path = request.path.split('?').next().unwrap_or_default().trim_start_matches('/').to_owned();
    if let Some(rest) = path.strip_prefix("api/") {
        let (repository, revision) = rest.split_once("/revision/").unwrap_or((rest, "main"));
        return match found(&state, repository, &revision.replace("%2F", "/")) {
            Ok(commit) => {
                let body = described(&state, repository, commit, faults.longer);
                json_body(&mut stream, "200 OK", &body)
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
        return body(stream, state, request, bytes, &[]);
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
    body(stream, state, request, bytes, &[("ETag", &tag), ("X-Repo-Commit", &id)])
}

pub(super) fn found<'a>(state: &'a State, repository: &str, revision: &str) -> Result<&'a Commit, &'static str> {
    let commits = state.repositories.get(repository).ok_or("RepoNotFound")?;
    let named = commits.iter().find(|commit| commit.id == revision);
    named.or_else(|| commits.iter().rfind(|commit| commit.branch == revision)).ok_or("RevisionNotFound")
}

fn described(state: &State, repository: &str, commit: &Commit, longer: u64) -> Value {
    let file = |(name, bytes): &(String, Vec<u8>)| {
        let mut file = json!({ "rfilename": name, "size": bytes.len() as u64 + longer, "blobId": git(bytes) });
        if bytes.len() >= LARGE {
            // The length of the file that stands for it in Git.
            let lfs = json!({ "sha256": hex(&Sha256::digest(bytes)), "size": bytes.len(), "pointerSize": 130 });
            file["lfs"] = lfs;
        }
        file
    };
    let private = state.private.iter().any(|known| known == repository);
    let id = repository.split_once('/').map_or(repository, |(_, name)| name);
    let siblings: Vec<Value> = commit.files.iter().map(file).collect();
    json!({ "id": id, "sha": commit.id, "private": private, "siblings": siblings })
}

/// Sends the requested part of a file, or what the faults make of it.
fn body(
    mut stream: TcpStream,
    mut state: MutexGuard<'_, State>,
    request: &Request,
    mut bytes: Vec<u8>,
    headers: &[(&str, &str)],
) -> io::Result<()> {
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
