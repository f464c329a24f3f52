//! Attention over keys and values in bf16.
//!
//! Queries and weights are rounded to bf16 too, row by row, so the rounding of a row depends on that row alone.

use std::marker::PhantomData;

use super::{
    super::{
        element::{PAIR, from_bf16, to_bf16},
        pages::{PAGE, Piece},
        simd::{LANES, PairDot, Simd, Task},
        tile::{Matrix, UNROLL, multiply_pairs},
    },
    part::HeadPages,
    prefetch::{Coming, Prefetcher},
    product::{Operand, Stored, is_light},
};

/// Products of pairs by `D`.
pub(super) struct Pairs<D>(PhantomData<D>);

/// The first element of a pair, in a word.
const FIRST: u32 = 0xffff;

impl<D: PairDot> Stored for Pairs<D> {
    type Rows = Matrix;
    const ROWS: usize = usize::MAX;
    const SCALED: bool = false;

    fn words(length: usize) -> usize {
        length.div_ceil(PAIR) * D::WORDS
    }

    fn rows(_: Matrix, buffer: &mut [f32], length: usize) -> Matrix {
        Matrix { data: buffer.as_mut_ptr(), stride: Self::words(length) }
    }

    fn from_row(rows: Matrix, row: usize) -> Matrix {
        rows.row(row)
    }

    #[inline(always)]
    unsafe fn fill(rows: Matrix, floats: &[f32], _: Operand) {
        // SAFETY: the caller vouches for the row. Heads and pages have an even number of elements.
        unsafe {
            if D::WORDS == 1 {
                let to = std::slice::from_raw_parts_mut(rows.data.cast::<u16>(), floats.len());
                to.iter_mut().zip(floats).for_each(|(to, &x)| *to = to_bf16(x));
            } else {
                let to = std::slice::from_raw_parts_mut(rows.data, floats.len());
                to.iter_mut().zip(floats).for_each(|(to, &x)| *to = from_bf16(to_bf16(x)));
            }
        }
    }

    #[inline(always)]
    unsafe fn keys<S: Simd, const R: usize, const N: usize>(
        part: &HeadPages<'_>,
        first: usize,
        queries: Matrix,
        scores: Matrix,
        ahead: &mut Prefetcher,
    ) {
        let pairs = part.shape.head_dim / PAIR;
        // SAFETY: the caller vouches for rows and pages.
        unsafe {
            let pages: [*const f32; N] = std::array::from_fn(|n| part.at(Piece::Keys, first + n));
            let mut coming = ahead.reading(first, N, pairs / UNROLL);
            let mut sums = [[D::zero(); N]; R];
            multiply_and_ask::<S, D, R, N>(pairs, queries, pages, PAGE, &mut coming, &mut sums);
            for (r, row) in sums.into_iter().enumerate() {
                for (n, v) in row.into_iter().enumerate() {
                    S::store(scores.row(r).data.add((first + n) * PAGE), D::sums::<S>(v));
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
        let width = part.shape.value_width();
        // SAFETY: the caller vouches for rows and pages.
        unsafe {
            let mut sums = [[D::zero(); N]; R];
            for page in 0..part.pages.len() {
                let columns: [*const f32; N] =
                    std::array::from_fn(|n| part.at(Piece::Values, page).add((block + n) * LANES));
                let weights = Matrix { data: weights.data.add(page * PAGE / PAIR * D::WORDS), ..weights };
                let depth = PAGE.min(positions - page * PAGE);
                let mut coming = ahead.reading(page, 1, PAGE / PAIR / UNROLL);
                let pairs = depth / PAIR;
                multiply_and_ask::<S, D, R, N>(pairs, weights, columns, width, &mut coming, &mut sums);
                if depth % PAIR == 1 {
                    // The second value of the pair may be stale, and no number.
                    let mut last = [[0; LANES]; N];
                    for (last, column) in last.iter_mut().zip(columns) {
                        let pairs = column.add(pairs * width).cast::<[u32; LANES]>().read_unaligned();
                        for (to, pair) in last.iter_mut().zip(pairs) {
                            *to = pair & FIRST;
                        }
                    }
                    let last: [*const f32; N] = std::array::from_fn(|n| last[n].as_ptr().cast());
                    let weights = Matrix { data: weights.data.add(pairs * D::WORDS), ..weights };
                    multiply_pairs::<S, D, R, N>(1, weights, last, 0, &mut coming, &mut sums);
                }
            }
            for (r, row) in sums.into_iter().enumerate() {
                for (n, v) in row.into_iter().enumerate() {
                    S::store(out.row(r).data.add((block + n) * LANES), D::sums::<S>(v));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output {
        // SAFETY: the caller vouches for the instruction sets.
        unsafe { D::call::<S, T>(task) }
    }
}

/// [`multiply_pairs`] with prefetching, as it is for floats.
#[inline(always)]
unsafe fn multiply_and_ask<S: Simd, D: PairDot, const R: usize, const N: usize>(
    pairs: usize,
    a: Matrix,
    b: [*const f32; N],
    step: usize,
    coming: &mut Coming,
    sums: &mut [[D::F; N]; R],
) {
    // SAFETY: the caller vouches for both sides.
    unsafe {
        if !is_light::<S>(R) {
            coming.ask_rest::<S>();
        }
        multiply_pairs::<S, D, R, N>(pairs, a, b, step, coming, sums);
        coming.ask_rest::<S>();
    }
}
