//! What is to be sent: the Hub says how it wants each file, and what it has of it.

use std::io::Read;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{PushError, PushFile, place::Place, session::Session};
use crate::verify::Hash;

/// Bytes of a file by which the Hub judges whether it is text.
const SAMPLE: u64 = 512;

/// A file that the repository does not have as it is.
#[derive(Debug)]
pub(super) struct Planned<'a> {
    pub file: &'a PushFile,
    /// Its hash, whose kind says how the Hub wants it: by SHA-256 in the store of large files, by Git's hash in the
    /// commit itself.
    pub hash: Hash,
}

/// What a push changes.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub changed: Vec<Planned<'a>>,
    /// Files of the repository that go.
    pub removed: Vec<String>,
}

impl Plan<'_> {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    /// The files for the store of large files.
    pub fn large(&self) -> impl Iterator<Item = (&PushFile, &str)> {
        self.changed.iter().filter_map(|Planned { file, hash }| match hash {
            Hash::Sha256(text) => Some((*file, text.as_str())),
            Hash::Git(_) => None,
        })
    }
}

#[derive(Deserialize)]
struct Answer {
    files: Vec<Wanted>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wanted {
    path: String,
    upload_mode: Mode,
    #[serde(default)]
    should_ignore: bool,
    /// The hash of what the repository has under that name.
    oid: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Lfs,
    Regular,
}

/// Compares the files with those of the repository.
///
/// # Errors
/// A refusal, or a file that cannot be read.
pub(super) fn of<'a>(session: &Session<'a>, place: &Place) -> Result<Plan<'a>, PushError> {
    let (what, files) = ("asking how the files are wanted", session.order.files);
    let listed = files.iter().map(described).collect::<Result<Vec<Value>, _>>()?;
    let path = session.api(&format!("/preupload/{}", session.revision()));
    let reply = session.post_json(what, &path, &json!({ "files": listed }))?;
    if !reply.is_success() {
        return Err(session.refused(what, &session.endpoint(), reply));
    }
    let Answer { files: wanted } = session.parsed(what, &reply)?;
    let mut changed = Vec::new();
    for file in files {
        let Some(wanted) = wanted.iter().find(|wanted| wanted.path == file.name()) else {
            return Err(session.strange(what, format!("it says nothing of {}", file.name())));
        };
        if wanted.should_ignore {
            let (file, repo) = (file.name().to_owned(), session.order.repo.to_owned());
            return Err(PushError::Ignored { file, repo });
        }
        session.bar.set_message(format!("{} (reading {})", session.order.repo, file.name()));
        // The store takes no empty files.
        let is_large = wanted.upload_mode == Mode::Lfs && file.size() > 0;
        let hash = hash(file, is_large)?;
        let is_there = wanted.oid.as_ref().is_some_and(|oid| oid.eq_ignore_ascii_case(hash.text()))
            || place.files.iter().any(|there| there.name == file.name() && there.hash.same_as(&hash));
        if !is_there {
            changed.push(Planned { file, hash });
        }
    }
    session.bar.set_message(session.order.repo.to_owned());
    let goes = |name: &&String| (session.order.replaces)(name) && files.iter().all(|file| file.name() != name.as_str());
    let removed = place.files.iter().map(|there| &there.name).filter(goes).cloned().collect();
    Ok(Plan { changed, removed })
}

/// The hash of a file: that of the store of large files, or Git's.
pub(super) fn hash(file: &PushFile, is_large: bool) -> Result<Hash, PushError> {
    let failed = |reason| PushError::Io { file: file.name().to_owned(), reason };
    let mut reader = file.reader(0, file.size()).map_err(failed)?;
    match is_large {
        true => Hash::sha256_of(&mut reader),
        false => Hash::git_of(&mut reader, file.size()),
    }
    .map_err(failed)
}

fn described(file: &PushFile) -> Result<Value, PushError> {
    let mut sample = Vec::new();
    let read = file.reader(0, file.size().min(SAMPLE)).and_then(|mut reader| reader.read_to_end(&mut sample));
    read.map_err(|reason| PushError::Io { file: file.name().to_owned(), reason })?;
    Ok(json!({ "path": file.name(), "sample": BASE64_STANDARD.encode(sample), "size": file.size() }))
}
