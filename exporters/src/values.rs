//! Elements of stored tensors: bytes to fp32 and back.

use std::borrow::Cow;

use half::{bf16, f16, slice::HalfFloatSliceExt};
use shared::Dtype;

use crate::ExportError;

/// The values of little-endian bytes; every value of every stored type is exact in fp32.
pub(crate) fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::Fp32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        Dtype::Fp16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::Bf16 => bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
    }
}

/// Little-endian bytes of values, rounded to the nearest (ties to even).
///
/// # Errors
/// A finite value beyond the range of the type: it would become infinite without a word.
pub(crate) fn encode<'a>(name: &str, values: &'a [f32], dtype: Dtype) -> Result<Cow<'a, [u8]>, ExportError> {
    match dtype {
        #[cfg(target_endian = "little")]
        Dtype::Fp32 => Ok(Cow::Borrowed(bytemuck::cast_slice(values))),
        #[cfg(target_endian = "big")]
        Dtype::Fp32 => Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        Dtype::Fp16 => {
            let mut rounded = vec![f16::ZERO; values.len()];
            rounded.convert_from_f32_slice(values);
            check_range(name, values, "fp16", |i| rounded[i].is_finite())?;
            Ok(rounded.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        Dtype::Bf16 => {
            let mut rounded = vec![bf16::ZERO; values.len()];
            rounded.convert_from_f32_slice(values);
            check_range(name, values, "bf16", |i| rounded[i].is_finite())?;
            Ok(rounded.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
    }
}

fn check_range(name: &str, values: &[f32], dtype: &str, finite: impl Fn(usize) -> bool) -> Result<(), ExportError> {
    match values.iter().enumerate().find(|&(i, value)| !finite(i) && value.is_finite()) {
        None => Ok(()),
        Some((_, value)) => Err(ExportError::Values {
            name: name.into(),
            message: format!("the value {value} is out of the range of {dtype}; export as fp32"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stored_type_decodes_to_the_same_values() {
        let values = [0.0_f32, -1.5, 0.25, 384.0, -0.0078125];
        for dtype in [Dtype::Fp32, Dtype::Fp16, Dtype::Bf16] {
            let bytes = encode("w", &values, dtype).unwrap();
            assert_eq!(bytes.len(), values.len() * dtype.size());
            assert_eq!(decode(&bytes, dtype), values);
        }
    }

    #[test]
    fn the_bytes_are_little_endian_and_rounded_to_even() {
        assert_eq!(*encode("w", &[1.0], Dtype::Fp32).unwrap(), [0, 0, 0x80, 0x3f]);
        assert_eq!(*encode("w", &[1.0], Dtype::Fp16).unwrap(), [0, 0x3c]);
        // Half-way between 2048 and 2050, whose neighbours in fp16 are 2 apart.
        assert_eq!(decode(&encode("w", &[2049.0], Dtype::Fp16).unwrap(), Dtype::Fp16), [2048.0]);
    }

    #[test]
    fn a_value_beyond_fp16_is_refused_by_name() {
        let error = encode("lm_head.weight", &[1.0, 70_000.0], Dtype::Fp16).unwrap_err().to_string();
        assert!(error.contains("lm_head.weight") && error.contains("70000"), "{error}");
        assert!(encode("w", &[f32::INFINITY], Dtype::Fp16).is_ok(), "an infinity that is already there is kept");
    }
}
