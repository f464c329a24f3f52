//! Quantised matrices: the codes of a base that is not trained, and the numbers that they stand for.
//!
//! The learner holds the codes and widens them by layer; the export of the base has the numbers, so the sampler
//! computes with the same ones to the last bit.

use rayon::prelude::*;
use shared::{BaseFormat, model::base_format::BLOCK};

/// The sixteen values of NormalFloat-4: quantiles of a normal distribution, scaled to ±1, with 0 among them (QLoRA,
/// appendix E).
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Largest code of [`BaseFormat::Int8`].
const MOST: f32 = 127.0;

/// A quantised matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Codes {
    format: BaseFormat,
    columns: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Codes {
    /// Quantises a row-major matrix. The same numbers give the same codes.
    ///
    /// # Panics
    /// When the numbers are not as many as rows and columns say.
    #[must_use]
    pub fn of(format: BaseFormat, values: &[f32], [rows, columns]: [usize; 2]) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix has rows times columns numbers");
        let (bytes, blocks) = (format.row_bytes(columns), columns.div_ceil(format.block(columns)));
        let (mut codes, mut scales) = (vec![0; rows * bytes], vec![0.0; rows * blocks]);
        if values.is_empty() {
            return Self { format, columns, codes, scales };
        }
        let of_rows = codes.par_chunks_mut(bytes).zip(scales.par_chunks_mut(blocks)).zip(values.par_chunks(columns));
        of_rows.for_each(|((codes, scales), row)| {
            for ((block, scale), i) in row.chunks(format.block(columns)).zip(scales).zip(0..) {
                let most = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                match format {
                    BaseFormat::Int8 => {
                        *scale = most / MOST;
                        let code =
                            |value: f32| if most == 0.0 { 0.0 } else { (value * (MOST / most)).round_ties_even() };
                        let bytes = codes.iter_mut().zip(block);
                        bytes.for_each(|(byte, value)| *byte = (code(*value).clamp(-MOST, MOST) as i8).cast_unsigned());
                    }
                    BaseFormat::Nf4 => {
                        *scale = most;
                        let pairs = codes[i * BLOCK / 2..].iter_mut().zip(block.chunks(2));
                        pairs.for_each(|(byte, pair)| {
                            let [first, second] = [0, 1].map(|which| {
                                let value = pair.get(which).copied().unwrap_or_default();
                                nearest(if most == 0.0 { 0.0 } else { value / most })
                            });
                            *byte = first << 4 | second;
                        });
                    }
                }
            }
        });
        Self { format, columns, codes, scales }
    }

    /// Its format.
    #[must_use]
    pub fn format(&self) -> BaseFormat {
        self.format
    }

    /// The codes, row by row, [`BaseFormat::row_bytes`] for each: bytes of two's complement, or two numbers in a byte,
    /// the first in its upper half.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales, row by row, one for each block.
    #[must_use]
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The numbers that the codes stand for, row-major.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        let (bytes, block) = (self.format.row_bytes(self.columns), self.format.block(self.columns));
        let blocks = self.columns.div_ceil(block);
        let rows = self.codes.len().checked_div(bytes).unwrap_or_default();
        let mut values = vec![0.0; rows * self.columns];
        if values.is_empty() {
            return values;
        }
        let of_rows = values.par_chunks_mut(self.columns).zip(self.codes.par_chunks(bytes));
        of_rows.zip(self.scales.par_chunks(blocks)).for_each(|((row, codes), scales)| {
            for (column, value) in row.iter_mut().enumerate() {
                let number = match self.format {
                    BaseFormat::Int8 => f32::from(codes[column].cast_signed()),
                    BaseFormat::Nf4 => NF4[usize::from(codes[column / 2] >> (4 * (1 - column % 2)) & 15)],
                };
                *value = number * scales[column / block];
            }
        });
        values
    }
}

/// The code of the nearest of [`NF4`]'s values; in the middle of two, that of the lower one.
fn nearest(value: f32) -> u8 {
    NF4.windows(2).filter(|pair| value > f32::midpoint(pair[0], pair[1])).count() as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_values_of_four_bits_stand_for_themselves() {
        let codes = Codes::of(BaseFormat::Nf4, &NF4.map(|value| 3.0 * value), [1, 16]);
        assert_eq!(codes.codes()[..8], [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        assert_eq!((codes.scales(), codes.values()), (&[3.0][..], NF4.map(|value| value * 3.0).to_vec()));
    }

    /// Figures of bitsandbytes 0.50.2: `quantize_4bit(w, blocksize=64, quant_type="nf4")` and
    /// `int8_vectorwise_quant(w)`.
    #[test]
    fn codes_are_those_of_bitsandbytes() {
        let value = |i: usize, j: usize| ((i * 37 + j * 101) % 211) as f32 - 105.0;
        let values: Vec<f32> = (0..2).flat_map(|i| (0..64).map(move |j| value(i, j) / 70.0)).collect();
        let four = Codes::of(BaseFormat::Nf4, &values, [2, 64]);
        let expected = [
            7, 246, 229, 228, 227, 210, 194, 193, 177, 161, 144, 128, 127, 110, 94, 78, 61, 61, 44, 27, 26, 25, 8, 7,
            246, 245, 228, 227, 211, 210, 194, 177, 27, 26, 25, 8, 7, 246, 229, 228, 227, 210, 210, 193, 177, 161, 144,
            128, 127, 111, 94, 78, 61, 61, 44, 27, 26, 25, 8, 7, 246, 245, 228, 228,
        ];
        assert_eq!((four.codes(), four.scales()), (&expected[..], &[1.5, 104.0 / 70.0][..]));
        let eight = Codes::of(BaseFormat::Int8, &values, [2, 64]);
        let expected = [-127, -5, 117, -16, 106, -27, 96, -37, 85, -48, 74, -59, 63, -70, 52, -81_i8];
        assert_eq!(eight.codes()[..16], expected.map(i8::cast_unsigned));
        assert_eq!(eight.scales(), [1.5 / 127.0, 104.0 / 70.0 / 127.0]);
    }

    #[test]
    fn a_row_of_zeros_stays_one_and_a_scale_is_of_its_own_block_alone() {
        for format in [BaseFormat::Int8, BaseFormat::Nf4] {
            assert_eq!(Codes::of(format, &[0.0; 6], [2, 3]).values(), [0.0; 6]);
            assert!(Codes::of(format, &[], [0, 3]).values().is_empty());
        }
        let values: Vec<f32> = (0..2 * BLOCK).map(|i| if i < BLOCK { 1e-3 } else { 1e3 }).collect();
        assert_eq!(Codes::of(BaseFormat::Nf4, &values, [1, 2 * BLOCK]).values(), values);
        assert_eq!(Codes::of(BaseFormat::Int8, &values, [2, BLOCK]).scales(), [1e-3 / MOST, 1e3 / MOST]);
    }

    proptest! {
        /// Every number is moved to the nearest one that its block can stand for, and numbers that were moved stay.
        #[test]
        fn numbers_are_moved_by_half_a_step_and_once(
            rows in 1_usize..4,
            columns in 1_usize..150,
            four in any::<bool>(),
            numbers in prop::collection::vec(-4.0f32..4.0, 600),
        ) {
            let format = if four { BaseFormat::Nf4 } else { BaseFormat::Int8 };
            let values = &numbers[..rows * columns];
            let codes = Codes::of(format, values, [rows, columns]);
            prop_assert_eq!(codes.codes().len() + 4 * codes.scales().len(), format.bytes([rows, columns]) as usize);
            let moved = codes.values();
            let blocks = values.chunks(columns).flat_map(|row| row.chunks(format.block(columns)));
            for (block, now) in blocks.zip(moved.chunks(columns).flat_map(|row| row.chunks(format.block(columns)))) {
                let most = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                // The widest gap of the sixteen values is that beside -1.
                let half = if four { (NF4[1] - NF4[0]) / 2.0 * most } else { most / MOST / 2.0 };
                for (value, now) in block.iter().zip(now) {
                    prop_assert!((value - now).abs() <= half * 1.0001, "{value} became {now}");
                }
            }
            let again = Codes::of(format, &moved, [rows, columns]).values();
            let most = again.iter().zip(&moved).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            prop_assert!(most <= 1e-6, "{most}");
        }
    }
}
