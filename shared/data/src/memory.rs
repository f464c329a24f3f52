//! The memory that rows take, counted while they are read.

use std::{
    mem::size_of,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{DataError, Row, Values};

/// Bytes of memory that a byte of a file may take as rows, in the long run.
pub const MOST_RATIO: u64 = 200;
/// Bytes that the rows of a file may take, however short it is.
const SMALL: u64 = 512 << 20;
/// An entry of an object, as its list of entries holds it.
const ENTRY: usize = size_of::<(usize, String, Value)>();

/// Bytes that the rows of a file have taken, and the bound.
#[derive(Debug)]
pub struct Meter {
    path: PathBuf,
    length: u64,
    taken: u64,
}

impl Meter {
    /// For a file of `length` bytes on the disk.
    pub fn new(path: &Path, length: u64) -> Self {
        Self { path: path.to_owned(), length, taken: 0 }
    }

    fn most(&self) -> u64 {
        MOST_RATIO * self.length + SMALL
    }

    /// Counts bytes.
    ///
    /// # Errors
    /// More than the file may take.
    pub fn add(&mut self, bytes: usize) -> Result<(), DataError> {
        self.taken += bytes as u64;
        if self.taken <= self.most() {
            return Ok(());
        }
        let (length, most) = (self.length, self.most() >> 20);
        Err(DataError::content(
            &self.path,
            format!(
                "its {length} bytes make rows of more than {most} MiB of memory, the bound for a file of this length; \
                 split it, or unpack it where it is compressed and means this many rows"
            ),
        ))
    }
}

/// Bytes that a row takes, about. The list that holds it has up to twice as much room as it has rows.
pub fn of_row(values: &Values) -> usize {
    2 * size_of::<Row>() + of_entries(values)
}

/// An object has a table of the places of its entries. Its size is a power of two, at most seven eighths of it are in
/// use, and there is as much room for entries.
fn of_entries(values: &Values) -> usize {
    let (buckets, room) = match values.len() {
        0 => (0, 0),
        1..4 => (4, 3),
        more => {
            let buckets = (more * 8).div_ceil(7).next_power_of_two();
            (buckets, buckets / 8 * 7)
        }
    };
    let own = if buckets == 0 { 0 } else { allocation(buckets * (size_of::<usize>() + 1) + 16) };
    let within = values.iter().map(|(key, value)| allocation(key.len()) + behind(value)).sum::<usize>();
    own + allocation(room * ENTRY) + within
}

/// Bytes that a value takes on the heap.
fn behind(value: &Value) -> usize {
    match value {
        Value::String(text) => allocation(text.capacity()),
        Value::Array(items) => {
            allocation(items.capacity() * size_of::<Value>()) + items.iter().map(behind).sum::<usize>()
        }
        Value::Object(values) => of_entries(values),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Bytes that the system's allocator takes for a request: a word of its own more, in multiples of 16, and 32 at least.
fn allocation(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + size_of::<usize>()).next_multiple_of(16).max(32) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;
    use crate::testing::error_of;

    fn gzip(pieces: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        pieces.for_each(|piece| encoder.write_all(&piece).unwrap());
        encoder.finish().unwrap()
    }

    /// Two texts are 32 bytes each, so are their keys; the table of four takes 64 bytes, the entries have room for
    /// three.
    #[test]
    fn a_short_row_is_mostly_what_it_lies_in() {
        let Value::Object(row) = serde_json::json!({"prompt": "1+1=", "answer": "2"}) else { unreachable!() };
        let texts = 4 * 32;
        assert_eq!(of_row(&row), 2 * size_of::<Row>() + texts + 64 + allocation(3 * ENTRY));
        assert_eq!(of_row(&Values::new()), 2 * size_of::<Row>());
        assert_eq!([0, 1, 24, 25].map(allocation), [0, 32, 32, 48]);
    }

    /// Millions of rows from few bytes: their memory is counted while they are made, whatever their format.
    #[test]
    fn rows_that_would_fill_memory_are_refused_while_they_are_read() {
        let many = |begin: &str, row: &str, end: &str| {
            let block = row.repeat(10_000).into_bytes();
            let body = (0..300).map(|_| block.clone());
            gzip(std::iter::once(begin.as_bytes().to_vec()).chain(body).chain([end.as_bytes().to_vec()]))
        };
        for (name, bytes) in [
            ("rows.jsonl.gz", many("", "{\"p\":1}\n", "")),
            ("rows.json.gz", many("[{}", ",{\"p\":1}", "]")),
            ("rows.csv.gz", many("p,q\n", "1,2\n", "")),
        ] {
            let found = error_of(name, &bytes);
            assert!(
                found.starts_with(&format!("{name}: its {} bytes make rows of more than ", bytes.len())),
                "{found}"
            );
        }
    }

    /// An endless line is refused as soon as it is longer than a row may be, not after all of it has been unpacked.
    #[test]
    fn a_line_that_does_not_end_is_refused_before_it_is_unpacked() {
        let blank = vec![b'a'; 1 << 20];
        let quoted = "opens a quote at the beginning of a cell that does not close within 16777216 bytes";
        for (name, begin, words) in [
            ("rows.jsonl.gz", "{\"p\":1}\n{\"p\":\"", "is longer than 16777216 bytes"),
            ("rows.csv.gz", "p,q\n1,2\n", "is longer than 16777216 bytes"),
            ("rows.csv.gz", "p,q\n1,2\n\"", quoted),
        ] {
            let endless = std::iter::once(begin.as_bytes().to_vec()).chain((0..200).map(|_| blank.clone()));
            let found = error_of(name, &gzip(endless));
            assert!(found.starts_with(&format!("{name}, line {}: {words}", begin.split('\n').count())), "{found}");
        }
    }
}
