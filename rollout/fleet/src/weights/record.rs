//! What a coordinator has in the store, and what it began to send: one that is started again removes what the one
//! before it has left, and nothing else, and leads workers from the versions that they have to the next.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use shared::{
    PolicyVersion,
    channel::fleet::{Difference, Edition},
    files::atomic::{self, named},
};

/// Editions that the store has, oldest first, and versions of which it may have parts that nobody was told of.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    noted: Noted,
}

/// The file of a record. Earlier builds wrote the list of editions alone.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Noted {
    editions: VecDeque<Edition>,
    /// Versions whose sending has begun and of which no edition was noted down since; once for each time it was begun.
    begun: Vec<PolicyVersion>,
}

impl Noted {
    fn parse(text: &[u8]) -> serde_json::Result<Self> {
        if text.starts_with(b"[") {
            return Ok(Self { editions: serde_json::from_slice(text)?, begun: Vec::new() });
        }
        serde_json::from_slice(text)
    }
}

impl Record {
    /// What the last coordinator of a run has noted down at `path`.
    ///
    /// # Errors
    /// A file that cannot be read. One that cannot be understood is as none: it costs room in the store.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let noted = match fs::read(&path) {
            Ok(text) => Noted::parse(&text).unwrap_or_else(|error| {
                tracing::warn!(
                    "{}: {error}; what an earlier coordinator has left in the store stays there",
                    path.display()
                );
                Noted::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Noted::default(),
            Err(error) => return Err(named(&path)(error)),
        };
        Ok(Self { path, noted })
    }

    /// Notes down that a version is about to be sent: until one of its editions is, the store may have a part of it.
    pub fn begin(&mut self, version: PolicyVersion) {
        self.noted.begun.push(version);
    }

    /// Notes an edition down, as the newest. If the store has it already, what leads to it from others stays known.
    pub fn note(&mut self, mut edition: Edition) {
        let Noted { editions, begun } = &mut self.noted;
        if let Some(at) = begun.iter().position(|version| *version == edition.version) {
            begun.remove(at);
        }
        if let Some(at) = editions.iter().position(|known| known.blake3 == edition.blake3) {
            let known = editions.remove(at).expect("it was found there");
            let is_new = |from: &Difference| !edition.differences.contains(from);
            let more: Vec<_> = known.differences.into_iter().filter(is_new).collect();
            edition.differences.extend(more);
        }
        editions.push_back(edition);
    }

    /// Versions of which the store may have more than the editions that were noted down.
    pub fn begun(&self) -> &[PolicyVersion] {
        &self.noted.begun
    }

    /// The store has nothing any more but the editions.
    pub fn forget_begun(&mut self) {
        self.noted.begun.clear();
    }

    /// Takes the oldest edition out that nobody of `in_use` has, if there are more than `most`. Those in use go last,
    /// but they go: a worker that has one has no need of the store.
    pub fn take_oldest(&mut self, most: usize, in_use: &[Edition]) -> Option<Edition> {
        let editions = &mut self.noted.editions;
        if editions.len() <= most {
            return None;
        }
        let is_free = |known: &Edition| !in_use.iter().any(|used| used.blake3 == known.blake3);
        let at = editions.iter().take(editions.len() - 1).position(is_free).unwrap_or(0);
        editions.remove(at)
    }

    /// The editions.
    pub fn editions(&self) -> impl ExactSizeIterator<Item = &Edition> {
        self.noted.editions.iter()
    }

    /// Where it is noted down.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.noted).expect("editions are always valid JSON");
        atomic::write(&self.path, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edition(version: u64) -> Edition {
        let (blake3, differences) = ([version as u8; 32], Vec::new());
        Edition {
            version: PolicyVersion(version),
            publication: version,
            blake3,
            base: None,
            rounded: false,
            differences,
        }
    }

    #[test]
    fn the_oldest_that_nobody_has_goes_first_and_the_newest_never() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record::open(dir.path().join("editions.json")).unwrap();
        (1..=4).for_each(|version| record.note(edition(version)));
        let oldest = |record: &mut Record, most, in_use: &[u64]| {
            let in_use: Vec<Edition> = in_use.iter().map(|&version| edition(version)).collect();
            record.take_oldest(most, &in_use).map(|edition| edition.version.0)
        };
        assert_eq!(oldest(&mut record, 4, &[]), None);
        assert_eq!(oldest(&mut record, 3, &[1]), Some(2));
        assert_eq!(oldest(&mut record, 2, &[1, 3]), Some(1), "a worker that has it has no need of the store");
        assert_eq!(oldest(&mut record, 1, &[]), Some(3));
        assert_eq!(oldest(&mut record, 1, &[]), None);
    }

    #[test]
    fn the_next_coordinator_finds_what_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("editions.json");
        let mut record = Record::open(path.clone()).unwrap();
        record.note(edition(1));
        record.note(edition(2));
        record.note(edition(1));
        record.write().unwrap();
        let versions = |record: &Record| record.editions().map(|edition| edition.version.0).collect::<Vec<_>>();
        assert_eq!(versions(&Record::open(path.clone()).unwrap()), [2, 1], "what is published again is the newest");
        fs::write(&path, serde_json::to_vec(&[edition(4), edition(5)]).unwrap()).unwrap();
        assert_eq!(versions(&Record::open(path.clone()).unwrap()), [4, 5], "as earlier builds wrote it");
        for damaged in ["[{", r#"{"editions":[]"#, ""] {
            fs::write(&path, damaged).unwrap();
            assert!(versions(&Record::open(path.clone()).unwrap()).is_empty(), "{damaged}");
        }
    }

    #[test]
    fn a_version_is_begun_until_an_edition_of_it_is_noted_down() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("editions.json");
        let mut record = Record::open(path.clone()).unwrap();
        [1, 2, 2].into_iter().for_each(|version| record.begin(PolicyVersion(version)));
        record.note(edition(1));
        record.note(edition(2));
        record.write().unwrap();
        let mut record = Record::open(path).unwrap();
        assert_eq!(record.begun(), [PolicyVersion(2)], "of what was sent twice, one is known");
        record.forget_begun();
        assert!(record.begun().is_empty() && record.editions().len() == 2);
    }
}
