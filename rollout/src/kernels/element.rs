//! What keys and values are stored as.

use super::{
    packed::{BYTE_MAX, largest, nearest},
    simd::Simd,
};

/// Element type of keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// As they are.
    #[default]
    Float,
    /// Signed bytes with a scale for each position and head, taken from the numbers of that position and head alone when
    /// they are stored; queries and weights stay floats.
    Byte,
}

impl KvFormat {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Float => size_of::<f32>(),
            Self::Byte => size_of::<i8>(),
        }
    }
}

/// The type of [`KvFormat`].
pub(super) trait Element: Copy + 'static {
    /// Whether elements are multiples of a scale.
    const SCALED: bool;

    /// One block of elements.
    ///
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn load<S: Simd>(from: *const Self) -> S::V;

    /// Writes numbers `step` elements apart; returns their scale.
    ///
    /// # Safety
    /// All places must be valid.
    unsafe fn write(values: &[f32], to: *mut Self, step: usize) -> f32;
}

impl Element for f32 {
    const SCALED: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::V {
        // SAFETY: passed on to the caller.
        unsafe { S::load(from) }
    }

    #[inline(always)]
    unsafe fn write(values: &[f32], to: *mut Self, step: usize) -> f32 {
        for (i, &x) in values.iter().enumerate() {
            // SAFETY: passed on to the caller.
            unsafe { *to.add(i * step) = x };
        }
        1.0
    }
}

impl Element for i8 {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::V {
        // SAFETY: passed on to the caller.
        unsafe { S::load_bytes(from) }
    }

    /// The largest becomes 127 or -127.
    #[inline(always)]
    unsafe fn write(values: &[f32], to: *mut Self, step: usize) -> f32 {
        let largest = largest(values);
        let inverse = if largest > 0.0 { BYTE_MAX / largest } else { 0.0 };
        for (i, &x) in values.iter().enumerate() {
            // SAFETY: passed on to the caller.
            unsafe { *to.add(i * step) = nearest(x * inverse) as i8 };
        }
        largest / BYTE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_within_half_a_step_and_depend_on_their_own_row_alone() {
        let row =
            |seed: usize| -> Vec<f32> { (0..40).map(|i| ((seed * 31 + i * 17) % 101) as f32 * 0.3 - 14.0).collect() };
        let rows = [row(1), row(2), vec![0.0; 40], vec![1e-30; 40]];
        let mut page = [0_i8; 40 * 4];
        for (place, row) in rows.iter().enumerate() {
            // SAFETY: forty places, four apart.
            let scale = unsafe { i8::write(row, page.as_mut_ptr().add(place), 4) };
            let largest = row.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            assert!((scale * 127.0 - largest).abs() <= 1e-6 * largest, "{scale} for {largest}");
            for (i, &x) in row.iter().enumerate() {
                let error = (f32::from(page[i * 4 + place]) * scale - x).abs();
                assert!(error <= 0.5001 * scale, "{x} is off by {error}, a step is {scale}");
            }
        }
        let mut alone = [0_i8; 40];
        // SAFETY: forty places.
        unsafe { i8::write(&rows[1], alone.as_mut_ptr(), 1) };
        assert!(alone.iter().enumerate().all(|(i, &b)| b == page[i * 4 + 1]));
        assert!(alone.contains(&127) || alone.contains(&-127), "the whole range is used");
    }
}
