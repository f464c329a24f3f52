//! Products of bytes by the instructions of x86.

use std::arch::x86_64::*;

use super::{
    super::{
        Simd, Task,
        dot::{Dot, LOW_HALVES},
    },
    with_avx_vnni, with_vnni,
};

/// AVX-512 VNNI.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Vnni;

// SAFETY: a register of 512 bits is sixteen integers; for the instruction set and the pointer of every function its
// caller vouches, as the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl Dot for Vnni {
    type I = __m512i;

    #[inline(always)]
    unsafe fn dot(sums: __m512i, a: u32, b: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(a as i32), _mm512_loadu_si512(b.cast())) }
    }

    #[inline(always)]
    unsafe fn nibbles(from: *const u8) -> (__m512i, __m512i) {
        unsafe {
            let (words, low) = (_mm512_loadu_si512(from.cast()), _mm512_set1_epi32(LOW_HALVES.cast_signed()));
            (_mm512_and_si512(words, low), _mm512_and_si512(_mm512_srli_epi32::<4>(words), low))
        }
    }

    #[inline(always)]
    unsafe fn dot_nibbles(sums: __m512i, a: __m512i, b: u32) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, a, _mm512_set1_epi32(b.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output {
        unsafe { with_vnni(task) }
    }
}

/// AVX-VNNI: two registers of 256 bits.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct AvxVnni;

// SAFETY: two registers of 256 bits are sixteen integers; for the rest the caller vouches as above.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl Dot for AvxVnni {
    type I = [__m256i; 2];

    #[inline(always)]
    unsafe fn dot([low, high]: Self::I, a: u32, b: *const i8) -> Self::I {
        unsafe {
            let (a, b) = (_mm256_set1_epi32(a as i32), b.cast::<__m256i>());
            let low = _mm256_dpbusd_avx_epi32(low, a, _mm256_loadu_si256(b));
            [low, _mm256_dpbusd_avx_epi32(high, a, _mm256_loadu_si256(b.add(1)))]
        }
    }

    #[inline(always)]
    unsafe fn nibbles(from: *const u8) -> (Self::I, Self::I) {
        unsafe { nibbles(from) }
    }

    #[inline(always)]
    unsafe fn dot_nibbles([low, high]: Self::I, a: Self::I, b: u32) -> Self::I {
        unsafe {
            let b = _mm256_set1_epi32(b.cast_signed());
            [_mm256_dpbusd_avx_epi32(low, a[0], b), _mm256_dpbusd_avx_epi32(high, a[1], b)]
        }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output {
        unsafe { with_avx_vnni(task) }
    }
}

/// AVX2: bytes as 16-bit numbers, those at even places and those at odd ones apart. The instruction for products of
/// bytes would saturate.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Avx2Dot;

// SAFETY: as for `AvxVnni`.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl Dot for Avx2Dot {
    type I = [__m256i; 2];

    #[inline(always)]
    unsafe fn dot([low, high]: Self::I, a: u32, b: *const i8) -> Self::I {
        unsafe {
            let (a, b) = (_mm256_set1_epi32(a as i32), b.cast::<__m256i>());
            let (even, odd) = (_mm256_and_si256(a, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(a));
            let half = |sums, b| {
                let evens = _mm256_madd_epi16(even, _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b)));
                let odds = _mm256_madd_epi16(odd, _mm256_srai_epi16::<8>(b));
                _mm256_add_epi32(sums, _mm256_add_epi32(evens, odds))
            };
            [half(low, _mm256_loadu_si256(b)), half(high, _mm256_loadu_si256(b.add(1)))]
        }
    }

    #[inline(always)]
    unsafe fn nibbles(from: *const u8) -> (Self::I, Self::I) {
        unsafe { nibbles(from) }
    }

    /// Two products of at most 15 times 127 do not saturate.
    #[inline(always)]
    unsafe fn dot_nibbles([low, high]: Self::I, a: Self::I, b: u32) -> Self::I {
        unsafe {
            let (b, ones) = (_mm256_set1_epi32(b.cast_signed()), _mm256_set1_epi16(1));
            let half = |sums, a| _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
            [half(low, a[0]), half(high, a[1])]
        }
    }
}

/// The low and the high halves of 64 bytes.
///
/// # Safety
/// The machine must have AVX2, and the bytes be there.
#[inline(always)]
unsafe fn nibbles(from: *const u8) -> ([__m256i; 2], [__m256i; 2]) {
    // SAFETY: the caller vouches for both.
    unsafe {
        let (from, mask) = (from.cast::<__m256i>(), _mm256_set1_epi32(LOW_HALVES.cast_signed()));
        let [first, second] = [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))];
        let low = |words| _mm256_and_si256(words, mask);
        let high = |words| _mm256_and_si256(_mm256_srli_epi32::<4>(words), mask);
        ([low(first), low(second)], [high(first), high(second)])
    }
}
