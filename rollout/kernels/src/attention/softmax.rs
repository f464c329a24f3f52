//! Softmax in two parts, joined by their log-sum-exps.

use std::ops::Range;

use super::{
    super::{
        pages::Piece,
        simd::{self, LANES, Simd},
    },
    part::HeadPages,
    prefetch::Prefetcher,
};

/// Softmax-weighted values over a part of the positions: per row the maximum, the sum of exponentials, and the sum of
/// values weighted by these. Rows are padded to whole blocks.
pub(super) struct Partial<'a> {
    pub largest: &'a mut [f32],
    pub sum: &'a mut [f32],
    pub values: &'a mut [f32],
}

impl<'a> Partial<'a> {
    /// Words for `rows` rows of `width` values.
    pub fn words(rows: usize, width: usize) -> usize {
        2 * rows.next_multiple_of(LANES) + rows * width
    }

    /// The three parts of a buffer of [`Partial::words`].
    pub fn new(buffer: &'a mut [f32], rows: usize) -> Self {
        let padded = rows.next_multiple_of(LANES);
        let (largest, rest) = buffer.split_at_mut(padded);
        let (sum, values) = rest.split_at_mut(padded);
        Self { largest, sum, values }
    }

    /// Some of the rows.
    pub fn rows(&mut self, rows: Range<usize>, width: usize) -> Partial<'_> {
        Partial {
            largest: &mut self.largest[rows.clone()],
            sum: &mut self.sum[rows.clone()],
            values: &mut self.values[rows.start * width..rows.end * width],
        }
    }
}

/// Blocks of scores between two rounds of requests, and the cache lines of a round.
const ROUND: usize = 8;
const LINES: usize = 16;

/// Turns a row of scores into weights of the values: `e^(score - largest)` times the scale of the value, and 0 outside
/// of `seen`. Returns the largest score and the sum of the exponentials. Where nothing is seen, these are negative
/// infinity and 0.
///
/// # Safety
/// The instruction set of `S` must be available, and the values have scales if they are `scaled`.
#[inline(always)]
pub(super) unsafe fn exponentials<S: Simd>(
    part: &HeadPages<'_>,
    scores: &mut [f32],
    seen: Range<usize>,
    scaled: bool,
    ahead: &mut Prefetcher,
) -> (f32, f32) {
    if seen.is_empty() {
        scores.fill(0.0);
        return (f32::NEG_INFINITY, 0.0);
    }
    // Whole blocks, from the first with a position that is seen to the last one.
    let (first, end) = (seen.start / LANES, seen.end.next_multiple_of(LANES));
    scores[..first * LANES].fill(0.0);
    scores[first * LANES..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..end].fill(f32::NEG_INFINITY);
    scores[end..].fill(0.0);
    let (blocks, _) = scores[..end].as_chunks_mut::<LANES>();
    // SAFETY: a chunk is a block and belongs to a page; for the rest the caller vouches.
    unsafe {
        let mut largest = S::splat(f32::NEG_INFINITY);
        for block in &blocks[first..] {
            largest = S::max(largest, S::load(block.as_ptr()));
        }
        let largest = S::largest(largest);
        let shift = S::splat(-largest);
        let mut sums = S::splat(0.0);
        let last = blocks.len() - 1;
        for (i, block) in blocks.iter_mut().enumerate().skip(first) {
            if i.is_multiple_of(ROUND) {
                ahead.idle(LINES).ask_rest::<S>();
            }
            let mut e = simd::exp::<S>(S::add(S::load(block.as_ptr()), shift));
            // Positions before a window weigh no more than e^-87. Those behind the end may hold NaNs.
            if i == last {
                S::store(block.as_mut_ptr(), e);
                block[seen.end - last * LANES..].fill(0.0);
                e = S::load(block.as_ptr());
            }
            sums = S::add(sums, e);
            if scaled {
                e = S::mul(e, S::load(part.at(Piece::ValueScales, i)));
            }
            S::store(block.as_mut_ptr(), e);
        }
        if scaled {
            blocks[last][seen.end - last * LANES..].fill(0.0);
        }
        (largest, S::sum(sums))
    }
}

/// Turns the maxima of both parts of each row into the factors of their values. Without a prefix, there is one part.
///
/// # Safety
/// The instruction set of `S` must be available.
#[inline(always)]
pub(super) unsafe fn join<S: Simd>(own: &mut Partial<'_>, prefix: Option<&mut Partial<'_>>) {
    let (own_largest, _) = own.largest.as_chunks_mut::<LANES>();
    let (own_sum, _) = own.sum.as_chunks::<LANES>();
    // SAFETY: a chunk is a block; the caller vouches for the instruction set.
    unsafe {
        let Some(prefix) = prefix else {
            for (largest, sum) in own_largest.iter_mut().zip(own_sum) {
                S::store(largest.as_mut_ptr(), S::div(S::splat(1.0), S::load(sum.as_ptr())));
            }
            return;
        };
        let (prefix_largest, _) = prefix.largest.as_chunks_mut::<LANES>();
        let (prefix_sum, _) = prefix.sum.as_chunks::<LANES>();
        for (own, prefix) in own_largest.iter_mut().zip(own_sum).zip(prefix_largest.iter_mut().zip(prefix_sum)) {
            let (own_sum, prefix_sum) = (S::load(own.1.as_ptr()), S::load(prefix.1.as_ptr()));
            let (own_largest, prefix_largest) = (S::load(own.0.as_ptr()), S::load(prefix.0.as_ptr()));
            let shift = S::mul(S::max(own_largest, prefix_largest), S::splat(-1.0));
            let own_weight = simd::exp::<S>(S::add(own_largest, shift));
            let prefix_weight = simd::exp::<S>(S::add(prefix_largest, shift));
            let sum = S::add(S::mul(own_sum, own_weight), S::mul(prefix_sum, prefix_weight));
            let inverse = S::div(S::splat(1.0), sum);
            S::store(own.0.as_mut_ptr(), S::mul(own_weight, inverse));
            S::store(prefix.0.as_mut_ptr(), S::mul(prefix_weight, inverse));
        }
    }
}
