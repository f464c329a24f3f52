//! Numbers of the golden files; matrices are `[row][token]` with a mask.

use serde_json::Value;

/// A number; null is NaN, and infinities are strings.
pub fn number(value: &Value) -> f64 {
    match value {
        Value::Null => f64::NAN,
        Value::String(text) => text.parse().unwrap_or_else(|_| panic!("{text} is no number")),
        Value::Bool(flag) => f64::from(u8::from(*flag)),
        _ => value.as_f64().unwrap_or_else(|| panic!("{value} is no number")),
    }
}

/// An optional number.
pub fn optional(value: &Value) -> Option<f64> {
    (!value.is_null()).then(|| number(value))
}

/// A list of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(number).collect()
}

/// Rows of numbers.
pub fn matrix(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

/// A `[B][T]` matrix, or a `[B]` or `[B][1]` column spread over the row, at the places where the mask is not 0.
pub fn rows(value: &Value, mask: &Value) -> Vec<Vec<f64>> {
    let of_row = |(b, mask): (usize, Vec<f64>)| {
        let at = |t: usize| match value[b].as_array() {
            Some(columns) => number(&columns[t.min(columns.len() - 1)]),
            None => number(&value[b]),
        };
        (0..mask.len()).filter(|&t| mask[t] != 0.0).map(at).collect()
    };
    matrix(mask).into_iter().enumerate().map(of_row).collect()
}

/// Number of places in each row where the mask is not 0.
pub fn lengths(mask: &Value) -> Vec<usize> {
    matrix(mask).iter().map(|row| row.iter().filter(|&&m| m != 0.0).count()).collect()
}

/// Compares relative to 1 + |expected|, or where ratios like e^±30 occur to the largest entry.
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().filter(|e| e.is_finite()).fold(1.0f64, |m, e| m.max(e.abs()));
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let equal = f == e || (f.is_nan() && e.is_nan()) || (f - e).abs() <= tolerance * scale;
        assert!(equal, "{what}[{i}] is {f}, expected {e}");
    }
}
