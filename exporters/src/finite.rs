//! Values that are no finite numbers: weights of a fine-tune that diverged, or that overflowed in float16.

use rayon::prelude::*;
use shared::Dtype;

use crate::values;

/// Bytes that one core checks at once.
const PIECE: usize = 1 << 18;

/// What is to be done about such weights.
const WAY_OUT: &str = "such weights are of training that diverged, or of float16 that overflowed: take an earlier \
    checkpoint, or save the model again in bfloat16 or float32";

/// The values of one tensor that are not finite.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NotFinite {
    /// The number of these values.
    count: usize,
    /// The place of the first one, row-major.
    first: usize,
    /// The first one.
    value: f32,
}

impl NotFinite {
    /// Looks for such values in the little-endian bytes of a tensor, on all cores and without a copy.
    pub fn of(bytes: &[u8], dtype: Dtype) -> Option<Self> {
        let pieces = bytes.par_chunks(PIECE).enumerate().filter_map(|(piece, bytes)| {
            let count = count(bytes, dtype);
            (count > 0).then_some((piece, count))
        });
        let (piece, count) = pieces.reduce_with(|(a, m), (b, n)| (a.min(b), m + n))?;
        let begin = piece * PIECE;
        let values = values::decode(&bytes[begin..bytes.len().min(begin + PIECE)], dtype);
        let at = values.iter().position(|value| !value.is_finite())?;
        Some(Self { count, first: begin / dtype.size() + at, value: values[at] })
    }

    /// Describes them in words, for a tensor with its shape; `others` is the number of further tensors with such
    /// values.
    pub fn words(&self, name: &str, shape: &[usize], others: usize) -> String {
        let total: usize = shape.iter().product();
        let others = match others {
            0 => String::new(),
            1 => ", and so has 1 other tensor".to_owned(),
            n => format!(", and so have {n} other tensors"),
        };
        format!(
            "tensor {name} has values that are not finite ({} of {total}; the first, {}, at {:?}){others}; {WAY_OUT}",
            self.count,
            self.value,
            place(self.first, shape)
        )
    }
}

/// Describes in words the first tensor, by name, whose values are not all finite.
pub(crate) fn first_not_finite<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a [u8], Dtype, &'a [usize])>,
) -> Option<String> {
    let look = |(name, bytes, dtype, shape)| Some((name, shape, NotFinite::of(bytes, dtype)?));
    let mut found: Vec<(&str, &[usize], NotFinite)> = tensors.filter_map(look).collect();
    found.sort_by_key(|(name, ..)| *name);
    found.first().map(|(name, shape, what)| what.words(name, shape, found.len() - 1))
}

/// Number of values that are not finite: they have all bits of their exponent set.
fn count(bytes: &[u8], dtype: Dtype) -> usize {
    let of_two = |exponent: u16| {
        let is_one = |bytes: &[u8; 2]| u16::from(u16::from_le_bytes(*bytes) & exponent == exponent);
        // Sums of so few fit into the type of the lanes.
        bytes.as_chunks().0.chunks(1 << 12).map(|lane| usize::from(lane.iter().map(is_one).sum::<u16>())).sum()
    };
    match dtype {
        Dtype::Fp32 => {
            const EXPONENT: u32 = 0x7f80_0000;
            let is_one = |bytes: &[u8; 4]| u32::from(u32::from_le_bytes(*bytes) & EXPONENT == EXPONENT);
            bytes.as_chunks().0.iter().map(is_one).sum::<u32>() as usize
        }
        Dtype::Fp16 => of_two(0x7c00),
        Dtype::Bf16 => of_two(0x7f80),
    }
}

/// Indices of the value with a number, one for each dimension.
fn place(number: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = number;
    let mut indices: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&size| {
            let index = rest % size.max(1);
            rest /= size.max(1);
            index
        })
        .collect();
    indices.reverse();
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of values in a type, as a file has them.
    fn bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
        values::encode("w", values, dtype).unwrap().into_owned()
    }

    #[test]
    fn each_value_that_is_not_finite_is_counted_and_the_first_is_found() {
        for dtype in [Dtype::Fp32, Dtype::Fp16, Dtype::Bf16] {
            let mut values: Vec<f32> = (0..3 * PIECE / 2 + 5).map(|i| (i % 17) as f32 - 8.0).collect();
            assert_eq!(NotFinite::of(&bytes(&values, dtype), dtype), None, "{dtype}");
            assert_eq!(NotFinite::of(&[], dtype), None);
            let last = values.len() - 1;
            for (at, value) in [(last, f32::NAN), (PIECE + 3, f32::NEG_INFINITY), (PIECE / 3, f32::INFINITY)] {
                values[at] = value;
                let found = NotFinite::of(&bytes(&values, dtype), dtype).unwrap();
                assert_eq!(found.first, at, "{dtype}");
                assert_eq!(found.value.to_bits(), value.to_bits(), "{dtype}");
            }
            assert_eq!(NotFinite::of(&bytes(&values, dtype), dtype).unwrap().count, 3, "{dtype}");
        }
    }

    #[test]
    fn largest_and_smallest_numbers_are_finite() {
        for (dtype, values) in [
            (Dtype::Fp32, [f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45]),
            (Dtype::Fp16, [65504.0, -65504.0, 6e-5, 6e-8]),
            (Dtype::Bf16, [3.3895314e38, -3.3895314e38, 1.2e-38, 1e-40]),
        ] {
            assert_eq!(NotFinite::of(&bytes(&values, dtype), dtype), None, "{dtype}");
        }
    }

    #[test]
    fn a_tensor_is_named_with_count_place_and_way_out() {
        let values = bytes(&[1.0, 2.0, 3.0, 4.0, f32::NAN, f32::INFINITY], Dtype::Bf16);
        let (good, shape) = (bytes(&[1.0], Dtype::Fp32), [2, 3]);
        let list: [(&str, &[u8], Dtype, &[usize]); 3] = [
            ("b", &values, Dtype::Bf16, &shape),
            ("a", &good, Dtype::Fp32, &shape[..0]),
            ("c", &values, Dtype::Bf16, &shape),
        ];
        let text = first_not_finite(list.into_iter()).unwrap();
        let begin =
            "tensor b has values that are not finite (2 of 6; the first, NaN, at [1, 1]), and so has 1 other tensor; ";
        assert!(text.starts_with(begin) && text.contains("earlier checkpoint"), "{text}");
        assert_eq!(first_not_finite(list[1..2].iter().copied()), None);
    }
}
