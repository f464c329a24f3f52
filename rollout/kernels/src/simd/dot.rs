//! Products of bytes, summed in 32-bit integers: exact, so the same everywhere.

use super::{LANES, Simd, Task};
use crate::element::QUAD;

/// Products of an unsigned and a signed byte (of at most 127) whose sum fits into 32 bits.
pub const MAX_BYTE_PRODUCTS: usize = i32::MAX as usize / (255 * 127);

/// Sixteen sums of products of unsigned with signed bytes.
///
/// # Safety
/// [`Dot::I`] must be sixteen integers of 32 bits, lane by lane. Every function may be called only where the
/// instruction set of the implementor is available.
pub(crate) unsafe trait Dot: Copy + 'static {
    /// Sixteen sums.
    type I: Copy;

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { Self::start(0) }
    }

    /// Adds to each lane the product of the four unsigned bytes of `a` with its four signed bytes at `b`, which must be
    /// valid for 64 bytes.
    unsafe fn dot(sums: Self::I, a: u32, b: *const i8) -> Self::I;

    /// Sixteen sums that begin with a number.
    #[inline(always)]
    unsafe fn start(x: i32) -> Self::I {
        // SAFETY: the sums are as many integers as the array.
        unsafe { [x; LANES].as_ptr().cast::<Self::I>().read_unaligned() }
    }

    /// The low and the high halves of 64 bytes, each as a byte.
    unsafe fn nibbles(from: *const u8) -> (Self::I, Self::I);

    /// Adds to each lane the product of its four bytes of `a`, at most 15, with the four signed bytes of `b`.
    unsafe fn dot_nibbles(sums: Self::I, a: Self::I, b: u32) -> Self::I;

    #[inline(always)]
    unsafe fn store(to: &mut [i32; LANES], sums: Self::I) {
        // SAFETY: the sums are as many integers as the array.
        unsafe { std::ptr::from_mut(to).cast::<Self::I>().write_unaligned(sums) }
    }

    /// Runs a task in a function of its own, as [`Simd::call`]; the instruction set of `S` must be available too.
    #[inline(always)]
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output {
        // SAFETY: the caller vouches for the instruction sets.
        unsafe { S::call(task) }
    }
}

/// The low half of each byte of a word.
pub(super) const LOW_HALVES: u32 = 0x0f0f_0f0f;

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlainDot;

// SAFETY: an array of sixteen integers is what it says.
unsafe impl Dot for PlainDot {
    type I = [i32; LANES];

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
    unsafe fn nibbles(from: *const u8) -> (Self::I, Self::I) {
        // SAFETY: the caller vouches for 64 bytes.
        let words = unsafe { from.cast::<[u32; LANES]>().read_unaligned() };
        let halves = |shift: u32| words.map(|word| (word >> shift & LOW_HALVES).cast_signed());
        (halves(0), halves(4))
    }

    #[inline(always)]
    unsafe fn dot_nibbles(mut sums: Self::I, a: Self::I, b: u32) -> Self::I {
        let b = b.to_le_bytes().map(u8::cast_signed);
        for (sum, a) in sums.iter_mut().zip(a) {
            let a = a.to_le_bytes();
            *sum += (0..QUAD).map(|i| i32::from(a[i]) * i32::from(b[i])).sum::<i32>();
        }
        sums
    }
}

/// Work on bytes, written once for all instruction sets.
pub(crate) trait ByteTask {
    /// Does it; see [`Task::run`].
    ///
    /// # Safety
    /// The instruction sets of `S` and `D` must be available.
    unsafe fn run<S: Simd, D: Dot>(self);
}

/// A task on bytes, with the instruction set that multiplies them.
pub(super) struct With<T, D>(pub T, pub D);

impl<T: ByteTask, D: Dot> Task for With<T, D> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller vouches for both instruction sets.
        unsafe { self.0.run::<S, D>() }
    }
}
