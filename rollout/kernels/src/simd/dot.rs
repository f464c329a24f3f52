//! Products of bytes, summed in 32-bit integers: exact, so the same everywhere.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi32, _mm256_and_si256, _mm256_dpbusd_avx_epi32, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_slli_epi16,
    _mm256_srai_epi16, _mm256_srli_epi16, _mm256_storeu_si256, _mm512_dpbusd_epi32, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_si512, _mm512_storeu_si512,
};
use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use super::x86::{with_avx_vnni, with_vnni};
use super::{LANES, Simd, Task};

/// Bytes of a quad that one lane takes: four steps of the depth.
pub const QUAD: usize = 4;

/// Products of an unsigned and a signed byte (of at most 127) whose sum fits into 32 bits.
pub const MAX_BYTE_PRODUCTS: usize = i32::MAX as usize / (255 * 127);

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
        unsafe { S::call(With::<Self, T>::new(task)) }
    }
}

/// A task with what multiplies its bytes, for instruction sets whose functions bring what `D` needs.
pub(super) struct With<D, T>(T, PhantomData<D>);

impl<D, T> With<D, T> {
    pub fn new(task: T) -> Self {
        Self(task, PhantomData)
    }
}

impl<D: Dot, T: ByteTask> Task for With<D, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: passed on to the caller.
        unsafe { self.0.run::<S, D>() }
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

/// AVX-VNNI: two registers of 256 bits.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(super) struct AvxVnni;

#[cfg(target_arch = "x86_64")]
// SAFETY (every function): the caller vouches for the instruction set and for the pointers, as the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dot for AvxVnni {
    type I = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    unsafe fn dot([low, high]: Self::I, a: u32, b: *const i8) -> Self::I {
        unsafe {
            let (a, b) = (_mm256_set1_epi32(a as i32), b.cast::<__m256i>());
            let low = _mm256_dpbusd_avx_epi32(low, a, _mm256_loadu_si256(b));
            [low, _mm256_dpbusd_avx_epi32(high, a, _mm256_loadu_si256(b.add(1)))]
        }
    }

    #[inline(always)]
    unsafe fn store(to: &mut [i32; LANES], sums: Self::I) {
        unsafe { store_halves(to, sums) }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: ByteTask>(task: T) {
        unsafe { with_avx_vnni(task) }
    }
}

/// AVX2: bytes as 16-bit numbers, those at even places and those at odd ones apart. The instruction for products of bytes
/// would saturate.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2Dot;

#[cfg(target_arch = "x86_64")]
// SAFETY (every function): the caller vouches for the instruction set and for the pointers, as the trait demands.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dot for Avx2Dot {
    type I = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        unsafe { [_mm256_setzero_si256(); 2] }
    }

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
    unsafe fn store(to: &mut [i32; LANES], sums: Self::I) {
        unsafe { store_halves(to, sums) }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: ByteTask>(task: T) {
        unsafe { S::call(With::<Self, T>::new(task)) }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn store_halves(to: &mut [i32; LANES], [low, high]: [__m256i; 2]) {
    let to = to.as_mut_ptr().cast::<__m256i>();
    // SAFETY: the caller vouches for the instruction set; the array holds both halves.
    unsafe {
        _mm256_storeu_si256(to, low);
        _mm256_storeu_si256(to.add(1), high);
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
