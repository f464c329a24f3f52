//! Attention over keys and values in bytes.
//!
//! Turning bytes into floats would take longer than multiplying them. So queries and weights become whole numbers of
//! sixteen bits, with a scale for each row, and their two bytes are multiplied with those of keys and values in one pass.
//! The sums are exact; what is rounded depends on its row alone.
//!
//! Coming pages are asked for before each of these loops, not within: they are short, and fill the registers.

use std::{marker::PhantomData, ops::Range};

use super::{
    super::{
        packed::{largest, nearest},
        pages::{PAGE, PageShape, Piece},
        simd::{ByteTask, Dot, LANES, QUAD, Simd},
        tile::Tiling,
    },
    attend::{CHUNK, Seen, Stored},
    prefetch::Prefetcher,
    product::{Matrix, Part, PartPieces},
    softmax::{Partial, exponentials},
};

/// Products of bytes by `D`.
pub(super) struct Bytes<D>(PhantomData<D>);

/// Rows at once: two sums each for two blocks, in half of the registers of AVX-512.
const ROWS: usize = 6;

/// Calls `$function::<S, D, R>(…)` for the R that equals `$rows`, at most [`ROWS`].
macro_rules! for_few_rows {
    ($rows:expr, $function:ident::<$s:ident, $d:ident>($($argument:expr),* $(,)?)) => {
        match $rows {
            1 => $function::<$s, $d, 1>($($argument),*),
            2 => $function::<$s, $d, 2>($($argument),*),
            3 => $function::<$s, $d, 3>($($argument),*),
            4 if $s::ROWS >= 4 => $function::<$s, $d, 4>($($argument),*),
            5 if $s::ROWS >= 5 => $function::<$s, $d, 5>($($argument),*),
            6 if $s::ROWS >= 6 => $function::<$s, $d, 6>($($argument),*),
            rows => unreachable!("a tile of {rows} rows"),
        }
    };
}

/// Four bytes of 1.
const ONES: u32 = 0x0101_0101;

/// What queries are stored with, to be unsigned.
const OFFSET: i32 = 1 << 15;

impl<S: Simd, D: Dot> Stored<S> for Bytes<D> {
    fn words_of_row(shape: PageShape, positions: usize) -> usize {
        Split::words(shape.head_dim) + Split::words(positions)
    }

    #[inline(always)]
    unsafe fn part(
        part: &Part<'_>,
        queries: &[f32],
        seen: Seen,
        buffer: &mut [f32],
        out: Partial<'_>,
        ahead: &mut Prefetcher,
    ) {
        // SAFETY: passed on to the caller.
        unsafe { D::call::<S, _>(Job { part, queries, seen, buffer, out, ahead }) };
    }
}

/// Rows of whole numbers of sixteen bits: of each row the high bytes, the low ones, and the scale.
#[derive(Clone, Copy)]
struct Split {
    data: *mut u32,
    /// Words of the high bytes.
    quads: usize,
}

impl Split {
    /// Words of a row.
    fn words(length: usize) -> usize {
        2 * length.div_ceil(QUAD) + 1
    }

    fn new(data: &mut [f32], length: usize) -> Self {
        Self { data: data.as_mut_ptr().cast(), quads: length.div_ceil(QUAD) }
    }

    fn row(self, row: usize) -> Self {
        Self { data: self.data.wrapping_add(row * (2 * self.quads + 1)), ..self }
    }

    fn high(self, quad: usize) -> *const u32 {
        self.data.wrapping_add(quad)
    }

    fn low(self, quad: usize) -> *const u32 {
        self.data.wrapping_add(self.quads + quad)
    }

    fn scale(self) -> *mut f32 {
        self.data.wrapping_add(2 * self.quads).cast()
    }

    /// Rounds numbers, the largest to `most`, and adds `offset`.
    ///
    /// # Safety
    /// There must be a row of this length.
    #[inline(always)]
    unsafe fn write(self, x: &[f32], most: f32, offset: i32) {
        let largest = largest(x);
        // As for bytes: nothing becomes infinite, and what is not a number shows in the scale.
        let factor = if (most / largest).is_finite() { most / largest } else { 0.0 };
        // SAFETY: passed on to the caller.
        unsafe {
            let high = std::slice::from_raw_parts_mut(self.data.cast::<u8>(), self.quads * QUAD);
            let low = std::slice::from_raw_parts_mut(self.data.add(self.quads).cast::<u8>(), self.quads * QUAD);
            for ((x, high), low) in x.iter().zip(&mut *high).zip(&mut *low) {
                let whole = nearest(x * factor) + offset;
                (*high, *low) = ((whole >> 8) as u8, whole as u8);
            }
            // What they meet is 0.
            high[x.len()..].fill(0);
            low[x.len()..].fill(0);
            *self.scale() = largest / most;
        }
    }
}

/// One [`Stored::part`].
struct Job<'a, 'b> {
    part: &'a Part<'b>,
    queries: &'a [f32],
    seen: Seen,
    buffer: &'a mut [f32],
    out: Partial<'a>,
    ahead: &'a mut Prefetcher,
}

impl ByteTask for Job<'_, '_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: Dot>(self) {
        let Self { part, queries, seen, buffer, out, ahead } = self;
        let shape = part.call.shape;
        let (rows, stride) = (queries.len() / shape.head_dim, part.pages.len() * PAGE);
        let (scores, rest) = buffer.split_at_mut(rows * stride);
        let (split_queries, rest) = rest.split_at_mut(rows * Split::words(shape.head_dim));
        let split_queries = Split::new(split_queries, shape.head_dim);
        let split_weights = Split::new(&mut rest[..rows * Split::words(stride)], stride);
        let to = Matrix { data: scores.as_mut_ptr(), stride };
        let values = Matrix { data: out.values.as_mut_ptr(), stride: shape.value_width() };
        let keys = [part.pieces(Piece::Keys), part.pieces(Piece::KeyScales)];
        let tiling = Tiling::new(rows, ROWS.min(S::ROWS));
        // SAFETY: the matrices have these rows; the rest is passed on to the caller.
        unsafe {
            for (row, query) in queries.chunks_exact(shape.head_dim).enumerate() {
                split_queries.row(row).write(query, (OFFSET - 1) as f32, OFFSET);
            }
            for first in (0..part.pages.len()).step_by(CHUNK) {
                let pages = first..part.pages.len().min(first + CHUNK);
                for tile in 0..tiling.count() {
                    let (row, height) = tiling.tile(tile);
                    let (pages, queries) = (pages.clone(), split_queries.row(row));
                    for_few_rows!(height, scores_of::<S, D>(keys, pages, queries, to.row(row), ahead));
                }
            }
            ahead.pass(part.pages.len());
            for (row, scores) in scores.chunks_exact_mut(stride).enumerate() {
                (out.largest[row], out.sum[row]) = exponentials::<S, true>(part, scores, seen.by(row), ahead);
                split_weights.row(row).write(scores, f32::from(u16::MAX), 0);
            }
            for tile in 0..tiling.count() {
                let (row, height) = tiling.tile(tile);
                for_few_rows!(height, weighted::<S, D>(part, split_weights.row(row), values.row(row), ahead));
            }
            ahead.pass(part.pages.len());
        }
    }
}

/// `scores[r][position] = queries[r] * keys[position]` for the positions of some pages.
///
/// # Safety
/// The instruction sets must be available, the pages hold bytes, and `R` rows of either matrix exist.
#[inline(always)]
unsafe fn scores_of<S: Simd, D: Dot, const R: usize>(
    keys: [PartPieces<'_>; 2],
    pages: Range<usize>,
    queries: Split,
    scores: Matrix,
    ahead: &mut Prefetcher,
) {
    // SAFETY: passed on to the caller.
    unsafe { D::call::<S, _>(Scores::<R> { keys, pages, queries, scores, ahead }) };
}

/// Run in a function of its own, where nothing else takes registers from the sums.
struct Scores<'a, const R: usize> {
    /// The keys and their scales.
    keys: [PartPieces<'a>; 2],
    pages: Range<usize>,
    queries: Split,
    scores: Matrix,
    ahead: &'a mut Prefetcher,
}

impl<const R: usize> ByteTask for Scores<'_, R> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: Dot>(self) {
        let Self { keys: pieces, pages, queries, scores, ahead } = self;
        let mut page = pages.start;
        // SAFETY: passed on to the caller.
        unsafe {
            while page + 2 <= pages.end {
                keys::<S, D, R, 2>(pieces, page, queries, scores, ahead);
                page += 2;
            }
            if page < pages.end {
                keys::<S, D, R, 1>(pieces, page, queries, scores, ahead);
            }
        }
    }
}

#[inline(always)]
unsafe fn keys<S: Simd, D: Dot, const R: usize, const N: usize>(
    [keys, scales]: [PartPieces<'_>; 2],
    first: usize,
    queries: Split,
    scores: Matrix,
    ahead: &mut Prefetcher,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        ahead.reading(first, N, 1).ask_rest::<S>(0);
        let pages: [*const f32; N] = std::array::from_fn(|n| keys.at(first + n));
        let mut sums = [[[D::zero(); 2]; N]; R];
        let mut sums_of_keys = [D::zero(); N];
        for quad in 0..queries.quads {
            for n in 0..N {
                let keys = pages[n].add(quad * PAGE).cast::<i8>();
                sums_of_keys[n] = D::dot(sums_of_keys[n], ONES, keys);
                for (r, row) in sums.iter_mut().enumerate() {
                    row[n][0] = D::dot(row[n][0], *queries.row(r).high(quad), keys);
                    row[n][1] = D::dot(row[n][1], *queries.row(r).low(quad), keys);
                }
            }
        }
        for n in 0..N {
            let key_scales = S::load(scales.at(first + n));
            let mut of_keys = [0; LANES];
            D::store(&mut of_keys, sums_of_keys[n]);
            for (r, row) in sums.iter().enumerate() {
                let (mut whole, mut low) = ([0_i32; LANES], [0; LANES]);
                D::store(&mut whole, row[n][0]);
                D::store(&mut low, row[n][1]);
                // The parts may overflow; their sum, of numbers of sixteen bits with bytes, does not.
                for ((whole, low), of_keys) in whole.iter_mut().zip(low).zip(of_keys) {
                    *whole = (*whole << 8).wrapping_add(low).wrapping_sub(of_keys.wrapping_mul(OFFSET));
                }
                let scale = S::mul(S::splat(*queries.row(r).scale()), key_scales);
                S::store(scores.row(r).data.add((first + n) * PAGE), S::mul(S::load_whole(whole.as_ptr()), scale));
            }
        }
    }
}

/// `out[r] = Σ weights[r][position] * values[position]`. Positions that nobody sees weigh 0.
///
/// # Safety
/// See [`scores_of`].
#[inline(always)]
unsafe fn weighted<S: Simd, D: Dot, const R: usize>(
    part: &Part<'_>,
    weights: Split,
    out: Matrix,
    ahead: &mut Prefetcher,
) {
    // SAFETY: passed on to the caller.
    unsafe { D::call::<S, _>(Weighted::<R> { part, weights, out, ahead }) };
}

/// As [`Scores`].
struct Weighted<'a, const R: usize> {
    part: &'a Part<'a>,
    weights: Split,
    out: Matrix,
    ahead: &'a mut Prefetcher,
}

impl<const R: usize> ByteTask for Weighted<'_, R> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: Dot>(self) {
        let Self { part, weights, out, ahead } = self;
        let blocks = part.call.shape.value_width() / LANES;
        let mut block = 0;
        // SAFETY: passed on to the caller.
        unsafe {
            while 2 * R <= ROWS && block + 4 <= blocks {
                values::<S, D, R, 4>(part, block, weights, out, ahead);
                block += 4;
            }
            while block + 2 <= blocks {
                values::<S, D, R, 2>(part, block, weights, out, ahead);
                block += 2;
            }
            if block < blocks {
                values::<S, D, R, 1>(part, block, weights, out, ahead);
            }
        }
    }
}

#[inline(always)]
unsafe fn values<S: Simd, D: Dot, const R: usize, const N: usize>(
    part: &Part<'_>,
    block: usize,
    weights: Split,
    out: Matrix,
    ahead: &mut Prefetcher,
) {
    /// Quads of positions of a page.
    const QUADS: usize = PAGE / QUAD;
    let shape = part.call.shape;
    // SAFETY: passed on to the caller.
    unsafe {
        let mut sums = [[[D::zero(); 2]; N]; R];
        let pieces = part.pieces(Piece::Values);
        for page in 0..part.pages.len() {
            ahead.reading(page, 1, 1).ask_rest::<S>(0);
            let values = pieces.at(page);
            for quad in 0..QUADS {
                let values = values.add(quad * shape.value_width() + block * LANES).cast::<i8>();
                for (r, row) in sums.iter_mut().enumerate() {
                    let weights = weights.row(r);
                    let (high, low) = (*weights.high(page * QUADS + quad), *weights.low(page * QUADS + quad));
                    for (n, [of_high, of_low]) in row.iter_mut().enumerate() {
                        let values = values.add(n * LANES * QUAD);
                        *of_high = D::dot(*of_high, high, values);
                        *of_low = D::dot(*of_low, low, values);
                    }
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (n, [high, low]) in row.iter().enumerate() {
                let mut whole = [[0_i32; LANES]; 2];
                D::store(&mut whole[0], *high);
                D::store(&mut whole[1], *low);
                let v = S::fma(S::load_whole(whole[0].as_ptr()), S::splat(256.0), S::load_whole(whole[1].as_ptr()));
                let v = S::mul(v, S::splat(*weights.row(r).scale()));
                S::store(out.row(r).data.add((block + n) * LANES), v);
            }
        }
    }
}
