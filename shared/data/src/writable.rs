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
use arrow_schema::{ArrowError, DataType, Fields, TimeUnit};

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

/// The first name that stands twice among some fields. JSON would keep the last value only.
pub fn twice(fields: &Fields) -> Option<&str> {
    let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    (1..names.len()).find(|&index| names[..index].contains(&names[index])).map(|index| names[index])
}

/// The first name that stands twice in a struct within a type.
pub fn twice_within(data_type: &DataType) -> Option<&str> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => twice_within(item.data_type()),
        DataType::Dictionary(_, values) => twice_within(values),
        DataType::RunEndEncoded(_, values) => twice_within(values.data_type()),
        DataType::Struct(fields) => {
            twice(fields).or_else(|| fields.iter().find_map(|field| twice_within(field.data_type())))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        Int32Array, StructArray, TimestampMicrosecondArray, TimestampSecondArray,
        builder::{Int32Builder, MapBuilder, StringBuilder},
    };
    use arrow_ipc::writer::StreamWriter;
    use arrow_schema::Field;
    use serde_json::json;

    use super::*;
    use crate::testing::{error_of, read_bytes, values, values_of};

    #[test]
    fn a_name_that_stands_twice_is_named() {
        let number = |number: i32| -> ArrayRef { Arc::new(Int32Array::from(vec![number])) };
        let found =
            error_of("a.arrow", &file(vec![("prompt", number(1)), ("answer", number(2)), ("answer", number(3))]));
        assert_eq!(found, "a.arrow: has two columns `answer`; leave one out, or give it another name");
        let field = |name: &str| Arc::new(Field::new(name, DataType::Int32, true));
        let within = |name: &str| {
            file(vec![(name, Arc::new(StructArray::from(vec![(field("a"), number(1)), (field("a"), number(2))])))])
        };
        let found = error_of("a.arrow", &within("answer"));
        assert_eq!(found, "a.arrow: `answer` has two fields `a`; give one of them another name");
        let left = read_bytes("a.arrow", &within("more")).unwrap();
        assert!(left.left_out[0].reason.starts_with("`more` has two fields `a`"), "{:?}", left.left_out);
        assert_eq!(values(left), [json!({})]);
    }

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
