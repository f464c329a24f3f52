//! CSV and TSV.
//!
//! Cells are texts, and an empty cell is null. A column whose cells are all numbers, lists or objects in JSON is read
//! as such if nothing is lost: `72` becomes a number, `72.50`, `007` and `1,000` stay texts. Prompts and completions
//! are texts whatever they look like ([`TEXTS`]).

use std::{
    cell::Cell,
    io::{self, BufRead, Read},
    mem::size_of,
};

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord};
use serde_json::Value;

use crate::{
    DataError, Row, Values,
    bytes::Content,
    json::{self, MOST_LINE},
    memory,
    quotes::{Misquoted, Quotes},
    row::numbered,
};

/// Columns of prompts and completions. Their cells stay as they are written: `12` is a text, and messages are read from
/// a text of JSON later, as in every format.
const TEXTS: [&str; 5] = ["prompt", "question", "completion", "chosen", "rejected"];

/// Rows of a table whose first line names the columns. Cells in quotes may hold delimiters and line breaks.
pub fn read(content: &Content, delimiter: u8) -> Result<Vec<Row>, DataError> {
    let place = numbered(content.path(), "line");
    // The reader ends a row before the second byte of its line break.
    let breaks_have_two_bytes = has_breaks_of_two_bytes(content)?;
    let line_of =
        |position: &Position| position.line() as usize + usize::from(breaks_have_two_bytes && position.byte() > 0);
    let line = |position: Option<&Position>| position.map_or(1, line_of);
    let (row_begins, misquoted) = (Cell::new(0), Cell::new(None));
    let bytes = OneRowAtATime {
        inner: content.open()?,
        read: 0,
        row_begins: &row_begins,
        quotes: Quotes::new(delimiter),
        misquoted: &misquoted,
    };
    let mut reader = ReaderBuilder::new().delimiter(delimiter).from_reader(bytes);
    let failed = |error: csv::Error, at: usize| {
        if let Some(misquoted) = misquoted.get() {
            return DataError::Row { place: place(misquoted.line), reason: misquoted.reason() };
        }
        let reason = match error.kind() {
            ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => json::too_long(),
            ErrorKind::Io(error) => return content.failed(error),
            ErrorKind::UnequalLengths { expected_len, len, .. } => format!(
                "has {len} cells, and the header names {expected_len} columns; is a cell with a {} or a line break \
                 without its quotes?",
                match delimiter {
                    b'\t' => "tab",
                    b';' => "semicolon",
                    _ => "comma",
                }
            ),
            ErrorKind::Utf8 { .. } => "is no UTF-8 text; save the file as UTF-8".into(),
            _ => error.to_string(),
        };
        DataError::Row { place: place(error.position().map_or(at, line_of)), reason }
    };
    let header = reader.headers().map_err(|error| failed(error, 1))?;
    let names = names(header).map_err(|reason| DataError::Row { place: place(1), reason })?;
    let (mut records, mut meter) = (Vec::new(), content.meter());
    loop {
        row_begins.set(reader.position().byte());
        let (at, mut record) = (line(Some(reader.position())), StringRecord::new());
        if !reader.read_record(&mut record).map_err(|error| failed(error, at))? {
            break;
        }
        meter.add(of_record(&record))?;
        records.push(record);
    }
    let is_typed = |(column, name): (usize, &String)| !TEXTS.contains(&name.as_str()) && is_typed(&records, column);
    let typed: Vec<bool> = names.iter().enumerate().map(is_typed).collect();
    let value = |name: &String, cell: &str, typed: bool| match cell {
        "" => Ok(Value::Null),
        cell if typed => {
            lossless(cell).unwrap_or(Ok(Value::Null)).map_err(|reason| format!("column `{name}`: {reason}"))
        }
        cell => Ok(cell.into()),
    };
    let row = |record: StringRecord| {
        let cells = names.iter().zip(record.iter()).zip(&typed);
        let cells = cells.map(|((name, cell), &typed)| Ok((name.clone(), value(name, cell, typed)?)));
        let place = place(line(record.position()));
        let values: Values = match cells.collect() {
            Ok(values) => values,
            Err(reason) => return Err(DataError::Row { place, reason }),
        };
        meter.add(memory::of_row(&values).saturating_sub(of_record(&record)))?;
        Ok(Row { values, place })
    };
    records.into_iter().map(row).collect()
}

/// Bytes that a record takes, about: its text and the ends of its cells.
fn of_record(record: &StringRecord) -> usize {
    size_of::<StringRecord>() + 128 + record.as_slice().len() + record.len() * size_of::<usize>()
}

/// Bytes of a table; an error as soon as a row is too long, or a quote is not closed where its cell ends.
struct OneRowAtATime<'a, R> {
    inner: R,
    read: u64,
    /// Where the present row begins.
    row_begins: &'a Cell<u64>,
    quotes: Quotes,
    /// The quote for which reading ended.
    misquoted: &'a Cell<Option<Misquoted>>,
}

impl<R: Read> Read for OneRowAtATime<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read.saturating_sub(self.row_begins.get()) > MOST_LINE as u64 {
            self.misquoted.set(self.quotes.in_long_row());
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let read = self.inner.read(buffer)?;
        self.read += read as u64;
        let open = if read == 0 && !buffer.is_empty() { self.quotes.at_end() } else { None };
        match self.quotes.follow(&buffer[..read]).err().or(open) {
            None => Ok(read),
            Some(misquoted) => {
                self.misquoted.set(Some(misquoted));
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }
}

/// The names of the columns. A column without a name, as pandas writes its index, gets the one that pandas gives it.
fn names(header: &StringRecord) -> Result<Vec<String>, String> {
    let named = |(index, name): (usize, &str)| match name.trim() {
        "" => format!("Unnamed: {index}"),
        name => name.to_owned(),
    };
    let names: Vec<String> = header.iter().enumerate().map(named).collect();
    match (1..names.len()).find(|&index| names[..index].contains(&names[index])) {
        Some(index) => Err(format!("names two columns `{}`", names[index])),
        None => Ok(names),
    }
}

fn is_typed(records: &[StringRecord], column: usize) -> bool {
    let mut cells = records.iter().filter_map(|record| record.get(column)).filter(|cell| !cell.is_empty()).peekable();
    cells.peek().is_some() && cells.all(|cell| lossless(cell).is_some())
}

/// Whether the first line ends with `\r\n`.
fn has_breaks_of_two_bytes(content: &Content) -> Result<bool, DataError> {
    let mut first = Vec::new();
    let read = content.open()?.take(MOST_LINE as u64).read_until(b'\n', &mut first);
    read.map_err(|error| content.failed(&error))?;
    Ok(first.ends_with(b"\r\n"))
}

/// A list, an object, or a number whose text JSON would write the same. An object that gives a key twice is an error.
fn lossless(cell: &str) -> Option<Result<Value, String>> {
    if !cell.starts_with(|c: char| matches!(c, '-' | '[' | '{') || c.is_ascii_digit()) {
        return None;
    }
    let value = match json::parse(cell.as_bytes()) {
        Ok(value) => value,
        Err(error) => return error.is_data().then(|| Err(error.to_string())),
    };
    let keeps_its_words = value.as_number().is_none_or(|number| number.to_string() == cell);
    (keeps_its_words && !value.is_string()).then_some(Ok(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{error_of, values_of};

    #[test]
    fn quoted_cells_hold_delimiters_quotes_and_line_breaks() {
        let text = "\u{feff}prompt,answer\r\n\"Say \"\"hi\"\",\nthen stop\",5\r\n\"a,b\",6\r\n";
        let rows = [json!({"prompt": "Say \"hi\",\nthen stop", "answer": 5}), json!({"prompt": "a,b", "answer": 6})];
        assert_eq!(values_of("rows.csv", text.as_bytes()), rows);
        assert_eq!(
            values_of("rows.tsv", b"prompt\tanswer\na, b\t\"c\td\"\n"),
            [json!({"prompt": "a, b", "answer": "c\td"})]
        );
        assert_eq!(values_of("rows.csv", b"prompt;answer\na;1,5\n"), [json!({"prompt": "a", "answer": "1,5"})]);
        assert_eq!(values_of("rows.csv", b"prompt\nhello\n"), [json!({"prompt": "hello"})]);
    }

    #[test]
    fn columns_are_numbers_or_lists_only_where_nothing_is_lost() {
        let text = ",n,half,money,code,nums,mixed,big,empty\n0,3,0.5,72.50,007,\"[1, 2]\",4,12345678901234567890123,\n\
                    1,,1.5,3.00,012,\"[3]\",four,1,\n";
        let found = values_of("rows.csv", text.as_bytes());
        let first = json!({"Unnamed: 0": 0, "n": 3, "half": 0.5, "money": "72.50", "code": "007", "nums": [1, 2],
            "mixed": "4",
                           "big": "12345678901234567890123", "empty": null});
        assert_eq!(found[0], first);
        assert_eq!(
            (&found[1]["n"], &found[1]["mixed"], &found[1]["nums"]),
            (&json!(null), &json!("four"), &json!([3]))
        );
    }

    #[test]
    fn a_cell_of_json_gives_no_key_twice() {
        let error = error_of("rows.csv", b"prompt,answer\na,\"{\"\"v\"\": 1}\"\nb,\"{\"\"v\"\": 1, \"\"v\"\": 2}\"\n");
        assert!(error.contains("line 3: column `answer`: ") && error.contains("`v`"), "{error}");
        // Among texts, it is one.
        let rows = values_of("rows.csv", b"prompt,answer\na,x\nb,\"{\"\"v\"\": 1, \"\"v\"\": 2}\"\n");
        assert_eq!(rows[1]["answer"], "{\"v\": 1, \"v\": 2}");
    }

    #[test]
    fn lines_are_counted_whatever_their_breaks_are() {
        for text in ["prompt,answer\na,1\n\"b\nc\",2\nd,3,4\n", "prompt,answer\r\na,1\r\n\"b\r\nc\",2\r\nd,3,4\r\n"] {
            let error = error_of("rows.csv", text.as_bytes());
            assert!(error.contains(", line 5: has 3 cells"), "{error}");
        }
    }

    #[test]
    fn a_broken_table_is_named_by_its_line() {
        for (text, error) in [
            (
                &b"prompt,answer\na,1\n\"b\nc\",2\nd,e,3\n"[..],
                ", line 5: has 3 cells, and the header names 2 columns; is a cell",
            ),
            (
                b"prompt;answer\na;b;1,5\n",
                ", line 2: has 3 cells, and the header names 2 columns; is a cell with a semicolon",
            ),
            (b"prompt,answer\na,1\n\xe9,2\n", ", line 3: is no UTF-8 text; save the file as UTF-8"),
            (b"prompt,answer,answer\na,1,2\n", ", line 1: names two columns `answer`"),
            (b"prompt,answer\n", ": holds no rows"),
        ] {
            let found = error_of("rows.csv", text);
            assert!(found.starts_with(&format!("rows.csv{error}")), "{found}");
        }
    }

    /// The parser would read the rest of the file as one cell, and the rows in it would be gone.
    #[test]
    fn a_quote_that_does_not_close_where_its_cell_ends_is_named_by_its_line() {
        for (name, text, words) in [
            (
                "a.csv",
                "prompt,answer\n1+2=,\"3\n3+4=,7\n5+5=,10\n",
                "line 2: opens a quote at the beginning of a cell that never",
            ),
            (
                "a.csv",
                "prompt,answer\n\"a\nb\",1\nc,\"d",
                "line 4: opens a quote at the beginning of a cell that never",
            ),
            ("a.csv", "\"prompt,answer\na,1\n", "line 1: opens a quote"),
            (
                "a.csv",
                "prompt,answer\na,\"1\nb,\"2\"\n",
                "line 2: opens a quote at the beginning of a cell that closes amid the text of line 3",
            ),
            ("a.tsv", "prompt\tanswer\nx\t1\n\"a b\t2\nc\t3\n", "line 3: opens a quote"),
        ] {
            let found = error_of(name, text.as_bytes());
            assert!(found.starts_with(&format!("{name}, {words}")), "{found}");
            assert!(found.contains("write a cell that begins with a quotation mark as \"\"\"like this"), "{found}");
        }
        let whole = json!({"prompt": "a\nb", "answer": "\"x\ny\" z"});
        for text in ["prompt,answer\n\"a\nb\",\"\"\"x\ny\"\" z\"", "prompt,answer\n\"a\nb\" ,\"\"\"x\ny\"\" z\"\n"] {
            let found = values_of("a.csv", text.as_bytes());
            assert_eq!((found.len(), &found[0]["answer"]), (1, &whole["answer"]), "{text}");
        }
        assert_eq!(
            values_of("a.csv", b"prompt,answer\n5\" disk,\"\"\n")[0],
            json!({"prompt": "5\" disk", "answer": null})
        );
    }

    #[test]
    fn prompts_stay_as_they_are_written_whatever_they_look_like() {
        let rows = [json!({"prompt": "12", "answer": 3}), json!({"prompt": "34", "answer": 7})];
        assert_eq!(values_of("a.csv", b"prompt,answer\n12,3\n34,7\n"), rows);
        assert_eq!(values_of("a.tsv", b"prompt\tanswer\n12\t3\n34\t7\n"), rows);
        assert_eq!(values_of("a.csv", b"question\n\"[1, 2]\"\n"), [json!({"question": "[1, 2]"})]);
    }
}
