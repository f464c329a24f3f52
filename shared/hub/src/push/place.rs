//! The repository and the branch: found, or made.

use serde::Deserialize;
use serde_json::json;

use super::{
    MAIN, PushError,
    session::{Session, Trial},
    words::Reply,
};
use crate::repository::{Answer, RemoteFile, Repository};

/// Where a push goes, as it is before.
#[derive(Debug)]
pub(super) struct Place {
    /// The newest commit of the branch; none if there is none at all.
    pub head: Option<String>,
    /// The files of that commit.
    pub files: Vec<RemoteFile>,
    /// Whether this push has made the repository.
    pub created: bool,
    /// Whether only those see it to whom its owner shows it.
    pub private: bool,
}

/// What the Hub says of a repository as a whole.
#[derive(Deserialize)]
struct About {
    private: Option<bool>,
}

/// Finds the repository and the branch, or makes them.
///
/// # Errors
/// A refusal; a repository that is public, though nobody said that it may be.
pub(super) fn prepare(session: &Session<'_>) -> Result<Place, PushError> {
    let order = session.order;
    let (created, about) = match look_up(session)? {
        Some(about) => (false, about),
        None => {
            let created = create(session)?;
            let about = look_up(session)?;
            let absent = || session.strange("making the repository", "it is not there afterwards".into());
            (created, about.ok_or_else(absent)?)
        }
    };
    let private = match about.private {
        Some(false) if !order.public => return Err(PushError::Public { page: session.page() }),
        None if !order.public => {
            return Err(PushError::Unsaid { endpoint: session.endpoint(), repo: order.repo.to_owned() });
        }
        private => private.unwrap_or(false),
    };
    let mut found = head(session)?;
    if found.is_none() && order.revision != MAIN {
        branch(session)?;
        found = head(session)?;
    }
    let (head, files) = found.map_or((None, Vec::new()), |Repository { commit, files }| (Some(commit), files));
    Ok(Place { head, files, created, private })
}

fn look_up(session: &Session<'_>) -> Result<Option<About>, PushError> {
    let what = "looking for the repository";
    let reply = session.get(what, &session.api(""))?;
    match (reply.status, reply.code.as_str()) {
        (200, _) => session.parsed(what, &reply).map(Some),
        // The Hub also answers 401 for a repository that is not there, if the user could not see it anyway.
        (404, _) | (401, "RepoNotFound") => Ok(None),
        _ => Err(session.refused(what, &session.endpoint(), reply)),
    }
}

/// Makes the repository; returns whether it was not there.
fn create(session: &Session<'_>) -> Result<bool, PushError> {
    let (what, (owner, name)) = ("making the repository", session.owner_and_name());
    let visibility = if session.order.public { "public" } else { "private" };
    let wish = json!({ "name": name, "organization": owner, "type": "model", "visibility": visibility });
    let headers = [("Content-Type", "application/json")];
    let reply = session.persistently(what, &session.endpoint(), &mut || {
        let reply = session.post_once(what, "/api/repos/create", &headers, wish.to_string().as_bytes())?;
        // The Hub makes one repository of a user at a time.
        match reply.status {
            409 if reply.words.contains("in progress") => Err(Trial::passing(reply.words)),
            _ => Ok(reply),
        }
    })?;
    match reply.status {
        // Somebody else was faster, or the answer to an earlier attempt was lost.
        409 => Ok(false),
        _ if reply.is_success() => Ok(true),
        _ => Err(session.refused(what, &session.endpoint(), reply)),
    }
}

/// The newest commit of the branch with its files; none if there is no such branch.
pub(super) fn head(session: &Session<'_>) -> Result<Option<Repository>, PushError> {
    let what = "looking at the branch";
    let path = session.api(&format!("/revision/{}?blobs=true", session.revision()));
    let reply: Reply = session.get(what, &path)?;
    match (reply.status, reply.code.as_str()) {
        (200, _) => {
            let answer: Answer = session.parsed(what, &reply)?;
            answer.repository().map(Some).map_err(|reason| session.strange(what, reason))
        }
        (404, "RevisionNotFound") => Ok(None),
        _ => Err(session.refused(what, &session.endpoint(), reply)),
    }
}

fn branch(session: &Session<'_>) -> Result<(), PushError> {
    let what = "making the branch";
    let reply = session.post_json(what, &session.api(&format!("/branch/{}", session.revision())), &json!({}))?;
    if reply.is_success() || reply.status == 409 {
        return Ok(());
    }
    Err(session.refused(what, &session.endpoint(), reply))
}
