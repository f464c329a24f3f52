//! Formats of datasets that are not read: their names, and what to do.

use std::path::Path;

use crate::extension;

/// The name of a format, and what to do about it.
type Unread = (&'static str, &'static str);

const PICKLE: Unread = (
    "a Python pickle",
    "pickles run code when they are loaded; write the rows with `pandas.DataFrame(rows).to_parquet(...)` or as JSON \
     lines",
);
const TAR: Unread = ("a tar archive (as webdataset has)", "unpack it and write the rows as JSON lines or Parquet");
const OTHER_COMPRESSION: &str = "unpack it, or compress with gzip or zstd";
const UTF_16: Unread = ("text in UTF-16", "save it as UTF-8 (in spreadsheets `CSV UTF-8`)");
const AS_CSV: &str = "export the sheet as CSV (`CSV UTF-8`)";

/// Beginnings of files.
const BEGINNINGS: &[(&[u8], Unread)] = &[
    (b"BZh", ("compressed with bzip2", OTHER_COMPRESSION)),
    (b"\xfd7zXZ\0", ("compressed with xz", OTHER_COMPRESSION)),
    (b"\x04\x22\x4d\x18", ("compressed with lz4", OTHER_COMPRESSION)),
    (b"7z\xbc\xaf\x27\x1c", ("a 7z archive", "unpack it and name the file or the folder")),
    (
        b"SQLite format 3\0",
        ("an SQLite database", "export the table as CSV (`sqlite3 -csv -header FILE 'select ...'`)"),
    ),
    (b"\x89HDF\r\n", ("an HDF5 file", "write the rows as Parquet or JSON lines")),
    (b"\x93NUMPY", ("a NumPy array", "write the rows as Parquet or JSON lines")),
    (b"Obj\x01", ("an Avro file", "convert it to Parquet or JSON lines")),
    (b"FEA1", ("a Feather file of version 1", "write it anew with `pyarrow.feather.write_feather(..., version=2)`")),
    (b"\xd0\xcf\x11\xe0", ("an old Excel workbook", AS_CSV)),
    (b"PARE", ("an encrypted Parquet file", "write it without encryption")),
    (b"ORC", ("an ORC file", "convert it to Parquet")),
    (b"%PDF", ("a PDF document", "a dataset has rows: write them as JSON lines or CSV")),
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
    (
        b"version https://git-lfs.github.com/spec/",
        ("a pointer of Git LFS, not the data", "fetch the data with `git lfs pull` in the folder of the repository"),
    ),
    (b"<!DOCTYPE", ("a web page", "download the file itself; on the Hugging Face hub the link has `/resolve/`")),
    (b"<!doctype", ("a web page", "download the file itself; on the Hugging Face hub the link has `/resolve/`")),
    (b"<html", ("a web page", "download the file itself; on the Hugging Face hub the link has `/resolve/`")),
];

/// The format of a file, if it is a known one that is not read.
pub fn recognise(path: &Path, bytes: &[u8]) -> Option<Unread> {
    let known = BEGINNINGS.iter().find(|(beginning, _)| bytes.starts_with(beginning));
    known.map(|&(_, unread)| unread).or_else(|| by_structure(path, bytes))
}

fn by_structure(path: &Path, bytes: &[u8]) -> Option<Unread> {
    match bytes {
        [b'P', b'K', 3 | 5, 4 | 6, ..] => Some(zipped(path)),
        [0x80, 2..=5, ..] => Some(PICKLE),
        _ if bytes.get(257..262) == Some(b"ustar") => Some(TAR),
        // Eight bytes with the length of the header, then the header.
        [_, _, _, _, 0, 0, 0, 0, b'{', ..] => Some((
            "a safetensors file",
            "it holds tensors, not rows; is this the model? a dataset is JSON lines, CSV or Parquet",
        )),
        _ => None,
    }
}

/// Formats whose files are zip archives.
fn zipped(path: &Path) -> Unread {
    match extension::of(path).as_str() {
        "xlsx" | "xlsm" | "ods" => ("a spreadsheet", AS_CSV),
        "pt" | "pth" | "bin" | "ckpt" => PICKLE,
        "npz" => ("a file of NumPy arrays", "write the rows as Parquet or JSON lines"),
        _ => ("a zip archive", "unpack it and name the file or the folder"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_named_with_the_way_out() {
        let tar = [vec![0; 257], b"ustar\0".to_vec()].concat();
        for (name, bytes, what) in [
            ("a.xlsx", &b"PK\x03\x04"[..], "a spreadsheet"),
            ("a.pt", b"PK\x03\x04", "a Python pickle"),
            ("a.zip", b"PK\x03\x04", "a zip archive"),
            ("a.npz", b"PK\x03\x04", "a file of NumPy arrays"),
            ("a.pkl", b"\x80\x04\x95", "a Python pickle"),
            ("a.tar", &tar, "a tar archive (as webdataset has)"),
            ("a.safetensors", b"\x40\x01\0\0\0\0\0\0{\"a\"", "a safetensors file"),
            ("a.csv", b"\xff\xfep\0", "text in UTF-16"),
            ("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS, not the data"),
            ("a.parquet", b"<!doctype html>", "a web page"),
            ("a.parquet", b"PARE\x15\0", "an encrypted Parquet file"),
            ("a.jsonl.bz2", b"BZh91AY", "compressed with bzip2"),
        ] {
            assert_eq!(recognise(Path::new(name), bytes).map(|(what, _)| what), Some(what), "{name}");
        }
        for bytes in [&b"\xff\xff\xff\xff\x10\0\0\0"[..], b"{\"prompt\": 1}", b"PAR1", b"prompt,answer", b""] {
            assert_eq!(recognise(Path::new("a"), bytes), None);
        }
    }
}
