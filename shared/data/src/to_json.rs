//! Columns of Arrow as lines of JSON, with the bytes that the crate `arrow-json` gives. The two differ for nulls among
//! the values of a dictionary only: that crate takes them for values, and here they are null.
//!
//! That crate also reads JSON, and brings casts and comparisons of all types along, which take a tenth of the build of
//! a program. This file takes their place.

use std::io::Write;

use arrow_array::{
    Array, ArrowPrimitiveType, ListLikeArray, MapArray, RecordBatch, cast::AsArray, downcast_dictionary_array,
    downcast_run_array, types::*,
};
use arrow_buffer::NullBuffer;
use arrow_data::decimal::{DecimalNativeType, write_decimal};
use arrow_schema::{ArrowError, DataType};
use lexical_core::{FormattedSize, ToLexical};
use serde::Serialize;

use crate::times::{self, Value};

/// Bytes that a float may take.
const FLOAT: usize = f64::FORMATTED_SIZE;

/// A column that is written value by value.
struct Column<'a> {
    nulls: Option<NullBuffer>,
    value: Value<'a>,
}

impl<'a> Column<'a> {
    fn new(nulls: Option<&NullBuffer>, value: impl Fn(usize, &mut Vec<u8>) + 'a) -> Self {
        Self { nulls: nulls.cloned(), value: Box::new(value) }
    }

    fn write(&self, index: usize, out: &mut Vec<u8>) {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(index)) {
            out.extend(b"null");
        } else {
            (self.value)(index, out);
        }
    }
}

/// The rows of a batch, each an object on a line of its own; columns that are empty are null.
///
/// # Errors
/// A column of a type that JSON cannot express.
pub fn lines(batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let schema = batch.schema();
    let fields = schema.fields().iter().zip(batch.columns());
    let row = object(fields.map(|(field, array)| (field.name().as_str(), &**array)))?;
    let mut out = Vec::new();
    for index in 0..batch.num_rows() {
        row(index, &mut out);
        out.push(b'\n');
    }
    Ok(out)
}

fn column(array: &dyn Array) -> Result<Column<'_>, ArrowError> {
    let nulls = array.nulls();
    Ok(match array.data_type() {
        DataType::Null => Column { nulls: array.logical_nulls(), value: Box::new(|_, out| out.extend(b"null")) },
        DataType::Boolean => {
            let array = array.as_boolean();
            Column::new(nulls, |index, out| json(&array.value(index), out))
        }
        DataType::Int8 => whole::<Int8Type>(array),
        DataType::Int16 => whole::<Int16Type>(array),
        DataType::Int32 => whole::<Int32Type>(array),
        DataType::Int64 => whole::<Int64Type>(array),
        DataType::UInt8 => whole::<UInt8Type>(array),
        DataType::UInt16 => whole::<UInt16Type>(array),
        DataType::UInt32 => whole::<UInt32Type>(array),
        DataType::UInt64 => whole::<UInt64Type>(array),
        DataType::Float16 => {
            let array = array.as_primitive::<Float16Type>();
            Column::new(nulls, |index, out| float(array.value(index).to_f32(), out))
        }
        DataType::Float32 => {
            let array = array.as_primitive::<Float32Type>();
            Column::new(nulls, |index, out| float(array.value(index), out))
        }
        DataType::Float64 => {
            let array = array.as_primitive::<Float64Type>();
            Column::new(nulls, |index, out| float(array.value(index), out))
        }
        DataType::Decimal32(_, scale) => decimal::<Decimal32Type>(array, *scale),
        DataType::Decimal64(_, scale) => decimal::<Decimal64Type>(array, *scale),
        DataType::Decimal128(_, scale) => decimal::<Decimal128Type>(array, *scale),
        DataType::Decimal256(_, scale) => decimal::<Decimal256Type>(array, *scale),
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            Column::new(nulls, |index, out| json(array.value(index), out))
        }
        DataType::LargeUtf8 => {
            let array = array.as_string::<i64>();
            Column::new(nulls, |index, out| json(array.value(index), out))
        }
        DataType::Utf8View => {
            let array = array.as_string_view();
            Column::new(nulls, |index, out| json(array.value(index), out))
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            Column::new(nulls, |index, out| hexadecimal(array.value(index), out))
        }
        DataType::LargeBinary => {
            let array = array.as_binary::<i64>();
            Column::new(nulls, |index, out| hexadecimal(array.value(index), out))
        }
        DataType::BinaryView => {
            let array = array.as_binary_view();
            Column::new(nulls, |index, out| hexadecimal(array.value(index), out))
        }
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            Column::new(nulls, |index, out| hexadecimal(array.value(index), out))
        }
        DataType::List(_) => list(array.as_list::<i32>())?,
        DataType::LargeList(_) => list(array.as_list::<i64>())?,
        DataType::ListView(_) => list(array.as_list_view::<i32>())?,
        DataType::LargeListView(_) => list(array.as_list_view::<i64>())?,
        DataType::FixedSizeList(_, _) => list(array.as_fixed_size_list())?,
        DataType::Map(_, _) => map(array.as_map())?,
        DataType::Struct(fields) => {
            let array = array.as_struct();
            let named = fields.iter().zip(array.columns()).map(|(field, array)| (field.name().as_str(), &**array));
            Column { nulls: nulls.cloned(), value: object(named)? }
        }
        // A row without a key is null, and so is a row whose key stands for a null.
        DataType::Dictionary(_, _) => downcast_dictionary_array! {
            array => {
                let values = column(array.values().as_ref())?;
                Column::new(nulls, move |index, out| values.write(array.key(index).unwrap_or_default(), out))
            },
            _ => unreachable!("it is a dictionary"),
        },
        DataType::RunEndEncoded(_, _) => downcast_run_array! {
            array => {
                let values = column(array.values().as_ref())?;
                let value = move |index, out: &mut Vec<u8>| (values.value)(array.get_physical_index(index), out);
                Column { nulls: array.logical_nulls(), value: Box::new(value) }
            },
            _ => unreachable!("it has runs"),
        },
        other => match times::text(array)? {
            Some(value) => Column { nulls: nulls.cloned(), value },
            None => return Err(ArrowError::JsonError(format!("Unsupported data type for JSON encoding: {other:?}"))),
        },
    })
}

/// A value as JSON.
fn json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("a number or a text is JSON, and memory takes it");
}

fn whole<T: ArrowPrimitiveType<Native: Serialize>>(array: &dyn Array) -> Column<'_> {
    let values = array.as_primitive::<T>();
    Column::new(array.nulls(), |index, out| json(&values.value(index), out))
}

/// A float, as a number or null.
fn float<T: ToLexical + Into<f64>>(value: T, out: &mut Vec<u8>) {
    if value.into().is_finite() {
        out.extend_from_slice(lexical_core::write(value, &mut [0; FLOAT]));
    } else {
        out.extend(b"null");
    }
}

/// Decimal numbers with all their digits.
fn decimal<T: ArrowPrimitiveType<Native: DecimalNativeType>>(array: &dyn Array, scale: i8) -> Column<'_> {
    let values = array.as_primitive::<T>();
    Column::new(array.nulls(), move |index, out| {
        let mut text = String::new();
        write_decimal(&mut text, values.value(index), scale).expect("memory takes it");
        out.extend(text.as_bytes());
    })
}

fn hexadecimal(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    bytes.iter().for_each(|byte| write!(out, "{byte:02x}").expect("memory takes it"));
    out.push(b'"');
}

/// A comma before all items but the first.
fn comma(is_first: bool, out: &mut Vec<u8>) {
    if !is_first {
        out.push(b',');
    }
}

fn list<L: ListLikeArray>(array: &L) -> Result<Column<'_>, ArrowError> {
    let items = column(array.values().as_ref())?;
    Ok(Column::new(array.nulls(), move |index, out| {
        out.push(b'[');
        let range = array.element_range(index);
        for item in range.clone() {
            comma(item == range.start, out);
            items.write(item, out);
        }
        out.push(b']');
    }))
}

fn object<'a>(fields: impl Iterator<Item = (&'a str, &'a dyn Array)>) -> Result<Value<'a>, ArrowError> {
    let field = |(name, array): (&str, &'a dyn Array)| {
        let mut key = Vec::new();
        json(name, &mut key);
        key.push(b':');
        Ok((key, column(array)?))
    };
    let fields: Vec<(Vec<u8>, Column<'a>)> = fields.map(field).collect::<Result<_, ArrowError>>()?;
    Ok(Box::new(move |index, out| {
        out.push(b'{');
        for (number, (key, column)) in fields.iter().enumerate() {
            comma(number == 0, out);
            out.extend(key);
            column.write(index, out);
        }
        out.push(b'}');
    }))
}

fn map(array: &MapArray) -> Result<Column<'_>, ArrowError> {
    let kind = array.keys().data_type();
    if !matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
        return Err(ArrowError::JsonError(format!("Only UTF8 keys supported by JSON MapArray Writer: got {kind:?}")));
    }
    let (keys, values) = (column(array.keys().as_ref())?, column(array.values().as_ref())?);
    // The reader of Parquet does not check arrays of maps that it makes.
    let has_nulls = |nulls: Option<&NullBuffer>| nulls.is_some_and(|nulls| nulls.null_count() > 0);
    for (place, nulls) in [("keys", keys.nulls.as_ref()), ("entries", array.entries().nulls())] {
        if has_nulls(nulls) {
            return Err(ArrowError::InvalidArgumentError(format!("Encountered nulls in MapArray {place}")));
        }
    }
    Ok(Column::new(array.nulls(), move |index, out| {
        out.push(b'{');
        let range = array.value_offsets()[index] as usize..array.value_offsets()[index + 1] as usize;
        for entry in range.clone() {
            comma(entry == range.start, out);
            keys.write(entry, out);
            out.push(b':');
            values.write(entry, out);
        }
        out.push(b'}');
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        ArrayRef, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array, DictionaryArray,
        FixedSizeListArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, LargeListArray,
        ListArray, ListViewArray, MapArray, NullArray, RunArray, StringArray, StringViewArray, StructArray,
        UInt64Array, UnionArray,
    };
    use arrow_buffer::{OffsetBuffer, i256};
    use arrow_schema::{Field, Fields, UnionFields};

    use super::*;

    /// The JSON of a column of the name `c`: the values, without the rows around them.
    fn written(array: ArrayRef) -> Result<Vec<String>, String> {
        let batch = RecordBatch::try_from_iter_with_nullable([("c", array, true)]).unwrap();
        let text = String::from_utf8(lines(&batch).map_err(|error| error.to_string())?).unwrap();
        let value = |line: &str| line.strip_prefix("{\"c\":").unwrap().strip_suffix('}').unwrap().to_owned();
        Ok(text.lines().map(value).collect())
    }

    fn values(array: impl Array + 'static) -> Vec<String> {
        written(Arc::new(array)).unwrap()
    }

    fn item(array: &dyn Array) -> Arc<Field> {
        Arc::new(Field::new("item", array.data_type().clone(), true))
    }

    #[test]
    fn numbers_keep_all_their_digits() {
        assert_eq!(values(Int8Array::from(vec![Some(-128), None])), ["-128", "null"]);
        assert_eq!(values(Int64Array::from(vec![i64::MIN])), ["-9223372036854775808"]);
        assert_eq!(values(UInt64Array::from(vec![u64::MAX])), ["18446744073709551615"]);
        let floats = [0.1, 1.0, -0.0, 1e300, f64::NAN, f64::INFINITY];
        assert_eq!(values(Float64Array::from_iter_values(floats)), ["0.1", "1.0", "-0.0", "1.0e300", "null", "null"]);
        // Not the shortest digits that give the same number.
        assert_eq!(values(Float32Array::from(vec![0.1, 89_736_384.0])), ["0.1", "89736384.0"]);
        let decimal =
            |scale| Decimal128Array::from(vec![Some(-12_345), None]).with_precision_and_scale(38, scale).unwrap();
        assert_eq!(values(decimal(2)), ["-123.45", "null"]);
        assert_eq!(values(decimal(-2)), ["-1234500", "null"]);
        let wide = Decimal256Array::from(vec![i256::MAX]).with_precision_and_scale(76, 0).unwrap();
        assert_eq!(values(wide)[0].len(), 77);
    }

    #[test]
    fn texts_are_escaped_and_bytes_are_hexadecimal() {
        assert_eq!(values(StringArray::from(vec!["é\"\n\u{1}"])), [r#""é\"\n\u0001""#]);
        assert_eq!(values(StringViewArray::from(vec![Some("a text too long for its place"), None])).len(), 2);
        assert_eq!(values(BinaryViewArray::from(vec![Some(b"\x00\xff".as_slice()), None])), [r#""00ff""#, "null"]);
        assert_eq!(values(BooleanArray::from(vec![Some(true), Some(false), None])), ["true", "false", "null"]);
        assert_eq!(values(NullArray::new(2)), ["null", "null"]);
    }

    #[test]
    fn lists_of_every_kind_are_arrays() {
        let items = || -> ArrayRef { Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4)])) };
        let offsets = [1, 0, 3];
        let expected = ["[1]", "[]", "[null,3,4]"];
        let small = ListArray::new(item(&items()), OffsetBuffer::from_lengths(offsets), items(), None);
        let large = LargeListArray::new(item(&items()), OffsetBuffer::from_lengths(offsets), items(), None);
        assert_eq!(values(small.clone()), expected);
        assert_eq!(values(small.slice(1, 2)), expected[1..]);
        assert_eq!(values(large), expected);
        let view = ListViewArray::new(item(&items()), vec![2, 0].into(), vec![2, 1].into(), items(), None);
        assert_eq!(values(view), ["[3,4]", "[1]"]);
        let fixed = FixedSizeListArray::new(item(&items()), 2, items(), Some(vec![false, true].into()));
        assert_eq!(values(fixed), ["null", "[3,4]"]);
    }

    #[test]
    fn what_is_looked_up_is_written_in_full() {
        let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let keys = Int16Array::from(vec![Some(1), None, Some(0)]);
        assert_eq!(values(DictionaryArray::new(keys, words.clone())), [r#""b""#, "null", r#""a""#]);
        let decimals = Decimal128Array::from(vec![None, Some(7)]).with_precision_and_scale(38, 1).unwrap();
        let days = Date32Array::from(vec![None, Some(0)]);
        let texts = StringArray::from(vec![None, Some("a")]);
        let all: [(ArrayRef, &str); 3] =
            [(Arc::new(decimals), "0.7"), (Arc::new(days), r#""1970-01-01""#), (Arc::new(texts), r#""a""#)];
        for (looked_up, second) in all {
            let keys = Int16Array::from(vec![Some(0), Some(1), None]);
            assert_eq!(values(DictionaryArray::new(keys, looked_up)), ["null", second, "null"]);
        }
        let runs = RunArray::try_new(&Int32Array::from(vec![2, 3]), &words).unwrap();
        assert_eq!(values(runs), [r#""a""#, r#""a""#, r#""b""#]);
    }

    fn map(keys: ArrayRef) -> MapArray {
        let values: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
        let columns = vec![keys, values];
        let named = [("keys", false), ("values", true)].into_iter().zip(&columns);
        let fields: Fields =
            named.map(|((name, nullable), of)| Field::new(name, of.data_type().clone(), nullable)).collect();
        let entries = StructArray::new(fields, columns, None);
        let field = Field::new("entries", entries.data_type().clone(), false);
        MapArray::new(field.into(), OffsetBuffer::from_lengths([2, 0]), entries, None, false)
    }

    #[test]
    fn structs_and_maps_are_objects() {
        let (numbers, texts): (ArrayRef, ArrayRef) =
            (Arc::new(Int32Array::from(vec![Some(1), None])), Arc::new(StringArray::from(vec!["x", "y"])));
        let fields: Fields =
            vec![Field::new("a\"", DataType::Int32, true), Field::new("b", DataType::Utf8, true)].into();
        let both = StructArray::new(fields, vec![numbers, texts.clone()], None);
        assert_eq!(values(both), [r#"{"a\"":1,"b":"x"}"#, r#"{"a\"":null,"b":"y"}"#]);
        assert_eq!(values(map(texts)), [r#"{"x":1,"y":null}"#, "{}"]);
    }

    #[test]
    fn what_json_has_no_words_for_is_refused() {
        let keys: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
        let error = written(Arc::new(map(keys))).unwrap_err();
        assert_eq!(error, "Json error: Only UTF8 keys supported by JSON MapArray Writer: got Int32");
        let fields = UnionFields::try_new([0], [Field::new("a", DataType::Int32, true)]).unwrap();
        let one: ArrayRef = Arc::new(Int32Array::from(vec![1]));
        let union = UnionArray::try_new(fields, vec![0].into(), None, vec![one]).unwrap();
        assert!(written(Arc::new(union)).unwrap_err().contains("Unsupported data type for JSON encoding: Union("));
    }
}
