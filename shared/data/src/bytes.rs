//! The bytes of a file, unpacked.

use std::{
    io::{self, ErrorKind, Read},
    path::Path,
};

use crate::DataError;

/// UTF-8's byte order mark, which some editors and spreadsheets put first.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Most bytes of a file, unpacked. Rows are held in memory, where they take several times as much.
const MOST_BYTES: u64 = 64 << 30;

/// What a file holds.
#[derive(Debug)]
pub struct Content {
    /// Its bytes, without compression and byte order mark.
    pub bytes: Vec<u8>,
    /// What they were compressed with.
    pub compression: Option<&'static str>,
}

/// Reads and unpacks a file.
pub fn read(path: &Path) -> Result<Content, DataError> {
    let raw = shared_bounds::read(path, MOST_BYTES).map_err(DataError::file(path))?;
    let (mut bytes, compression) = match raw.as_slice() {
        [0x1f, 0x8b, ..] => (unpacked(flate2::read::MultiGzDecoder::new(&*raw), raw.len()), Some("gzip")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            (zstd::Decoder::new(&*raw).and_then(|decoder| unpacked(decoder, raw.len())), Some("zstd"))
        }
        _ => (Ok(raw), None),
    };
    if let (Err(error), Some(name)) = (&bytes, compression) {
        return Err(DataError::content(
            path,
            format!("cannot be unpacked ({name}): {error}; is the download complete?"),
        ));
    }
    if let Ok(bytes) = &mut bytes
        && bytes.starts_with(BYTE_ORDER_MARK)
    {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    bytes.map(|bytes| Content { bytes, compression }).map_err(DataError::file(path))
}

/// What a decoder makes of `packed` bytes. Text shrinks to a tenth, and to a hundredth where rows repeat one another; a file
/// that unpacks to a thousand times its length was made to fill memory.
fn unpacked(decoder: impl Read, packed: usize) -> io::Result<Vec<u8>> {
    let most = MOST_BYTES.min(MOST_RATIO * packed as u64 + SMALL);
    let mut bytes = Vec::new();
    decoder.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let reason = format!("its {packed} bytes unpack to more than {most}, as no rows do");
        return Err(io::Error::new(ErrorKind::InvalidData, reason));
    }
    Ok(bytes)
}

/// Bytes that one byte may unpack to, in the long run.
const MOST_RATIO: u64 = 500;
/// What a file may unpack to however short it is.
const SMALL: u64 = 16 << 20;

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
        // A file may be several that were packed one by one.
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
        let blanks = vec![b' '; 64 << 20];
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
