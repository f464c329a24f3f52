//! The formats of weights, keys and values, and the rounding to them.

use half::f16;

/// Bytes in a word: four steps of the depth.
pub(crate) const QUAD: usize = 4;

/// bf16 in a word: two steps of the depth.
pub(crate) const PAIR: usize = 2;

/// Steps that tile registers take at once: pairs and quads are filled up with zeros to whole tiles.
pub(super) const TILE_STEPS: usize = 16;

/// Steps of the depth that have a scale together in [`Format::Int4`].
pub const BLOCK: usize = 32;

/// Words of a block of [`Format::Int4`] on the left side: its quads, and the number with which its sums begin.
pub(super) const BLOCK_STEPS: usize = BLOCK / QUAD + 1;

/// Words of a block of [`Format::Int4`] in a column, without its scale: two quads each.
pub(super) const BLOCK_WORDS: usize = BLOCK / (2 * QUAD);

/// What four bits have more than the number of steps that they stand for.
pub(super) const NIBBLE_OFFSET: i32 = 8;

/// Element type of packed weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// fp32, as they are.
    #[default]
    Fp32,
    /// Signed bytes with a scale per column, in quads of four steps of the depth: `panel[k / 4][column][k % 4]`. The
    /// input is rounded to bytes row by row, so a row still depends on itself alone.
    Int8,
    /// Four bits, with a scale in fp16 for each [`BLOCK`] steps of a column, as GGUF's Q4_0 rounds them: the number of
    /// the largest size is -8 steps. A word has eight steps of the depth, the first quad of them in the low halves of
    /// its bytes: `panel[k / 8][column][k % 4]`. The scales of a block's columns follow its words. The input is rounded
    /// as for [`Format::Int8`]. Sums are exact within a block, and one chain of fused multiply-adds over the blocks.
    Int4,
    /// bf16, in pairs of two steps of the depth: `panel[k / 2][column][k % 2]`. The input is rounded to bf16, sums are
    /// fp32 in the order of AMX. Numbers below the smallest normal one count as 0, also among the sums of AMX.
    Bf16,
    /// The same panels and the same rounding of the input, with sums in the order of `vdpbf16ps` (AVX512_BF16): one
    /// chain of fused multiply-adds along the depth, the second element of each pair before the first. Numbers below
    /// the smallest normal one count as 0, also among the sums of that instruction.
    Bf16Dot,
    /// Each number as the sum of two bf16: the number rounded (the large half), and the remainder rounded (the small
    /// half). Pairs are as in [`Format::Bf16`]; of every sixteen pairs, the large halves follow the small ones. Inputs
    /// likewise. All products but those of two small halves are summed, in fp32, so the relative error of a product is
    /// some 2^-17.
    Bf16x3,
}

impl Format {
    /// Steps that tile registers take at once, with zeros to fill up the last of them.
    pub(super) fn round(self) -> usize {
        match self {
            Self::Bf16x3 => 2 * TILE_STEPS,
            _ => TILE_STEPS,
        }
    }

    /// Words of the left side for one row, or of the right side for one column: floats, pairs or quads.
    pub(super) fn steps(self, depth: usize) -> usize {
        match self {
            Self::Fp32 => depth,
            Self::Int8 => depth.div_ceil(QUAD).next_multiple_of(self.round()),
            Self::Int4 => depth.div_ceil(BLOCK) * BLOCK_STEPS,
            Self::Bf16 | Self::Bf16Dot => depth.div_ceil(PAIR).next_multiple_of(self.round()),
            Self::Bf16x3 => depth.next_multiple_of(self.round()),
        }
    }
}

/// Element type of keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// fp32, as they are.
    #[default]
    Fp32,
    /// Signed bytes with a scale for each position and head, taken from the numbers of that position and head alone
    /// when they are stored; queries and weights have sixteen bits, with a scale for each row.
    Int8,
    /// bf16, in pairs of the dimension that is summed over. Queries and weights are rounded to bf16, and sums are fp32
    /// in the order of [`Format::Bf16Dot`].
    Bf16,
}

impl KvFormat {
    /// Elements in a word of four bytes.
    pub(super) fn per_word(self) -> usize {
        size_of::<f32>() / self.size()
    }

    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Fp32 => size_of::<f32>(),
            Self::Int8 => size_of::<i8>(),
            Self::Bf16 => size_of::<u16>(),
        }
    }
}

/// Largest magnitude. A NaN is the largest of all and so stays visible: it becomes the scale.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut largest = 0;
    for x in values {
        // Magnitudes are in the order of their bits.
        largest = largest.max(x.to_bits() & (u32::MAX >> 1));
    }
    f32::from_bits(largest)
}

/// The nearest whole number, ties to even, of a number below 2^22: the sum has no bits below 1.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

/// The nearest bf16, ties to even. Numbers below the smallest normal one become 0, as AMX takes them for 0.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> u16 {
    const EXPONENT: u32 = 0x7f80_0000;
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let (nan, small) = (bits & !SIGN > EXPONENT, bits & EXPONENT == 0);
    let kept = if nan { bits | 0x0040_0000 } else { rounded };
    ((if small { bits & SIGN } else { kept }) >> 16) as u16
}

const SIGN: u32 = 1 << 31;

/// The remainder of rounding to bf16, as bf16.
#[inline(always)]
pub(super) fn small_half(x: f32) -> u16 {
    to_bf16(x - from_bf16(to_bf16(x)))
}

#[inline(always)]
pub(super) fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// Largest byte.
pub(super) const BYTE_MAX: f32 = 127.0;

/// The factor that turns numbers up to `largest` into bytes. It is 0 where no finite factor exists: for all zeros, for
/// tiny numbers, and with a NaN, which shows in the scale.
#[inline(always)]
pub(super) fn to_bytes(largest: f32) -> f32 {
    let factor = BYTE_MAX / largest;
    if factor.is_finite() { factor } else { 0.0 }
}

/// Rounds numbers to bytes, the largest to 127 or -127; returns their scale.
#[inline(always)]
pub(super) fn to_row_of_bytes(values: &[f32], to: &mut [i8]) -> f32 {
    let largest = largest(values);
    let factor = to_bytes(largest);
    for (byte, &x) in to.iter_mut().zip(values) {
        *byte = nearest(x * factor) as i8;
    }
    largest / BYTE_MAX
}

/// Rounds a block to four bits, as `quantize_row_q4_0_ref` of ggml does: steps are counted with the scale in fp32, and
/// the scale is kept in fp16. Where that is 0, all steps are. A NaN is the largest of all and so stays visible: it
/// becomes the scale.
#[inline(always)]
pub(super) fn to_nibbles(values: &[f32; BLOCK]) -> (f16, [u8; BLOCK]) {
    let size = |x: f32| x.to_bits() & (u32::MAX >> 1);
    let largest = values.iter().fold(0.0, |largest, &x| if size(x) > size(largest) { x } else { largest });
    let exact = largest / -(NIBBLE_OFFSET as f32);
    let scale = f16::from_f32(exact);
    // One zero for both.
    let (scale, inverse) = if scale == f16::ZERO { (f16::ZERO, 0.0) } else { (scale, 1.0 / exact) };
    (scale, values.map(|x| ((x * inverse + (NIBBLE_OFFSET as f32 + 0.5)) as u8).min(15)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bits_give_the_largest_number_minus_eight_steps_and_the_others_the_nearest() {
        let block = |first: &[f32]| std::array::from_fn(|i| first.get(i).copied().unwrap_or(0.0));
        for sign in [1.0, -1.0] {
            let (scale, nibbles) = to_nibbles(&block(&[8.0, -8.0, 1.0, 0.4, 0.6, -0.6].map(|x| x * sign)));
            assert_eq!((scale, &nibbles[..7]), (f16::from_f32(-sign), &[0, 15, 7, 8, 7, 9, 8][..]));
        }
        assert_eq!(to_nibbles(&block(&[])), (f16::ZERO, [8; BLOCK]));
        let (scale, nibbles) = to_nibbles(&block(&[1e-8, 1e-8]));
        assert!(scale == f16::ZERO && nibbles == [8; BLOCK], "{scale} stands for no steps");
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY, 1e6] {
            assert!(!to_nibbles(&block(&[1.0, odd])).0.is_finite(), "{odd}");
        }
    }

    #[test]
    fn bytes_are_within_half_a_step() {
        let row =
            |seed: usize| -> Vec<f32> { (0..40).map(|i| ((seed * 31 + i * 17) % 101) as f32 * 0.3 - 14.0).collect() };
        for row in [row(1), row(2), vec![0.0; 40], vec![1e-30; 40]] {
            let mut bytes = [0; 40];
            let scale = to_row_of_bytes(&row, &mut bytes);
            let largest = row.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            assert!((scale * 127.0 - largest).abs() <= 1e-6 * largest, "{scale} for {largest}");
            for (&byte, &x) in bytes.iter().zip(&row) {
                let error = (f32::from(byte) * scale - x).abs();
                assert!(error <= 0.5001 * scale, "{x} is off by {error}, a step is {scale}");
            }
            assert!(largest == 0.0 || bytes.iter().any(|b| b.abs() == 127), "the whole range is used");
        }
    }

    #[test]
    fn rounding_to_bf16_is_to_nearest_and_small_numbers_are_zero() {
        for i in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(i) << 16 | low);
                let got = half::bf16::from_bits(to_bf16(x));
                if x.is_nan() {
                    assert!(got.is_nan());
                } else if x.is_subnormal() {
                    assert_eq!(got.to_bits(), half::bf16::from_f32(0.0_f32.copysign(x)).to_bits());
                } else {
                    assert_eq!(got, half::bf16::from_f32(x), "{x}");
                }
            }
        }
    }
}
