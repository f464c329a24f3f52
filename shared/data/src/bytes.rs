//! The bytes of a file, unpacked.

use std::{fs, io::Read, path::Path};

use crate::DataError;

/// UTF-8's byte order mark, which some editors and spreadsheets put first.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
    let raw = fs::read(path).map_err(DataError::file(path))?;
    let (mut bytes, compression) = match raw.as_slice() {
        [0x1f, 0x8b, ..] => {
            let mut unpacked = Vec::new();
            let result = flate2::read::MultiGzDecoder::new(&*raw).read_to_end(&mut unpacked);
            (result.map(|_| unpacked), Some("gzip"))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => (zstd::decode_all(&*raw), Some("zstd")),
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
    fn a_file_that_ends_too_early_is_named() {
        let zstd = zstd::encode_all(LINES, 0).unwrap();
        for (name, bytes) in [("gzip", gzip(LINES)), ("zstd", zstd)] {
            let found = error_of("rows.jsonl", &bytes[..bytes.len() - 6]);
            assert!(found.starts_with(&format!("rows.jsonl: cannot be unpacked ({name}): ")), "{found}");
        }
    }
}
