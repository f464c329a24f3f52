//! Replaces names by folders in the cache.

use std::{
    io::ErrorKind::{IsADirectory, NotADirectory, NotFound},
    path::{Path, PathBuf},
};

use hf_hub::Cache;
use shared_data::{CARD, DataError, Selection};

use crate::{
    Hub, HubError,
    download::Download,
    repository::{self, RemoteFile, Repository, RepositoryKind},
    request::Client,
    wanted,
};

/// Most bytes of the file that names the commit of a revision, and of a dataset's card.
const MOST_REF: u64 = 1 << 12;
const MOST_CARD: u64 = 16 << 20;

/// Files of a repository at a commit, in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The folder.
    pub path: PathBuf,
    /// The commit.
    pub commit: String,
    /// Bytes that this call downloaded.
    pub downloaded: u64,
}

/// Chooses the files to fetch among all files.
type Choose<'a> = dyn Fn(&Fetch<'_>, &[String]) -> Result<Vec<String>, HubError> + 'a;

/// Says why a folder of the cache is not whole.
type Lacking<'a> = dyn Fn(&Path) -> Option<String> + 'a;

impl Hub {
    /// A model's weights, configuration and tokenizer.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn model(&self, name: &str, revision: &str) -> Result<Snapshot, HubError> {
        let choose = |_: &Fetch<'_>, files: &[String]| wanted::of_model(name, files);
        self.snapshot(RepositoryKind::Model, name, revision, &choose, &wanted::lacking_in_model)
    }

    /// The files of a part of a dataset.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn dataset(&self, name: &str, revision: &str, part: Selection<'_>) -> Result<Snapshot, HubError> {
        let choose = |fetch: &Fetch<'_>, files: &[String]| {
            let card = match files.iter().any(|file| file == CARD) {
                true => Some(fetch.text(CARD)?),
                false => None,
            };
            Ok(wanted::of_dataset(name, files, card.as_deref(), part)?)
        };
        let lacking = |folder: &Path| match shared_data::count(folder, part) {
            Ok(_) => None,
            Err(DataError::Split { wanted, .. }) => Some(format!("the split `{wanted}`")),
            Err(error) => Some(format!("a part ({error})")),
        };
        self.snapshot(RepositoryKind::Dataset, name, revision, &choose, &lacking)
    }

    fn snapshot(
        &self,
        kind: RepositoryKind,
        name: &str,
        revision: &str,
        choose: &Choose<'_>,
        lacking: &Lacking<'_>,
    ) -> Result<Snapshot, HubError> {
        let cached = Cached { cache: Cache::new(self.settings.cache.clone()), kind, name };
        if let Some(variable) = self.settings.offline {
            return cached.snapshot(revision, lacking)?.map_err(|missing| HubError::Offline {
                name: name.to_owned(),
                missing,
                cache: self.settings.cache.clone(),
                variable,
            });
        }
        if let Some(reason) = &self.settings.unread {
            return Err(HubError::TokenFile { name: name.to_owned(), reason: reason.clone() });
        }
        let client = self.client();
        let repository = match repository::ask(&client, &self.settings, kind, name, revision) {
            Ok(repository) => repository,
            Err(error) if error.is_of_the_hub() => {
                let reason = error.to_string();
                let snapshot = cached.snapshot(revision, lacking)?.map_err(|_| error)?;
                let commit = &snapshot.commit;
                (self.tell)(&format!("warning: {reason}; it is taken from the cache, as of {commit}"));
                return Ok(snapshot);
            }
            Err(error) => return Err(error),
        };
        let fetch = Fetch { hub: self, client: &client, cached: &cached, repository: &repository };
        let names: Vec<String> = repository.files.iter().map(|file| file.name.clone()).collect();
        let wanted = choose(&fetch, &names)?;
        let downloaded = fetch.all(&wanted)?;
        cached.note(revision, &repository.commit);
        Ok(Snapshot { path: cached.folder(&repository.commit), commit: repository.commit, downloaded })
    }

    fn client(&self) -> Client {
        Client::new(&self.settings.endpoint, self.settings.token.clone())
    }
}

/// A repository as far as it is in the cache.
struct Cached<'a> {
    cache: Cache,
    kind: RepositoryKind,
    name: &'a str,
}

impl Cached<'_> {
    fn folder(&self, commit: &str) -> PathBuf {
        self.cache.repo(self.kind.repo(self.name, commit)).pointer_path(commit)
    }

    /// The snapshot of a revision, without asking; or the missing thing, with its verb.
    fn snapshot(&self, revision: &str, lacking: &Lacking<'_>) -> Result<Result<Snapshot, String>, HubError> {
        let refs = self.folder("").join("../refs").join(revision);
        let commit = match shared_bounds::read_text(&refs, MOST_REF) {
            Ok(text) => text.trim().to_owned(),
            // A commit has no such file, and not every revision can be a file's name.
            Err(error) if matches!(error.kind(), NotFound | NotADirectory | IsADirectory) => revision.to_owned(),
            Err(reason) => return Err(HubError::Unreadable { name: self.name.to_owned(), file: refs, reason }),
        };
        let path = self.folder(&commit);
        if !path.is_dir() {
            return Ok(Err("it is".to_owned()));
        }
        Ok(match lacking(&path) {
            Some(missing) => Err(format!("of it, {missing} is")),
            None => Ok(Snapshot { path, commit, downloaded: 0 }),
        })
    }

    /// Remembers the commit of a branch or tag, so that it is found without a network. A failure costs nothing now.
    fn note(&self, revision: &str, commit: &str) {
        if revision != commit {
            let _ = self.cache.repo(self.kind.repo(self.name, revision)).create_ref(commit);
        }
    }
}

/// A repository that is being fetched.
struct Fetch<'a> {
    hub: &'a Hub,
    client: &'a Client,
    cached: &'a Cached<'a>,
    repository: &'a Repository,
}

impl Fetch<'_> {
    /// One file, downloaded if it is not in the cache.
    fn file(&self, name: &str) -> Result<PathBuf, HubError> {
        self.all(&[name.to_owned()])?;
        Ok(self.cached.folder(&self.repository.commit).join(name))
    }

    /// The text of a file, downloaded if it is not in the cache.
    fn text(&self, name: &str) -> Result<String, HubError> {
        let path = self.file(name)?;
        match shared_bounds::read(&path, MOST_CARD) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(reason) => Err(HubError::Unreadable { name: self.cached.name.to_owned(), file: path, reason }),
        }
    }

    /// Downloads the files that the cache lacks, and returns their bytes.
    fn all(&self, names: &[String]) -> Result<u64, HubError> {
        let folder = self.cached.folder(&self.repository.commit);
        let missing: Vec<&RemoteFile> =
            self.repository.files.iter().filter(|file| names.contains(&file.name) && !file.is_in(&folder)).collect();
        if missing.is_empty() {
            return Ok(0);
        }
        let repo = self.cached.kind.repo(self.cached.name, &self.repository.commit);
        let mut download = Download::new(self.hub, self.client, repo, self.cached.name, &folder, &missing);
        missing.iter().try_for_each(|file| download.file(file))?;
        Ok(download.finish())
    }
}
