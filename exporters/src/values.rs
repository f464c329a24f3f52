//! Elements of tensors: the source of their values, and stored bytes to fp32 and back.

use std::{borrow::Cow, fmt::Debug};

use bytemuck::Pod;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use rayon::prelude::*;
use shared::Dtype;

use crate::{ExportError, SourceError};

/// Gives the fp32 values of a parameter by its Hugging Face name, row-major: borrowed, or as a copy.
pub type TensorSource<'r, 'v> = &'r mut dyn FnMut(&str) -> Result<Cow<'v, [f32]>, SourceError>;

/// The values of little-endian bytes; every value of every stored type is exact in fp32.
pub(crate) fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::Fp32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        Dtype::Fp16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::Bf16 => bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
    }
}

/// Calls `with` on the values of little-endian bytes; values that are fp32 and aligned are read in place.
fn with_floats<T>(bytes: &[u8], dtype: Dtype, with: impl FnOnce(&[f32]) -> T) -> T {
    match bytemuck::try_cast_slice(bytes) {
        Ok(floats) if dtype == Dtype::Fp32 => with(floats),
        _ => with(&decode(bytes, dtype)),
    }
}

/// Values are written as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "stored tensors are little-endian, and so must be the machine");

/// Little-endian bytes of values, rounded to the nearest (ties to even), on all cores.
///
/// # Errors
/// A finite value beyond the range of the type: it would become infinite without a word.
pub(crate) fn encode<'a>(name: &str, values: &'a [f32], dtype: Dtype) -> Result<Cow<'a, [u8]>, ExportError> {
    match dtype {
        Dtype::Fp32 => return Ok(bytemuck::cast_slice(values).into()),
        Dtype::Fp16 => round(values, f16::is_finite),
        Dtype::Bf16 => round(values, bf16::is_finite),
    }
    .map(Cow::Owned)
    .map_err(|value| {
        ExportError::values(name, format!("the value {value} is out of the range of {dtype}; export as fp32"))
    })
}

/// Rounds values to the nearest of bfloat16, as passes in bfloat16 round weights.
pub(crate) fn round_to_bf16(values: &mut [f32]) {
    values.par_iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
}

/// Values that one core converts at once; they stay in its cache.
const BLOCK: usize = 1 << 14;

/// The bytes of values rounded to `T`, or the first finite value that this makes infinite.
fn round<T: Pod + Send + Sync>(values: &[f32], is_finite: fn(T) -> bool) -> Result<Vec<u8>, f32>
where
    [T]: HalfFloatSliceExt,
{
    let mut bytes = vec![0; values.len() * size_of::<T>()];
    let blocks = bytes.par_chunks_mut(BLOCK * size_of::<T>()).zip(values.par_chunks(BLOCK));
    let lost = blocks.filter_map(|(bytes, values)| {
        let mut rounded = vec![T::zeroed(); values.len()];
        rounded.convert_from_f32_slice(values);
        bytes.copy_from_slice(bytemuck::cast_slice(&rounded));
        let infinite = rounded.iter().fold(false, |infinite, &v| infinite | !is_finite(v));
        let lost = || values.iter().zip(&rounded).find(|(value, rounded)| value.is_finite() && !is_finite(**rounded));
        infinite.then(lost).flatten().map(|(&value, _)| value)
    });
    match lost.find_first(|_| true) {
        None => Ok(bytes),
        Some(value) => Err(value),
    }
}

/// The 2-norm of values, added up in double precision and in an order of its own, whatever the number of cores.
#[must_use]
pub fn norm(values: &[f32]) -> f64 {
    root(&squares(values))
}

/// blake3 of fp32 values as they are stored, in hex, and their [`norm`]; on all cores.
#[must_use]
pub fn hash_and_norm_of(values: &[f32]) -> (String, f64) {
    hash_and_norm(bytemuck::cast_slice(values), Dtype::Fp32)
}

/// Bytes that are hashed and added up together: they come from memory once.
const PIECE: usize = 64 * BLOCK * size_of::<f32>();

/// blake3 of stored values, in hex, and their [`norm`].
pub(crate) fn hash_and_norm(bytes: &[u8], dtype: Dtype) -> (String, f64) {
    let (mut hasher, mut sums) = (blake3::Hasher::new(), Vec::new());
    for piece in bytes.chunks(PIECE) {
        let (_, found) = rayon::join(|| hasher.update_rayon(piece), || with_floats(piece, dtype, squares));
        sums.extend(found);
    }
    (hasher.finalize().to_hex().to_string(), root(&sums))
}

/// Sums of squares of the blocks of some values.
fn squares(values: &[f32]) -> Vec<f64> {
    let block = |block: &[f32]| -> f64 {
        let mut lanes = [0.0_f64; 16];
        let (chunks, rest) = block.as_chunks::<16>();
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(lane, &v)| *lane += f64::from(v) * f64::from(v));
        }
        lanes.iter_mut().zip(rest).for_each(|(lane, &v)| *lane += f64::from(v) * f64::from(v));
        lanes.iter().sum()
    };
    values.par_chunks(BLOCK).map(block).collect()
}

fn root(squares: &[f64]) -> f64 {
    squares.iter().sum::<f64>().sqrt()
}

/// Whether two lists of values are the same, bit for bit.
pub(crate) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    bytemuck::cast_slice::<f32, u32>(a) == bytemuck::cast_slice::<f32, u32>(b)
}

/// Refuses a tensor whose number of values is not that of its shape.
pub(crate) fn check_length(name: &str, shape: &impl Debug, needed: u64, found: usize) -> Result<(), ExportError> {
    if found as u64 == needed {
        return Ok(());
    }
    Err(ExportError::values(name, format!("has {found} values, but shape {shape:?} needs {needed}")))
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
    fn a_norm_is_that_of_all_values() {
        assert_eq!(norm(&[3.0, -4.0]), 5.0);
        assert_eq!(norm(&[]), 0.0);
        let values: Vec<f32> = (0..3 * BLOCK + 7).map(|i| (i % 13) as f32).collect();
        let exact = values.iter().map(|&v| f64::from(v * v)).sum::<f64>().sqrt();
        assert!((norm(&values) - exact).abs() < 1e-9 * exact);
        assert!(norm(&[1.0, f32::NAN]).is_nan());
        let many: Vec<f32> = (0..PIECE / 2 + 5).map(|i| (i % 29) as f32).collect();
        for dtype in [Dtype::Fp32, Dtype::Fp16] {
            let bytes = encode("w", &many, dtype).unwrap();
            let expected = (blake3::hash(&bytes).to_hex().to_string(), norm(&many));
            assert_eq!(hash_and_norm(&bytes, dtype), expected, "{dtype}");
        }
    }

    #[test]
    fn a_value_beyond_fp16_is_refused_by_name() {
        let error = encode("lm_head.weight", &[1.0, 70_000.0], Dtype::Fp16).unwrap_err().to_string();
        assert!(error.contains("lm_head.weight") && error.contains("70000"), "{error}");
        assert!(encode("w", &[f32::INFINITY], Dtype::Fp16).is_ok(), "an infinity that is already there is kept");
    }
}
