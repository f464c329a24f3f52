//! Parquet and Arrow: columns become JSON as Arrow's own writer makes it, nested ones included.

use std::path::Path;

use arrow_array::RecordBatch;
use arrow_ipc::{reader::StreamReader, root_as_message};
use arrow_json::{WriterBuilder, writer::LineDelimited};
use arrow_schema::ArrowError;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::{DataError, Row, json, table::numbered};

/// `ARROW1` and what fills it up.
const FILE_MARK: usize = 8;
/// Bytes that one byte of a compressed column may unpack to: more than zstd makes of a column of zeros.
const MOST_RATIO: u64 = 20_000;

type Batches<'a> = &'a mut dyn Iterator<Item = Result<RecordBatch, ArrowError>>;

/// Rows of a Parquet file.
pub fn read_parquet(path: &Path, bytes: Bytes) -> Result<Vec<Row>, DataError> {
    let damaged = damaged(path, "Parquet");
    let mut batches = open_parquet(path, bytes)?.build().map_err(|error| damaged(&error))?;
    rows(path, "Parquet", &mut batches)
}

/// Number of rows of a Parquet file, which says it.
pub fn parquet_rows(path: &Path, bytes: Bytes) -> Result<u64, DataError> {
    let rows = open_parquet(path, bytes)?.metadata().file_metadata().num_rows();
    Ok(u64::try_from(rows).unwrap_or(0))
}

fn open_parquet(path: &Path, bytes: Bytes) -> Result<ParquetRecordBatchReaderBuilder<Bytes>, DataError> {
    let damaged = damaged(path, "Parquet");
    ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(|error| damaged(&error))
}

/// Rows of Arrow's file format: a stream between a mark of eight bytes and a footer that says where its parts are. As a
/// stream, it is read without asking for memory that a damaged footer names.
pub fn read_file(path: &Path, bytes: &[u8]) -> Result<Vec<Row>, DataError> {
    read_stream(path, bytes.get(FILE_MARK..).unwrap_or_default())
}

/// Rows of Arrow's stream format.
pub fn read_stream(path: &Path, bytes: &[u8]) -> Result<Vec<Row>, DataError> {
    let damaged = damaged(path, "Arrow");
    check_packed_lengths(bytes).map_err(|error| damaged(&error))?;
    let mut batches = StreamReader::try_new(bytes, None).map_err(|error| damaged(&error))?;
    rows(path, "Arrow", &mut batches)
}

/// Checks that no compressed column states a length that its bytes cannot have: that much memory would be asked for. What is
/// damaged otherwise is left to the reader.
fn check_packed_lengths(mut stream: &[u8]) -> Result<(), String> {
    // A marker, which very old files do without, and the length of the message.
    while let Some((length, rest)) = stream.strip_prefix(&[0xff; 4]).unwrap_or(stream).split_first_chunk() {
        let Some((message, body)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else { break };
        // A copy begins at an address that the parser can do with.
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

fn rows(path: &Path, format: &'static str, batches: Batches<'_>) -> Result<Vec<Row>, DataError> {
    let damaged = damaged(path, format);
    let place = numbered(path, "row");
    let mut rows = Vec::new();
    for batch in batches {
        let batch = batch.map_err(|error| damaged(&error))?;
        let text = as_json(&batch).map_err(|error| {
            DataError::content(
                path,
                format!("has a column that cannot be made JSON: {error}; leave it out of the file"),
            )
        })?;
        for (_, line) in json::lines(&text) {
            let Ok(Value::Object(values)) = serde_json::from_slice(line) else {
                return Err(damaged(&"a row is no object"));
            };
            rows.push(Row { values, place: place(rows.len() + 1) });
        }
    }
    Ok(rows)
}

/// The rows of a batch as JSON lines, with the columns that are empty.
fn as_json(batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
    writer.write(batch)?;
    writer.finish()?;
    Ok(writer.into_inner())
}

fn damaged<'a>(path: &'a Path, format: &'static str) -> impl Fn(&dyn std::fmt::Display) -> DataError + 'a {
    move |error| DataError::content(path, format!("cannot be read as {format}: {error}; is the download complete?"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use crate::{
        count, read,
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
}
