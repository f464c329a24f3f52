//! Values to blocks of whole numbers with a scale: `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref` of ggml.
//!
//! The steps are counted with the scale in fp32, and the scale is stored in fp16. All figures are fp32, so the bytes
//! are the same as ggml's.

use half::f16;
use rayon::prelude::*;

/// Values of a block.
pub(super) const BLOCK: usize = 32;
/// Bytes of a block of `Q8_0`: the scale, and a byte for each value.
pub(super) const BYTES_OF_8: usize = 2 + BLOCK;
/// Bytes of a block of `Q4_0`: the scale, and half a byte for each value.
pub(super) const BYTES_OF_4: usize = 2 + BLOCK / 2;

/// Blocks that one core makes at once.
const PIECE: usize = 1 << 10;

/// `Q8_0`: the largest value becomes 127 or -127, and halves are rounded away from zero, as C's `roundf` does.
pub(super) fn q8_0(values: &[f32]) -> Vec<u8> {
    blocks(values, |values, bytes: &mut [u8; BYTES_OF_8]| {
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        for (byte, value) in bytes[2..].iter_mut().zip(values) {
            *byte = ((value * inverse).round() as i8).cast_unsigned();
        }
    })
}

/// `Q4_0`: the value of the largest size becomes -8, whatever its sign, so the scale may be negative. What would be 8
/// becomes 7. The first half of the block is in the low halves of the bytes.
pub(super) fn q4_0(values: &[f32]) -> Vec<u8> {
    blocks(values, |values, bytes: &mut [u8; BYTES_OF_4]| {
        let larger = |largest: f32, &value: &f32| if value.abs() > largest.abs() { value } else { largest };
        let scale = values.iter().fold(0.0, larger) / -8.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        let step = |value: f32| ((value * inverse + 8.5) as u8).min(15);
        let (low, high) = values.split_at(BLOCK / 2);
        for ((byte, &low), &high) in bytes[2..].iter_mut().zip(low).zip(high) {
            *byte = step(low) | step(high) << 4;
        }
    })
}

/// Makes every block, on all cores.
fn blocks<const BYTES: usize>(values: &[f32], make: impl Fn(&[f32; BLOCK], &mut [u8; BYTES]) + Sync) -> Vec<u8> {
    let (values, rest) = values.as_chunks::<BLOCK>();
    debug_assert!(rest.is_empty(), "rows are whole blocks");
    let mut bytes = vec![0; values.len() * BYTES];
    let (blocks, _) = bytes.as_chunks_mut::<BYTES>();
    blocks.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE)).for_each(|(blocks, values)| {
        blocks.iter_mut().zip(values).for_each(|(block, values)| make(values, block));
    });
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(first: &[f32]) -> [f32; BLOCK] {
        std::array::from_fn(|index| first.get(index).copied().unwrap_or(0.0))
    }

    #[test]
    fn eight_bits_round_halves_away_from_zero() {
        let bytes = q8_0(&block(&[127.0, 0.5, -0.5, 1.5, -126.5, 0.49]));
        assert_eq!(bytes[..2], f16::from_f32(1.0).to_le_bytes());
        let found: Vec<i8> = bytes[2..8].iter().map(|byte| byte.cast_signed()).collect();
        assert_eq!(found, [127, 1, -1, 2, -127, 0]);
        assert_eq!(q8_0(&[0.0; BLOCK]), [0; BYTES_OF_8]);
    }

    #[test]
    fn four_bits_give_the_largest_value_minus_eight() {
        let mut values = block(&[8.0, -8.0, 1.0, 0.4]);
        values[16] = -1.0;
        let bytes = q4_0(&values);
        assert_eq!(bytes[..2], f16::from_f32(-1.0).to_le_bytes(), "the first of the largest values is positive");
        // -8 and 8, which becomes 7, -1 and -0.4, each plus 8; 1 plus 8 in the high half of the first.
        assert_eq!(bytes[2..6], [9 << 4, 15 | 8 << 4, 7 | 8 << 4, 8 | 8 << 4]);
        assert_eq!(
            q4_0(&[0.0; BLOCK])[..3],
            [0, 0x80, 8 | 8 << 4],
            "the scale of a block of zeros is -0, as ggml's is"
        );
    }
}
