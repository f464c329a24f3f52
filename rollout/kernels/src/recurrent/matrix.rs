//! Sixteen columns of a matrix, `[rows][16]`, that take in a token and are read.

use super::super::simd::{LANES, Simd, exp, softplus};

/// Chains of a sum over the rows of a matrix: enough for its additions not to wait for each other.
pub(super) const CHAINS: usize = 4;

/// The steps `Δ = softplus(x + bias)` of sixteen tokens, and the decays `e^(-Δ rate)`.
///
/// # Safety
/// The instruction set of `S` must be available.
#[inline(always)]
pub(super) unsafe fn steps_and_decays<S: Simd>(x: &[f32; LANES], bias: f32, rate: f32) -> [[f32; LANES]; 2] {
    let mut found = [[0.0; LANES]; 2];
    // SAFETY: arrays are blocks; the caller vouches for the instruction set.
    unsafe {
        let steps = softplus::<S>(S::add(S::load(x.as_ptr()), S::splat(bias)));
        S::store(found[0].as_mut_ptr(), steps);
        S::store(found[1].as_mut_ptr(), exp::<S>(S::mul(steps, S::splat(-rate))));
    }
    found
}

/// `S ← decay S + key changeᵀ` in sixteen columns; returns `Sᵀ query`. Each row is read once and written once, and the
/// columns that come `ahead` blocks later are requested from memory.
///
/// # Safety
/// The instruction set of `S` must be available, and the columns have as many rows as query and key.
#[inline(always)]
pub(super) unsafe fn take_in<S: Simd>(
    columns: *mut f32,
    [query, key]: [&[f32]; 2],
    decay: f32,
    change: S::V,
    ahead: usize,
) -> S::V {
    let rows = key.len();
    let ahead = ahead * rows * LANES;
    let whole = rows / CHAINS * CHAINS;
    // SAFETY: rows are within the columns; the caller vouches for the instruction set.
    unsafe {
        let (decay, mut out) = (S::splat(decay), [S::splat(0.0); CHAINS]);
        for row in (0..whole).step_by(CHAINS) {
            for (chain, out) in out.iter_mut().enumerate() {
                let row = row + chain;
                S::prefetch(columns.wrapping_add(row * LANES + ahead));
                *out = take_row::<S>(columns, row, [query, key], decay, change, *out);
            }
        }
        for row in whole..rows {
            out[0] = take_row::<S>(columns, row, [query, key], decay, change, out[0]);
        }
        S::add(S::add(out[0], out[1]), S::add(out[2], out[3]))
    }
}

/// # Safety
/// As for [`take_in`].
#[inline(always)]
unsafe fn take_row<S: Simd>(
    columns: *mut f32,
    row: usize,
    [query, key]: [&[f32]; 2],
    decay: S::V,
    change: S::V,
    out: S::V,
) -> S::V {
    // SAFETY: the row is within the columns, query and key; the caller vouches for the instruction set.
    unsafe {
        let at = columns.add(row * LANES);
        let x = S::fma(S::splat(*key.get_unchecked(row)), change, S::mul(decay, S::load(at)));
        S::store(at, x);
        S::fma(S::splat(*query.get_unchecked(row)), x, out)
    }
}
