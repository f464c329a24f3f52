//! Weights in the formats of products, but outside their layout: in fewer bytes than fp32, and back to numbers that are
//! packed to the same bits ([`PackedShape::pack`](super::packed::PackedShape::pack)).
//!
//! Every format but fp32 forgets most of a number when it is packed. What it keeps can be stored or sent in place of
//! the number: for [`Format::Bf16`](super::element::Format::Bf16) and
//! [`Format::Bf16Dot`](super::element::Format::Bf16Dot) sixteen bits, for
//! [`Format::Int8`](super::element::Format::Int8) a byte and the largest magnitude of each row, for
//! [`Format::Int4`](super::element::Format::Int4) half a byte and a scale for each block of a row. For
//! [`Format::Bf16x3`](super::element::Format::Bf16x3) there are no fewer than 32 bits, but of most numbers the last six
//! are zeros then.

use half::f16;

use super::element::{
    BLOCK, BYTE_MAX, NIBBLE_OFFSET, from_bf16, largest, small_half, to_bf16, to_bytes, to_nibbles, to_row_of_bytes,
};

/// Rounds numbers to bf16.
///
/// # Panics
/// When the two differ in length.
pub fn to_halves(values: &[f32], halves: &mut [u16]) {
    assert_eq!(values.len(), halves.len(), "a half for each number");
    halves.iter_mut().zip(values).for_each(|(half, &x)| *half = to_bf16(x));
}

/// The numbers that bf16 stand for. Rounding gives the same bf16 again.
///
/// # Panics
/// When the two differ in length.
pub fn from_halves(halves: &[u16], values: &mut [f32]) {
    assert_eq!(values.len(), halves.len(), "a half for each number");
    values.iter_mut().zip(halves).for_each(|(x, &half)| *x = from_bf16(half));
}

/// A number with fewer bits that splits into the same two bf16 as `x`.
///
/// Mostly that is the sum of both. Where the small half was rounded to just half a step of the large one, the sum may
/// lie as near to a neighbour. Tiny halves may not add up to the number that they were made from. In these cases it is
/// `x`.
#[must_use]
pub fn shortened(x: f32) -> f32 {
    let halves = |x: f32| (to_bf16(x), small_half(x));
    let (large, small) = halves(x);
    let sum = from_bf16(large) + from_bf16(small);
    if halves(sum) == (large, small) { sum } else { x }
}

/// Rounds a row to bytes and returns its largest magnitude, which gives the scale of the bytes. `None` where bytes
/// cannot stand for the row: where a number is not finite, or the numbers are next to nothing.
///
/// # Panics
/// When the two differ in length.
pub fn to_bytes_of_row(row: &[f32], bytes: &mut [i8]) -> Option<f32> {
    assert_eq!(row.len(), bytes.len(), "a byte for each number");
    to_row_of_bytes(row, bytes);
    let largest = largest(row);
    (largest == 0.0 || largest.is_finite() && to_bytes(largest) > 0.0).then_some(largest)
}

/// Numbers that are rounded to these bytes, with this largest magnitude among them.
///
/// The scale of a row is computed from its largest number, so that number must come back exactly: it is the byte of
/// 127. Any other byte times its scale is within a few last bits of a whole number of steps, and so is rounded to that.
///
/// # Panics
/// When the two differ in length.
pub fn from_bytes_of_row(largest: f32, bytes: &[i8], row: &mut [f32]) {
    assert_eq!(row.len(), bytes.len(), "a byte for each number");
    let scale = largest / BYTE_MAX;
    for (x, &byte) in row.iter_mut().zip(bytes) {
        let magnitude =
            if byte.unsigned_abs() >= BYTE_MAX as u8 { largest } else { f32::from(byte.unsigned_abs()) * scale };
        *x = magnitude.copysign(f32::from(byte));
    }
}

/// Bytes of a block of four bits without its scale.
pub const BLOCK_BYTES: usize = BLOCK / 2;

/// Rounds a row to four bits: a scale in fp16 and [`BLOCK_BYTES`] for each [`BLOCK`] numbers, the last of which are
/// filled up with zeros. The first half of a block is in the low halves of its bytes. `None` where four bits cannot
/// stand for the row: where a scale is not finite.
///
/// # Panics
/// When there are not as many scales and bytes as the row has blocks.
pub fn to_nibbles_of_row(row: &[f32], scales: &mut [u16], bytes: &mut [u8]) -> Option<()> {
    let (bytes, rest) = bytes.as_chunks_mut::<BLOCK_BYTES>();
    let blocks = row.len().div_ceil(BLOCK);
    assert!(bytes.len() == blocks && scales.len() == blocks && rest.is_empty(), "a scale and some bytes for a block");
    for ((row, scale), bytes) in row.chunks(BLOCK).zip(scales).zip(bytes) {
        let (found, nibbles) = to_nibbles(&std::array::from_fn(|i| row.get(i).copied().unwrap_or(0.0)));
        *scale = found.is_finite().then(|| found.to_bits())?;
        *bytes = std::array::from_fn(|i| nibbles[i] | nibbles[BLOCK_BYTES + i] << 4);
    }
    Some(())
}

/// Numbers that are rounded to these bytes with these scales ([`to_nibbles_of_row`]).
///
/// # Panics
/// When there are not as many scales and bytes as the row has blocks.
pub fn from_nibbles_of_row(scales: &[u16], bytes: &[u8], row: &mut [f32]) {
    let (bytes, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    let blocks = row.len().div_ceil(BLOCK);
    assert!(bytes.len() == blocks && scales.len() == blocks && rest.is_empty(), "a scale and some bytes for a block");
    for ((row, &scale), bytes) in row.chunks_mut(BLOCK).zip(scales).zip(bytes) {
        let scale = f16::from_bits(scale).to_f32();
        let halves = bytes.iter().map(|byte| byte & 0xf).chain(bytes.iter().map(|byte| byte >> 4));
        for (x, nibble) in row.iter_mut().zip(halves) {
            *x = (i32::from(nibble) - NIBBLE_OFFSET) as f32 * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        element::Format,
        packed::{Columns, PackedShape, Quantized},
        thread_pool::ThreadPool,
    };

    const DEPTH: usize = 40;

    /// Rows as they are packed.
    fn packed(rows: &[f32], format: Format) -> (Vec<u32>, Option<Quantized>) {
        let shape = PackedShape { depth: DEPTH, outputs: rows.len() / DEPTH, columns: Columns::Joined, format };
        let mut panels = vec![0.0; shape.words()];
        let quantized = shape.pack(&[rows.into()], &mut panels, &ThreadPool::new(1, Duration::ZERO).unwrap());
        (panels.iter().map(|x| x.to_bits()).collect(), quantized)
    }

    /// Rounds rows to fewer bytes and back.
    fn through(rows: &[f32], format: Format) -> Option<Vec<f32>> {
        let mut back = vec![0.0; rows.len()];
        match format {
            Format::Fp32 => back.copy_from_slice(rows),
            Format::Bf16x3 => back.iter_mut().zip(rows).for_each(|(back, &x)| *back = shortened(x)),
            Format::Bf16 | Format::Bf16Dot => {
                let mut halves = vec![0; rows.len()];
                to_halves(rows, &mut halves);
                from_halves(&halves, &mut back);
            }
            Format::Int8 => {
                for (row, back) in rows.chunks(DEPTH).zip(back.chunks_mut(DEPTH)) {
                    let mut bytes = [0; DEPTH];
                    let largest = to_bytes_of_row(row, &mut bytes)?;
                    from_bytes_of_row(largest, &bytes, back);
                    let mut again = [1; DEPTH];
                    assert_eq!(to_bytes_of_row(back, &mut again), Some(largest));
                    assert_eq!(again, bytes);
                }
            }
            Format::Int4 => {
                for (row, back) in rows.chunks(DEPTH).zip(back.chunks_mut(DEPTH)) {
                    let (mut scales, mut bytes) =
                        ([0; DEPTH.div_ceil(BLOCK)], [0; DEPTH.div_ceil(BLOCK) * BLOCK_BYTES]);
                    to_nibbles_of_row(row, &mut scales, &mut bytes)?;
                    from_nibbles_of_row(&scales, &bytes, back);
                }
            }
        }
        Some(back)
    }

    /// Numbers of any size, many of them just between two that a format knows.
    fn number() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -0.2_f32..0.2,
            3 => (any::<u16>(), 0x7f00_u32..0x8100).prop_map(|(high, low)| f32::from_bits(u32::from(high) << 16 | low)),
            1 => any::<u32>().prop_map(f32::from_bits),
            1 => Just(0.0),
            1 => Just(-0.0),
        ]
        .prop_filter("finite", |x| x.is_finite())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn what_comes_back_is_packed_to_the_same_bits(
            rows in proptest::collection::vec(number(), 3 * DEPTH),
            size in prop_oneof![
                4 => Just(1.0_f32), 1 => Just(1e-3), 1 => Just(1e-20), 1 => Just(1e-36), 1 => Just(1e-38)
            ],
        ) {
            let rows: Vec<f32> = rows.iter().map(|x| x * size).collect();
            for format in [Format::Fp32, Format::Bf16, Format::Bf16Dot, Format::Bf16x3, Format::Int8, Format::Int4] {
                if let Some(back) = through(&rows, format) {
                    prop_assert!(packed(&back, format) == packed(&rows, format), "{format:?}");
                    let twice = through(&back, format).expect("what came back can go again");
                    prop_assert!(twice.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()), "{format:?}");
                }
            }
        }
    }

    #[test]
    fn ordinary_rows_become_bytes_and_others_do_not() {
        let mut bytes = [0; 3];
        assert_eq!(to_bytes_of_row(&[0.5, -1.0, 0.004], &mut bytes), Some(1.0));
        assert_eq!(bytes, [64, -127, 1]);
        assert_eq!(to_bytes_of_row(&[0.0, -0.0, 0.0], &mut bytes), Some(0.0));
        for odd in [f32::NAN, f32::INFINITY, 1e-38] {
            assert_eq!(to_bytes_of_row(&[0.0, odd, 0.0], &mut bytes), None, "{odd}");
        }
    }

    #[test]
    fn a_row_with_what_is_no_number_does_not_become_four_bits() {
        let (mut scales, mut bytes) = ([0; 2], [0; 2 * BLOCK_BYTES]);
        for (last, kept) in [(0.5, true), (0.0, true), (f32::NAN, false), (1e7, false)] {
            let row: Vec<f32> = (0..DEPTH).map(|i| if i + 1 == DEPTH { last } else { 0.25 }).collect();
            assert_eq!(to_nibbles_of_row(&row, &mut scales, &mut bytes).is_some(), kept, "{last}");
        }
    }

    #[test]
    fn most_sums_of_two_halves_end_in_zeros() {
        let short =
            (0..10_000).filter(|i| shortened(0.01 + *i as f32 * 1.7e-6).to_bits().trailing_zeros() >= 6).count();
        assert!(short > 8_000, "{short}");
    }
}
