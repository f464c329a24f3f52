//! AVX-512 and AVX2.

use std::arch::x86_64::{
    __m256, __m256i, __m512, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T1, _mm_add_ps, _mm_add_ss,
    _mm_cvtss_f32, _mm_max_ps, _mm_max_ss, _mm_movehdup_ps, _mm_movehl_ps, _mm_prefetch, _mm256_add_epi32,
    _mm256_add_ps, _mm256_and_si256, _mm256_castpd_ps, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cvtepi32_ps,
    _mm256_cvtps_epi32, _mm256_div_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32,
    _mm256_storeu_ps, _mm512_add_ps, _mm512_and_si512, _mm512_castps_pd, _mm512_castps512_ps256, _mm512_castsi512_ps,
    _mm512_cvtepi32_ps, _mm512_div_ps, _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::{
    ByteTask, Simd, Task,
    dot::{AvxVnni, Vnni},
};

/// One register of 512 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512;

/// Two registers of 256 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2;

/// # Safety
/// The machine must have AVX-512 F.
#[inline(never)]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn with_avx512<T: Task>(task: T) -> T::Output {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { task.run::<Avx512>() }
}

/// # Safety
/// The machine must have AVX-512 F and VNNI.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn with_vnni<T: ByteTask>(task: T) {
    // SAFETY: the caller vouches for the instruction sets.
    unsafe { task.run::<Avx512, Vnni>() }
}

/// # Safety
/// The machine must have AVX2, FMA and AVX-VNNI.
#[inline(never)]
#[target_feature(enable = "avx2,fma,avxvnni")]
pub(super) unsafe fn with_avx_vnni<T: ByteTask>(task: T) {
    // SAFETY: the caller vouches for the instruction sets.
    unsafe { task.run::<Avx2, AvxVnni>() }
}

/// # Safety
/// The machine must have AVX2 and FMA.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn with_avx2<T: Task>(task: T) -> T::Output {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { task.run::<Avx2>() }
}

/// The second element of a pair of bf16: the upper half of an fp32 number.
const SECOND: i32 = 0xffff_0000_u32 as i32;

/// Whole numbers nearest, no exceptions raised.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// SAFETY (every function of both implementations): the caller vouches for the instruction set and for the pointers, as
// the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type V = __m512;
    const ROWS: usize = 12;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> (__m512, __m512) {
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(SECOND));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(second))
        }
    }

    #[inline(always)]
    unsafe fn load_whole(from: *const i32) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn round(v: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<NEAREST>(v) }
    }

    #[inline(always)]
    unsafe fn scale(v: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(v, n) }
    }

    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        unsafe { sum_halves(halves_of(v)) }
    }

    #[inline(always)]
    unsafe fn largest(v: __m512) -> f32 {
        unsafe { largest_of_halves(halves_of(v)) }
    }

    #[inline(always)]
    unsafe fn call<T: Task>(task: T) -> T::Output {
        unsafe { with_avx512(task) }
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
}

/// Applies an operation to both halves.
macro_rules! halves {
    ($operation:ident, $($operand:expr),+) => {
        unsafe { ($operation($($operand.0),+), $operation($($operand.1),+)) }
    };
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type V = (__m256, __m256);
    const ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        let v = unsafe { _mm256_set1_ps(x) };
        (v, v)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        unsafe { (_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        unsafe {
            _mm256_storeu_ps(to, v.0);
            _mm256_storeu_ps(to.add(8), v.1);
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> (Self::V, Self::V) {
        unsafe {
            let pair = |pairs: __m256i| {
                let second = _mm256_and_si256(pairs, _mm256_set1_epi32(SECOND));
                (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(second))
            };
            let low = pair(_mm256_loadu_si256(from.cast()));
            let high = pair(_mm256_loadu_si256(from.add(8).cast()));
            ((low.0, high.0), (low.1, high.1))
        }
    }

    #[inline(always)]
    unsafe fn load_whole(from: *const i32) -> Self::V {
        unsafe {
            (
                _mm256_cvtepi32_ps(_mm256_loadu_si256(from.cast())),
                _mm256_cvtepi32_ps(_mm256_loadu_si256(from.add(8).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        halves!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    unsafe fn round(v: Self::V) -> Self::V {
        unsafe { (_mm256_round_ps::<NEAREST>(v.0), _mm256_round_ps::<NEAREST>(v.1)) }
    }

    #[inline(always)]
    unsafe fn scale(v: Self::V, n: Self::V) -> Self::V {
        unsafe { (scale_half(v.0, n.0), scale_half(v.1, n.1)) }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        unsafe { sum_halves(v) }
    }

    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        unsafe { largest_of_halves(v) }
    }

    #[inline(always)]
    unsafe fn call<T: Task>(task: T) -> T::Output {
        unsafe { with_avx2(task) }
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
}

#[inline(always)]
unsafe fn scale_half(v: __m256, n: __m256) -> __m256 {
    // SAFETY: the caller vouches for the instruction set. The power of two is put together from its exponent.
    unsafe {
        let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
    }
}

#[inline(always)]
unsafe fn halves_of(v: __m512) -> (__m256, __m256) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { (_mm512_castps512_ps256(v), _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)))) }
}

/// Joins halves until one lane is left.
macro_rules! tree {
    ($v:expr, $wide:ident, $narrow:ident, $single:ident) => {{
        let v = $wide($v.0, $v.1);
        let v = $narrow(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = $narrow(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32($single(v, _mm_movehdup_ps(v)))
    }};
}

#[inline(always)]
unsafe fn sum_halves(v: (__m256, __m256)) -> f32 {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { tree!(v, _mm256_add_ps, _mm_add_ps, _mm_add_ss) }
}

#[inline(always)]
unsafe fn largest_of_halves(v: (__m256, __m256)) -> f32 {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { tree!(v, _mm256_max_ps, _mm_max_ps, _mm_max_ss) }
}
