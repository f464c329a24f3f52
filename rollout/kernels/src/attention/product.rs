//! The products of attention over floats: queries with keys, and weights with values.

use std::ops::Range;

use super::{
    super::{
        pages::{PAGE, Piece},
        simd::{LANES, Simd, Task},
        tile::UNROLL,
    },
    Call, Pieces,
    prefetch::{Coming, Prefetcher},
};

/// Some pages of the call's list, as one key/value head sees them.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub call: &'a Call<'a>,
    pub head: usize,
    pub pages: Range<usize>,
}

impl<'a> Part<'a> {
    pub fn pieces(&self, piece: Piece) -> PartPieces<'a> {
        PartPieces { pieces: self.call.pieces(self.head, piece), pages: &self.call.plan.pages[self.pages.clone()] }
    }
}

/// One piece of the pages of a part.
#[derive(Clone, Copy)]
pub(super) struct PartPieces<'a> {
    pieces: Pieces,
    pages: &'a [u32],
}

impl PartPieces<'_> {
    pub fn at(self, index: usize) -> *const f32 {
        self.pieces.of(self.pages[index])
    }
}

/// A matrix of floats, row by row.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub data: *mut f32,
    pub stride: usize,
}

impl Matrix {
    pub fn row(self, row: usize) -> Self {
        Self { data: self.data.wrapping_add(row * self.stride), ..self }
    }
}

/// `scores[r][position] = queries[r] * keys[position]` for `R` rows over all positions of the part.
///
/// # Safety
/// The instruction set of `S` must be available; `queries` is `[R, head_dim]`, `scores` `[R, pages * PAGE]`, and the
/// pages hold floats.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, const R: usize>(
    part: &Part<'_>,
    queries: Matrix,
    scores: Matrix,
    ahead: &mut Prefetcher,
) {
    // SAFETY: passed on to the caller.
    unsafe { S::call(Scores::<R> { part, queries, scores, ahead }) };
}

struct Scores<'a, const R: usize> {
    part: &'a Part<'a>,
    queries: Matrix,
    scores: Matrix,
    ahead: &'a mut Prefetcher,
}

impl<const R: usize> Task for Scores<'_, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { part, queries, scores, ahead } = self;
        let (pages, count) = (part.pieces(Piece::Keys), part.pages.len());
        let mut page = 0;
        // SAFETY: passed on to the caller.
        unsafe {
            // Few rows leave registers for more columns, and chains of sums that need not wait for each other.
            while 2 * R <= S::ROWS && page + 4 <= count {
                keys::<S, R, 4>(part, pages, page, queries, scores, ahead);
                page += 4;
            }
            while page + 2 <= count {
                keys::<S, R, 2>(part, pages, page, queries, scores, ahead);
                page += 2;
            }
            if page < count {
                keys::<S, R, 1>(part, pages, page, queries, scores, ahead);
            }
        }
    }
}

#[inline(always)]
unsafe fn keys<S: Simd, const R: usize, const N: usize>(
    part: &Part<'_>,
    keys: PartPieces<'_>,
    first: usize,
    queries: Matrix,
    scores: Matrix,
    ahead: &mut Prefetcher,
) {
    let shape = part.call.shape;
    // SAFETY: passed on to the caller.
    unsafe {
        let pages: [*const f32; N] = std::array::from_fn(|n| keys.at(first + n));
        let coming = ahead.reading(first, N, shape.head_dim / UNROLL);
        let mut sums = [[S::splat(0.0); N]; R];
        multiply::<S, R, N>(shape.head_dim, queries, pages, PAGE, &coming, &mut sums);
        for (r, row) in sums.into_iter().enumerate() {
            for (n, v) in row.into_iter().enumerate() {
                S::store(scores.row(r).data.add((first + n) * PAGE), v);
            }
        }
    }
}

/// `out[r] = Σ weights[r][position] * values[position]` for `R` rows over the first `positions` positions of the part;
/// those behind are not read, since what lies there may be stale.
///
/// # Safety
/// The instruction set of `S` must be available; `weights` is `[R, pages * PAGE]`, `out` `[R, value_width]`, and the
/// pages hold floats.
#[inline(always)]
pub(super) unsafe fn weighted<S: Simd, const R: usize>(
    part: &Part<'_>,
    positions: usize,
    weights: Matrix,
    out: Matrix,
    ahead: &mut Prefetcher,
) {
    // SAFETY: passed on to the caller.
    unsafe { S::call(Weighted::<R> { part, positions, weights, out, ahead }) };
}

struct Weighted<'a, const R: usize> {
    part: &'a Part<'a>,
    positions: usize,
    weights: Matrix,
    out: Matrix,
    ahead: &'a mut Prefetcher,
}

impl<const R: usize> Task for Weighted<'_, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { part, positions, weights, out, ahead } = self;
        let blocks = part.call.shape.value_width() / LANES;
        let mut block = 0;
        // SAFETY: passed on to the caller.
        unsafe {
            while 2 * R <= S::ROWS && block + 4 <= blocks {
                values::<S, R, 4>(part, positions, block, weights, out, ahead);
                block += 4;
            }
            while block + 2 <= blocks {
                values::<S, R, 2>(part, positions, block, weights, out, ahead);
                block += 2;
            }
            if block < blocks {
                values::<S, R, 1>(part, positions, block, weights, out, ahead);
            }
        }
    }
}

#[inline(always)]
unsafe fn values<S: Simd, const R: usize, const N: usize>(
    part: &Part<'_>,
    positions: usize,
    block: usize,
    weights: Matrix,
    out: Matrix,
    ahead: &mut Prefetcher,
) {
    let shape = part.call.shape;
    // SAFETY: passed on to the caller.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; R];
        let values = part.pieces(Piece::Values);
        for page in 0..part.pages.len() {
            let columns = std::array::from_fn(|n| values.at(page).add((block + n) * LANES));
            let weights = Matrix { data: weights.data.add(page * PAGE), ..weights };
            let depth = PAGE.min(positions - page * PAGE);
            let coming = ahead.reading(page, 1, PAGE / UNROLL);
            multiply::<S, R, N>(depth, weights, columns, shape.value_width(), &coming, &mut sums);
        }
        for (r, row) in sums.into_iter().enumerate() {
            for (n, v) in row.into_iter().enumerate() {
                S::store(out.row(r).data.add((block + n) * LANES), v);
            }
        }
    }
}

/// `sums[r][n] += Σ a[r, k] * b[k, n]` for k in ascending order; block `n` of row `k` is at `b[n] + k * step`.
#[inline(always)]
unsafe fn multiply<S: Simd, const R: usize, const N: usize>(
    depth: usize,
    a: Matrix,
    b: [*const f32; N],
    step: usize,
    coming: &Coming,
    sums: &mut [[S::V; N]; R],
) {
    // The sums of many rows fill the registers, and would leave them for what a round asks for.
    let light = 2 * R <= S::ROWS;
    let mut round = 0;
    let mut acc = *sums;
    let mut k = 0;
    // SAFETY: k stays below depth; the rest is passed on to the caller.
    unsafe {
        if !light {
            coming.ask_rest::<S>(0);
        }
        while k + UNROLL <= depth {
            for i in 0..UNROLL {
                step_of::<S, R, N>(k + i, a, b, step, &mut acc);
            }
            if light {
                coming.ask::<S>(round);
                round += 1;
            }
            k += UNROLL;
        }
        while k < depth {
            step_of::<S, R, N>(k, a, b, step, &mut acc);
            k += 1;
        }
        if light {
            coming.ask_rest::<S>(round);
        }
    }
    *sums = acc;
}

#[inline(always)]
unsafe fn step_of<S: Simd, const R: usize, const N: usize>(
    k: usize,
    a: Matrix,
    b: [*const f32; N],
    step: usize,
    acc: &mut [[S::V; N]; R],
) {
    // SAFETY: passed on to the caller.
    unsafe {
        // Loops instead of closures, which would not be compiled for the instruction set.
        let mut columns = [S::splat(0.0); N];
        for (column, block) in columns.iter_mut().zip(b) {
            *column = S::load(block.add(k * step));
        }
        for (r, row) in acc.iter_mut().enumerate() {
            let x = S::splat(*a.data.add(r * a.stride + k));
            for (sum, column) in row.iter_mut().zip(columns) {
                *sum = S::fma(x, column, *sum);
            }
        }
    }
}
