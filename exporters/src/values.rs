//! Elements of stored tensors: bytes to fp32 and back.

use std::borrow::Cow;

use half::{bf16, f16, slice::HalfFloatSliceExt};
use rayon::prelude::*;
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

/// Little-endian bytes of fp32 values.
#[cfg(target_endian = "little")]
pub(crate) fn fp32_bytes(values: &[f32]) -> Cow<'_, [u8]> {
    Cow::Borrowed(bytemuck::cast_slice(values))
}

/// Little-endian bytes of fp32 values.
#[cfg(target_endian = "big")]
pub(crate) fn fp32_bytes(values: &[f32]) -> Cow<'_, [u8]> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Little-endian bytes of values, rounded to the nearest (ties to even), on all cores.
///
/// # Errors
/// A finite value beyond the range of the type: it would become infinite without a word.
pub(crate) fn encode<'a>(name: &str, values: &'a [f32], dtype: Dtype) -> Result<Cow<'a, [u8]>, ExportError> {
    match dtype {
        Dtype::Fp32 => Ok(fp32_bytes(values)),
        Dtype::Fp16 => round(values, |rounded: &mut [f16], values| rounded.convert_from_f32_slice(values))
            .map_err(|value| out_of_range(name, value, "fp16")),
        Dtype::Bf16 => round(values, |rounded: &mut [bf16], values| rounded.convert_from_f32_slice(values))
            .map_err(|value| out_of_range(name, value, "bf16")),
    }
}

/// Values that one core converts at once; they stay in its cache.
const BLOCK: usize = 1 << 14;

/// The bytes of values as `convert` rounds them, or the first finite value that it makes infinite.
fn round<'a, T: Half>(values: &[f32], convert: impl Fn(&mut [T], &[f32]) + Sync) -> Result<Cow<'a, [u8]>, f32> {
    let mut bytes = vec![0; values.len() * size_of::<T>()];
    let blocks = bytes.par_chunks_mut(BLOCK * size_of::<T>()).zip(values.par_chunks(BLOCK));
    let lost = blocks.filter_map(|(bytes, values)| {
        let mut rounded = vec![T::default(); values.len()];
        convert(&mut rounded, values);
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(&rounded) {
            *bytes = value.little_endian();
        }
        let infinite = rounded.iter().fold(false, |infinite, v| infinite | !v.finite());
        let lost = || values.iter().zip(&rounded).find(|(value, rounded)| value.is_finite() && !rounded.finite());
        infinite.then(lost).flatten().map(|(&value, _)| value)
    });
    match lost.find_first(|_| true) {
        None => Ok(bytes.into()),
        Some(value) => Err(value),
    }
}

/// A type of two bytes.
trait Half: Copy + Default + Send + Sync {
    fn little_endian(self) -> [u8; 2];
    fn finite(self) -> bool;
}

impl Half for f16 {
    fn little_endian(self) -> [u8; 2] {
        self.to_le_bytes()
    }

    fn finite(self) -> bool {
        self.is_finite()
    }
}

impl Half for bf16 {
    fn little_endian(self) -> [u8; 2] {
        self.to_le_bytes()
    }

    fn finite(self) -> bool {
        self.is_finite()
    }
}

fn out_of_range(name: &str, value: f32, dtype: &str) -> ExportError {
    let message = format!("the value {value} is out of the range of {dtype}; export as fp32");
    ExportError::Values { name: name.into(), message }
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
