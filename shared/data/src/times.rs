//! Dates, times and spans of time as texts, as Arrow shows them: ISO 8601, but for intervals.

use std::{
    fmt::{self, Display, Formatter},
    io::Write,
};

use arrow_array::{
    Array, ArrowPrimitiveType, PrimitiveArray, cast::AsArray, temporal_conversions as convert, timezone::Tz, types::*,
};
use arrow_schema::{ArrowError, DataType, IntervalUnit, TimeUnit};
use chrono::{NaiveDateTime, SecondsFormat};

/// Writes the value at an index, which is not null.
pub type Value<'a> = Box<dyn Fn(usize, &mut Vec<u8>) + 'a>;

/// How the values of a column of times are written, between quotation marks; nothing for other columns.
///
/// # Errors
/// A time zone that is given by name.
pub fn text(array: &dyn Array) -> Result<Option<Value<'_>>, ArrowError> {
    let seconds = |unit: &TimeUnit| *unit == TimeUnit::Second;
    Ok(Some(match array.data_type() {
        DataType::Date32 => shown::<Date32Type, _>(array, |days| Some(convert::date32_to_datetime(days)?.date())),
        DataType::Date64 => shown::<Date64Type, _>(array, convert::date64_to_datetime),
        DataType::Time32(unit) if seconds(unit) => shown::<Time32SecondType, _>(array, convert::time32s_to_time),
        DataType::Time32(_) => shown::<Time32MillisecondType, _>(array, convert::time32ms_to_time),
        DataType::Time64(TimeUnit::Microsecond) => shown::<Time64MicrosecondType, _>(array, convert::time64us_to_time),
        DataType::Time64(_) => shown::<Time64NanosecondType, _>(array, convert::time64ns_to_time),
        DataType::Timestamp(TimeUnit::Second, zone) => moment::<TimestampSecondType>(array, zone.as_deref())?,
        DataType::Timestamp(TimeUnit::Millisecond, zone) => moment::<TimestampMillisecondType>(array, zone.as_deref())?,
        DataType::Timestamp(TimeUnit::Microsecond, zone) => moment::<TimestampMicrosecondType>(array, zone.as_deref())?,
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => moment::<TimestampNanosecondType>(array, zone.as_deref())?,
        DataType::Duration(unit) => duration(array, *unit),
        DataType::Interval(unit) => interval(array, *unit),
        _ => return Ok(None),
    }))
}

/// A text that JSON needs no escapes for.
fn quoted(text: impl Display, out: &mut Vec<u8>) {
    write!(out, "\"{text}\"").expect("memory takes it");
}

/// The text for a value that is out of all bounds.
fn out_of_bounds(value: impl Display, to: &str, array: &dyn Array) -> String {
    let error = ArrowError::CastError(format!("Failed to convert {value} to {to} for {}", array.data_type()));
    format!("ERROR: {error}")
}

fn shown<T: ArrowPrimitiveType<Native: Display>, D: fmt::Debug>(
    array: &dyn Array,
    convert: impl Fn(T::Native) -> Option<D> + 'static,
) -> Value<'_> {
    let values = array.as_primitive::<T>();
    Box::new(move |index, out| match convert(values.value(index)) {
        Some(converted) => quoted(format_args!("{converted:?}"), out),
        None => quoted(out_of_bounds(values.value(index), "temporal", values), out),
    })
}

fn moment<'a, T: ArrowPrimitiveType<Native = i64>>(
    array: &'a dyn Array,
    zone: Option<&str>,
) -> Result<Value<'a>, ArrowError> {
    let values = array.as_primitive::<T>();
    let zone: Option<Tz> = zone.map(str::parse).transpose()?;
    let text = move |moment: NaiveDateTime| match zone {
        Some(zone) => moment.and_utc().with_timezone(&zone).to_rfc3339_opts(SecondsFormat::AutoSi, true),
        None => format!("{moment:?}"),
    };
    Ok(Box::new(move |index, out| match convert::as_datetime::<T>(values.value(index)) {
        Some(moment) => quoted(text(moment), out),
        None => quoted(out_of_bounds(values.value(index), "datetime", values), out),
    }))
}

fn duration(array: &dyn Array, unit: TimeUnit) -> Value<'_> {
    fn shown<T: ArrowPrimitiveType<Native = i64>, D: Display>(
        array: &dyn Array,
        convert: impl Fn(i64) -> Option<D> + 'static,
    ) -> Value<'_> {
        let values: &PrimitiveArray<T> = array.as_primitive();
        Box::new(move |index, out| match convert(values.value(index)) {
            Some(duration) => quoted(duration, out),
            None => quoted("<invalid>", out),
        })
    }
    match unit {
        TimeUnit::Second => shown::<DurationSecondType, _>(array, convert::try_duration_s_to_duration),
        TimeUnit::Millisecond => shown::<DurationMillisecondType, _>(array, convert::try_duration_ms_to_duration),
        TimeUnit::Microsecond => {
            shown::<DurationMicrosecondType, _>(array, |value| Some(convert::duration_us_to_duration(value)))
        }
        TimeUnit::Nanosecond => {
            shown::<DurationNanosecondType, _>(array, |value| Some(convert::duration_ns_to_duration(value)))
        }
    }
}

fn interval(array: &dyn Array, unit: IntervalUnit) -> Value<'_> {
    match unit {
        IntervalUnit::YearMonth => {
            let values = array.as_primitive::<IntervalYearMonthType>();
            Box::new(|index, out| {
                let months = values.value(index);
                quoted(format_args!("{} years {} mons", months.div_euclid(12), months.rem_euclid(12)), out);
            })
        }
        IntervalUnit::DayTime => {
            let values = array.as_primitive::<IntervalDayTimeType>();
            Box::new(|index, out| {
                let of = values.value(index);
                let parts = Interval { months: 0, days: of.days, time: of.milliseconds.into(), digits: 3 };
                quoted(parts, out);
            })
        }
        IntervalUnit::MonthDayNano => {
            let values = array.as_primitive::<IntervalMonthDayNanoType>();
            Box::new(|index, out| {
                let of = values.value(index);
                quoted(Interval { months: of.months, days: of.days, time: of.nanoseconds, digits: 9 }, out);
            })
        }
    }
}

/// A span of time whose parts have no common measure.
struct Interval {
    months: i32,
    days: i32,
    /// In parts of a second.
    time: i64,
    /// Digits of such a fraction.
    digits: usize,
}

impl Display for Interval {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let second = 10_i64.pow(self.digits as u32);
        let (seconds, part) = (self.time / second, self.time % second);
        let whole = [
            (self.months.into(), "mons"),
            (self.days.into(), "days"),
            (seconds / 3600, "hours"),
            (seconds / 60 % 60, "mins"),
        ];
        let mut before = "";
        for (number, name) in whole.into_iter().filter(|(number, _)| *number != 0) {
            write!(f, "{before}{number} {name}")?;
            before = " ";
        }
        let seconds = seconds % 60;
        if seconds != 0 || part != 0 {
            let sign = if self.time < 0 { "-" } else { "" };
            return write!(f, "{before}{sign}{}.{:0width$} secs", seconds.abs(), part.abs(), width = self.digits);
        }
        f.write_str(if before.is_empty() { "0 secs" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::ArrayRef;

    use super::*;

    /// The values of a column as they are written.
    fn texts(array: ArrayRef) -> Vec<String> {
        let value = text(&array).unwrap().expect("it is a column of times");
        let written = |index| {
            let mut out = Vec::new();
            value(index, &mut out);
            String::from_utf8(out).unwrap()
        };
        (0..array.len()).map(written).collect()
    }

    fn column<T: ArrowPrimitiveType>(values: &[T::Native]) -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::from_iter_values(values.iter().copied()))
    }

    #[test]
    fn dates_and_times_are_those_of_iso_8601() {
        assert_eq!(texts(column::<Date32Type>(&[0, -1])), [r#""1970-01-01""#, r#""1969-12-31""#]);
        assert_eq!(texts(column::<Date64Type>(&[1_500])), [r#""1970-01-01T00:00:01.500""#]);
        assert_eq!(texts(column::<Time32SecondType>(&[3_661])), [r#""01:01:01""#]);
        assert_eq!(texts(column::<Time32MillisecondType>(&[1])), [r#""00:00:00.001""#]);
        assert_eq!(texts(column::<Time64MicrosecondType>(&[1])), [r#""00:00:00.000001""#]);
        assert_eq!(texts(column::<Time64NanosecondType>(&[1])), [r#""00:00:00.000000001""#]);
        assert_eq!(texts(column::<TimestampSecondType>(&[86_400])), [r#""1970-01-02T00:00:00""#]);
        assert_eq!(texts(column::<TimestampMillisecondType>(&[-1])), [r#""1969-12-31T23:59:59.999""#]);
        assert_eq!(texts(column::<TimestampNanosecondType>(&[1_000])), [r#""1970-01-01T00:00:00.000001""#]);
    }

    #[test]
    fn a_zone_is_an_offset() {
        let zoned = |zone: &str| -> ArrayRef {
            Arc::new(PrimitiveArray::<TimestampMicrosecondType>::from(vec![1_500_000]).with_timezone(zone))
        };
        assert_eq!(texts(zoned("+00:00")), [r#""1970-01-01T00:00:01.500Z""#]);
        assert_eq!(texts(zoned("+05:30")), [r#""1970-01-01T05:30:01.500+05:30""#]);
        let error = text(&zoned("Europe/Berlin")).map(drop).unwrap_err().to_string();
        assert!(error.contains("Europe/Berlin"), "{error}");
    }

    #[test]
    fn spans_of_time_have_the_words_of_arrow() {
        assert_eq!(
            texts(column::<DurationSecondType>(&[90, -1, i64::MAX])),
            [r#""PT90S""#, r#""-PT1S""#, r#""<invalid>""#]
        );
        assert_eq!(texts(column::<DurationMicrosecondType>(&[1])), [r#""PT0.000001S""#]);
        assert_eq!(
            texts(column::<IntervalYearMonthType>(&[14, -1, 0])),
            [r#""1 years 2 mons""#, r#""-1 years 11 mons""#, r#""0 years 0 mons""#]
        );
        let day = IntervalDayTimeType::make_value;
        let days = [day(0, 0), day(1, 0), day(-2, 3_661_001), day(0, -61_500)];
        assert_eq!(
            texts(column::<IntervalDayTimeType>(&days)),
            [r#""0 secs""#, r#""1 days""#, r#""-2 days 1 hours 1 mins 1.001 secs""#, r#""-1 mins -1.500 secs""#]
        );
        let month = IntervalMonthDayNanoType::make_value;
        assert_eq!(
            texts(column::<IntervalMonthDayNanoType>(&[month(1, 2, 3), month(0, 0, -1)])),
            [r#""1 mons 2 days 0.000000003 secs""#, r#""-0.000000001 secs""#]
        );
    }

    #[test]
    fn what_no_calendar_has_says_so() {
        let written = texts(column::<Date32Type>(&[i32::MAX]));
        assert_eq!(written, [r#""ERROR: Cast error: Failed to convert 2147483647 to temporal for Date32""#]);
        let written = texts(column::<TimestampSecondType>(&[i64::MAX]));
        assert!(
            written[0].starts_with(r#""ERROR: Cast error: Failed to convert 9223372036854775807 to datetime for "#)
        );
    }
}
