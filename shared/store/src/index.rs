//! The index of a published folder: its files, their lengths, and the hash of every chunk.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Bytes of a chunk; the last one of a file may be shorter.
pub const CHUNK_BYTES: u64 = 8 << 20;
/// Name of the index among the objects.
pub const INDEX_FILE: &str = "index.json";
/// Largest index that is read: one for some eight terabytes.
pub(crate) const MOST_INDEX_BYTES: usize = 64 << 20;
/// Most files of an index.
const MOST_FILES: usize = 1024;
/// Longest name.
const LONGEST_NAME: usize = 200;
/// Grows when the meaning of the fields changes.
const FORMAT: u32 = 1;

/// Index of a published folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Its files.
    pub files: Vec<IndexedFile>,
}

/// A file of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedFile {
    /// A plain name ([`plain`]).
    pub name: String,
    /// Its bytes.
    pub length: u64,
    /// The blake3 of each chunk of [`CHUNK_BYTES`].
    pub chunks: Vec<[u8; 32]>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    files: Vec<WrittenFile>,
}

#[derive(Serialize, Deserialize)]
struct WrittenFile {
    name: String,
    length: u64,
    blake3_of_chunks: Vec<String>,
}

impl Index {
    /// Reads an index and checks that it is consistent.
    ///
    /// # Errors
    /// The fault.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MOST_INDEX_BYTES {
            return Err(format!("it has {} bytes, and at most {MOST_INDEX_BYTES} are read", bytes.len()));
        }
        let written: Written = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if written.format != FORMAT {
            return Err(format!("it is of format {}, and this program reads {FORMAT}", written.format));
        }
        if written.files.len() > MOST_FILES {
            return Err(format!("it has {} files, and at most {MOST_FILES} are taken", written.files.len()));
        }
        let files = written.files.into_iter().map(IndexedFile::read).collect::<Result<Vec<_>, _>>()?;
        let names: BTreeSet<_> = files.iter().map(|file| &file.name).collect();
        if names.len() < files.len() {
            return Err("it has two files of one name".into());
        }
        Ok(Self { files })
    }

    /// The bytes of its object in the store.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let files = self.files.iter().map(|file| WrittenFile {
            name: file.name.clone(),
            length: file.length,
            blake3_of_chunks: file.chunks.iter().map(hex).collect(),
        });
        let written = Written { format: FORMAT, files: files.collect() };
        serde_json::to_vec(&written).expect("names and numbers are JSON")
    }

    /// Bytes of all files.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }

    /// Every chunk, as its file and its number in the file.
    pub(crate) fn chunks(&self) -> Vec<(&IndexedFile, usize)> {
        self.files.iter().flat_map(|file| (0..file.chunks.len()).map(move |chunk| (file, chunk))).collect()
    }
}

impl IndexedFile {
    fn read(written: WrittenFile) -> Result<Self, String> {
        let WrittenFile { name, length, blake3_of_chunks } = written;
        if !plain(&name) || name == INDEX_FILE {
            return Err(format!("{name:?} is not the plain name of a file"));
        }
        let count = blake3_of_chunks.len();
        if length.div_ceil(CHUNK_BYTES) != count as u64 {
            return Err(format!("{name} of {length} bytes has {count} chunks"));
        }
        let chunks = blake3_of_chunks.iter().map(|text| blake3::Hash::from_hex(text).map(Into::into));
        let chunks = chunks.collect::<Result<_, _>>().map_err(|e| format!("a hash of {name} is none: {e}"))?;
        Ok(Self { name, length, chunks })
    }

    /// Where a chunk begins.
    pub(crate) fn offset(&self, chunk: usize) -> u64 {
        chunk as u64 * CHUNK_BYTES
    }

    /// Bytes of a chunk.
    pub(crate) fn chunk_bytes(&self, chunk: usize) -> usize {
        (self.length - self.offset(chunk)).min(CHUNK_BYTES) as usize
    }

    /// Whether the bytes are those of a chunk.
    pub(crate) fn is_chunk(&self, chunk: usize, bytes: &[u8]) -> bool {
        *blake3::hash(bytes).as_bytes() == self.chunks[chunk]
    }
}

/// Whether a name may be that of a file or prefix: letters, digits, `.`, `_` and `-`, and no `.` at the beginning.
/// Every store and file system takes such a name as it is, and it leads nowhere else.
pub(crate) fn plain(name: &str) -> bool {
    let taken = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    (1..=LONGEST_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(taken)
}

/// Name of the folder that holds the objects of a publication.
pub(crate) fn folder_of(prefix: &str, blake3: &[u8; 32]) -> String {
    format!("{prefix}-{}", &hex(blake3)[..8])
}

fn hex(hash: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        let chunks = (0..3).map(|n| [n; 32]).collect();
        let weights = IndexedFile { name: "weights.data".into(), length: 2 * CHUNK_BYTES + 1, chunks };
        Index { files: vec![weights, IndexedFile { name: "empty".into(), length: 0, chunks: vec![] }] }
    }

    #[test]
    fn what_is_written_is_read_and_its_bytes_are_fixed() {
        let index = index();
        let bytes = index.to_bytes();
        assert_eq!(Index::parse(&bytes).unwrap(), index);
        let (file, chunk) = index.chunks()[2];
        assert_eq!((file.offset(chunk), file.chunk_bytes(chunk)), (16 << 20, 1));
        // Builds of the program must agree on the content that a hash stands for.
        let expected = "6ea5c0399f8410dac9972228eafcb30687bc6be0c2145574fd0f1135ecca67ff";
        assert_eq!(blake3::hash(&bytes).to_hex().as_str(), expected, "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn an_index_that_lies_is_refused_with_the_reason() {
        let text = String::from_utf8(index().to_bytes()).unwrap();
        let zeros = "0".repeat(64);
        for (from, to, reason) in [
            ("\"format\":1", "\"format\":2", "of format 2"),
            ("16777217", "16777216", "of 16777216 bytes has 3 chunks"),
            ("16777217", "18446744073709551615", "has 3 chunks"),
            ("16777217", "-1", "invalid value"),
            ("weights.data", "../weights.data", "not the plain name"),
            ("weights.data", "a/b", "not the plain name"),
            ("weights.data", "/etc/passwd", "not the plain name"),
            ("weights.data", "..", "not the plain name"),
            ("weights.data", ".hidden", "not the plain name"),
            ("weights.data", "", "not the plain name"),
            ("weights.data", "a\\u0000b", "not the plain name"),
            ("weights.data", "index.json", "not the plain name"),
            ("weights.data", "empty", "two files of one name"),
            (&zeros, "00", "a hash of weights.data is none"),
            ("\"files\"", "\"fils\"", "missing field"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            let error = Index::parse(changed.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{from} to {to}: {error}");
        }
        let many = (0..=MOST_FILES).map(|n| IndexedFile { name: n.to_string(), length: 0, chunks: vec![] });
        let error = Index::parse(&Index { files: many.collect() }.to_bytes()).unwrap_err();
        assert!(error.contains("1025 files"), "{error}");
    }

    #[test]
    fn a_long_name_is_none() {
        assert!(plain(&"n".repeat(LONGEST_NAME)) && !plain(&"n".repeat(LONGEST_NAME + 1)));
    }
}
