//! Functions of sixteen numbers that are made of the operations of [`Simd`], and so have the same bits everywhere.

use super::{LANES, Simd};

/// `e^x` within 2 units in the last place, for x held between -87 and 88 (where the result stays a normal number).
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // Cody and Waite's reduction with ln 2 in two parts, and the Taylor polynomial of degree 7 on |r| <= ln 2 / 2.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 7] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        // A NaN comes through: both operations give back their second operand then.
        let x = S::max(S::splat(-87.0), S::min(S::splat(88.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-LN2_HIGH), x);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let mut p = S::splat(1.0 / 5040.0);
        for c in COEFFICIENTS {
            p = S::fma(p, r, S::splat(c));
        }
        S::scale(p, n)
    }
}

/// `1 / (1 + e^-x)`.
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let e = exp::<S>(S::mul(x, S::splat(-1.0)));
        S::div(S::splat(1.0), S::add(S::splat(1.0), e))
    }
}

/// `x / (1 + e^-x)`.
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(crate) unsafe fn silu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let e = exp::<S>(S::mul(x, S::splat(-1.0)));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

/// `x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, with `(1 + tanh u) / 2 = 1 / (1 + e^-2u)`.
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(crate) unsafe fn gelu<S: Simd>(x: S::V) -> S::V {
    const LINEAR: f32 = -1.595_769;
    const CUBIC: f32 = LINEAR * 0.044_715;
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let factor = S::fma(S::mul(x, x), S::splat(CUBIC), S::splat(LINEAR));
        let e = exp::<S>(S::mul(x, factor));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

/// `c · tanh(x / c)`.
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(crate) unsafe fn capped<S: Simd>(x: S::V, cap: f32) -> S::V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        // tanh u = (1 - e^-2u) / (1 + e^-2u).
        let (one, minus) = (S::splat(1.0), S::splat(-1.0));
        let e = exp::<S>(S::mul(x, S::splat(-2.0 / cap)));
        S::mul(S::splat(cap), S::div(S::fma(minus, e, one), S::add(one, e)))
    }
}

/// `ln(1 + e^x)`.
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(crate) unsafe fn softplus<S: Simd>(x: S::V) -> S::V {
    // ln(1 + y) = 2 artanh(y / (2 + y)) for y = e^-|x|; the argument is at most 1/3, where eight terms are enough.
    const TERMS: [f32; 8] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        // A NaN comes through: both maxima give back their second operand then.
        let (negative, zero) = (S::mul(x, S::splat(-1.0)), S::splat(0.0));
        let y = exp::<S>(S::mul(S::max(negative, x), S::splat(-1.0)));
        let z = S::div(y, S::add(S::splat(2.0), y));
        let (square, mut sum) = (S::mul(z, z), zero);
        for term in TERMS {
            sum = S::fma(sum, square, S::splat(term));
        }
        S::fma(S::mul(S::splat(2.0), z), sum, S::max(zero, x))
    }
}

/// Up to a block of numbers, zeros behind them.
///
/// # Safety
/// See [`Simd`]; only `count` numbers need be there.
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Simd>(from: *const f32, count: usize) -> S::V {
    // SAFETY: the caller vouches for the numbers, and the array is a block.
    unsafe {
        if count >= LANES {
            return S::load(from);
        }
        let mut lanes = [0.0_f32; LANES];
        lanes.as_mut_ptr().copy_from_nonoverlapping(from, count);
        S::load(lanes.as_ptr())
    }
}

/// Stores up to a block of numbers.
///
/// # Safety
/// See [`Simd`]; only `count` numbers need be there.
#[inline(always)]
pub(crate) unsafe fn store_up_to<S: Simd>(to: *mut f32, count: usize, v: S::V) {
    // SAFETY: the caller vouches for the numbers, and the array is a block.
    unsafe {
        if count >= LANES {
            return S::store(to, v);
        }
        let mut lanes = [0.0_f32; LANES];
        S::store(lanes.as_mut_ptr(), v);
        to.copy_from_nonoverlapping(lanes.as_ptr(), count);
    }
}
