//! Rows and their places in files.

use std::{fmt, path::Path, sync::Arc};

use crate::Values;

/// Place of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub path: Arc<Path>,
    /// The unit that is counted in the file.
    pub unit: &'static str,
    /// Its number, from 1.
    pub number: usize,
}

/// `data/train.jsonl, line 3`.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} {}", self.path.display(), self.unit, self.number)
    }
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its columns.
    pub values: Values,
    /// Its place.
    pub place: Location,
}

/// A column that cannot be expressed in rows, and that no prompt needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub column: String,
    /// Its content, with the place: `holds bytes that are no text (rows.parquet, row 1)`.
    pub reason: String,
}

/// Rows of a file, and the columns that they lack.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub rows: Vec<Row>,
    pub left_out: Vec<LeftOut>,
}

/// Rows of a file, numbered from 1.
pub(crate) fn numbered(path: &Path, unit: &'static str) -> impl Fn(usize) -> Location + Sync {
    let path: Arc<Path> = path.into();
    move |number| Location { path: path.clone(), unit, number }
}
