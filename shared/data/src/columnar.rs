//! Parquet and Arrow: columns become JSON as Arrow's own writer makes it, nested ones included.

use std::{io::Cursor, path::Path};

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_json::{WriterBuilder, writer::LineDelimited};
use arrow_schema::ArrowError;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::{DataError, Row, json, table::numbered};

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

/// Rows of Arrow's file format.
pub fn read_file(path: &Path, bytes: &[u8]) -> Result<Vec<Row>, DataError> {
    let damaged = damaged(path, "Arrow");
    let mut batches = FileReader::try_new(Cursor::new(bytes), None).map_err(|error| damaged(&error))?;
    rows(path, "Arrow", &mut batches)
}

/// Rows of Arrow's stream format.
pub fn read_stream(path: &Path, bytes: &[u8]) -> Result<Vec<Row>, DataError> {
    let damaged = damaged(path, "Arrow");
    let mut batches = StreamReader::try_new(bytes, None).map_err(|error| damaged(&error))?;
    rows(path, "Arrow", &mut batches)
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
