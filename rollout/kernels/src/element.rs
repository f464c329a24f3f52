//! What keys and values are stored as.

use super::packed::{BYTE_MAX, largest, nearest, to_bytes};

/// Element type of keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// As they are.
    #[default]
    Fp32,
    /// Signed bytes with a scale for each position and head, taken from the numbers of that position and head alone when
    /// they are stored; queries and weights have sixteen bits, with a scale for each row.
    Int8,
}

impl KvFormat {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Fp32 => size_of::<f32>(),
            Self::Int8 => size_of::<i8>(),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
