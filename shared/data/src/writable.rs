//! Columns in the form that the writer of JSON takes, and columns that it cannot take.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, RecordBatch,
    cast::AsArray,
    types::{
        ArrowTimestampType, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
        TimestampSecondType,
    },
};
use arrow_schema::{ArrowError, DataType, TimeUnit};

/// UTC as an offset, which the writer knows.
const UTC: &str = "+00:00";

/// A batch whose times with a time zone are in UTC: the writer knows no zones by name, such as the `UTC` of pandas. The
/// moments stay the same.
pub fn in_utc(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let has_zone = |column: &ArrayRef| matches!(column.data_type(), DataType::Timestamp(_, Some(_)));
    if !batch.columns().iter().any(has_zone) {
        return Ok(batch.clone());
    }
    let column = |column: &ArrayRef| match column.data_type() {
        DataType::Timestamp(TimeUnit::Second, Some(_)) => moved::<TimestampSecondType>(column),
        DataType::Timestamp(TimeUnit::Millisecond, Some(_)) => moved::<TimestampMillisecondType>(column),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => moved::<TimestampMicrosecondType>(column),
        DataType::Timestamp(TimeUnit::Nanosecond, Some(_)) => moved::<TimestampNanosecondType>(column),
        _ => Arc::clone(column),
    };
    let schema = batch.schema();
    let named = schema.fields().iter().zip(batch.columns());
    RecordBatch::try_from_iter_with_nullable(named.map(|(field, of)| (field.name(), column(of), true)))
}

fn moved<T: ArrowTimestampType>(column: &ArrayRef) -> ArrayRef {
    Arc::new(column.as_primitive::<T>().clone().with_timezone(UTC))
}

/// Whether a type has maps whose keys are no texts.
pub fn has_other_keys(data_type: &DataType) -> bool {
    match data_type {
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                let is_text =
                    |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
                let key = fields.first().map(|key| key.data_type());
                key.is_some_and(|key| !is_text(key)) || fields.iter().any(|field| has_other_keys(field.data_type()))
            }
            _ => false,
        },
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            has_other_keys(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| has_other_keys(field.data_type())),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        Int32Array, TimestampMicrosecondArray, TimestampSecondArray,
        builder::{Int32Builder, MapBuilder, StringBuilder},
    };
    use arrow_ipc::writer::StreamWriter;
    use serde_json::json;

    use super::*;
    use crate::testing::values_of;

    fn file(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn times_of_any_zone_are_read_in_utc() {
        let seconds = |zone: &str| TimestampSecondArray::from(vec![Some(86_400), None]).with_timezone(zone.to_owned());
        let micros = TimestampMicrosecondArray::from(vec![1_500_000, 0]).with_timezone("UTC");
        let written = file(vec![
            ("utc", Arc::new(seconds("UTC"))),
            ("berlin", Arc::new(seconds("Europe/Berlin"))),
            ("micros", Arc::new(micros)),
            ("prompt", Arc::new(Int32Array::from(vec![1, 2]))),
        ]);
        let day = "1970-01-02T00:00:00Z";
        let expected = [
            json!({"utc": day, "berlin": day, "micros": "1970-01-01T00:00:01.500Z", "prompt": 1}),
            json!({"utc": null, "berlin": null, "micros": "1970-01-01T00:00:00Z", "prompt": 2}),
        ];
        assert_eq!(values_of("a.arrow", &written), expected);
    }

    #[test]
    fn maps_are_told_by_their_keys() {
        let mut numbers = MapBuilder::new(None, Int32Builder::new(), Int32Builder::new());
        let mut texts = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        numbers.append(true).unwrap();
        texts.append(true).unwrap();
        let (numbers, texts) = (numbers.finish(), texts.finish());
        assert!(has_other_keys(numbers.data_type()) && !has_other_keys(texts.data_type()));
        let written = file(vec![("more", Arc::new(numbers)), ("prompt", Arc::new(Int32Array::from(vec![1])))]);
        assert_eq!(values_of("a.arrow", &written), [json!({"prompt": 1})]);
    }
}
