//! A trial of a store: whether it can be used, and how fast it is.

use std::time::{Instant, SystemTime};

use object_store::path::Path;

use crate::{
    Index, Store, StoreError, Watch,
    index::{CHUNK_BYTES, MOST_INDEX_BYTES},
    store::index_path,
};

/// Largest object that a trial writes.
const MOST_BYTES: u64 = CHUNK_BYTES;

/// The result of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// Bytes that were read, and written if the trial wrote. 0 if there was nothing to read.
    pub bytes: u64,
    /// Seconds that writing them took, unless only reading was tried.
    pub write_s: Option<f64>,
    /// Seconds that reading them took.
    pub read_s: f64,
}

impl Store {
    /// Writes an object of `bytes` bytes, 8 MiB at most, reads it, compares it and removes it.
    ///
    /// # Errors
    /// [`StoreError`] of the first of these operations that fails.
    pub fn probe(&self, bytes: u64, watch: &dyn Watch) -> Result<Probe, StoreError> {
        self.writable()?;
        let name = name_of_trial();
        let object = self.place.root.clone().join(name.as_str());
        let mut content = vec![0; bytes.min(MOST_BYTES) as usize];
        // Bytes that no compression on the way can shrink.
        blake3::Hasher::new().update(name.as_bytes()).finalize_xof().fill(&mut content);

        let begin = Instant::now();
        self.write_whole(&object, content.clone(), watch)?;
        let write_s = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let read = self.read_whole(&object, content.len(), watch);
        let read_s = begin.elapsed().as_secs_f64();
        self.delete(&object, watch)?;
        if read? != content {
            return Err(self.corrupted(&object, "what was read is not what was written"));
        }
        Ok(Probe { bytes: content.len() as u64, write_s: Some(write_s), read_s })
    }

    /// As [`Store::probe`] for a user who may only read: reads at most `bytes` bytes of the publication with the
    /// `known` prefix and hash, or else of the newest one.
    ///
    /// # Errors
    /// [`StoreError`] of the operation that fails.
    pub fn probe_reading(
        &self,
        known: Option<(&str, &[u8; 32])>,
        bytes: u64,
        watch: &dyn Watch,
    ) -> Result<Probe, StoreError> {
        let found = match known {
            Some((prefix, blake3)) => Some(self.known(prefix, blake3, watch)?),
            None => self.newest(watch)?,
        };
        let largest = found.and_then(|(folder, index)| {
            let file = index.files.into_iter().max_by_key(|file| file.length).filter(|file| file.length > 0)?;
            Some((folder.join(file.name.as_str()), file.length))
        });
        let Some((object, length)) = largest else { return Ok(Probe { bytes: 0, write_s: None, read_s: 0. }) };
        let (mut buffer, begin) = (Vec::new(), Instant::now());
        self.read_range(&object, 0..bytes.clamp(1, MOST_BYTES).min(length), &mut buffer, watch)?;
        Ok(Probe { bytes: buffer.len() as u64, write_s: None, read_s: begin.elapsed().as_secs_f64() })
    }

    fn known(&self, prefix: &str, blake3: &[u8; 32], watch: &dyn Watch) -> Result<(Path, Index), StoreError> {
        self.checked(prefix)?;
        let folder = self.folder(prefix, blake3);
        self.index(&folder, blake3, watch).map(|index| (folder, index))
    }

    /// The newest publication. Nobody has given the hash of its index.
    fn newest(&self, watch: &dyn Watch) -> Result<Option<(Path, Index)>, StoreError> {
        let Some(held) = self.list(watch)?.into_iter().rfind(|held| held.whole) else { return Ok(None) };
        let folder = self.place.root.clone().join(held.folder());
        let object = index_path(&folder);
        let bytes = self.read_whole(&object, MOST_INDEX_BYTES, watch)?;
        let index = Index::parse(&bytes).map_err(|what| self.corrupted(&object, what))?;
        Ok(Some((folder, index)))
    }
}

/// A name that nobody else has; no publication has a name that begins so.
fn name_of_trial() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let seed = format!("{host} {} {now}", std::process::id());
    format!("trial_{}", &blake3::hash(seed.as_bytes()).to_hex()[..16])
}
