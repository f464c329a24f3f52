//! The format of a file, by its bytes.

use std::path::Path;

use crate::{DataError, extension, unread};

/// A format that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    JsonLines,
    /// One JSON array of objects.
    JsonArray,
    /// A table of texts, the first line of which names the columns.
    Csv {
        /// The separator of cells.
        delimiter: u8,
    },
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC, the file format (Feather version 2).
    ArrowFile,
    /// Arrow IPC, the stream format: written by `datasets.save_to_disk`.
    ArrowStream,
}

impl Format {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::JsonLines => "JSON lines",
            Self::JsonArray => "JSON array",
            Self::Csv { delimiter: b'\t' } => "TSV",
            Self::Csv { .. } => "CSV",
            Self::Parquet => "Parquet",
            Self::ArrowFile | Self::ArrowStream => "Arrow",
        }
    }

    /// The format of a file, by its first `bytes`; for text, by its name or its first line.
    ///
    /// # Errors
    /// [`DataError::Unread`], or an unknown format.
    pub(crate) fn of(path: &Path, bytes: &[u8]) -> Result<Self, DataError> {
        if let Some((what, remedy)) = unread::recognise(path, bytes) {
            return Err(DataError::Unread { path: path.to_owned(), what, remedy });
        }
        if bytes.starts_with(b"PAR1") {
            return Ok(Self::Parquet);
        }
        if bytes.starts_with(b"ARROW1") {
            return Ok(Self::ArrowFile);
        }
        // The continuation marker of a message.
        if bytes.starts_with(&[0xff; 4]) {
            return Ok(Self::ArrowStream);
        }
        Self::of_text(path, bytes)
    }

    fn of_text(path: &Path, bytes: &[u8]) -> Result<Self, DataError> {
        let extension = extension::of(path);
        match (bytes.trim_ascii_start().first(), extension.as_str()) {
            (Some(b'['), _) => Ok(Self::JsonArray),
            (Some(b'{') | None, _) | (_, "jsonl" | "ndjson" | "json") => Ok(Self::JsonLines),
            (_, "csv" | "tsv" | "tab" | "txt" | "") => match delimiter(bytes) {
                Some(delimiter) => Ok(Self::Csv { delimiter }),
                // A table of one column.
                None if extension == "csv" || extension == "tsv" => Ok(Self::Csv { delimiter: b',' }),
                None => Err(unknown(path)),
            },
            _ => Err(unknown(path)),
        }
    }
}

fn unknown(path: &Path) -> DataError {
    DataError::content(
        path,
        "is in no format that is read (JSON lines, JSON arrays, CSV, TSV, Parquet, Arrow; docs/data.md); write one \
         JSON object per line, for instance {\"prompt\": \"2 + 3 =\"}",
    )
}

/// The separator of the header's cells: a tab, else a comma, else the semicolon of spreadsheets where the comma is the
/// decimal point.
fn delimiter(bytes: &[u8]) -> Option<u8> {
    let header = bytes.split(|&byte| byte == b'\n').find(|line| !line.trim_ascii().is_empty())?;
    // Delimiters within quotes are part of a name.
    let mut quoted = false;
    let outside: Vec<u8> = header
        .iter()
        .copied()
        .filter(|&byte| {
            quoted ^= byte == b'"';
            !quoted
        })
        .collect();
    b"\t,;".iter().copied().find(|delimiter| outside.contains(delimiter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, bytes: &[u8]) -> Result<Format, String> {
        Format::of(Path::new(name), bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn the_bytes_decide_and_the_name_only_where_they_leave_it_open() {
        let csv = |delimiter| Ok(Format::Csv { delimiter });
        for (name, bytes, format) in [
            ("rows.csv", &b" \n{\"prompt\": 1}"[..], Ok(Format::JsonLines)),
            ("rows.jsonl", b"\n [{}]", Ok(Format::JsonArray)),
            ("rows.jsonl", b"prompt,answer", Ok(Format::JsonLines)),
            ("rows.jsonl.gz", b"", Ok(Format::JsonLines)),
            ("rows.json", b"PAR1", Ok(Format::Parquet)),
            ("rows", b"ARROW1\0\0", Ok(Format::ArrowFile)),
            ("rows.bin", b"\xff\xff\xff\xff\x10", Ok(Format::ArrowStream)),
            ("rows.csv", b"prompt,answer\n1,2", csv(b',')),
            ("rows", b"prompt\tan,swer", csv(b'\t')),
            ("ROWS.CSV.GZ", b"prompt;answer", csv(b';')),
            ("rows.csv", b"\"a;b\",c", csv(b',')),
            ("rows.csv", b"prompt\nhello", csv(b',')),
        ] {
            assert_eq!(of(name, bytes), format, "{name}");
        }
        for (name, bytes) in [("rows.txt", &b"hello\n"[..]), ("run.toml", b"model = 1, 2"), ("a.py", b"f(1, 2)")] {
            assert!(of(name, bytes).unwrap_err().contains("no format that is read"), "{name}");
        }
    }
}
