//! Products of bytes, summed in 32-bit integers: exact, so the same everywhere.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512i, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_storeu_si512,
};

#[cfg(target_arch = "x86_64")]
use super::x86::with_vnni;
use super::{LANES, Simd, Task};

/// Bytes of a quad that one lane takes: four steps of the depth.
pub const QUAD: usize = 4;

/// Sixteen sums of products of unsigned with signed bytes.
///
/// # Safety
/// As for [`Simd`].
pub trait Dot: Copy + 'static {
    /// Sixteen sums.
    type I: Copy;
    /// # Safety
    /// See the trait.
    unsafe fn zero() -> Self::I;
    /// Adds to each lane the product of the four unsigned bytes of `a` with its four signed bytes at `b`.
    ///
    /// # Safety
    /// See the trait; `b` is valid for 64 bytes.
    unsafe fn dot(sums: Self::I, a: u32, b: *const i8) -> Self::I;
    /// # Safety
    /// See the trait.
    unsafe fn store(to: &mut [i32; LANES], sums: Self::I);
    /// Runs a task in a function of its own, as [`Simd::call`].
    ///
    /// # Safety
    /// See the trait; the instruction set of `S` must be available too.
    unsafe fn call<S: Simd, T: ByteTask>(task: T);
}

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlainDot;

impl Dot for PlainDot {
    type I = [i32; LANES];

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn dot(mut sums: Self::I, a: u32, b: *const i8) -> Self::I {
        let a = a.to_le_bytes();
        // SAFETY: the caller vouches for 64 bytes.
        let b = unsafe { b.cast::<[[i8; QUAD]; LANES]>().read_unaligned() };
        for (sum, b) in sums.iter_mut().zip(b) {
            *sum += (0..QUAD).map(|i| i32::from(a[i]) * i32::from(b[i])).sum::<i32>();
        }
        sums
    }

    #[inline(always)]
    unsafe fn store(to: &mut [i32; LANES], sums: Self::I) {
        *to = sums;
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: ByteTask>(task: T) {
        // SAFETY: passed on to the caller.
        unsafe { S::call(Plainly(task)) }
    }
}

/// A task whose bytes are multiplied in plain Rust.
pub(super) struct Plainly<T>(pub T);

impl<T: ByteTask> Task for Plainly<T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: passed on to the caller; plain Rust is always available.
        unsafe { self.0.run::<S, PlainDot>() }
    }
}

/// AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Vnni;

#[cfg(target_arch = "x86_64")]
// SAFETY (every function): the caller vouches for the instruction set and for the pointers, as the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dot for Vnni {
    type I = __m512i;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn dot(sums: __m512i, a: u32, b: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(a as i32), _mm512_loadu_si512(b.cast())) }
    }

    #[inline(always)]
    unsafe fn store(to: &mut [i32; LANES], sums: __m512i) {
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), sums) }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: ByteTask>(task: T) {
        unsafe { with_vnni(task) }
    }
}

/// Work on bytes, written once for all instruction sets.
pub trait ByteTask {
    /// Does it; see [`Task::run`](super::Task::run).
    ///
    /// # Safety
    /// The instruction sets of `S` and `D` must be available.
    unsafe fn run<S: Simd, D: Dot>(self);
}
