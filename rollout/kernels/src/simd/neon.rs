//! NEON: four registers of 128 bits.

use std::arch::aarch64::{
    float32x4_t, int32x4_t, vaddq_f32, vaddq_s32, vandq_u16, vandq_u32, vbslq_f32, vcgtq_f32, vcltq_f32,
    vcvtnq_s32_f32, vcvtq_f32_s32, vdivq_f32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u16, vdupq_n_u32, vfmaq_f32,
    vget_low_s16, vld1q_f32, vld1q_s8, vld1q_s32, vld1q_u32, vmlal_high_s16, vmlal_s16, vmull_high_s16, vmull_s16,
    vmulq_f32, vpaddq_s32, vreinterpretq_f32_s32, vreinterpretq_f32_u32, vreinterpretq_s16_s8, vreinterpretq_s16_u16,
    vreinterpretq_u16_u32, vrndnq_f32, vshlq_n_s16, vshlq_n_s32, vshlq_n_u32, vshrq_n_s16, vshrq_n_u16, vst1q_f32,
    vst1q_s32,
};

use super::{ByteTask, Dot, LANES, Simd, Task, dot::With};

/// Four registers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Neon;

/// # Safety
/// The machine must have NEON.
#[inline(never)]
#[target_feature(enable = "neon")]
pub(super) unsafe fn with_neon<T: Task>(task: T) -> T::Output {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { task.run::<Neon>() }
}

#[inline(always)]
fn quarters(f: impl Fn(usize) -> float32x4_t) -> [float32x4_t; 4] {
    std::array::from_fn(f)
}

// SAFETY (every function): the caller vouches for the instruction set and for the pointers, as the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Neon {
    type V = [float32x4_t; 4];
    const ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [unsafe { vdupq_n_f32(x) }; 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        quarters(|i| unsafe { vld1q_f32(from.add(4 * i)) })
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        for (i, quarter) in v.into_iter().enumerate() {
            unsafe { vst1q_f32(to.add(4 * i), quarter) };
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> (Self::V, Self::V) {
        let pairs = |i: usize| unsafe { vld1q_u32(from.add(4 * i).cast()) };
        (
            quarters(|i| unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs(i))) }),
            quarters(|i| unsafe { vreinterpretq_f32_u32(vandq_u32(pairs(i), vdupq_n_u32(0xffff_0000))) }),
        )
    }

    #[inline(always)]
    unsafe fn load_whole(from: *const i32) -> Self::V {
        quarters(|i| unsafe { vcvtq_f32_s32(vld1q_s32(from.add(4 * i))) })
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        quarters(|i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        quarters(|i| unsafe { vaddq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        quarters(|i| unsafe { vmulq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        quarters(|i| unsafe { vdivq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        quarters(|i| unsafe { vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        quarters(|i| unsafe { vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn round(v: Self::V) -> Self::V {
        quarters(|i| unsafe { vrndnq_f32(v[i]) })
    }

    #[inline(always)]
    unsafe fn scale(v: Self::V, n: Self::V) -> Self::V {
        quarters(|i| unsafe {
            let exponent = vaddq_s32(vcvtnq_s32_f32(n[i]), vdupq_n_s32(127));
            vmulq_f32(v[i], vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        })
    }

    #[inline(always)]
    unsafe fn call<T: Task>(task: T) -> T::Output {
        unsafe { with_neon(task) }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}
}

/// Bytes as 16-bit numbers, those at even places and those at odd ones apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct NeonDot;

// SAFETY (every function): the caller vouches for the instruction set and for the pointers, as the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dot for NeonDot {
    type I = [int32x4_t; 4];

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        [unsafe { vdupq_n_s32(0) }; 4]
    }

    #[inline(always)]
    unsafe fn dot(sums: Self::I, a: u32, b: *const i8) -> Self::I {
        unsafe {
            let a = vreinterpretq_u16_u32(vdupq_n_u32(a));
            let even = vreinterpretq_s16_u16(vandq_u16(a, vdupq_n_u16(0xff)));
            let odd = vreinterpretq_s16_u16(vshrq_n_u16::<8>(a));
            let quarter = |i: usize| {
                let b = vreinterpretq_s16_s8(vld1q_s8(b.add(16 * i)));
                let (evens, odds) = (vshrq_n_s16::<8>(vshlq_n_s16::<8>(b)), vshrq_n_s16::<8>(b));
                let low = vmull_s16(vget_low_s16(evens), vget_low_s16(even));
                let low = vmlal_s16(low, vget_low_s16(odds), vget_low_s16(odd));
                let high = vmlal_high_s16(vmull_high_s16(evens, even), odds, odd);
                vaddq_s32(sums[i], vpaddq_s32(low, high))
            };
            std::array::from_fn(quarter)
        }
    }

    #[inline(always)]
    unsafe fn store(to: &mut [i32; LANES], sums: Self::I) {
        for (i, quarter) in sums.into_iter().enumerate() {
            unsafe { vst1q_s32(to.as_mut_ptr().add(4 * i), quarter) };
        }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: ByteTask>(task: T) {
        unsafe { S::call(With::<Self, T>::new(task)) }
    }
}
