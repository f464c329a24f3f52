//! Products of pairs of bf16 by the instruction of x86.

use std::arch::x86_64::*;

use super::{
    super::{Simd, Task, pairs::PairDot},
    with_pairs,
};

/// AVX512_BF16.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Bf16Pairs;

// SAFETY: a register of 512 bits is sixteen numbers, or sixteen pairs; for the instruction sets and the pointers of
// every function its caller vouches, as the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl PairDot for Bf16Pairs {
    const WORDS: usize = 1;
    type F = __m512;
    type Row = __m512bh;
    type Columns = __m512bh;

    #[inline(always)]
    unsafe fn row(from: *const f32) -> __m512bh {
        // Registers of bf16 have no conversion from integers.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn columns(from: *const f32) -> __m512bh {
        unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn dot(sums: __m512, row: __m512bh, columns: __m512bh) -> __m512 {
        unsafe { _mm512_dpbf16_ps(sums, row, columns) }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output {
        unsafe { with_pairs(task) }
    }
}
