//! The products of attention, queries with keys and weights with values, for every format of keys and values.

use std::ops::Range;

use super::{
    super::{
        pages::{PAGE, PageShape},
        simd::{LANES, Simd, Task},
        tile::{Matrix, Tiling, for_rows},
    },
    part::HeadPages,
    prefetch::Prefetcher,
    softmax::{Partial, exponentials},
};

/// Pages whose keys are multiplied with all rows before those of the next pages.
const CHUNK: usize = 4;

/// The format of keys and values, and how rows are multiplied with them.
pub(super) trait Stored {
    /// Rows of queries, or of weights, as they are multiplied.
    type Rows: Copy;
    /// Most rows that are multiplied at once, where the registers hold their sums.
    const ROWS: usize;
    /// Whether each position has a scale for its key and one for its value.
    const SCALED: bool;

    /// Words that [`Stored::Rows`] take for a row of so many floats.
    fn words(length: usize) -> usize;

    /// Rows of `length` floats as they will be multiplied, in a buffer of [`Stored::words`] for each.
    fn rows(floats: Matrix, buffer: &mut [f32], length: usize) -> Self::Rows;

    /// The rows from this one on.
    fn from_row(rows: Self::Rows, row: usize) -> Self::Rows;

    /// Fills in the first of the rows from its floats.
    ///
    /// # Safety
    /// There must be a row of this length.
    unsafe fn fill(rows: Self::Rows, floats: &[f32], kind: Operand);

    /// Pages whose keys so many rows are multiplied with at once: 4 or 2.
    fn pages_at_once<S: Simd>(rows: usize) -> usize {
        if is_light::<S>(rows) { 4 } else { 2 }
    }

    /// Blocks of values that so many rows are multiplied with at once: 4 or 2.
    fn blocks_at_once<S: Simd>(rows: usize) -> usize {
        Self::pages_at_once::<S>(rows)
    }

    /// `scores[r][position] = queries[r] * keys[position]` for `R` rows over `N` pages from `first` on.
    ///
    /// # Safety
    /// The instruction sets must be available, the rows exist, and the pages be of this kind.
    unsafe fn keys<S: Simd, const R: usize, const N: usize>(
        part: &HeadPages<'_>,
        first: usize,
        queries: Self::Rows,
        scores: Matrix,
        ahead: &mut Prefetcher,
    );

    /// `out[r] = Σ weights[r][position] * values[position]` for `R` rows and `N` blocks from `block` on. Values behind
    /// the first `positions` positions may be stale; their weight is 0.
    ///
    /// # Safety
    /// As for [`Stored::keys`].
    unsafe fn values<S: Simd, const R: usize, const N: usize>(
        part: &HeadPages<'_>,
        positions: usize,
        block: usize,
        weights: Self::Rows,
        out: Matrix,
        ahead: &mut Prefetcher,
    );

    /// Runs a task in a function of its own, as [`Simd::call`].
    ///
    /// # Safety
    /// The instruction sets must be available.
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output;
}

/// The kind of rows.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    Queries,
    /// From 0 to 1, or more where the values have scales.
    Weights,
}

/// Whether the sums of so many rows leave registers free.
pub(super) fn is_light<S: Simd>(rows: usize) -> bool {
    2 * rows <= S::ROWS
}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

/// Computes scores, exponentials and weighted values of some rows, each over the positions of one part that it sees;
/// the last row sees to the end. In `buffer`, each row may use a word for every position, and [`Stored::words`] for its
/// query and for its weights.
///
/// # Safety
/// The instruction sets of `S` and `K` must be available, and the pages be of this kind.
#[inline(always)]
pub(super) unsafe fn attend_to<S: Simd, K: Stored>(
    part: &HeadPages<'_>,
    queries: &[f32],
    seen: impl Fn(usize) -> Range<usize>,
    buffer: &mut [f32],
    out: Partial<'_>,
    ahead: &mut Prefetcher,
) {
    let PageShape { head_dim, .. } = part.shape;
    let (rows, count) = (queries.len() / head_dim, part.pages.len());
    let stride = count * PAGE;
    let (scores, rest) = buffer.split_at_mut(rows * stride);
    let (of_queries, of_weights) = rest.split_at_mut(rows * K::words(head_dim));
    let floats = Matrix { data: queries.as_ptr().cast_mut(), stride: head_dim };
    let to = Matrix { data: scores.as_mut_ptr(), stride };
    let values = Matrix { data: out.values.as_mut_ptr(), stride: part.shape.value_width() };
    let (query_rows, weights) = (K::rows(floats, of_queries, head_dim), K::rows(to, of_weights, stride));
    let tiling = Tiling::new(rows, least(K::ROWS, S::ROWS));
    let longest = seen(rows - 1).end;
    // SAFETY: the matrices have these rows; for the rest the caller vouches.
    unsafe {
        for (row, query) in queries.chunks_exact(head_dim).enumerate() {
            K::fill(K::from_row(query_rows, row), query, Operand::Queries);
        }
        for first in (0..count).step_by(CHUNK) {
            for tile in 0..tiling.count() {
                let (row, height) = tiling.tile(tile);
                let (pages, queries) = (first..count.min(first + CHUNK), K::from_row(query_rows, row));
                for_rows!(height, least(K::ROWS, S::ROWS), scores_of::<S, K>(part, pages, queries, to.row(row), ahead));
            }
        }
        ahead.pass(count);
        for (row, scores) in scores.chunks_exact_mut(stride).enumerate() {
            (out.largest[row], out.sum[row]) = exponentials::<S>(part, scores, seen(row), K::SCALED, ahead);
            K::fill(K::from_row(weights, row), scores, Operand::Weights);
        }
        for tile in 0..tiling.count() {
            let (row, height) = tiling.tile(tile);
            let (weights, out) = (K::from_row(weights, row), values.row(row));
            for_rows!(height, least(K::ROWS, S::ROWS), weighted::<S, K>(part, longest, weights, out, ahead));
        }
        ahead.pass(count);
    }
}

/// # Safety
/// As for [`Stored::keys`].
#[inline(always)]
unsafe fn scores_of<S: Simd, K: Stored, const R: usize>(
    part: &HeadPages<'_>,
    pages: Range<usize>,
    queries: K::Rows,
    scores: Matrix,
    ahead: &mut Prefetcher,
) {
    // SAFETY: the caller vouches for the instruction sets.
    unsafe { K::call::<S, _>(Scores::<K, R> { part, pages, queries, scores, ahead }) };
}

/// Run in a function of its own, where nothing else takes registers from the sums.
struct Scores<'a, K: Stored, const R: usize> {
    part: &'a HeadPages<'a>,
    pages: Range<usize>,
    queries: K::Rows,
    scores: Matrix,
    ahead: &'a mut Prefetcher,
}

impl<K: Stored, const R: usize> Task for Scores<'_, K, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { part, pages, queries, scores, ahead } = self;
        let mut page = pages.start;
        // SAFETY: whoever has called `scores_of` vouches for all of it.
        unsafe {
            // Few rows leave registers for more columns, and chains of sums that need not wait for each other.
            while K::pages_at_once::<S>(R) == 4 && page + 4 <= pages.end {
                K::keys::<S, R, 4>(part, page, queries, scores, ahead);
                page += 4;
            }
            while page + 2 <= pages.end {
                K::keys::<S, R, 2>(part, page, queries, scores, ahead);
                page += 2;
            }
            if page < pages.end {
                K::keys::<S, R, 1>(part, page, queries, scores, ahead);
            }
        }
    }
}

/// # Safety
/// As for [`Stored::values`].
#[inline(always)]
unsafe fn weighted<S: Simd, K: Stored, const R: usize>(
    part: &HeadPages<'_>,
    positions: usize,
    weights: K::Rows,
    out: Matrix,
    ahead: &mut Prefetcher,
) {
    // SAFETY: the caller vouches for the instruction sets.
    unsafe { K::call::<S, _>(Weighted::<K, R> { part, positions, weights, out, ahead }) };
}

/// As [`Scores`].
struct Weighted<'a, K: Stored, const R: usize> {
    part: &'a HeadPages<'a>,
    positions: usize,
    weights: K::Rows,
    out: Matrix,
    ahead: &'a mut Prefetcher,
}

impl<K: Stored, const R: usize> Task for Weighted<'_, K, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { part, positions, weights, out, ahead } = self;
        let blocks = part.shape.value_width() / LANES;
        let mut block = 0;
        // SAFETY: whoever has called `weighted` vouches for all of it.
        unsafe {
            while K::blocks_at_once::<S>(R) == 4 && block + 4 <= blocks {
                K::values::<S, R, 4>(part, positions, block, weights, out, ahead);
                block += 4;
            }
            while block + 2 <= blocks {
                K::values::<S, R, 2>(part, positions, block, weights, out, ahead);
                block += 2;
            }
            if block < blocks {
                K::values::<S, R, 1>(part, positions, block, weights, out, ahead);
            }
        }
    }
}
