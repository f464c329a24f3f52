//! Parquet and Arrow: columns become JSON, nested ones included.

use std::{fmt::Display, path::Path};

use arrow_array::RecordBatch;
use arrow_ipc::{reader::StreamReader, root_as_message};
use arrow_schema::{ArrowError, Schema};
use bytes::Bytes;
use parquet::{arrow::arrow_reader::ParquetRecordBatchReaderBuilder, basic::Compression};
use serde_json::Value;

use crate::{
    DataError, LeftOut, Location, Row, Values, json,
    memory::{self, Meter},
    row::{Parsed, numbered},
    to_json,
    typed::{Fault, Typed, json_leaves},
    writable::{has_other_keys, in_utc, twice, twice_within},
};

/// `ARROW1` and its padding.
const FILE_MARK: usize = 8;
/// Bytes that one byte of a compressed column may unpack to: more than zstd makes of a column of zeros.
const MOST_RATIO: u64 = 20_000;
/// Rows that are converted at a time.
const ROWS: usize = 1024;
/// Most parts of a column's path in Parquet, where a list takes two: JSON of more than 128 levels is not read.
const MOST_PARTS: usize = 200;
/// Columns of prompts, completions and the answer that rewards look for: they are not left out.
const NEEDED: &[&str] = &[
    "prompt",
    "prompt_ids",
    "question",
    "answer",
    "solution",
    "nums",
    "target",
    "reward_model",
    "tools",
    "chat_template_kwargs",
    "messages",
    "conversations",
    "completion",
    "completion_ids",
    "chosen",
    "chosen_ids",
    "rejected",
    "rejected_ids",
];

type Batches<'a> = &'a mut dyn Iterator<Item = Result<RecordBatch, ArrowError>>;

/// The format of a file.
#[derive(Clone, Copy)]
enum Format {
    Parquet,
    ArrowFile,
    ArrowStream,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Parquet => "Parquet",
            Self::ArrowFile | Self::ArrowStream => "Arrow",
        }
    }

    /// Python code that writes a file anew in the plainest way.
    fn anew(self) -> &'static str {
        match self {
            Self::Parquet => "`pq.write_table(pq.read_table(file), file)`",
            Self::ArrowFile => {
                "as Parquet `pq.write_table(pa.ipc.open_file(pa.memory_map(file)).read_all(), \"rows.parquet\")`"
            }
            Self::ArrowStream => {
                "as Parquet `pq.write_table(pa.ipc.open_stream(pa.memory_map(file)).read_all(), \"rows.parquet\")`"
            }
        }
    }

    /// The error of the reader; most such errors come from truncated files.
    fn damaged(self, path: &Path) -> impl Fn(&dyn Display) -> DataError + '_ {
        move |error| {
            let error = error.to_string();
            // Words of the libraries about a whole file that uses a feature which they lack.
            let is_unread =
                ["Disabled feature", "not supported", "nsupported", "NYI", "not yet implemented", "encrypt"]
                    .iter()
                    .any(|words| error.contains(words));
            let remedy = if is_unread {
                format!("it uses what is not read: write it anew, for instance {}", self.anew())
            } else {
                "is the download complete?".to_owned()
            };
            DataError::content(path, format!("cannot be read as {}: {error}; {remedy}", self.name()))
        }
    }
}

/// Rows of a Parquet file.
pub fn read_parquet(path: &Path, bytes: Bytes, meter: &mut Meter) -> Result<Parsed, DataError> {
    let damaged = Format::Parquet.damaged(path);
    let file = open_parquet(path, bytes)?;
    let is_json = json_leaves(file.parquet_schema());
    let typed = Typed::columns(file.schema(), |leaf| is_json.get(leaf).copied().unwrap_or_default());
    let columns = Columns::new(path, file.schema(), typed)?;
    let mut batches = file.build().map_err(|error| damaged(&error))?;
    columns.rows(Format::Parquet, &mut batches, meter)
}

/// Number of rows of a Parquet file, from its footer.
pub fn parquet_rows(path: &Path, bytes: Bytes) -> Result<u64, DataError> {
    let rows = open_parquet(path, bytes)?.metadata().file_metadata().num_rows();
    Ok(u64::try_from(rows).unwrap_or(0))
}

fn open_parquet(path: &Path, bytes: Bytes) -> Result<ParquetRecordBatchReaderBuilder<Bytes>, DataError> {
    let damaged = Format::Parquet.damaged(path);
    let file = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(|error| damaged(&error))?;
    let columns = file.parquet_schema().columns().iter();
    if let Some(deep) = columns.map(|column| column.path().parts()).find(|parts| parts.len() > MOST_PARTS) {
        let message = format!(
            "its column `{}` is nested {} deep (a list counts twice), and at most {MOST_PARTS} are read; leave the \
             column out, or write it as a text",
            deep[0],
            deep.len()
        );
        return Err(DataError::content(path, message));
    }
    let parts = file.metadata().row_groups().iter().flat_map(|group| group.columns());
    let unread = |compression| match compression {
        Compression::BROTLI(_) => Some("brotli"),
        Compression::LZO => Some("lzo"),
        _ => None,
    };
    match parts.into_iter().find_map(|part| Some((unread(part.compression())?, part.column_path().string()))) {
        Some((name, column)) => Err(DataError::content(
            path,
            format!(
                "its column `{column}` is compressed with {name}, which is not read; write it anew with zstd, for \
                 instance `pq.write_table(pq.read_table(file), file, compression=\"zstd\")`"
            ),
        )),
        None => Ok(file),
    }
}

/// Rows of Arrow's file format: a stream between a mark of eight bytes and a footer that says where its parts are. It
/// is read as a stream, so no memory is asked for that only a damaged footer names.
pub fn read_file(path: &Path, bytes: &[u8], meter: &mut Meter) -> Result<Parsed, DataError> {
    read_arrow(Format::ArrowFile, path, bytes.get(FILE_MARK..).unwrap_or_default(), meter)
}

/// Rows of Arrow's stream format.
pub fn read_stream(path: &Path, bytes: &[u8], meter: &mut Meter) -> Result<Parsed, DataError> {
    read_arrow(Format::ArrowStream, path, bytes, meter)
}

fn read_arrow(format: Format, path: &Path, bytes: &[u8], meter: &mut Meter) -> Result<Parsed, DataError> {
    let damaged = format.damaged(path);
    check_packed_lengths(bytes).map_err(|error| damaged(&error))?;
    let mut batches = StreamReader::try_new(bytes, None).map_err(|error| damaged(&error))?;
    let schema = batches.schema();
    Columns::new(path, &schema, Typed::columns(&schema, |_| false))?.rows(format, &mut batches, meter)
}

/// Checks that no compressed column states a length that its bytes cannot have: the reader would ask for that much
/// memory. Other damage is left to the reader.
fn check_packed_lengths(mut stream: &[u8]) -> Result<(), String> {
    // A marker, which very old files lack, and the length of the message.
    while let Some((length, rest)) = stream.strip_prefix(&[0xff; 4]).unwrap_or(stream).split_first_chunk() {
        let Some((message, body)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else { break };
        // A copy begins at an address that is aligned well enough for the parser.
        let message = message.to_vec();
        let Ok(message) = root_as_message(&message) else { break };
        let batch = message.header_as_record_batch().or(message.header_as_dictionary_batch().and_then(|d| d.data()));
        let packed = batch.filter(|batch| batch.compression().is_some()).and_then(|batch| batch.buffers());
        for buffer in packed.into_iter().flatten() {
            let (start, length) = (buffer.offset() as usize, buffer.length() as usize);
            let column = start.checked_add(length).and_then(|end| body.get(start..end)).unwrap_or_default();
            let stated = column.first_chunk::<8>().map_or(0, |length| i64::from_le_bytes(*length));
            if stated > 0 && stated as u64 > MOST_RATIO * length as u64 {
                return Err(format!("a column of {length} bytes states that it unpacks to {stated}"));
            }
        }
        let Some(next) = usize::try_from(message.bodyLength()).ok().and_then(|length| body.get(length..)) else {
            break;
        };
        stream = next;
    }
    Ok(())
}

/// The columns of a file on their way to rows.
struct Columns<'a> {
    path: &'a Path,
    /// Names and types, in the order of the schema.
    all: Vec<(String, Typed)>,
    left_out: Vec<LeftOut>,
}

impl<'a> Columns<'a> {
    fn new(path: &'a Path, schema: &Schema, typed: Vec<Typed>) -> Result<Self, DataError> {
        if let Some(name) = twice(schema.fields()) {
            let reason = format!("has two columns `{name}`; leave one out, or give it another name");
            return Err(DataError::content(path, reason));
        }
        let names = schema.fields().iter().map(|field| field.name().clone());
        let mut columns = Self { path, all: names.zip(typed).collect(), left_out: Vec::new() };
        for field in schema.fields() {
            if let Some(name) = twice_within(field.data_type()) {
                let column = field.name().clone();
                let reason = format!("`{column}` has two fields `{name}`; give one of them another name");
                columns.leave_out(column, reason, None)?;
            }
        }
        Ok(columns)
    }

    fn rows(mut self, format: Format, batches: Batches<'_>, meter: &mut Meter) -> Result<Parsed, DataError> {
        let damaged = format.damaged(self.path);
        let mut rows = Vec::new();
        for batch in batches {
            let batch = batch.map_err(|error| damaged(&error))?;
            for start in (0..batch.num_rows()).step_by(ROWS) {
                let part = batch.slice(start, ROWS.min(batch.num_rows() - start));
                let text = self.as_json(&part)?;
                for (_, line) in json::lines(&text) {
                    let Ok(Value::Object(values)) = json::parse_decimals(line) else {
                        return Err(damaged(&"a row is no object"));
                    };
                    let row = self.row(values, rows.len() + 1)?;
                    meter.add(memory::of_row(&row.values))?;
                    rows.push(row);
                }
            }
        }
        // A later row may show that a column must be left out.
        for row in &mut rows {
            self.left_out.iter().for_each(|one| drop(row.values.shift_remove(&one.column)));
        }
        Ok(Parsed { rows, left_out: self.left_out })
    }

    /// A row, its columns as their types mean them.
    fn row(&mut self, mut values: Values, number: usize) -> Result<Row, DataError> {
        let place = numbered(self.path, "row")(number);
        let mut found = Vec::new();
        for (name, typed) in self.all.iter().filter(|(_, typed)| !typed.is_plain()) {
            let Some(value) = values.get_mut(name) else { continue };
            match typed.apply(value) {
                Ok(()) => {}
                Err((Fault::NoJson(reason), within)) => {
                    let reason = format!("`{name}{within}` is of a column of JSON and is no JSON: {reason}");
                    return Err(DataError::Row { place, reason });
                }
                Err((Fault::NoText, within)) => found.push((name.clone(), format!("`{name}{within}`"))),
            }
        }
        for (name, within) in found {
            values.shift_remove(&name);
            let reason = format!("{within} holds bytes that are no UTF-8 text; write texts as a column of strings");
            self.leave_out(name, reason, Some(&place))?;
        }
        Ok(Row { values, place })
    }

    /// Leaves a column out, unless prompts need it; `place` is the row that shows why.
    fn leave_out(&mut self, column: String, reason: String, place: Option<&Location>) -> Result<(), DataError> {
        if NEEDED.contains(&column.as_str()) {
            return Err(match place {
                Some(place) => DataError::Row { place: place.clone(), reason },
                None => DataError::content(self.path, reason),
            });
        }
        if self.left_out.iter().all(|one| one.column != column) {
            let reason = place.map(|place| format!("{reason} ({place})")).unwrap_or(reason);
            self.left_out.push(LeftOut { column, reason });
        }
        Ok(())
    }

    /// The rows of a batch as JSON lines, without the columns that JSON cannot express.
    fn as_json(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, DataError> {
        let written = |columns: &[usize]| in_utc(&batch.project(columns)?).and_then(|batch| to_json::lines(&batch));
        loop {
            let is_kept = |index: &usize| self.left_out.iter().all(|one| one.column != self.all[*index].0);
            let kept: Vec<usize> = (0..self.all.len()).filter(is_kept).collect();
            let error = match written(&kept) {
                Ok(text) => return Ok(text),
                Err(error) => error,
            };
            let Some(&index) = kept.iter().find(|&&index| written(&[index]).is_err()) else {
                return Err(DataError::content(self.path, format!("its rows cannot be made JSON: {error}")));
            };
            let column = self.all[index].0.clone();
            let reason = if has_other_keys(batch.column(index).data_type()) {
                format!("`{column}` has maps whose keys are no texts, as those of JSON are; write them as texts")
            } else {
                format!("`{column}` cannot be made JSON: {error}")
            };
            self.leave_out(column, reason, None)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, fs, sync::Arc};

    use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, StringArray};
    use arrow_ipc::writer::StreamWriter;
    use arrow_schema::{Field, Schema};
    use serde_json::{Value, json};

    use super::Format;
    use crate::{
        Columns, count, read,
        testing::{error_of, fixture, values, values_of},
    };

    fn rows(name: &str) -> Vec<Value> {
        values(read(&fixture(name), "train").unwrap())
    }

    #[test]
    fn nested_columns_become_json_whatever_the_compression() {
        let user = |text: &str| json!([{"role": "user", "content": text}]);
        let row = |prompt: Value, ability: Value, truth: &str, index: u64| {
            json!({"data_source": "gsm8k", "prompt": prompt, "ability": ability,
                   "reward_model": {"style": "rule", "ground_truth": truth},
                   "extra_info": {"index": index, "split": "train"}})
        };
        let expected = [row(user("2 + 3?"), "math".into(), "5", 0), row(user("é\n\"6\" * 3?"), Value::Null, "18", 1)];
        for codec in ["snappy", "zstd", "gzip", "lz4", "none"] {
            assert_eq!(rows(&format!("verl.{codec}.parquet")), expected, "{codec}");
        }
        assert_eq!(count(&fixture("verl.snappy.parquet"), "train").unwrap(), 2);
    }

    #[test]
    fn every_kind_of_column_is_read_alike_from_parquet_and_feather() {
        let expected = [
            json!({"prompt": "a", "whole": 9_007_199_254_740_993_i64, "real": 0.1, "single": 0.1, "flag": true,
                   "nums": [1, 2], "large": "x", "day": "1970-01-01"}),
            json!({"prompt": "b", "whole": null, "real": null, "single": null, "flag": false,
                   "nums": [], "large": null, "day": null}),
            json!({"prompt": "a", "whole": -1, "real": 2.0, "single": 2.0, "flag": null,
                   "nums": null, "large": "z", "day": "2022-01-08"}),
        ];
        assert_eq!(rows("kinds.parquet"), expected);
        assert_eq!(rows("kinds.feather"), expected);
    }

    #[test]
    fn packed_files_are_read_and_the_name_does_not_matter() {
        let parquet = fs::read(fixture("sums.parquet")).unwrap();
        let packed = zstd::encode_all(&*parquet, 0).unwrap();
        assert_eq!(values_of("rows.json", &packed), rows("sums.parquet"));
        assert_eq!(rows("sums.parquet")[1], json!({"prompt": "2+2=", "answer": 4}));
        assert_eq!(rows("sums.csv")[0], json!({"prompt": "7+7+7+7+7+7+7=", "answer": 49}));
    }

    /// The file has lists within 3,000 lists.
    #[test]
    fn a_column_that_is_nested_too_deep_is_named() {
        let error = read(&fixture("deep.parquet.zst"), "train").unwrap_err().to_string();
        assert!(error.contains("its column `deep` is nested 6001 deep (a list counts twice)"), "{error}");
    }

    #[test]
    fn damaged_files_are_named() {
        for (name, format) in [("sums.parquet", "Parquet"), ("kinds.feather", "Arrow")] {
            let whole = fs::read(fixture(name)).unwrap();
            let found = error_of(name, &whole[..whole.len() / 2]);
            assert!(found.starts_with(&format!("{name}: cannot be read as {format}: ")), "{found}");
        }
        let arrow = fixture("saved").join("data-00000-of-00001.arrow");
        let whole = fs::read(arrow).unwrap();
        let found = error_of("a.arrow", &whole[..whole.len() / 2]);
        assert!(found.starts_with("a.arrow: cannot be read as Arrow: "), "{found}");
    }

    /// `load_dataset("json")` of datasets 5 makes JSON columns where values have several types; the file without the
    /// schema of Arrow has Parquet's own type alone.
    #[test]
    fn columns_of_json_are_what_they_hold() {
        let expected = [
            json!({"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "two",
                   "more": {"a": [1, "b", 12_345_678_901_234_567_890_u64]}}),
            json!({"prompt": [{"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]}], "answer": ["3",
                "three"],
                   "more": {"a": null}}),
        ];
        for name in ["json.parquet", "json.plain.parquet", "saved_json"] {
            assert_eq!(rows(name), expected, "{name}");
        }
    }

    #[test]
    fn bytes_that_are_text_are_read_as_text_in_every_kind_of_column() {
        let row = |text: Value, fixed: Value, listed: Value, messages: Value, money: Value| {
            json!({"prompt": text, "large": text, "view": text, "fixed": fixed, "dictionary": text, "listed": listed,
                   "messages": messages, "money": money})
        };
        let user = json!([{"role": "user", "content": "hi"}]);
        let expected = [
            row("2 + 2 =".into(), "4".into(), json!(["a", null]), user, "12345678901234567890.12".into()),
            row("é".into(), "15".into(), json!([]), json!([]), Value::Null),
            row(Value::Null, Value::Null, Value::Null, Value::Null, Value::Null),
        ];
        assert_eq!(rows("bytes.arrow"), expected);
        let without_view = expected.map(|mut row| {
            row.as_object_mut().unwrap().shift_remove("view");
            row
        });
        assert_eq!(rows("bytes.parquet"), without_view);
        let table = read(&fixture("bytes.parquet"), "train").unwrap();
        let told = table.warnings(&Columns::default());
        assert!(
            told[0].starts_with("column `image` is left out: `image.bytes` holds bytes that are no UTF-8 text"),
            "{told:?}"
        );
        assert!(told[0].ends_with("bytes.parquet, row 2)"), "{told:?}");
        let image = Columns { prompt: Some("image".into()), ..Columns::default() };
        let error = table.describe(&image).unwrap_err().to_string();
        assert!(
            error.contains("has no column `image` (`prompt_column`)") && error.contains("are no UTF-8 text"),
            "{error}"
        );
    }

    /// A file with one column of texts, `values`.
    fn file_of(name: &str, values: &[&[u8]], metadata: &[(&str, &str)]) -> Vec<u8> {
        let bytes = BinaryArray::from_iter_values(values);
        let texts = StringArray::try_from_binary(bytes.clone());
        let array: ArrayRef = texts.map_or_else(|_| Arc::new(bytes) as ArrayRef, |texts| Arc::new(texts));
        let metadata: HashMap<String, String> =
            metadata.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let field = Field::new(name, array.data_type().clone(), true).with_metadata(metadata);
        let schema = Arc::new(Schema::new(vec![field]));
        let batch = RecordBatch::try_new(schema.clone(), vec![array]).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn a_value_that_is_not_what_its_type_says_is_named_by_row_and_column() {
        let json = [("ARROW:extension:name", "arrow.json")];
        let found = error_of("a.arrow", &file_of("answer", &[b"1", b"{\"a\": }"], &json));
        assert!(
            found.starts_with("a.arrow, row 2: `answer` is of a column of JSON and is no JSON: expected value"),
            "{found}"
        );
        let found = error_of("a.arrow", &file_of("prompt", &[b"a", b"\xff"], &[]));
        assert!(
            found.starts_with("a.arrow, row 2: `prompt` holds bytes that are no UTF-8 text; write texts as"),
            "{found}"
        );
        // Without a prompt there is nothing left to train on, but the rows can be counted.
        let left = crate::testing::read_bytes("a.arrow", &file_of("photo", &[b"a", b"\xff"], &[])).unwrap();
        assert_eq!(values(left), [json!({}), json!({})]);
    }

    /// Rewards need the one column and prompts the other: without them, rows would be trained on as if all was well.
    #[test]
    fn a_column_of_prompts_or_answers_is_not_left_out() {
        for column in ["prompt", "messages", "conversations", "answer", "solution"] {
            let found = error_of("a.arrow", &file_of(column, &[b"a", b"\xff"], &[]));
            assert!(found.starts_with(&format!("a.arrow, row 2: `{column}` holds bytes")), "{found}");
        }
    }

    #[test]
    fn the_way_out_goes_by_the_format() {
        let told = |format: Format| format.damaged("rows".as_ref())(&"NYI: a kind").to_string();
        assert!(told(Format::Parquet).ends_with("for instance `pq.write_table(pq.read_table(file), file)`"));
        let arrow = "rows: cannot be read as Arrow: NYI: a kind; it uses what is not read: write it anew, for instance \
            as Parquet `pq.write_table(pa.ipc.open_";
        for (format, opened) in [(Format::ArrowFile, "file(pa"), (Format::ArrowStream, "stream(pa")] {
            assert!(told(format).starts_with(&format!("{arrow}{opened}")), "{}", told(format));
        }
    }

    #[test]
    fn what_the_reader_was_built_without_is_named_with_the_way_out() {
        let error = read(&fixture("brotli.parquet"), "train").unwrap_err().to_string();
        let words =
            "its column `prompt` is compressed with brotli, which is not read; write it anew with zstd, for instance";
        assert!(error.contains(words), "{error}");
    }
}
