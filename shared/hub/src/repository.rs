//! A repository as the Hub describes it: its commit, and its files with sizes and hashes.

use std::{
    path::{Component, Path},
    time::Duration,
};

use hf_hub::{Repo, RepoType};
use serde::Deserialize;

use crate::{HubError, Settings, request::Client, verify::Hash};

/// How long the Hub may take to list a repository.
const ANSWER: Duration = Duration::from_secs(30);

/// A model or a dataset, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositoryKind {
    /// A model.
    Model,
    /// A dataset.
    Dataset,
}

impl RepositoryKind {
    /// As a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
        }
    }

    /// The option that chooses a revision.
    pub fn option(self) -> &'static str {
        match self {
            Self::Model => "model_revision",
            Self::Dataset => "dataset_revision",
        }
    }

    /// The repository at a revision.
    pub fn repo(self, name: &str, revision: &str) -> Repo {
        let kind = match self {
            Self::Model => RepoType::Model,
            Self::Dataset => RepoType::Dataset,
        };
        Repo::with_revision(name.to_owned(), kind, revision.to_owned())
    }
}

/// A repository at a commit.
#[derive(Debug)]
pub struct Repository {
    /// The commit.
    pub commit: String,
    /// Its files.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Debug, Clone)]
pub struct RemoteFile {
    /// Its path in the repository.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// The hash of its content.
    pub hash: Hash,
}

impl RemoteFile {
    /// Whether a folder of the cache has it. The check follows links, so a file whose content is gone counts as
    /// missing.
    pub fn is_in(&self, folder: &Path) -> bool {
        folder.join(&self.name).metadata().is_ok_and(|data| data.len() == self.size)
    }
}

/// Whether a text is a hash in hexadecimal digits; as a file name, such a text leads nowhere else.
pub fn is_hash(text: &str) -> bool {
    (40..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A repository as the Hub describes it.
#[derive(Deserialize)]
pub struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

impl Answer {
    /// Its commit and files; or what is wrong with the answer.
    pub fn repository(self) -> Result<Repository, String> {
        if !is_hash(&self.sha) {
            return Err(format!("its commit is `{}`", self.sha));
        }
        let file = |sibling: Sibling| {
            // Names of files become paths in the cache.
            let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
            if !Path::new(&sibling.rfilename).components().all(inside) {
                return Err(format!("a file is called `{}`", sibling.rfilename));
            }
            let hash = sibling.lfs.map_or(Hash::Git(sibling.blob_id), |lfs| Hash::Sha256(lfs.sha256));
            if !is_hash(hash.text()) {
                return Err(format!("the hash of {} is `{}`", sibling.rfilename, hash.text()));
            }
            Ok(RemoteFile { name: sibling.rfilename, size: sibling.size, hash })
        };
        let files = self.siblings.into_iter().map(file).collect::<Result<_, _>>()?;
        Ok(Repository { commit: self.sha, files })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: u64,
    blob_id: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

/// Asks the Hub for a repository.
///
/// # Errors
/// [`HubError::Unreachable`], or the Hub's refusal.
pub fn ask(
    client: &Client,
    settings: &Settings,
    kind: RepositoryKind,
    name: &str,
    revision: &str,
) -> Result<Repository, HubError> {
    let path = format!("/api/{}?blobs=true", kind.repo(name, revision).api_url());
    let unreachable = |reason: String| HubError::Unreachable {
        name: name.to_owned(),
        endpoint: settings.shown_endpoint(),
        reason,
        cache: settings.cache.clone(),
    };
    let bad = |reason: String| HubError::Answer { name: name.to_owned(), endpoint: settings.shown_endpoint(), reason };
    let mut response = match client.get(&path, &[], Some(ANSWER)) {
        Ok(response) => response,
        Err(error) if error.is_for_good() => return Err(bad(error.to_string())),
        Err(error) => return Err(unreachable(error.to_string())),
    };
    let header = |key: &str| {
        let value = response.headers().get(key).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let (status, code, reason) = (response.status().as_u16(), header("X-Error-Code"), header("X-Error-Message"));
    if status != 200 {
        return Err(refusal(settings, kind, name, revision, (status, &code, reason)));
    }
    let answer: Answer = response.body_mut().read_json().map_err(|error| bad(error.to_string()))?;
    answer.repository().map_err(bad)
}

/// The refusal of a repository whose owner asks users to accept terms.
pub fn gated(settings: &Settings, repo: &Repo) -> HubError {
    let url = repo.url();
    let name = url.strip_prefix("datasets/").unwrap_or(&url).to_owned();
    HubError::Gated { name, page: format!("{}/{url}", settings.shown_endpoint()) }
}

/// Why the Hub refuses, from the status and two headers of its answer.
fn refusal(
    settings: &Settings,
    kind: RepositoryKind,
    name: &str,
    revision: &str,
    (status, code, reason): (u16, &str, String),
) -> HubError {
    let (name, endpoint) = (name.to_owned(), settings.shown_endpoint());
    let to_whom = if settings.token.is_some() { "to the owner of this token" } else { "without a token (HF_TOKEN)" };
    match (status, code) {
        (_, "GatedRepo") | (403, "") => gated(settings, &kind.repo(&name, revision)),
        (404, "RevisionNotFound") => {
            HubError::NoRevision { name, revision: revision.to_owned(), option: kind.option() }
        }
        // The Hub also answers 401 for a missing repository if the user could not see it anyway.
        (404, _) | (401, "RepoNotFound") => HubError::NotFound { name, endpoint, kind: kind.word(), to_whom },
        (401, _) if settings.token.is_some() => {
            let reason = if reason.is_empty() { "status 401".to_owned() } else { reason };
            HubError::Token { name, endpoint, reason }
        }
        (401, _) => HubError::NotFound { name, endpoint, kind: kind.word(), to_whom },
        _ => HubError::Status { name, endpoint, status, reason },
    }
}
