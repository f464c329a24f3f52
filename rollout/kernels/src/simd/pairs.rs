//! Products of pairs of bf16, summed in fp32 in the order of `vdpbf16ps`.
//!
//! The instruction adds two products to each sum, the second elements of a pair before the first ones, each with one
//! rounding to nearest: a fused multiply-add. It takes numbers below the smallest normal one for 0, before and after.
//! Fused multiply-adds of fp32 in the same order give the same bits, but for sums below the smallest normal number.

use std::marker::PhantomData;

use super::{Simd, Task};

/// Sixteen sums of products of pairs.
///
/// # Safety
/// [`PairDot::F`] must be sixteen numbers, lane by lane. Every function may be called only where the instruction set of
/// the implementor is available. Pointers must be valid for what they are said to hold; alignment does not matter.
pub(crate) unsafe trait PairDot: Copy + 'static {
    /// Words of a pair in a row of the left side.
    const WORDS: usize;
    /// Sixteen sums.
    type F: Copy;
    /// A pair of the left side, for all columns.
    type Row: Copy;
    /// Pairs of sixteen columns.
    type Columns: Copy;

    #[inline(always)]
    unsafe fn zero() -> Self::F {
        // SAFETY: the sums are numbers, which may be all zeros.
        unsafe { std::mem::zeroed() }
    }

    /// A pair at `from`, of [`PairDot::WORDS`] words.
    unsafe fn row(from: *const f32) -> Self::Row;

    /// Sixteen pairs of bf16.
    unsafe fn columns(from: *const f32) -> Self::Columns;

    /// Adds to each sum the product of the second elements, then that of the first ones.
    unsafe fn dot(sums: Self::F, row: Self::Row, columns: Self::Columns) -> Self::F;

    /// The sums as `S` takes them.
    #[inline(always)]
    unsafe fn sums<S: Simd>(sums: Self::F) -> S::V {
        // SAFETY: both are sixteen numbers; the caller vouches for the instruction sets.
        unsafe { S::load(std::ptr::from_ref(&sums).cast()) }
    }

    /// Runs a task in a function of its own, as [`Simd::call`]; the instruction set of `S` must be available too.
    #[inline(always)]
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output {
        // SAFETY: the caller vouches for the instruction sets.
        unsafe { S::call(task) }
    }
}

/// Work on pairs of bf16, written once for all instruction sets.
pub(crate) trait PairTask {
    /// Does it; see [`Task::run`].
    ///
    /// # Safety
    /// The instruction sets of `S` and `D` must be available.
    unsafe fn run<S: Simd, D: PairDot>(self);
}

/// A task on pairs, with the instruction set that multiplies them.
pub(super) struct PairsWith<T, D>(pub T, pub D);

impl<T: PairTask, D: PairDot> Task for PairsWith<T, D> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller vouches for both instruction sets.
        unsafe { self.0.run::<S, D>() }
    }
}

/// Pairs are widened to fp32: those of the left side when a row is laid out, those of the columns in registers.
#[derive(Debug, Clone, Copy)]
struct Widened<S>(PhantomData<S>);

// SAFETY: blocks of `S` are sixteen numbers; for its instruction set and the pointers the caller vouches.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl<S: Simd> PairDot for Widened<S> {
    const WORDS: usize = 2;
    type F = S::V;
    type Row = [S::V; 2];
    type Columns = (S::V, S::V);

    #[inline(always)]
    unsafe fn row(from: *const f32) -> Self::Row {
        unsafe { [S::splat(*from), S::splat(*from.add(1))] }
    }

    #[inline(always)]
    unsafe fn columns(from: *const f32) -> Self::Columns {
        unsafe { S::load_pairs(from) }
    }

    #[inline(always)]
    unsafe fn dot(sums: S::V, [first, second]: Self::Row, (firsts, seconds): Self::Columns) -> S::V {
        unsafe { S::fma(first, firsts, S::fma(second, seconds, sums)) }
    }
}

/// A task on pairs that are widened.
pub(super) struct Widening<T>(pub T);

impl<T: PairTask> Task for Widening<T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { self.0.run::<S, Widened<S>>() }
    }
}

#[cfg(test)]
mod tests {
    use shared::generation::rng::Stream;

    use super::*;
    use crate::{
        element::from_bf16,
        simd::{Isa, LANES},
    };

    /// One round of sums: a pair of the left side, sixteen pairs of columns, and the sums before.
    struct Round {
        row: [u16; 2],
        columns: [[u16; 2]; LANES],
        sums: [f32; LANES],
    }

    /// Rounds, and the sums after each.
    struct Rounds<'a>(&'a [Round], &'a mut Vec<[f32; LANES]>);

    impl PairTask for Rounds<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd, D: PairDot>(self) {
            for Round { row, columns, sums } in self.0 {
                let words = if D::WORDS == 1 {
                    [f32::from_bits(u32::from(row[1]) << 16 | u32::from(row[0])), 0.0]
                } else {
                    row.map(from_bf16)
                };
                let mut after = [0.0; LANES];
                // SAFETY: the instruction sets are the caller's, and all arrays are blocks.
                unsafe {
                    let (row, columns) = (D::row(words.as_ptr()), D::columns(columns.as_ptr().cast()));
                    let before = sums.as_ptr().cast::<D::F>().read_unaligned();
                    S::store(after.as_mut_ptr(), D::sums::<S>(D::dot(before, row, columns)));
                }
                self.1.push(after);
            }
        }
    }

    /// A sum after a pair, as Intel and AMD describe the instruction, and whether a number on the way was below the
    /// smallest normal one.
    fn model(sum: f32, row: [u16; 2], column: [u16; 2]) -> (f32, bool) {
        let mut small = false;
        let mut flush = |x: f32| {
            small |= x.is_subnormal();
            if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
        };
        let mut sum = flush(sum);
        for i in [1, 0] {
            let (x, y) = (flush(from_bf16(row[i])), flush(from_bf16(column[i])));
            sum = flush(x.mul_add(y, sum));
        }
        (sum, small)
    }

    /// A number with one of `count` exponents from `first` on.
    fn number(stream: &mut Stream, first: u32, count: u32) -> u32 {
        let bits = stream.below(1 << 24) as u32;
        (bits & 1) << 31 | (first + stream.below(u64::from(count)) as u32) << 23 | bits >> 1
    }

    /// Exponents of bf16 and of sums: ordinary ones, products that all but vanish beside the sum, sums at the edge of
    /// what is normal, and any, NaN and infinity among them.
    const EXPONENTS: [[(u32, u32); 2]; 4] =
        [[(118, 16), (110, 24)], [(100, 60), (90, 80)], [(58, 12), (0, 8)], [(0, 256), (0, 256)]];

    #[test]
    fn a_sum_of_pairs_is_what_the_manuals_of_the_instruction_say() {
        let mut stream = Stream::new(&[37]);
        let mut rounds = Vec::new();
        for [(first, count), (first_sum, count_sum)] in EXPONENTS {
            let half = |stream: &mut Stream| (number(stream, first, count) >> 16) as u16;
            for _ in 0..2000 {
                let row = std::array::from_fn(|_| half(&mut stream));
                let columns = std::array::from_fn(|_| std::array::from_fn(|_| half(&mut stream)));
                let sums = std::array::from_fn(|_| f32::from_bits(number(&mut stream, first_sum, count_sum)));
                rounds.push(Round { row, columns, sums });
            }
        }
        for isa in Isa::available() {
            let mut after = Vec::new();
            isa.run_pairs(Rounds(&rounds, &mut after));
            let mut compared = 0;
            for (Round { row, columns, sums }, after) in rounds.iter().zip(after) {
                for lane in 0..LANES {
                    let (expected, small) = model(sums[lane], *row, columns[lane]);
                    let same = expected.to_bits() == after[lane].to_bits() || expected.is_nan() && after[lane].is_nan();
                    // Without the instruction, small numbers among the sums stay.
                    let counts = isa.has_pair_products() || !small;
                    assert!(same || !counts, "{isa:?}: {} instead of {expected} for {row:x?}", after[lane]);
                    compared += usize::from(counts);
                }
            }
            let all = rounds.len() * LANES;
            assert!(if isa.has_pair_products() { compared == all } else { compared > all / 2 }, "{isa:?}: {compared}");
        }
    }
}
