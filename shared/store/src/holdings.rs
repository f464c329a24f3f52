//! The published folders of a store, and their removal.

use std::{
    collections::BTreeMap,
    fs, io,
    time::{Duration, SystemTime},
};

use futures_util::TryStreamExt as _;
use object_store::{ObjectMeta, path::Path};

use crate::{
    Doing, Store, StoreError, Watch,
    error::of_file,
    index::{INDEX_FILE, folder_of, plain},
    provider::Provider,
    store::{About, index_path},
};

/// A folder without an index that has not grown for so long was left by a publisher that is gone.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A published folder in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its prefix.
    pub prefix: String,
    /// The first eight digits of its hash.
    pub hash8: String,
    /// Bytes of its objects.
    pub bytes: u64,
    /// Whether it has an index. Without an index, it does not exist for others.
    pub whole: bool,
    /// When it was last written to, by the store's clock.
    pub modified: SystemTime,
}

impl Held {
    /// Whether it was published under this prefix and has this hash.
    #[must_use]
    pub fn is(&self, prefix: &str, blake3: &[u8; 32]) -> bool {
        self.folder() == folder_of(prefix, blake3)
    }

    pub(crate) fn folder(&self) -> String {
        format!("{}-{}", self.prefix, self.hash8)
    }
}

impl Store {
    /// The published folders in the store, oldest first. Other objects in the store are ignored.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn list(&self, watch: &dyn Watch) -> Result<Vec<Held>, StoreError> {
        let root = &self.place.root;
        let about = About { doing: Doing::Listing, object: root };
        let below = if root.is_root() { None } else { Some(root) };
        let found = self.ask(about, watch, self.objects().list_with_delimiter(below))?;
        let names = found.common_prefixes.iter().filter_map(|path| Some((path, named(path.filename()?)?)));
        let mut held = Vec::new();
        for (path, (prefix, hash8)) in names {
            let objects = self.objects_of(path, watch)?;
            // Gone meanwhile.
            let Some(modified) = objects.iter().map(|object| object.last_modified).max() else { continue };
            let whole = objects.iter().any(|object| object.location.filename() == Some(INDEX_FILE));
            let bytes = objects.iter().map(|object| object.size).sum();
            held.push(Held {
                prefix: prefix.to_owned(),
                hash8: hash8.to_owned(),
                bytes,
                whole,
                modified: modified.into(),
            });
        }
        held.sort_by(|a, b| (a.modified, &a.prefix).cmp(&(b.modified, &b.prefix)));
        Ok(held)
    }

    /// Removes the folder with this prefix and hash, its index first, so that nobody finds a part of it. A missing
    /// folder is no error.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn remove(&self, prefix: &str, blake3: &[u8; 32], watch: &dyn Watch) -> Result<(), StoreError> {
        self.checked(prefix)?;
        self.remove_folder(&self.folder(prefix, blake3), watch)
    }

    /// Removes a folder that [`Store::list`] has found, as [`Store::remove`] does.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn remove_held(&self, held: &Held, watch: &dyn Watch) -> Result<(), StoreError> {
        self.remove_folder(&self.place.root.clone().join(held.folder()), watch)
    }

    /// Of the folders whose prefixes begin like `family`, keeps the newest so many and those named (prefix and hash);
    /// removes the others and returns them. An unfinished publication is removed once nothing was added to it for an
    /// hour.
    ///
    /// # Errors
    /// [`StoreError`]; some of the folders may be gone then.
    pub fn keep(
        &self,
        family: &str,
        newest: usize,
        named: &[(String, [u8; 32])],
        watch: &dyn Watch,
    ) -> Result<Vec<Held>, StoreError> {
        let mut candidates = self.list(watch)?;
        candidates.retain(|held| held.prefix.starts_with(family));
        let (whole, unfinished): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|held| held.whole);
        let old = whole.into_iter().rev().skip(newest);
        let now = SystemTime::now();
        let abandoned = |held: &Held| now.duration_since(held.modified).is_ok_and(|age| age > ABANDONED);
        let wanted = |held: &Held| named.iter().any(|(prefix, blake3)| held.is(prefix, blake3));
        let gone: Vec<_> = old.chain(unfinished.into_iter().filter(abandoned)).filter(|held| !wanted(held)).collect();
        for held in &gone {
            self.remove_held(held, watch)?;
        }
        Ok(gone)
    }

    /// Names and lengths of the objects in a folder.
    pub(crate) fn lengths(&self, folder: &Path, watch: &dyn Watch) -> Result<BTreeMap<String, u64>, StoreError> {
        let objects = self.objects_of(folder, watch)?;
        Ok(objects.iter().filter_map(|object| Some((object.location.filename()?.to_owned(), object.size))).collect())
    }

    fn objects_of(&self, folder: &Path, watch: &dyn Watch) -> Result<Vec<ObjectMeta>, StoreError> {
        let about = About { doing: Doing::Listing, object: folder };
        self.ask(about, watch, self.objects().list(Some(folder)).try_collect())
    }

    fn remove_folder(&self, folder: &Path, watch: &dyn Watch) -> Result<(), StoreError> {
        self.writable()?;
        self.delete(&index_path(folder), watch)?;
        for object in self.objects_of(folder, watch)? {
            self.delete(&object.location, watch)?;
        }
        let Provider::Folder(root) = &self.place.kind else { return Ok(()) };
        // Includes files that killed publishers left there, which are not listed.
        let path = root.join(folder.as_ref());
        match fs::remove_dir_all(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(of_file(&path, e)),
            _ => Ok(()),
        }
    }
}

/// Prefix and hash in a name that [`folder_of`] may have made.
fn named(folder: &str) -> Option<(&str, &str)> {
    let (prefix, hash8) = folder.rsplit_once('-')?;
    let is_hash = hash8.len() == 8 && hash8.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    (plain(prefix) && is_hash).then_some((prefix, hash8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_what_else_lies_there() {
        assert_eq!(named(&folder_of("v000012", &[0xab; 32])), Some(("v000012", "abababab")));
        assert_eq!(named("with-dash-00112233"), Some(("with-dash", "00112233")));
        for other in ["checkpoint-12", "notes", "-00112233", "a-0011223G", "a-001122334", ".x-00112233"] {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
