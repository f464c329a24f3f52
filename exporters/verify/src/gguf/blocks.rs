//! The values of ggml's types.

use super::parse::{Gguf, Place};
use crate::{Blocks, Rounding, Tensor, VerifyError, file::Float};

/// Values of a block of `Q8_0` and `Q4_0`, which begins with its scale in fp16.
const BLOCK: usize = 32;

/// The whole numbers of a block, from its bytes behind the scale.
type Decode = fn(&[u8]) -> [i8; BLOCK];

/// Reads a tensor. A type that is not known here is an error.
pub(super) fn read(gguf: &Gguf, name: &str, place: &Place) -> Result<Tensor, VerifyError> {
    let wrong = |message: String| VerifyError::file(&gguf.path, format!("tensor {name} {message}"));
    let count = place.sizes.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
    let count = count.filter(|count| *count < 1 << 48).ok_or_else(|| wrong("has no possible size".into()))?;
    let shape: Vec<usize> = place.sizes.iter().rev().map(|size| *size as usize).collect();
    let float = match place.kind {
        0 => Some(Float::F32),
        1 => Some(Float::F16),
        30 => Some(Float::Bf16),
        _ => None,
    };
    if let Some(float) = float {
        let values = float.decode(&gguf.bytes(place, count * float.size() as u64)?);
        return Ok(Tensor { shape, values, rounding: float.rounding() });
    }
    let (bytes, lowest, highest, decode): (usize, i8, i8, Decode) = match place.kind {
        8 => (2 + BLOCK, -127, 127, eights),
        2 => (2 + BLOCK / 2, -8, 7, fours),
        other => return Err(wrong(format!("has the type {other}, which is not read here"))),
    };
    let Some(&columns) = shape.last().filter(|columns| **columns > 0 && columns.is_multiple_of(BLOCK)) else {
        return Err(wrong(format!("has rows that are no blocks of {BLOCK} values")));
    };
    let stored = gguf.bytes(place, count / BLOCK as u64 * bytes as u64)?;
    let mut blocks = Blocks { scales: Vec::new(), length: BLOCK, columns, lowest, highest, rounded_scales: true };
    let mut values = Vec::with_capacity(count as usize);
    for block in stored.chunks_exact(bytes) {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        blocks.scales.push(scale);
        values.extend(decode(&block[2..]).map(|q| f32::from(q) * scale));
    }
    Ok(Tensor { shape, values, rounding: Rounding::Blocks(blocks) })
}

/// One of the matrices of a tensor that has so many of them.
pub(super) fn part(place: &Place, part: usize, parts: usize) -> Option<Place> {
    let [columns, rows, count] = place.sizes[..] else { return None };
    let values = columns.checked_mul(rows).filter(|_| count == parts as u64)?;
    let bytes = match place.kind {
        0 => values.checked_mul(4)?,
        1 | 30 => values.checked_mul(2)?,
        8 => (values / BLOCK as u64).checked_mul(2 + BLOCK as u64)?,
        2 => (values / BLOCK as u64).checked_mul(2 + BLOCK as u64 / 2)?,
        _ => return None,
    };
    let offset = place.offset.checked_add(bytes.checked_mul(part as u64)?)?;
    Some(Place { sizes: vec![columns, rows], kind: place.kind, offset })
}

/// A byte each.
fn eights(bytes: &[u8]) -> [i8; BLOCK] {
    std::array::from_fn(|index| bytes[index].cast_signed())
}

/// Half a byte each, and 8 more than the value: the low halves are the first 16 values, the high halves the others.
fn fours(bytes: &[u8]) -> [i8; BLOCK] {
    std::array::from_fn(|index| {
        let byte = bytes[index % (BLOCK / 2)];
        (if index < BLOCK / 2 { byte & 15 } else { byte >> 4 }).cast_signed() - 8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_bytes_are_the_two_halves_of_a_block() {
        let bytes: Vec<u8> = (0..16).map(|n| n | (15 - n) << 4).collect();
        let values = fours(&bytes);
        assert_eq!(values[..3], [-8, -7, -6]);
        assert_eq!(values[16..19], [7, 6, 5]);
        assert_eq!(eights(&[0x80; BLOCK]), [-128; BLOCK]);
    }
}
