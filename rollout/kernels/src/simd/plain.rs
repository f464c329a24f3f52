//! The lanes as an array: for machines without a known vector unit, and the model that the others are tested against.

use super::{LANES, Simd, Task};

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain;

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

impl Simd for Plain {
    type V = [f32; LANES];
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the caller vouches for a block.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for a block.
        unsafe { to.cast::<Self::V>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> (Self::V, Self::V) {
        // SAFETY: the caller vouches for a block.
        let pairs = unsafe { from.cast::<[u32; LANES]>().read_unaligned() };
        (lanes(|i| f32::from_bits(pairs[i] << 16)), lanes(|i| f32::from_bits(pairs[i] & 0xffff_0000)))
    }

    #[inline(always)]
    unsafe fn load_whole(from: *const i32) -> Self::V {
        // SAFETY: the caller vouches for a block.
        let whole = unsafe { from.cast::<[i32; LANES]>().read_unaligned() };
        lanes(|i| whole[i] as f32)
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        lanes(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] / b[i])
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // As the instructions of x86: the second operand when one of them is not a number.
        lanes(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn round(v: Self::V) -> Self::V {
        lanes(|i| v[i].round_ties_even())
    }

    #[inline(always)]
    unsafe fn scale(v: Self::V, n: Self::V) -> Self::V {
        lanes(|i| v[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }

    #[inline(never)]
    unsafe fn call<T: Task>(task: T) -> T::Output {
        // SAFETY: plain Rust is always available.
        unsafe { task.run::<Self>() }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}
}
