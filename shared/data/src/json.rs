//! JSON: an object per line, or an array of objects.

use std::{
    io::{self, BufRead, Read},
    path::Path,
};

use rayon::prelude::*;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use shared_bounds::KeysOnce;

use crate::{
    DataError, Row, Values,
    bytes::Content,
    memory::{self, Meter},
    row::numbered,
    wording,
};

/// Most bytes of a line, and of any text that is parsed as a whole for each row. A parsed row may take thirty times as
/// much.
pub const MOST_LINE: usize = 16 << 20;
/// Most bytes of an array, which is parsed as a whole.
const MOST_ARRAY: usize = 1 << 30;
/// Bytes of lines that are parsed together.
const BLOCK: u64 = 4 << 20;

/// Lines that are not blank, with their numbers from 1.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    lines.filter(|(_, line)| !line.trim_ascii().is_empty()).map(|(index, line)| (index + 1, line))
}

/// Reads the next whole lines into `block`. Of a line that is too long for a row, it reads just more than a row may
/// have; nothing at the end.
fn next_block(reader: &mut dyn BufRead, block: &mut Vec<u8>) -> io::Result<()> {
    block.clear();
    reader.take(BLOCK).read_to_end(block)?;
    if block.last().is_some_and(|&byte| byte != b'\n') {
        reader.take(MOST_LINE as u64 + 1).read_until(b'\n', block)?;
    }
    Ok(())
}

/// Number of lines that are not blank.
pub fn count_lines(content: &Content) -> Result<u64, DataError> {
    let (mut reader, mut block, mut count) = (content.open()?, Vec::new(), 0);
    loop {
        next_block(&mut reader, &mut block).map_err(|error| content.failed(&error))?;
        if block.is_empty() {
            return Ok(count);
        }
        count += lines(&block).count() as u64;
    }
}

/// Rows of JSON lines; blank lines are passed over.
pub fn read_lines(content: &Content) -> Result<Vec<Row>, DataError> {
    let path = content.path();
    let (mut reader, mut block, mut meter) = (content.open()?, Vec::new(), content.meter());
    let (mut rows, mut before) = (Vec::new(), 0);
    loop {
        next_block(&mut reader, &mut block).map_err(|error| content.failed(&error))?;
        if block.is_empty() {
            break;
        }
        if let Err(error) = read_block(path, &block, before, &mut meter, &mut rows) {
            let is_first = before == 0 && matches!(error, DataError::Row { .. });
            return Err(if is_first && is_one_object(block, &mut reader) { one_object(path) } else { error });
        }
        before += block.iter().filter(|&&byte| byte == b'\n').count();
    }
    match rows.as_slice() {
        [row] if wording::holds_everything(&row.values) => Err(one_object(path)),
        _ => Ok(rows),
    }
}

/// The rows of some lines; `before` lines of the file stand before them.
fn read_block(
    path: &Path,
    block: &[u8],
    before: usize,
    meter: &mut Meter,
    rows: &mut Vec<Row>,
) -> Result<(), DataError> {
    let place = numbered(path, "line");
    let lines: Vec<(usize, &[u8])> = lines(block).collect();
    let row = |&(number, line): &(usize, &[u8])| {
        let place = place(before + number);
        match parse_row(line) {
            Ok(values) => Ok((memory::of_row(&values), Row { values, place })),
            Err(reason) => Err(DataError::Row { place, reason }),
        }
    };
    // The first bad line is named, whichever thread finds one first.
    let found: Vec<Result<(usize, Row), DataError>> = lines.par_iter().map(row).collect();
    for row in found {
        let (bytes, row) = row?;
        meter.add(bytes)?;
        rows.push(row);
    }
    Ok(())
}

fn parse_row(line: &[u8]) -> Result<Values, String> {
    if line.len() > MOST_LINE {
        return Err(too_long());
    }
    match parse_as(line, is_large) {
        Ok(KeysOnce(Value::Object(row))) => Ok(row),
        Ok(_) => Err("is no JSON object".into()),
        // Each line is parsed on its own, so the parser's line number is always 1 and misleads.
        Err(error) => Err(wording::of_json(line, &error, &format!("column {}", error.column()))),
    }
}

/// The message about a row that is too long.
pub fn too_long() -> String {
    format!("is longer than {MOST_LINE} bytes, the most that a row may have")
}

/// A value of JSON, whose objects give no key twice. Whole numbers that 64 bits do not hold become their texts: as
/// numbers they would lose digits.
pub fn parse(text: &[u8]) -> serde_json::Result<Value> {
    parse_as(text, is_large).map(|KeysOnce(value)| value)
}

/// A value of JSON, in which numbers for which `is_meant` holds become their texts.
fn parse_as<T: DeserializeOwned>(text: &[u8], is_meant: impl Fn(&str) -> bool) -> serde_json::Result<T> {
    match with_large_numbers_quoted(text, is_meant) {
        Some(quoted) => serde_json::from_slice(&quoted).map_err(|error| error_in(text, error)),
        None => serde_json::from_slice(text),
    }
}

/// The error of a text that was parsed with quotation marks around some numbers, with the place in the text without
/// them.
fn error_in(text: &[u8], of_quoted: serde_json::Error) -> serde_json::Error {
    let of_syntax = serde_json::from_slice::<IgnoredAny>(text).err();
    let of_keys = || serde_json::from_slice::<KeysOnce>(text).err().filter(|_| of_quoted.is_data());
    of_syntax.or_else(of_keys).unwrap_or(of_quoted)
}

/// A value of JSON that a program has written, with all digits of its numbers. Fractions keep them as texts too.
pub fn parse_decimals(text: &[u8]) -> serde_json::Result<Value> {
    let is_fraction = |word: &str| word.contains(['.', 'e', 'E']) && word.parse::<f64>().is_ok();
    parse_as(text, |word| is_large(word) || digits(word) > MOST_DIGITS && is_fraction(word))
}

/// Digits that tell any two 64-bit floats apart.
const MOST_DIGITS: usize = 17;

/// Whether a word is a whole number that 64 bits do not hold.
fn is_large(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    // A number of nineteen digits may fit, and a word that begins with 0 is no number.
    let is_whole = digits.len() >= 19 && !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_whole && word.parse::<i64>().is_err() && word.parse::<u64>().is_err()
}

/// Significant digits of a number, without zeros at its ends.
fn digits(word: &str) -> usize {
    let plain = word.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = plain.chars().filter(char::is_ascii_digit).collect();
    digits.trim_start_matches('0').trim_end_matches('0').len()
}

/// The text with quotation marks around the numbers for which `is_meant` holds; none if there are none.
fn with_large_numbers_quoted(text: &[u8], is_meant: impl Fn(&str) -> bool) -> Option<Vec<u8>> {
    let mut quoted: Option<Vec<u8>> = None;
    let mut copied = 0;
    for (start, word) in wording::bare_words(text) {
        let end = start + word.len();
        let is_key = || text[end..].trim_ascii_start().starts_with(b":");
        if word.len() > MOST_DIGITS && is_meant(word) && !is_key() {
            let quoted = quoted.get_or_insert_with(|| Vec::with_capacity(text.len() + 2));
            quoted.extend([&text[copied..start], b"\"", word.as_bytes(), b"\""].concat());
            copied = end;
        }
    }
    quoted.map(|mut quoted| {
        quoted.extend(&text[copied..]);
        quoted
    })
}

/// Whether a file is one object over several lines, of which `block` is the beginning.
fn is_one_object(mut block: Vec<u8>, rest: &mut dyn BufRead) -> bool {
    let read = rest.take(MOST_LINE as u64).read_to_end(&mut block);
    read.is_ok() && block.len() <= MOST_LINE && matches!(serde_json::from_slice(&block), Ok(KeysOnce(Value::Object(_))))
}

fn one_object(path: &Path) -> DataError {
    DataError::content(
        path,
        "is one JSON object that holds everything; rows are an array `[{...}, {...}]`, or one object per line (of a \
         pandas table: `df.to_json(path, orient=\"records\", lines=True)`)",
    )
}

/// Rows of a JSON array.
pub fn read_array(content: &Content) -> Result<Vec<Row>, DataError> {
    let path = content.path();
    let bytes = content.whole(MOST_ARRAY as u64)?;
    if bytes.len() > MOST_ARRAY {
        let reason = format!("is an array of more than {MOST_ARRAY} bytes; write one object per line");
        return Err(DataError::content(path, reason));
    }
    let quoted = with_large_numbers_quoted(&bytes, is_large);
    let (mut meter, mut refusal) = (content.meter(), None);
    let items = Items { path, meter: &mut meter, refusal: &mut refusal };
    let mut parser = serde_json::Deserializer::from_slice(quoted.as_deref().unwrap_or(&bytes));
    let rows = items.deserialize(&mut parser).and_then(|rows| parser.end().map(|()| rows));
    match (refusal, rows) {
        (Some(refusal), _) => Err(refusal),
        (None, Ok(rows)) => Ok(rows),
        (None, Err(error)) => {
            let error = if quoted.is_some() { error_in(&bytes, error) } else { error };
            let place = format!("line {}, column {}", error.line(), error.column());
            Err(DataError::content(path, wording::of_json(&bytes, &error, &place)))
        }
    }
}

/// Makes rows of the items of an array, one after the other.
struct Items<'a> {
    path: &'a Path,
    meter: &'a mut Meter,
    /// Why an item is no row.
    refusal: &'a mut Option<DataError>,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = Vec<Row>;

    fn deserialize<D: serde::Deserializer<'de>>(self, parser: D) -> Result<Self::Value, D::Error> {
        parser.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = Vec<Row>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let place = numbered(self.path, "row");
        let mut rows = Vec::new();
        while let Some(KeysOnce(item)) = items.next_element()? {
            let place = place(rows.len() + 1);
            let row = match item {
                Value::Object(values) => self.meter.add(memory::of_row(&values)).map(|()| Row { values, place }),
                _ => Err(DataError::Row { place, reason: "is no JSON object".into() }),
            };
            match row {
                Ok(row) => rows.push(row),
                Err(refusal) => {
                    *self.refusal = Some(refusal);
                    return Err(A::Error::custom("refused"));
                }
            }
        }
        Ok(rows)
    }
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

    /// What a program has written: fractions with all digits, and whole numbers, which have no other digits.
    #[test]
    fn fractions_that_a_float_does_not_hold_are_texts_and_whole_numbers_are_numbers() {
        let text = br#"[123456789012345678, -1700000000123456789, 18446744073709551615, 18446744073709551616,
            0.123456789012345678, 1.5, 12345678901234567.8e3]"#;
        let read = super::parse_decimals(text).unwrap();
        let whole = json!([123456789012345678_i64, -1700000000123456789_i64, u64::MAX]);
        assert_eq!(read.as_array().unwrap()[..3], whole.as_array().unwrap()[..]);
        let texts = json!(["18446744073709551616", "0.123456789012345678", 1.5, "12345678901234567.8e3"]);
        assert_eq!(read.as_array().unwrap()[3..], texts.as_array().unwrap()[..]);
    }

    #[test]
    fn a_line_without_end_is_named_before_it_is_parsed() {
        let text = format!("{{\"prompt\": 1}}\n{{\"prompt\": [{}]}}\n", "0,".repeat(super::MOST_LINE / 2));
        let found = error_of("a.jsonl", text.as_bytes());
        assert_eq!(found, "a.jsonl, line 2: is longer than 16777216 bytes, the most that a row may have");
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
            (
                "a.json",
                "{\"prompt\": [\"a\", \"b\"], \"answer\": [\"1\", \"2\"]}",
                ": is one JSON object that holds everything",
            ),
            ("a.json", "{\"0\": {\"prompt\": \"a\"}}", ": is one JSON object that holds everything"),
            ("a.json", "{\"data\": [{\"prompt\": \"a\"}]}", ": is one JSON object that holds everything"),
            (
                "a.json",
                "{\"columns\": [\"prompt\"], \"index\": [0, 1], \"data\": [[\"a\"], [\"b\"]]}",
                ": is one JSON object that holds everything",
            ),
            ("a.json", "[]", ": holds no rows"),
            ("a.jsonl", "\n\n", ": holds no rows"),
        ] {
            let found = error_of(name, text.as_bytes());
            assert!(found.starts_with(&format!("{name}{error}")), "{found}");
        }
    }

    /// Words that other libraries write into JSON though JSON lacks them: the word, its place, and the way out.
    #[test]
    fn what_is_no_json_is_named_in_the_words_of_its_writer() {
        for (text, words) in [
            (
                "{\"answer\": NaN}",
                "line 1: holds NaN (column 12), which JSON does not have (Python's json.dumps writes it); write",
            ),
            ("{\"a\": \"NaN\", \"b\": [1, -Infinity]}", "line 1: holds -Infinity (column 23), which JSON does not"),
            ("{\"a\": nan}", "line 1: holds nan (column 7), which JSON"),
            ("{'prompt': 'a'}", "line 1: is a dict as Python prints it, not JSON; write rows with `json.dumps(row)`"),
            ("{\"a\": None}", "line 1: holds None (column 7), which is Python's; write rows with `json.dumps(row)`"),
            ("{\"a\": 1e999}", "line 1: holds a number beyond those of 64 bits"),
        ] {
            let found = error_of("a.jsonl", text.as_bytes());
            assert!(found.contains(words), "{found}");
        }
        let found = error_of("a.json", b"[{\"a\": 1},\n{\"a\": Infinity}]");
        assert!(found.starts_with("a.json: holds Infinity (line 2, column 7), which JSON does not have"), "{found}");
        let found = error_of("a.jsonl", b"{\"a\": \"\xe9\"}");
        assert!(found.starts_with("a.jsonl, line 1: is no UTF-8 text; save the file as UTF-8"), "{found}");
    }

    #[test]
    fn a_key_that_a_row_gives_twice_is_named_with_its_place() {
        for (name, text, error) in [
            ("a.jsonl", "{}\n{\"a\": 1, \"b\": 2, \"a\": 3}\n", ", line 2: the key `a` is given twice (column 20)"),
            ("a.jsonl", "{\"a\": 1, \"a\": 1}", ", line 1: the key `a` is given twice (column 12)"),
            ("a.jsonl", "{\"a\": [{\"b at line 7\": 1, \"b at line 7\": 2}]}", ", line 1: the key `b at line 7` is "),
            ("a.json", "[{},\n{\"a\": 1, \"a\": 2}]", ": the key `a` is given twice (line 2, column 12)"),
            ("a.jsonl", "{\"a\": 123456789012345678901, \"a\": 2}", ", line 1: the key `a` is given twice (column 32)"),
        ] {
            let found = error_of(name, text.as_bytes());
            assert!(found.starts_with(&format!("{name}{error}")), "{found}");
        }
    }

    #[test]
    fn an_object_of_lists_that_are_values_of_one_row_is_a_row() {
        for row in [
            json!({"prompt": [{"role": "user", "content": "a"}], "answer": ["7"]}),
            json!({"conversations": [{"from": "human", "value": "a"}], "tags": ["x"]}),
            json!({"prompt_ids": [1, 2]}),
            json!({"prompt": "a", "answer": ["1", "2"]}),
        ] {
            assert_eq!(values_of("a.jsonl", row.to_string().as_bytes()), [row]);
        }
    }

    #[test]
    fn whole_numbers_keep_their_digits_however_many_there_are() {
        let text = r#"{"a": 123456789012345678901234567890, "b": [-98765432109876543210, 18446744073709551615], "c": -9223372036854775808,
            "d": "in 123456789012345678901234567890 \" 123456789012345678901234567890", "e": 0.5, "f": 1e25}"#;
        let expected = json!({"a": "123456789012345678901234567890", "b": ["-98765432109876543210",
            18_446_744_073_709_551_615_u64],
            "c": i64::MIN, "d": "in 123456789012345678901234567890 \" \
                123456789012345678901234567890", "e": 0.5, "f": 1e25});
        assert_eq!(values_of("a.jsonl", text.replace('\n', " ").as_bytes()), std::slice::from_ref(&expected));
        assert_eq!(values_of("a.json", format!("[{text}]").as_bytes()), [expected]);
        let cells = b"n,list\n123456789012345678901,\"[123456789012345678901]\"\n";
        assert_eq!(
            values_of("a.csv", cells),
            [json!({"n": "123456789012345678901", "list": ["123456789012345678901"]})]
        );
        // Places count in the file, which has no quotation marks around the numbers.
        for number in ["123456789012345678901", &"9".repeat(400)] {
            let column = 11 + number.len();
            let found = error_of("a.json", format!("[{{\"a\": {number}, \"b\" 1}}]").as_bytes());
            assert!(found.ends_with(&format!("expected `:` (line 1, column {})", column + 3)), "{found}");
            let found = error_of("a.jsonl", format!("{{\"a\": {number}, \"b\" 1}}").as_bytes());
            assert!(found.ends_with(&format!("expected `:` (column {})", column + 2)), "{found}");
            let found = error_of("a.json", format!("[{{\"a\": {number}, \"b\": NaN}}]").as_bytes());
            assert!(found.contains(&format!("holds NaN (column {})", column + 4)), "{found}");
        }
        let key = error_of("a.jsonl", b"{123456789012345678901: 1}");
        assert!(key.contains("key must be a string"), "{key}");
    }
}
