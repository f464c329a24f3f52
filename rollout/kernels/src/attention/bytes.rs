//! Attention over keys and values in bytes.
//!
//! Turning bytes into floats would take longer than multiplying them. So queries and weights become whole numbers of
//! sixteen bits, with a scale for each row. One pass multiplies both of their bytes with the bytes of keys and values.
//! The sums are exact, and the rounding of a row depends on that row alone.
//!
//! Coming pages are asked for before each of these loops and not within, since the loops are short and fill the
//! registers.

use std::marker::PhantomData;

use super::{
    super::{
        element::{QUAD, largest, nearest},
        pages::{PAGE, Piece},
        simd::{Dot, LANES, Simd, Task},
        tile::Matrix,
    },
    part::HeadPages,
    prefetch::Prefetcher,
    product::{Operand, Stored},
};

/// Products of bytes by `D`.
pub(super) struct Bytes<D>(PhantomData<D>);

/// Four bytes of 1.
const ONES: u32 = 0x0101_0101;

/// Added to queries, so that they are not negative.
const OFFSET: i32 = 1 << 15;

impl<D: Dot> Stored for Bytes<D> {
    type Rows = Split;
    /// Two sums each for two blocks, in half of the registers of AVX-512.
    const ROWS: usize = 6;
    const SCALED: bool = true;

    fn words(length: usize) -> usize {
        words_of(length.div_ceil(QUAD))
    }

    fn rows(_: Matrix, buffer: &mut [f32], length: usize) -> Split {
        Split { data: buffer.as_mut_ptr().cast(), quads: length.div_ceil(QUAD) }
    }

    fn from_row(rows: Split, row: usize) -> Split {
        rows.row(row)
    }

    #[inline(always)]
    unsafe fn fill(rows: Split, floats: &[f32], kind: Operand) {
        let (most, offset) = match kind {
            Operand::Queries => ((OFFSET - 1) as f32, OFFSET),
            Operand::Weights => (f32::from(u16::MAX), 0),
        };
        // SAFETY: the caller vouches for the row.
        unsafe { rows.write(floats, most, offset) }
    }

    fn pages_at_once<S: Simd>(_: usize) -> usize {
        2
    }

    fn blocks_at_once<S: Simd>(rows: usize) -> usize {
        if 2 * rows <= Self::ROWS { 4 } else { 2 }
    }

    #[inline(always)]
    unsafe fn keys<S: Simd, const R: usize, const N: usize>(
        part: &HeadPages<'_>,
        first: usize,
        queries: Split,
        scores: Matrix,
        ahead: &mut Prefetcher,
    ) {
        // SAFETY: the caller vouches for rows and pages.
        unsafe {
            ahead.reading(first, N, 1).ask_rest::<S>();
            let pages: [*const f32; N] = std::array::from_fn(|n| part.at(Piece::Keys, first + n));
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
                let key_scales = S::load(part.at(Piece::KeyScales, first + n));
                let mut of_keys = [0; LANES];
                D::store(&mut of_keys, sums_of_keys[n]);
                for (r, row) in sums.iter().enumerate() {
                    let (mut whole, mut low) = ([0_i32; LANES], [0; LANES]);
                    D::store(&mut whole, row[n][0]);
                    D::store(&mut low, row[n][1]);
                    // The parts may overflow. Their sum does not: it is one of products of sixteen bits with bytes.
                    for ((whole, low), of_keys) in whole.iter_mut().zip(low).zip(of_keys) {
                        *whole = (*whole << 8).wrapping_add(low).wrapping_sub(of_keys.wrapping_mul(OFFSET));
                    }
                    let scale = S::mul(S::splat(*queries.row(r).scale()), key_scales);
                    S::store(scores.row(r).data.add((first + n) * PAGE), S::mul(S::load_whole(whole.as_ptr()), scale));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn values<S: Simd, const R: usize, const N: usize>(
        part: &HeadPages<'_>,
        _: usize,
        block: usize,
        weights: Split,
        out: Matrix,
        ahead: &mut Prefetcher,
    ) {
        /// Quads of positions of a page.
        const QUADS: usize = PAGE / QUAD;
        // SAFETY: the caller vouches for rows and pages.
        unsafe {
            let mut sums = [[[D::zero(); 2]; N]; R];
            for page in 0..part.pages.len() {
                ahead.reading(page, 1, 1).ask_rest::<S>();
                let values = part.at(Piece::Values, page);
                for quad in 0..QUADS {
                    let values = values.add(quad * part.shape.value_width() + block * LANES).cast::<i8>();
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

    #[inline(always)]
    unsafe fn call<S: Simd, T: Task>(task: T) -> T::Output {
        // SAFETY: the caller vouches for the instruction sets.
        unsafe { D::call::<S, T>(task) }
    }
}

/// Words of a row of so many quads: high bytes, low bytes and the scale.
fn words_of(quads: usize) -> usize {
    2 * quads + 1
}

/// Rows of whole numbers of sixteen bits: of each row the high bytes, the low ones, and the scale.
#[derive(Clone, Copy)]
pub(super) struct Split {
    data: *mut u32,
    /// Words of the high bytes.
    quads: usize,
}

impl Split {
    fn row(self, row: usize) -> Self {
        Self { data: self.data.wrapping_add(row * words_of(self.quads)), ..self }
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
        // As for bytes: nothing becomes infinite, and a NaN shows in the scale.
        let factor = if (most / largest).is_finite() { most / largest } else { 0.0 };
        // SAFETY: the caller vouches for the row.
        unsafe {
            let high = std::slice::from_raw_parts_mut(self.data.cast::<u8>(), self.quads * QUAD);
            let low = std::slice::from_raw_parts_mut(self.data.add(self.quads).cast::<u8>(), self.quads * QUAD);
            for ((x, high), low) in x.iter().zip(&mut *high).zip(&mut *low) {
                let whole = nearest(x * factor) + offset;
                (*high, *low) = ((whole >> 8) as u8, whole as u8);
            }
            // The keys and values that these are multiplied with are 0.
            high[x.len()..].fill(0);
            low[x.len()..].fill(0);
            *self.scale() = largest / most;
        }
    }
}
