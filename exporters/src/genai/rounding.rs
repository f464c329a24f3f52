//! Values in blocks of 4 or 8 bits, as ONNX Runtime's own quantiser makes them (`MatMulNBitsQuantizer` with
//! `DefaultWeightOnlyQuantConfig`, symmetric).
//!
//! The value of largest magnitude in a block takes the lowest code, and so decides sign and size of the scale:
//! `scale = extreme / -2^(bits - 1)`. Every other value takes the code `round(value / scale) + 2^(bits - 1)`.

use rayon::prelude::*;

use crate::onnx::blocked::{BLOCK, Bits, BlockedWeight};

/// A weight in blocks.
pub(super) struct Blocks {
    /// `[rows, blocks, bytes]`; with 4 bits, the first of two codes is in the low half of a byte.
    pub codes: Vec<u8>,
    /// `[rows, blocks]`.
    pub scales: Vec<f32>,
}

/// Rounds a weight `[rows, columns]`, on all cores.
pub(super) fn round(values: &[f32], form: &BlockedWeight) -> Blocks {
    let (blocks, bytes) = (form.blocks(), form.bits.block_bytes());
    let mut codes = vec![0; form.rows * blocks * bytes];
    let mut scales = vec![0.0; form.rows * blocks];
    let rows = codes.par_chunks_mut(blocks * bytes).zip(scales.par_chunks_mut(blocks));
    rows.zip(values.par_chunks(form.columns)).for_each(|((codes, scales), row)| {
        for ((codes, scale), block) in codes.chunks_mut(bytes).zip(scales).zip(row.chunks(BLOCK)) {
            *scale = round_block(block, form.bits, codes);
        }
    });
    Blocks { codes, scales }
}

/// Writes the codes of a block, padded with 0 if it is short, and returns its scale.
fn round_block(values: &[f32], bits: Bits, codes: &mut [u8]) -> f32 {
    let middle = f32::from(bits.middle());
    let (lowest, highest) = values.iter().fold((0.0_f32, 0.0_f32), |(low, high), &v| (low.min(v), high.max(v)));
    let extreme = if highest > -lowest { highest } else { lowest };
    let scale = extreme / -middle;
    let inverse = if scale == 0.0 { 0.0 } else { scale.recip() };
    let code = |value: &f32| (value * inverse + middle).round().clamp(0.0, 2.0 * middle - 1.0) as u8;
    match bits {
        Bits::Eight => codes.iter_mut().zip(values).for_each(|(to, value)| *to = code(value)),
        Bits::Four => codes.iter_mut().zip(values.chunks(2)).for_each(|(to, pair)| {
            *to = code(&pair[0]) | pair.get(1).map_or(0, code) << 4;
        }),
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(values: &[f32], bits: Bits) -> Blocks {
        round(values, &BlockedWeight { bits, rows: 1, columns: values.len() })
    }

    #[test]
    fn the_extreme_of_a_block_decides_sign_and_size_of_its_scale() {
        let mut values = [0.125_f32; 32];
        (values[0], values[1], values[2]) = (2.0, 1.0, -1.0);
        let four = rounded(&values, Bits::Four);
        assert_eq!(four.scales, [-0.25]);
        // 2 is code 0, 1 is code 4, -1 is code 12; 0.125 lies half-way between 7 and 8, and goes away from 0.
        assert_eq!(four.codes[..3], [0x40, 0x8c, 0x88]);
        let eight = rounded(&values, Bits::Eight);
        assert_eq!((eight.scales[0], &eight.codes[..4]), (-1.0 / 64.0, &[0, 64, 192, 120][..]));
    }

    #[test]
    fn of_two_extremes_the_negative_one_is_exact() {
        let values = [2.0, -2.0, 0.0, 1.0];
        let four = rounded(&values, Bits::Four);
        assert_eq!((four.scales[0], &four.codes[..2]), (0.25, &[0x0f, 0xc8][..]));
        assert!(four.codes[2..].iter().all(|&byte| byte == 0), "a short block is padded");
    }

    #[test]
    fn zeros_take_the_middle_code() {
        assert_eq!(rounded(&[0.0; 32], Bits::Four).codes, [0x88; 16]);
        let eight = rounded(&[0.0; 32], Bits::Eight);
        assert_eq!((eight.scales[0], eight.codes), (0.0, vec![128; 32]));
    }

    /// Codes and scales of `quantize_matmul_4bits` and `_8bits` of onnxruntime 1.31.1 for `w[i] = sin(i^2)`, two rows
    /// of 40 values.
    #[test]
    fn golden_blocks_of_onnxruntime() {
        let values: Vec<f32> = (0..80_u32).map(|i| f64::from(i * i).sin() as f32).collect();
        for (bits, blocks, scales) in GOLDEN {
            let found = round(&values, &BlockedWeight { bits, rows: 2, columns: 40 });
            assert_eq!(found.scales.iter().map(|s| s.to_bits()).collect::<Vec<_>>(), scales, "{bits:?}");
            let hex: String = found.codes.iter().map(|code| format!("{code:02x}")).collect();
            assert_eq!(hex, blocks.concat(), "{bits:?}");
        }
    }

    const GOLDEN: [(Bits, [&str; 4], [u32; 4]); 2] = [
        (
            Bits::Four,
            [
                "f8b276003ff4341f80a5f1fa9194205f",
                "19a9d04f000000000000000000000000",
                "62f0fe40e163bebdcd9df610b3bf05f2",
                "250ae000000000000000000000000000",
            ],
            [0x3dff_cc19, 0xbdfe_e49c, 0x3dff_ff67, 0xbdff_f0a6],
        ),
        (
            Bits::Eight,
            [
                "80ec1fb55b6f0106f62f3fff4133f809007d4ca413f699f80f973c930218ff57",
                "940c8e9c00d6f446000000000000000000000000000000000000000000000000",
                "196100fedafc014708de2d62e5b4c8acd2c8cd8f5efd040a34b7feaa4b001dfa",
                "511f9a0002dd0603000000000000000000000000000000000000000000000000",
            ],
            [0x3bff_cc19, 0xbbfe_e49c, 0x3bff_ff67, 0xbbff_f0a6],
        ),
    ];
}
