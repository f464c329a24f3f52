//! Attention over keys and values in fp32.

use super::{
    super::{
        pages::{PAGE, Piece},
        simd::{LANES, Simd, Task},
        tile::{Matrix, UNROLL, multiply},
    },
    part::HeadPages,
    prefetch::{Coming, Prefetcher},
    product::{Operand, Stored, is_light},
};

/// Products of floats.
pub(super) struct Floats;

impl Stored for Floats {
    type Rows = Matrix;
    const ROWS: usize = usize::MAX;
    const SCALED: bool = false;

    fn words(_: usize) -> usize {
        0
    }

    fn rows(floats: Matrix, _: &mut [f32], _: usize) -> Matrix {
        floats
    }

    fn from_row(rows: Matrix, row: usize) -> Matrix {
        rows.row(row)
    }

    #[inline(always)]
    unsafe fn fill(_: Matrix, _: &[f32], _: Operand) {}

    #[inline(always)]
    unsafe fn keys<S: Simd, const R: usize, const N: usize>(
        part: &HeadPages<'_>,
        first: usize,
        queries: Matrix,
        scores: Matrix,
        ahead: &mut Prefetcher,
    ) {
        let head_dim = part.shape.head_dim;
        // SAFETY: the caller vouches for rows and pages.
        unsafe {
            let pages: [*const f32; N] = std::array::from_fn(|n| part.at(Piece::Keys, first + n));
            let mut coming = ahead.reading(first, N, head_dim / UNROLL);
            let mut sums = [[S::splat(0.0); N]; R];
            multiply_and_ask::<S, R, N>(head_dim, queries, pages, PAGE, &mut coming, &mut sums);
            for (r, row) in sums.into_iter().enumerate() {
                for (n, v) in row.into_iter().enumerate() {
                    S::store(scores.row(r).data.add((first + n) * PAGE), v);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn values<S: Simd, const R: usize, const N: usize>(
        part: &HeadPages<'_>,
        positions: usize,
        block: usize,
        weights: Matrix,
        out: Matrix,
        ahead: &mut Prefetcher,
    ) {
        // SAFETY: the caller vouches for rows and pages.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; R];
            for page in 0..part.pages.len() {
                let columns = std::array::from_fn(|n| part.at(Piece::Values, page).add((block + n) * LANES));
                let weights = Matrix { data: weights.data.add(page * PAGE), ..weights };
                let depth = PAGE.min(positions - page * PAGE);
                let mut coming = ahead.reading(page, 1, PAGE / UNROLL);
                let width = part.shape.value_width();
                multiply_and_ask::<S, R, N>(depth, weights, columns, width, &mut coming, &mut sums);
            }
            for (r, row) in sums.into_iter().enumerate() {
                for (n, v) in row.into_iter().enumerate() {
                    S::store(out.row(r).data.add((block + n) * LANES), v);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { S::call(task) }
    }
}

/// [`multiply`] with prefetching: on the way or, where the sums fill the registers, before. They would leave no
/// registers for the requests of a round.
#[inline(always)]
unsafe fn multiply_and_ask<S: Simd, const R: usize, const N: usize>(
    depth: usize,
    a: Matrix,
    b: [*const f32; N],
    step: usize,
    coming: &mut Coming,
    sums: &mut [[S::V; N]; R],
) {
    // SAFETY: the caller vouches for both sides.
    unsafe {
        if !is_light::<S>(R) {
            coming.ask_rest::<S>();
        }
        multiply::<S, R, N>(depth, a, b, step, coming, sums);
        coming.ask_rest::<S>();
    }
}
