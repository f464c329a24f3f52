//! Rows of a JSONL file.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use crate::atomic::named;

/// Number of rows of a JSONL file; empty lines are no rows.
///
/// # Errors
/// When the file cannot be read, with its path.
pub fn count_rows(path: &Path) -> io::Result<u64> {
    let mut rows = 0;
    for line in BufReader::new(File::open(path).map_err(named(path))?).split(b'\n') {
        rows += u64::from(!line.map_err(named(path))?.trim_ascii().is_empty());
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_are_no_rows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts.jsonl");
        std::fs::write(&path, "{}\n\n  \r\n{}").unwrap();
        assert_eq!(count_rows(&path).unwrap(), 2);
        let error = count_rows(&dir.path().join("none.jsonl")).unwrap_err().to_string();
        assert!(error.contains("none.jsonl: "), "{error}");
    }
}
