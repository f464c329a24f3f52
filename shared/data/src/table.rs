//! Datasets as tables: their files, and their rows, whatever the format.

use std::{
    collections::HashSet,
    panic,
    path::{Path, PathBuf},
    thread,
};

use shared_bounds::guarded;

use crate::{
    DataError, LeftOut, Row, Selection,
    bytes::Content,
    columnar, csv,
    folder::Files,
    format::Format,
    json,
    memory::{MOST_RATIO, Meter},
    row::Parsed,
};

/// Memory that the parser of a columnar file may take beside its rows, however short the file is.
const SMALL: u64 = 1 << 30;
/// Bytes of the stack of that parser, which reads each level of a schema within the one above: enough for ten thousand
/// levels. Only pages in use take memory.
const STACK: usize = 64 << 20;

/// The rows of a dataset, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The rows, in the order of the files and of the rows in them.
    pub rows: Vec<Row>,
    /// Format and number of rows, in words: `Parquet, split train, 7473 rows`.
    pub about: String,
    /// Columns of the files that the rows lack.
    pub left_out: Vec<LeftOut>,
}

/// The files of a dataset, or of a part of one.
///
/// # Errors
/// As [`read`], before anything is read.
pub fn files<'a>(path: &Path, part: impl Into<Selection<'a>>) -> Result<Vec<PathBuf>, DataError> {
    Files::of(path, part.into()).map(|files| files.paths)
}

/// Reads a dataset: a file, or a folder of files; `part` chooses one of several parts.
///
/// # Errors
/// A file that cannot be read, or the first bad row, with the way out.
pub fn read<'a>(path: &Path, part: impl Into<Selection<'a>>) -> Result<Table, DataError> {
    let files = Files::of(path, part.into())?;
    let (mut rows, mut left_out, mut written_in) = (Vec::new(), Vec::<LeftOut>::new(), String::new());
    for file in &files.paths {
        let content = Content::read(file)?;
        let format = Format::of(file, &content.head()?)?;
        written_in = [Some(format.name()), content.compression()].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let found = parse(format, content)?;
        rows.extend(found.rows);
        left_out.extend(found.left_out);
    }
    if rows.is_empty() {
        return Err(DataError::Empty { path: path.to_owned() });
    }
    let mut seen = HashSet::new();
    left_out.retain(|one| seen.insert(one.column.clone()));
    for row in rows.iter_mut().filter(|_| files.paths.len() > 1) {
        left_out.iter().for_each(|one| drop(row.values.shift_remove(&one.column)));
    }
    let about = about(&files, &written_in, rows.len());
    Ok(Table { rows, about, left_out })
}

/// Reads rows of JSON lines that are in no file; `name` stands for one in messages.
///
/// # Errors
/// The first bad row, or none at all.
pub fn json_lines(name: &str, bytes: Vec<u8>) -> Result<Table, DataError> {
    let content = Content::of(Path::new(name), bytes);
    let rows = json::read_lines(&content)?;
    if rows.is_empty() {
        return Err(DataError::Empty { path: name.into() });
    }
    let about = format!("{}, {} rows", Format::JsonLines.name(), rows.len());
    Ok(Table { rows, about, left_out: Vec::new() })
}

/// Number of rows of a dataset, as [`read`] reads it; looks at no more of the dataset than its format makes necessary.
///
/// # Errors
/// As [`read`], for the part that is looked at.
pub fn count<'a>(path: &Path, part: impl Into<Selection<'a>>) -> Result<u64, DataError> {
    let of_file = |file: &PathBuf| {
        let content = Content::read(file)?;
        match Format::of(file, &content.head()?)? {
            Format::JsonLines => json::count_lines(&content),
            Format::Parquet => columnar(content, |bytes, _| columnar::parquet_rows(file, bytes.into())),
            format => Ok(parse(format, content)?.rows.len() as u64),
        }
    };
    Files::of(path, part.into())?.paths.iter().map(of_file).sum()
}

fn parse(format: Format, content: Content) -> Result<Parsed, DataError> {
    let path = content.path().to_owned();
    let rows = match format {
        Format::JsonLines => json::read_lines(&content)?,
        Format::JsonArray => json::read_array(&content)?,
        Format::Csv { delimiter } => csv::read(&content, delimiter)?,
        Format::Parquet => {
            return columnar(content, |bytes, meter| columnar::read_parquet(&path, bytes.into(), meter));
        }
        Format::ArrowFile => return columnar(content, |bytes, meter| columnar::read_file(&path, &bytes, meter)),
        Format::ArrowStream => return columnar(content, |bytes, meter| columnar::read_stream(&path, &bytes, meter)),
    };
    Ok(Parsed { rows, left_out: Vec::new() })
}

/// Runs parsers of others, some of which trust their input.
fn columnar<T: Send>(
    content: Content,
    read: impl FnOnce(Vec<u8>, &mut Meter) -> Result<T, DataError> + Send,
) -> Result<T, DataError> {
    let (path, mut meter) = (content.path().to_owned(), content.meter());
    let bytes = content.into_whole()?;
    let most = MOST_RATIO * bytes.len() as u64 + SMALL;
    let parse = || guarded(&path.display().to_string(), most, || read(bytes, &mut meter));
    let parsed = thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, parse);
        let thread = thread.map_err(DataError::file(&path))?;
        Ok(thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload)))
    });
    parsed?.map_err(|reason| DataError::content(&path, reason))?
}

fn about(files: &Files, written_in: &str, rows: usize) -> String {
    let kind = files.kind.map_or_else(|| written_in.to_owned(), str::to_owned);
    let split = files.split.as_ref().map(|split| format!(", split `{split}`")).unwrap_or_default();
    let several = if files.paths.len() > 1 { format!(", {} files", files.paths.len()) } else { String::new() };
    let plural = if rows == 1 { "row" } else { "rows" };
    format!("{kind}{split}{several}, {rows} {plural}")
}
