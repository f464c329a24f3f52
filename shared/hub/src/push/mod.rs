//! Files to the Hub, as one commit of a repository.
//!
//! Large files go to the store of large files first, where nobody sees them. One commit at the end makes everything
//! visible, so a push that is interrupted leaves nothing half. What the store has already is not sent again, and a
//! repository that has the same files gets no commit.

mod commit;
mod content;
mod error;
mod lfs;
mod place;
mod plan;
mod session;
#[cfg(test)]
mod tests;
mod words;

use shared::config::on_hub;

pub use content::PushFile;
pub use error::PushError;

use crate::Hub;
use session::Session;

/// The branch that a repository has without asking.
const MAIN: &str = "main";

/// Most bytes of a file that is searched for the token: more than any text of a model has.
const MOST_SEARCHED: u64 = 64 << 20;

/// What is to be pushed, and where.
#[derive(Debug)]
pub struct PushOrder<'a> {
    /// The repository, `owner/name`; it is made if it is missing.
    pub repo: &'a str,
    /// The branch; it is made if it is missing.
    pub revision: &'a str,
    /// Whether everybody may see it. A repository that is there keeps its visibility: a public one is refused without
    /// this.
    pub public: bool,
    /// The first line of the commit's message.
    pub message: &'a str,
    /// The files.
    pub files: &'a [PushFile],
    /// Whether a file of the repository would make another model of it if it stayed beside the files: such a file is
    /// removed by the same commit.
    pub replaces: fn(&str) -> bool,
}

/// What a push has done.
#[derive(Debug)]
pub struct Pushed {
    /// The new commit; none if the repository had everything.
    pub commit: Option<String>,
    /// The page of the branch.
    pub page: String,
    /// Bytes of large files that were sent.
    pub sent: u64,
    /// Large files that the store had already.
    pub present: Vec<String>,
    /// Files that the commit removed.
    pub removed: Vec<String>,
    /// Whether the repository was made.
    pub created: bool,
    /// Whether only those see it to whom the owner shows it.
    pub private: bool,
}

impl Hub {
    /// Whether this user may try to push at all.
    ///
    /// # Errors
    /// No network is allowed, or there is no token that could be sent.
    pub fn check_push(&self) -> Result<(), PushError> {
        let settings = &self.settings;
        if let Some(variable) = settings.offline {
            return Err(PushError::Offline { variable });
        }
        if let Some(reason) = &settings.unread {
            return Err(PushError::TokenFile { reason: reason.clone() });
        }
        match settings.token.as_deref().filter(|token| !token.is_empty()) {
            None => Err(PushError::NoToken { endpoint: settings.shown_endpoint() }),
            Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => Err(PushError::TokenForm),
            Some(_) => Ok(()),
        }
    }

    /// Pushes files.
    ///
    /// # Errors
    /// See [`PushError`].
    pub fn push(&self, order: &PushOrder<'_>) -> Result<Pushed, PushError> {
        check_names(order.repo, order.revision)?;
        self.check_push()?;
        self.search_for_token(order.files)?;
        let session = Session::new(self, order);
        session.validate_card()?;
        let place = place::prepare(&session)?;
        let plan = plan::of(&session, &place)?;
        let page = session.page();
        let (created, private) = (place.created, place.private);
        if plan.is_empty() {
            session.bar.finish_and_clear();
            return Ok(Pushed { commit: None, page, sent: 0, present: vec![], removed: vec![], created, private });
        }
        let uploaded = lfs::upload(&session, &plan)?;
        session.bar.finish_and_clear();
        let commit = commit::make(&session, &place, &plan)?;
        let lfs::Uploaded { sent, present } = uploaded;
        Ok(Pushed { commit: Some(commit), page, sent, present, removed: plan.removed, created, private })
    }

    /// A token that got into a file would be the reader's.
    fn search_for_token(&self, files: &[PushFile]) -> Result<(), PushError> {
        let Some(token) = &self.settings.token else { return Ok(()) };
        for file in files.iter().filter(|file| file.size() <= MOST_SEARCHED) {
            let bytes = file.bytes().map_err(|reason| PushError::Io { file: file.name().to_owned(), reason })?;
            if bytes.windows(token.len()).any(|window| window == token.as_bytes()) {
                return Err(PushError::TokenInFile { file: file.name().to_owned() });
            }
        }
        Ok(())
    }
}

/// Checks the names of a repository and of a branch, without asking.
///
/// # Errors
/// What the Hub would not accept.
pub fn check_names(repo: &str, revision: &str) -> Result<(), PushError> {
    let is_name = on_hub(&format!("hf://{repo}"), std::path::Path::new("")).is_some();
    let of_hub = |part: &str| !part.ends_with(['-', '.']) && !part.contains("--") && !part.contains("..");
    let fits = repo.len() <= 96 && repo.split('/').all(of_hub) && !repo.ends_with(".git");
    if !is_name || !fits {
        return Err(PushError::Name { repo: repo.to_owned() });
    }
    let is_branch = !revision.is_empty()
        && revision.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
        && revision.split('/').all(|part| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with('.'))
        && !revision.contains("..")
        && !revision.ends_with(".lock");
    let is_commit = revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_branch || is_commit {
        return Err(PushError::Revision { revision: revision.to_owned() });
    }
    Ok(())
}
