//! How the tiles want a head's numbers: three layouts of the same size.
//!
//! A strip is 32 places, and widths are filled up with zeros to as many entries; so are places. A line is a cache line:
//! sixteen words of two bf16.
//!
//! | layout | order of its words | use |
//! |---|---|---|
//! | rows | 16 places, 32 entries: a tile of sixteen lines, a place each | left side |
//! | across | 32 places: for each pair of entries, a word of each place | right side, sums over entries |
//! | along | 32 entries: for each pair of places, a word of each entry | right side, sums over places |

use std::arch::x86_64::*;

use super::super::parallel::Shared;

/// Places that are computed together, and entries of a panel.
pub(super) const STRIP: usize = 32;
/// Rows of a tile, words of a line, and lines of a tile.
pub(super) const TILE: usize = 16;

/// A cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct Line(pub [u32; TILE]);

/// The numbers of a head, place by place.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub first: *const u16,
    /// Distance from one place to the next.
    pub step: usize,
    pub places: usize,
    pub width: usize,
}

/// A layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Rows,
    Across,
    Along,
}

impl Head {
    /// Writes a layout.
    ///
    /// # Safety
    /// The machine has AVX-512 F and BW; the head's numbers are there; and there is room for the layout, which nobody
    /// else reads or writes.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn lay_out(self, layout: Layout, to: *mut Line) {
        let (places, parts) = (self.places.next_multiple_of(STRIP), self.width.div_ceil(STRIP));
        // SAFETY: lines within the room for which the caller vouches.
        unsafe {
            let put = |line: usize, words: __m512i| to.add(line).cast::<__m512i>().write(words);
            match layout {
                Layout::Rows => {
                    for place in 0..places {
                        for part in 0..parts {
                            put((place / TILE * parts + part) * TILE + place % TILE, self.part(place, part));
                        }
                    }
                }
                Layout::Across => {
                    for block in 0..places / TILE {
                        let (panel, half) = (block / 2, block % 2);
                        for part in 0..parts {
                            let mut tile = [_mm512_setzero_si512(); TILE];
                            for (row, words) in tile.iter_mut().enumerate() {
                                *words = self.part(block * TILE + row, part);
                            }
                            for (step, words) in transposed(tile).into_iter().enumerate() {
                                put(((panel * parts + part) * TILE + step) * 2 + half, words);
                            }
                        }
                    }
                }
                Layout::Along => {
                    for part in 0..parts {
                        for pair in 0..places / 2 {
                            let [low, high] = pairs(self.part(2 * pair, part), self.part(2 * pair + 1, part));
                            let line = (part * places / 2 + pair) * 2;
                            put(line, low);
                            put(line + 1, high);
                        }
                    }
                }
            }
        }
    }

    /// The part with this number of a place's entries, with zeros beyond the last place and the last entry.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn part(self, place: usize, part: usize) -> __m512i {
        if place >= self.places {
            return _mm512_setzero_si512();
        }
        let first = part * STRIP;
        let entries = u32::MAX >> (STRIP - (self.width - first).min(STRIP));
        // SAFETY: the numbers of a head are there, and the mask leaves out what lies behind it.
        unsafe { _mm512_maskz_loadu_epi16(entries, self.first.add(place * self.step + first).cast()) }
    }
}

/// The numbers of two places as pairs.
#[target_feature(enable = "avx512f")]
fn pairs(first: __m512i, second: __m512i) -> [__m512i; 2] {
    let wide = |half: __m256i| _mm512_cvtepu16_epi32(half);
    let join = |a: __m256i, b: __m256i| _mm512_or_si512(wide(a), _mm512_slli_epi32::<16>(wide(b)));
    [
        join(_mm512_castsi512_si256(first), _mm512_castsi512_si256(second)),
        join(_mm512_extracti64x4_epi64::<1>(first), _mm512_extracti64x4_epi64::<1>(second)),
    ]
}

/// Sixteen rows of sixteen words as columns: words change places within pairs, fours, eights and sixteen rows.
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; TILE]) -> [__m512i; TILE] {
    let mut x = rows;
    for four in x.as_chunks_mut::<4>().0 {
        let [a, b, c, d] = *four;
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        *four = [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ];
    }
    // Now the row `4 i + j` has, in its quarter `q`, column `4 q + j` of the rows `4 i` to `4 i + 3`.
    let mut columns = x;
    for j in 0..4 {
        let [a, b, c, d] = [x[j], x[4 + j], x[8 + j], x[12 + j]];
        let (even_ab, even_cd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        let (odd_ab, odd_cd) = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d));
        columns[j] = _mm512_shuffle_i32x4::<0x88>(even_ab, even_cd);
        columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even_ab, even_cd);
        columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd_ab, odd_cd);
        columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd_ab, odd_cd);
    }
    columns
}

/// The layouts of all heads of one matrix, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Layouts {
    pub memory: Shared<Line>,
    /// First line.
    pub first: usize,
    /// Lines of a head.
    pub lines: usize,
}

impl Layouts {
    pub fn head(&self, index: usize) -> *mut Line {
        self.memory.at(self.first + index * self.lines)
    }
}
