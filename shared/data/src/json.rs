//! JSON: an object per line, or an array of objects.

use std::path::Path;

use rayon::prelude::*;
use serde_json::Value;

use crate::{DataError, Row, Values, table::numbered};

/// Most bytes of a line, and of what is parsed as a whole for each row. A parsed row may take thirty times as much.
pub const MOST_LINE: usize = 16 << 20;
/// Most bytes of an array, which is parsed as a whole.
const MOST_ARRAY: usize = 1 << 30;

/// Lines that hold anything, with their numbers from 1.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    lines.filter(|(_, line)| !line.trim_ascii().is_empty()).map(|(index, line)| (index + 1, line))
}

/// Rows of JSON lines; blank lines are passed over.
pub fn read_lines(path: &Path, bytes: &[u8]) -> Result<Vec<Row>, DataError> {
    let place = numbered(path, "line");
    let lines: Vec<(usize, &[u8])> = lines(bytes).collect();
    let row = |&(number, line): &(usize, &[u8])| {
        let place = place(number);
        match parse(line) {
            Ok(values) => Ok(Row { values, place }),
            Err(reason) => Err(DataError::Row { place, reason }),
        }
    };
    // The first bad line is named, whichever thread finds one first.
    let rows: Vec<Result<Row, DataError>> = lines.par_iter().map(row).collect();
    let rows: Result<Vec<Row>, DataError> = rows.into_iter().collect();
    match rows {
        Err(_) if bytes.len() <= MOST_LINE && is_one_object(bytes) => Err(one_object(path)),
        Ok(rows) if rows.len() == 1 && is_columns(&rows[0].values) => Err(one_object(path)),
        rows => rows,
    }
}

/// Whether it is a whole pandas table as `to_json` writes it by default: objects from the index to the cell.
fn is_columns(values: &Values) -> bool {
    let from_index = |value: &Value| value.as_object().is_some_and(|cells| cells.contains_key("0"));
    !values.is_empty() && values.values().all(from_index)
}

fn parse(line: &[u8]) -> Result<Values, String> {
    if line.len() > MOST_LINE {
        return Err(format!("is {} bytes long, and a row may have {MOST_LINE}", line.len()));
    }
    match serde_json::from_slice(line) {
        Ok(Value::Object(row)) => Ok(row),
        Ok(_) => Err("is no JSON object".into()),
        // Each line is parsed on its own, so the parser's line number is always 1 and misleads.
        Err(error) => Err(format!("is not valid JSON: {} (column {})", what(&error), error.column())),
    }
}

/// What the parser says, without the place.
fn what(error: &serde_json::Error) -> String {
    error.to_string().split(" at line ").next().unwrap_or_default().to_owned()
}

fn is_one_object(bytes: &[u8]) -> bool {
    matches!(serde_json::from_slice(bytes), Ok(Value::Object(_)))
}

fn one_object(path: &Path) -> DataError {
    DataError::content(
        path,
        "is one JSON object that holds everything; rows are an array `[{...}, {...}]`, or one object per line (of a pandas table: \
         `df.to_json(path, orient=\"records\", lines=True)`)",
    )
}

/// Rows of a JSON array.
pub fn read_array(path: &Path, bytes: &[u8]) -> Result<Vec<Row>, DataError> {
    if bytes.len() > MOST_ARRAY {
        let reason =
            format!("is an array of {} bytes, and one may have {MOST_ARRAY}; write one object per line", bytes.len());
        return Err(DataError::content(path, reason));
    }
    let items: Vec<Value> = serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        DataError::content(path, format!("is not valid JSON: {} (line {line}, column {column})", what(&error)))
    })?;
    let place = numbered(path, "row");
    let row = |(index, item)| match item {
        Value::Object(values) => Ok(Row { values, place: place(index + 1) }),
        _ => Err(DataError::Row { place: place(index + 1), reason: "is no JSON object".into() }),
    };
    items.into_iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{error_of, values_of};

    #[test]
    fn lines_and_arrays_give_the_same_rows() {
        let rows = [json!({"prompt": "a\nb", "n": 1.5}), json!({"prompt": [{"role": "user"}]})];
        let lines = format!("\u{feff}{}\r\n\n  \n{}", rows[0], rows[1]);
        assert_eq!(values_of("rows.jsonl", lines.as_bytes()), rows);
        let array = serde_json::to_string_pretty(&rows).unwrap();
        assert_eq!(values_of("rows.json", format!("\u{feff}\n{array}").as_bytes()), rows);
    }

    #[test]
    fn a_line_without_end_is_named_before_it_is_parsed() {
        let text = format!("{{\"prompt\": 1}}\n{{\"prompt\": [{}]}}\n", "0,".repeat(super::MOST_LINE / 2));
        let found = error_of("a.jsonl", text.as_bytes());
        assert_eq!(found, "a.jsonl, line 2: is 16777230 bytes long, and a row may have 16777216");
    }

    #[test]
    fn a_bad_row_is_named_by_its_place() {
        for (name, text, error) in [
            (
                "a.jsonl",
                "{}\n\n{\"prompt\": \"a\"",
                ", line 3: is not valid JSON: EOF while parsing an object (column 14)",
            ),
            ("a.jsonl", "{}\n[1]\n", ", line 2: is no JSON object"),
            ("a.jsonl", "prompt: 5", ", line 1: is not valid JSON: expected value (column 1)"),
            ("a.json", "[{},\n{\"a\" 1}]", ": is not valid JSON: expected `:` (line 2, column 6)"),
            ("a.json", "[{}, 1]", ", row 2: is no JSON object"),
            ("a.json", "{\n \"data\": [{}]\n}", ": is one JSON object that holds everything; rows are an array"),
            (
                "a.json",
                "{\"prompt\": {\"0\": \"a\", \"1\": \"b\"}}",
                ": is one JSON object that holds everything; rows are",
            ),
            ("a.json", "[]", ": holds no rows"),
            ("a.jsonl", "\n\n", ": holds no rows"),
        ] {
            let found = error_of(name, text.as_bytes());
            assert!(found.starts_with(&format!("{name}{error}")), "{found}");
        }
    }
}
