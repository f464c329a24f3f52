//! The bytes of a file, unpacked as they are asked for.

use std::{
    io::{self, BufRead, BufReader, Cursor, ErrorKind, Read},
    path::{Path, PathBuf},
};

use crate::{DataError, memory::Meter};

/// UTF-8's byte order mark, which some editors and spreadsheets put first.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Most bytes of a file, packed and unpacked.
const MOST_BYTES: u64 = 64 << 30;
/// Bytes from which a format is detected.
const HEAD: usize = 64 << 10;
/// Bytes that one byte may unpack to, in the long run: text shrinks to a tenth, and to a hundredth where rows repeat
/// one another. A file that unpacks to a thousand times its length was made to fill memory.
const MOST_RATIO: u64 = 500;
/// Bytes that a file may unpack to, however short it is.
const SMALL: u64 = 16 << 20;
/// The same two bounds for content that is held unpacked, all at once.
const MOST_HELD: (u64, u64) = (20, 1 << 30);

/// A file, which can be read from its beginning several times.
#[derive(Debug)]
pub struct Content {
    path: PathBuf,
    raw: Vec<u8>,
    packing: Option<Packing>,
}

#[derive(Debug, Clone, Copy)]
enum Packing {
    Gzip,
    Zstd,
}

impl Content {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        Ok(Self::of(path, shared_bounds::read(path, MOST_BYTES).map_err(DataError::file(path))?))
    }

    /// Bytes that are in no file; `path` stands for one in messages.
    pub fn of(path: &Path, raw: Vec<u8>) -> Self {
        let packing = match raw.as_slice() {
            [0x1f, 0x8b, ..] => Some(Packing::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Packing::Zstd),
            _ => None,
        };
        Self { path: path.to_owned(), raw, packing }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of its compression, if it has one.
    pub fn compression(&self) -> Option<&'static str> {
        self.packing.map(|packing| match packing {
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        })
    }

    /// A meter of the memory that its rows take.
    pub fn meter(&self) -> Meter {
        Meter::new(&self.path, self.raw.len() as u64)
    }

    /// Its first bytes.
    pub fn head(&self) -> Result<Vec<u8>, DataError> {
        let mut head = Vec::new();
        let read = self.open()?.take(HEAD as u64).read_to_end(&mut head);
        read.map_err(|error| self.failed(&error)).map(|_| head)
    }

    /// Its bytes, without compression and byte order mark.
    pub fn open(&self) -> Result<Box<dyn BufRead + '_>, DataError> {
        let mut reader = self.unpacked().map_err(|error| self.failed(&error))?;
        let mut first = Vec::new();
        let read = reader.by_ref().take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut first);
        read.map_err(|error| self.failed(&error))?;
        Ok(if first == BYTE_ORDER_MARK { reader } else { Box::new(Cursor::new(first).chain(reader)) })
    }

    fn unpacked(&self) -> io::Result<Box<dyn BufRead + '_>> {
        let raw = self.raw.as_slice();
        Ok(match self.packing {
            None => Box::new(raw),
            Some(Packing::Gzip) => buffered(Limited::new(flate2::read::MultiGzDecoder::new(raw), raw.len())),
            Some(Packing::Zstd) => buffered(Limited::new(zstd::Decoder::new(raw)?, raw.len())),
        })
    }

    /// All of its bytes. A compressed file gives at most `most` bytes, and an error where it holds more than such a
    /// file may; one byte more than `most` shows that the file is longer.
    pub fn whole(&self, most: u64) -> Result<Vec<u8>, DataError> {
        let (ratio, small) = MOST_HELD;
        let held = if self.packing.is_some() { ratio * self.raw.len() as u64 + small } else { u64::MAX };
        let mut bytes = Vec::new();
        let read = self.open()?.take(held.min(most).saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| self.failed(&error))?;
        if bytes.len() as u64 > held {
            let packed = self.raw.len();
            return Err(self.failed(&format!("its {packed} bytes unpack to more than {held}; unpack it")));
        }
        Ok(bytes)
    }

    /// As [`Self::whole`] without the caller's bound, and without a copy if the file is not compressed.
    pub fn into_whole(mut self) -> Result<Vec<u8>, DataError> {
        match self.packing {
            None if !self.raw.starts_with(BYTE_ORDER_MARK) => Ok(std::mem::take(&mut self.raw)),
            _ => self.whole(MOST_BYTES),
        }
    }

    /// The error of a file that ends before its bytes do, or is damaged.
    pub fn failed(&self, error: &dyn std::fmt::Display) -> DataError {
        let reason = match self.compression() {
            Some(name) => format!("cannot be unpacked ({name}): {error}; is the download complete?"),
            None => format!("cannot be read: {error}"),
        };
        DataError::content(&self.path, reason)
    }
}

fn buffered<'a>(reader: impl Read + 'a) -> Box<dyn BufRead + 'a> {
    Box::new(BufReader::with_capacity(HEAD, reader))
}

/// The output of a decoder, up to a bound.
struct Limited<R> {
    decoder: R,
    packed: usize,
    left: u64,
}

impl<R> Limited<R> {
    fn new(decoder: R, packed: usize) -> Self {
        Self { decoder, packed, left: most(packed) }
    }
}

fn most(packed: usize) -> u64 {
    MOST_BYTES.min(MOST_RATIO * packed as u64 + SMALL)
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.decoder.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let (packed, most) = (self.packed, most(self.packed));
            let reason = format!("its {packed} bytes unpack to more than {most}, as no rows do");
            io::Error::new(ErrorKind::InvalidData, reason)
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use serde_json::json;

    use crate::testing::{error_of, read_bytes, values_of};

    const LINES: &[u8] = b"\xef\xbb\xbf{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n";

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn packed_files_are_unpacked_and_a_byte_order_mark_goes() {
        let rows = [json!({"prompt": "a"}), json!({"prompt": "b"})];
        let zstd = zstd::encode_all(LINES, 0).unwrap();
        // Several files that were packed one by one may be joined to one.
        let two = [gzip(&LINES[..18]), gzip(&LINES[18..])].concat();
        for (bytes, about) in [
            (LINES.to_vec(), "JSON lines, 2 rows"),
            (gzip(LINES), "JSON lines, gzip, 2 rows"),
            (two, "JSON lines, gzip, 2 rows"),
            (zstd, "JSON lines, zstd, 2 rows"),
        ] {
            assert_eq!(read_bytes("rows.jsonl", &bytes).unwrap().about, about);
            assert_eq!(values_of("rows.jsonl", &bytes), rows);
        }
    }

    #[test]
    fn a_file_that_unpacks_to_a_thousand_times_its_length_is_refused() {
        let blanks = vec![b'\n'; 64 << 20];
        for bytes in [gzip(&blanks), zstd::encode_all(&*blanks, 0).unwrap()] {
            let found = error_of("rows.jsonl", &bytes);
            assert!(found.contains(" bytes unpack to more than "), "{found}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let error = crate::read(std::path::Path::new("/dev/zero"), "train").unwrap_err().to_string();
        assert_eq!(error, "/dev/zero: cannot be read: is a pipe or device, not a file");
    }

    #[test]
    fn a_file_that_ends_too_early_is_named() {
        let zstd = zstd::encode_all(LINES, 0).unwrap();
        for (name, bytes) in [("gzip", gzip(LINES)), ("zstd", zstd)] {
            let found = error_of("rows.jsonl", &bytes[..bytes.len() - 6]);
            assert!(found.starts_with(&format!("rows.jsonl: cannot be unpacked ({name}): ")), "{found}");
        }
    }
}
