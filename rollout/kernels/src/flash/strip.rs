//! What strips have in common: their products, the panels that they see, and exponentials.

use std::{arch::x86_64::*, cell::RefCell, f32::consts::LN_2, ops::Range, ptr};

#[cfg(test)]
use super::super::simd::Isa;
use super::{
    super::simd::{TileDot, TileHalves, TileProduct},
    layout::{Line, STRIP, TILE},
};

/// Sums of a product: a strip of rows and a panel of columns, `[32, 32]` in fp32.
pub(super) type Sums = [[Line; 2]; STRIP];
pub(super) const LINES_OF_SUMS: usize = 2 * STRIP;

/// A strip as the left side of a product: rows of which `tiles` tiles lie one after the other.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub first: *const Line,
    pub tiles: usize,
}

impl Left {
    /// The strip with this number of a layout of rows.
    pub fn strip(layout: *const Line, parts: usize, strip: usize) -> Self {
        Self { first: layout.wrapping_add(strip * STRIP * parts), tiles: parts }
    }
}

/// Multiplies the first tiles of a strip, at least one, with a panel of the right side.
///
/// # Safety
/// [`super::super::simd::Tiles`] live on this thread, and both sides are there.
#[inline(always)]
pub(super) unsafe fn multiply(left: Left, tiles: usize, right: *const Line, sums: *mut Sums) {
    #[cfg(test)]
    if !Isa::detect().has_tiles() {
        // SAFETY: the caller vouches for both sides.
        return unsafe { plain::multiply(left, tiles, right, sums) };
    }
    let product = TileProduct {
        left: left.first.cast(),
        second: left.tiles * TILE * size_of::<Line>(),
        right: right.cast(),
        count: tiles,
        sums: sums.cast(),
        ahead: ptr::null(),
        lines: 0,
    };
    // SAFETY: the caller vouches for the tiles and for both sides.
    unsafe { TileHalves::two(product) }
}

/// Panels of a strip that are computed before their probabilities are multiplied: all that belongs to them stays in the
/// caches of a core.
pub(super) const CHUNK: usize = 16;

/// A range of panels in chunks.
pub(super) fn chunks(panels: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = panels.end;
    panels.step_by(CHUNK).map(move |first| first..(first + CHUNK).min(end))
}

/// Numbers of the panels that hold some places.
pub(super) fn panels(places: Range<usize>) -> Range<usize> {
    places.start / STRIP..places.end.div_ceil(STRIP)
}

/// One bit for each place of a panel that lies in a range.
pub(super) fn bits(panel: usize, places: &Range<usize>) -> u32 {
    let within = |place: usize| place.saturating_sub(panel * STRIP).min(STRIP) as u32;
    let below = |count: u32| ((1_u64 << count) - 1) as u32;
    below(within(places.end)) & !below(within(places.start))
}

/// Sixteen numbers of a line.
#[target_feature(enable = "avx512f")]
pub(super) fn floats(line: &Line) -> __m512 {
    // SAFETY: a line is sixteen words.
    unsafe { _mm512_castsi512_ps(_mm512_load_si512(ptr::from_ref(line).cast())) }
}

/// `2^x` within a unit in the last place or two, for x up to 127. It is 0 for x below -150.
#[target_feature(enable = "avx512f")]
pub(super) fn power_of_two(x: __m512) -> __m512 {
    // The polynomial of degree 5 whose largest relative error for x from -1/2 to 1/2 is the smallest, 7.5e-8.
    const COEFFICIENTS: [f32; 5] = [9.675_541e-3, 5.550_713e-2, 2.402_212e-1, LN_2, 1.0];
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    // No infinity, of which the remainder would be no number. A NaN comes through, as the second operand always does.
    let x = _mm512_max_ps(_mm512_set1_ps(-200.0), x);
    let whole = _mm512_roundscale_ps::<NEAREST>(x);
    let rest = _mm512_sub_ps(x, whole);
    let mut power = _mm512_set1_ps(1.327_647_2e-3);
    for c in COEFFICIENTS {
        power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(c));
    }
    _mm512_scalef_ps(power, whole)
}

/// Rounds 32 numbers to bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn rounded([low, high]: [__m512; 2]) -> __m512i {
    let halves = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both are registers of 512 bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(halves) }
}

/// Runs `work` with lines of this thread, at least `count`.
pub(super) fn with_lines<R>(count: usize, work: impl FnOnce(*mut Line) -> R) -> R {
    thread_local! {
        static LINES: RefCell<Vec<Line>> = RefCell::default();
    }
    LINES.with_borrow_mut(|lines| {
        if lines.len() < count {
            lines.resize(count, Line::default());
        }
        work(lines.as_mut_ptr())
    })
}

/// The products in plain Rust, so that processors with AVX512_BF16 alone hold everything else to its tests.
#[cfg(test)]
mod plain {
    use super::*;

    /// # Safety
    /// See [`super::multiply`]; no tiles are needed.
    pub(super) unsafe fn multiply(left: Left, tiles: usize, right: *const Line, sums: *mut Sums) {
        let halves = |word: u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
        // SAFETY: both sides and the sums are the caller's.
        unsafe {
            sums.write_bytes(0, 1);
            for tile in 0..tiles {
                for (row, column, word) in
                    (0..STRIP * STRIP * TILE).map(|i| (i / TILE / STRIP, i / TILE % STRIP, i % TILE))
                {
                    let block = left.first.add((row / TILE * left.tiles + tile) * TILE + row % TILE);
                    let pairs = right.add((tile * TILE + word) * 2 + column / TILE);
                    let sum = &mut (*sums)[row][column / TILE].0[column % TILE];
                    let [a, b] = [(*block).0[word], (*pairs).0[column % TILE]].map(halves);
                    *sum = b[1].mul_add(a[1], a[0].mul_add(b[0], f32::from_bits(*sum))).to_bits();
                }
            }
        }
    }
}
