//! Tells the page of changes, as server-sent events.

use std::{convert::Infallible, fs, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, stream};
use serde_json::json;
use shared::RunDir;

use super::server::Shared;

/// How often files are checked while a page is open. A check takes a few system calls for each run.
const EVERY: Duration = Duration::from_secs(1);

/// Files of a run that are checked.
const WATCHED: usize = 8;

/// The files that are checked, by the name of the part of the page.
fn watched(dir: &RunDir) -> [(&'static str, PathBuf); WATCHED] {
    [
        ("curves", dir.metrics()),
        ("curves", dir.eval()),
        ("notices", dir.notices()),
        ("comparisons", dir.comparisons()),
        ("workers", dir.workers()),
        ("steps", dir.completions()),
        ("state", dir.finished()),
        ("state", dir.ended()),
    ]
}

/// A file's state, to tell it from a later one.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(path: PathBuf) -> Stamp {
    fs::metadata(path).ok().map(|file| (file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

/// Checked on a thread apart from the server's own: a disk may not answer. None when the server ends.
async fn stamps(shared: &Shared) -> Vec<[Stamp; WATCHED]> {
    let runs = shared.runs();
    let look = move || runs.iter().map(|run| watched(&run.dir).map(|(_, path)| stamp(path))).collect();
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

/// A stream of `{"run": 0, "parts": ["curves", "steps"]}`. It ends when the page is closed.
pub async fn stream(State(shared): State<Arc<Shared>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let seen = stamps(&shared).await;
    let events = stream::unfold((shared, seen, Vec::new()), async |(shared, mut seen, mut ready)| {
        while ready.is_empty() {
            tokio::time::sleep(EVERY).await;
            let now = stamps(&shared).await;
            for (id, run) in shared.runs().iter().enumerate().take(now.len()) {
                let names = watched(&run.dir).map(|(name, _)| name);
                let differs = |at: &usize| seen.get(id).is_none_or(|before| before[*at] != now[id][*at]);
                let mut parts: Vec<_> = (0..names.len()).filter(differs).map(|at| names[at]).collect();
                parts.dedup();
                if !parts.is_empty() {
                    ready.push(json!({ "run": id, "parts": parts }));
                }
            }
            seen = now;
            ready.reverse();
        }
        let event = Event::default().data(ready.pop().expect("it is not empty").to_string());
        Some((Ok(event), (shared, seen, ready)))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
