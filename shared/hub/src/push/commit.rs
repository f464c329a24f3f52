//! The one commit that makes a push visible.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    PushError,
    place::{Place, head},
    plan::{Plan, Planned, hash},
    session::{ATTEMPTS, Session, Trial, pause_after},
    words::Reply,
};
use crate::{repository::Repository, verify::Hash};

const WHAT: &str = "making the commit";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    commit_oid: String,
}

/// Makes the commit and returns its id. It follows the commit that was found, or is not made: two pushes at once never
/// mix. So it can be tried again when an answer is lost; the branch shows whether an earlier attempt was made.
///
/// # Errors
/// A refusal, a branch that has moved, or no answer.
pub(super) fn make(session: &Session<'_>, place: &Place, plan: &Plan<'_>) -> Result<String, PushError> {
    let content = lines(session, place, plan)?;
    let path = session.api(&format!("/commit/{}", session.revision()));
    let headers = [("Content-Type", "application/x-ndjson")];
    let mut failed = PushError::Unknown { reason: String::new() };
    for attempt in 1..=ATTEMPTS {
        let mut at = session.endpoint();
        let reason = match session.post_once(WHAT, &path, &headers, &content) {
            Ok(reply) if reply.is_success() => {
                let Made { commit_oid } = session.parsed(WHAT, &reply)?;
                return Ok(commit_oid);
            }
            Ok(reply) if !reply.is_passing() && reply.status != 412 => {
                return Err(session.refused(WHAT, &session.endpoint(), reply));
            }
            Ok(Reply { status, words, .. }) => format!("status {status}: {words}"),
            Err(Trial::Final(error)) => return Err(error),
            Err(Trial::Passing { reason, elsewhere }) => {
                at = elsewhere.unwrap_or(at);
                reason
            }
        };
        session.pause(WHAT, pause_after(attempt))?;
        failed = match head(session) {
            Ok(now) if now.as_ref().map(|now| &now.commit) == place.head.as_ref() => {
                PushError::Cut { what: WHAT.to_owned(), place: at, reason, times: attempt }
            }
            Ok(Some(now)) if holds(session, plan, &now)? => return Ok(now.commit),
            Ok(_) => return Err(PushError::Moved { repo: session.order.repo.to_owned() }),
            Err(PushError::Interrupted) => return Err(PushError::Interrupted),
            Err(_) => PushError::Unknown { reason },
        };
    }
    Err(failed)
}

/// Whether a commit has all files of the push and none of those that it removes.
fn holds(session: &Session<'_>, plan: &Plan<'_>, there: &Repository) -> Result<bool, PushError> {
    for file in session.order.files {
        let Some(found) = there.files.iter().find(|found| found.name == file.name()) else { return Ok(false) };
        if !found.hash.same_as(&hash(file, matches!(found.hash, Hash::Sha256(_)))?) {
            return Ok(false);
        }
    }
    Ok(there.files.iter().all(|found| !plan.removed.contains(&found.name)))
}

/// The commit as the Hub reads it: a line of JSON for its head, and one for each change.
fn lines(session: &Session<'_>, place: &Place, plan: &Plan<'_>) -> Result<Vec<u8>, PushError> {
    let mut head = json!({ "summary": session.order.message, "description": "" });
    if let Some(parent) = &place.head {
        head["parentCommit"] = json!(parent);
    }
    let mut lines = vec![json!({ "key": "header", "value": head })];
    for planned in &plan.changed {
        lines.push(added(planned)?);
    }
    lines.extend(plan.removed.iter().map(|name| json!({ "key": "deletedFile", "value": { "path": name } })));
    Ok(lines.iter().flat_map(|line| (line.to_string() + "\n").into_bytes()).collect())
}

fn added(Planned { file, hash }: &Planned<'_>) -> Result<Value, PushError> {
    let (name, size) = (file.name(), file.size());
    Ok(match hash {
        Hash::Sha256(oid) => {
            json!({ "key": "lfsFile", "value": { "path": name, "algo": "sha256", "oid": oid, "size": size } })
        }
        Hash::Git(_) => {
            let bytes = file.bytes().map_err(|reason| PushError::Io { file: name.to_owned(), reason })?;
            let content = BASE64_STANDARD.encode(bytes);
            json!({ "key": "file", "value": { "path": name, "content": content, "encoding": "base64" } })
        }
    })
}
