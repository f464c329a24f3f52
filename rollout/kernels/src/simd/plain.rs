//! The lanes as an array: for machines without a known vector unit, and the model that the others are tested against.

use half::f16;

use super::{LANES, Simd, Task};

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain;

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

/// Operations by what they do with a lane. On x86-64 this is a model for tests, so each operation is a function of its
/// own: inlined, sixteen calls of `fmaf` each, they would make a fifth of the crate.
macro_rules! operations {
    ($($name:ident($($operand:ident),+) = $result:expr;)+) => {$(
        #[cfg_attr(target_arch = "x86_64", inline(never))]
        #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
        unsafe fn $name($($operand: Self::V),+) -> Self::V {
            lanes(|i| {
                $(let $operand = $operand[i];)+
                $result
            })
        }
    )+};
}

// SAFETY: an array of sixteen numbers is what it says.
unsafe impl Simd for Plain {
    type V = [f32; LANES];
    const ROWS: usize = 2;

    operations! {
        fma(a, b, c) = a.mul_add(b, c);
        add(a, b) = a + b;
        mul(a, b) = a * b;
        div(a, b) = a / b;
        // As the instructions of x86: the second operand when one of them is not a number.
        max(a, b) = if a > b { a } else { b };
        min(a, b) = if a < b { a } else { b };
        round(v) = v.round_ties_even();
        scale(v, n) = v * f32::from_bits(((n as i32 + 127) as u32) << 23);
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> (Self::V, Self::V) {
        // SAFETY: the caller vouches for a block.
        let pairs = unsafe { from.cast::<[u32; LANES]>().read_unaligned() };
        (lanes(|i| f32::from_bits(pairs[i] << 16)), lanes(|i| f32::from_bits(pairs[i] & 0xffff_0000)))
    }

    #[inline(always)]
    unsafe fn load_half_floats(from: *const u16) -> Self::V {
        // SAFETY: the caller vouches for a block.
        let halves = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        lanes(|i| f16::from_bits(halves[i]).to_f32())
    }

    #[inline(always)]
    unsafe fn load_whole(from: *const i32) -> Self::V {
        // SAFETY: the caller vouches for a block.
        let whole = unsafe { from.cast::<[i32; LANES]>().read_unaligned() };
        lanes(|i| whole[i] as f32)
    }

    #[inline(never)]
    unsafe fn call<T: Task>(task: T) -> T::Output {
        // SAFETY: plain Rust is always available.
        unsafe { task.run::<Self>() }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}
}
