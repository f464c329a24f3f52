//! Bytes to metadata and places of tensors.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::metadata::{Metadata, Value};
use crate::{VerifyError, file::Pieces};

/// Most bytes of metadata and places, which a tokenizer and its merges fill.
const MOST_HEAD: u64 = 512 << 20;
/// Lists in lists that are read.
const DEEPEST: usize = 4;

/// Where a tensor lies, and its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Sizes, the fastest-running one first: the reverse of rows and columns.
    pub sizes: Vec<u64>,
    /// Number of ggml's type.
    pub kind: u32,
    /// First byte, counted from the beginning of the data.
    pub offset: u64,
}

/// An opened file.
#[derive(Debug)]
pub struct Gguf {
    pub(super) pieces: Pieces,
    pub(super) path: PathBuf,
    metadata: Metadata,
    places: BTreeMap<String, Place>,
    /// Where the data begins.
    data: u64,
}

impl Gguf {
    /// Opens a file and reads its metadata and the places of its tensors.
    ///
    /// # Errors
    /// A file that is no GGUF file of version 3, or ends too soon.
    pub fn open(path: &Path) -> Result<Self, VerifyError> {
        let pieces = Pieces::open(path)?;
        let head = pieces.read(0, pieces.length().min(MOST_HEAD))?;
        let (metadata, places, end) = parse(&head).map_err(|message| pieces.wrong(message))?;
        let alignment = metadata.size("general.alignment").unwrap_or(32) as u64;
        if !alignment.is_power_of_two() {
            return Err(pieces.wrong(format!("`general.alignment` is {alignment}, no power of two")));
        }
        let data = (end as u64).next_multiple_of(alignment);
        if let Some((name, _)) = places.iter().find(|(_, place)| place.offset % alignment != 0) {
            return Err(pieces.wrong(format!("tensor {name} does not begin at a multiple of {alignment}")));
        }
        Ok(Self { pieces, path: path.to_owned(), metadata, places, data })
    }

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The places of the tensors, by their names in the file.
    #[must_use]
    pub fn places(&self) -> &BTreeMap<String, Place> {
        &self.places
    }

    /// Some bytes of a tensor, from its first on.
    pub(super) fn bytes(&self, place: &Place, length: u64) -> Result<Vec<u8>, VerifyError> {
        self.pieces.read(self.data.saturating_add(place.offset), length)
    }
}

type Head = (Metadata, BTreeMap<String, Place>, usize);

/// Parses the head of a file; also returns its length.
pub(super) fn parse(bytes: &[u8]) -> Result<Head, String> {
    let mut from = Bytes { bytes, at: 0 };
    if from.take(4)? != b"GGUF" {
        return Err("is no GGUF file".into());
    }
    let version = from.u32()?;
    if version != 3 {
        return Err(format!("is GGUF of version {version}; version 3 is read"));
    }
    let (tensors, entries) = (from.u64()?, from.u64()?);
    let mut metadata = Metadata::default();
    for _ in 0..entries {
        let key = from.text()?;
        let kind = from.u32()?;
        let value = from.value(kind, 0)?;
        if metadata.0.insert(key.clone(), value).is_some() {
            return Err(format!("has the key {key} twice"));
        }
    }
    let mut places = BTreeMap::new();
    for _ in 0..tensors {
        let name = from.text()?;
        let count = from.u32()?;
        if count > 4 {
            return Err(format!("tensor {name} has {count} dimensions"));
        }
        let sizes = (0..count).map(|_| from.u64()).collect::<Result<_, _>>()?;
        let place = Place { sizes, kind: from.u32()?, offset: from.u64()? };
        if places.insert(name.clone(), place).is_some() {
            return Err(format!("has the tensor {name} twice"));
        }
    }
    Ok((metadata, places, from.at))
}

/// The bytes of a head, and how far they are read.
struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let left = &self.bytes[self.at..];
        let count = usize::try_from(count).ok().filter(|count| *count <= left.len());
        let count = count.ok_or("ends within its metadata")?;
        self.at += count;
        Ok(&left[..count])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N as u64)?.try_into().expect("as many bytes as were asked for"))
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.u64()?;
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 if depth < DEEPEST => {
                let (kind, count) = (self.u32()?, self.u64()?);
                // Every value takes a byte at least, so no count asks for more than the file has.
                if count > (self.bytes.len() - self.at) as u64 {
                    return Err("ends within a list".into());
                }
                Value::List((0..count).map(|_| self.value(kind, depth + 1)).collect::<Result<_, _>>()?)
            }
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("has a value of the unknown type {kind}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    /// A file with a number, a list of texts and a tensor.
    fn head() -> Vec<u8> {
        let entry = |key: &str, kind: u32, value: &[u8]| [text(key).as_slice(), &kind.to_le_bytes(), value].concat();
        let list = [&8_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &text("a"), &text("ä")].concat();
        let tensor = [
            text("t").as_slice(),
            &2_u32.to_le_bytes(),
            &3_u64.to_le_bytes(),
            &2_u64.to_le_bytes(),
            &0_u32.to_le_bytes(),
            &64_u64.to_le_bytes(),
        ]
        .concat();
        [
            &b"GGUF\x03\0\0\0"[..],
            &1_u64.to_le_bytes(),
            &2_u64.to_le_bytes(),
            &entry("n", 5, &(-7_i32).to_le_bytes()),
            &entry("l", 9, &list),
            &tensor,
        ]
        .concat()
    }

    #[test]
    fn a_head_is_read_as_the_format_says() {
        let bytes = head();
        let (metadata, places, end) = parse(&[bytes.as_slice(), b"data"].concat()).unwrap();
        assert_eq!(end, bytes.len());
        assert_eq!(metadata.get("n"), Some(&Value::Signed(-7)));
        assert_eq!(metadata.list("l").unwrap(), [Value::Text("a".into()), Value::Text("ä".into())]);
        assert_eq!(places["t"], Place { sizes: vec![3, 2], kind: 0, offset: 64 });
    }

    #[test]
    fn every_cut_and_every_foreign_head_is_refused() {
        let bytes = head();
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length]).unwrap_err().contains("ends within"), "{length}");
        }
        assert_eq!(parse(b"PK\x03\x04").unwrap_err(), "is no GGUF file");
        let mut old = bytes.clone();
        old[4] = 2;
        assert!(parse(&old).unwrap_err().contains("version 2"));
        let mut many = bytes;
        many[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(parse(&many).is_err(), "nothing is allocated for entries that are not there");
    }

    #[test]
    fn damaged_heads_are_errors_and_no_panics() {
        harness::fuzz::explore("gguf-head", &[head()], |bytes| drop(parse(bytes)));
    }
}
