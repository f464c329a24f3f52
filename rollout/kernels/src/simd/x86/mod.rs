//! AVX-512 and AVX2, with tiles and products of bytes where the processor has them.

mod amx;
mod dot;
mod pairs;

use std::arch::x86_64::*;

use super::{Features, Simd, Task};
pub(crate) use amx::{TileBytes, TileDot, TileHalves, TileProduct, TileSplits, Tiles};
pub(super) use dot::{Avx2Dot, AvxVnni, Vnni};
pub(super) use pairs::Bf16Pairs;

/// One register of 512 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512;

/// Two registers of 256 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2;

/// The instructions of this machine.
pub(super) fn features() -> Features {
    Features::of(&[
        (
            Features::AVX2,
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
        ),
        (Features::AVX_VNNI, is_x86_feature_detected!("avxvnni")),
        (Features::AVX512, is_x86_feature_detected!("avx512f")),
        (Features::AVX512_VNNI, is_x86_feature_detected!("avx512vnni")),
        (Features::AMX, amx::granted()),
        (Features::AVX512_BF16, is_x86_feature_detected!("avx512bf16")),
    ])
}

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
pub(super) unsafe fn with_vnni<T: Task>(task: T) -> T::Output {
    // SAFETY: the caller vouches for the instruction sets.
    unsafe { task.run::<Avx512>() }
}

/// # Safety
/// The machine must have AVX-512 F and AVX512_BF16.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn with_pairs<T: Task>(task: T) -> T::Output {
    // SAFETY: the caller vouches for the instruction sets.
    unsafe { task.run::<Avx512>() }
}

/// # Safety
/// The machine must have AVX2, FMA, F16C and AVX-VNNI.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn with_avx_vnni<T: Task>(task: T) -> T::Output {
    // SAFETY: the caller vouches for the instruction sets.
    unsafe { task.run::<Avx2>() }
}

/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn with_avx2<T: Task>(task: T) -> T::Output {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { task.run::<Avx2>() }
}

/// The second element of a pair of bf16: the upper half of an fp32 number.
const SECOND: i32 = 0xffff_0000_u32 as i32;

/// Whole numbers nearest, no exceptions raised.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Operations that are one instruction.
macro_rules! instructions {
    ($($name:ident($($operand:ident),+) = $instruction:expr;)+) => {$(
        #[inline(always)]
        unsafe fn $name($($operand: Self::V),+) -> Self::V {
            unsafe { $instruction($($operand),+) }
        }
    )+};
}

/// Operations that are one instruction for each half.
macro_rules! instructions_of_halves {
    ($($name:ident($($operand:ident),+) = $instruction:expr;)+) => {$(
        #[inline(always)]
        unsafe fn $name($($operand: Self::V),+) -> Self::V {
            unsafe { [$instruction($($operand[0]),+), $instruction($($operand[1]),+)] }
        }
    )+};
}

// SAFETY: a register of 512 bits is sixteen numbers; for the instruction set and the pointers of every function its
// caller vouches, as the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl Simd for Avx512 {
    type V = __m512;
    const ROWS: usize = 12;

    instructions! {
        fma(a, b, c) = _mm512_fmadd_ps;
        add(a, b) = _mm512_add_ps;
        mul(a, b) = _mm512_mul_ps;
        div(a, b) = _mm512_div_ps;
        max(a, b) = _mm512_max_ps;
        min(a, b) = _mm512_min_ps;
        round(v) = _mm512_roundscale_ps::<NEAREST>;
        scale(v, n) = _mm512_scalef_ps;
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
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
    unsafe fn load_half_floats(from: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_whole(from: *const i32) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast())) }
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

// SAFETY: two registers of 256 bits are sixteen numbers; for the rest the caller vouches as above.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl Simd for Avx2 {
    type V = [__m256; 2];
    const ROWS: usize = 3;
    const BLOCKS: usize = 1;

    instructions_of_halves! {
        fma(a, b, c) = _mm256_fmadd_ps;
        add(a, b) = _mm256_add_ps;
        mul(a, b) = _mm256_mul_ps;
        div(a, b) = _mm256_div_ps;
        max(a, b) = _mm256_max_ps;
        min(a, b) = _mm256_min_ps;
        round(v) = _mm256_round_ps::<NEAREST>;
        scale(v, n) = scale_half;
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        unsafe { [_mm256_set1_ps(x); 2] }
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
            ([low.0, high.0], [low.1, high.1])
        }
    }

    #[inline(always)]
    unsafe fn load_half_floats(from: *const u16) -> Self::V {
        unsafe {
            let from = from.cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))]
        }
    }

    #[inline(always)]
    unsafe fn load_whole(from: *const i32) -> Self::V {
        unsafe {
            let (low, high) = (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
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
