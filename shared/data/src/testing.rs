//! Support for the tests of several formats.

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::{Table, read};

/// A file or folder written by the real libraries; README.md there says how.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The table of a file of this name and content; errors without its folder.
pub fn read_bytes(name: &str, bytes: &[u8]) -> Result<Table, String> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(name), bytes).unwrap();
    let folder = format!("{}/", dir.path().display());
    read(&dir.path().join(name), "train").map_err(|error| error.to_string().replace(&folder, ""))
}

/// Its rows.
pub fn values_of(name: &str, bytes: &[u8]) -> Vec<Value> {
    values(read_bytes(name, bytes).unwrap())
}

/// Its error.
pub fn error_of(name: &str, bytes: &[u8]) -> String {
    read_bytes(name, bytes).unwrap_err()
}

/// The rows of a table without their places.
pub fn values(table: Table) -> Vec<Value> {
    table.rows.into_iter().map(|row| Value::Object(row.values)).collect()
}
