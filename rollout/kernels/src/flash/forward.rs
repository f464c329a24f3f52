//! The way forward: a strip of queries of a head, and all keys that it sees.

use std::{arch::x86_64::*, f32::consts::LOG2_E};

use super::{
    super::parallel::Shared,
    Places, Shape,
    layout::{Layout, Line, STRIP, TILE},
    round::{Content, KEYS, Matrix, Pass, QUERIES, Round, VALUES},
    strip::{
        CHUNK, LINES_OF_SUMS, Left, Sums, bits, chunks, floats, multiply, panels, power_of_two, rounded, with_lines,
    },
};

/// The way forward of a round.
#[derive(Clone, Copy)]
pub(super) struct Forward {
    pub round: Round,
    pub qkv: [Places<u16>; 3],
    pub out: Shared<u16>,
    pub lse: Shared<f32>,
}

impl Pass for Forward {
    fn round(&self) -> &Round {
        &self.round
    }

    unsafe fn lay_out(&self, matrix: usize, head: usize) {
        // SAFETY: as the caller says.
        unsafe { self.round.lay_out(matrix, head, &self.qkv[matrix]) };
    }

    fn strips(&self) -> usize {
        self.round.query_heads() * self.round.shape.queries.div_ceil(STRIP)
    }

    unsafe fn strip(&self, strip: usize) {
        let strips = self.round.shape.queries.div_ceil(STRIP);
        let parts = self.round.shape.width.div_ceil(STRIP);
        with_lines(Desk::lines(parts), |memory| {
            // SAFETY: as the caller says.
            unsafe { self.strip_of_head(strip / strips, strip % strips, Desk::new(memory, parts)) }
        });
    }
}

impl Forward {
    /// Layouts of queries, keys and values.
    pub const CONTENT: Content = Content {
        matrices: &[
            Matrix { is_of_queries: true, layouts: &[Layout::Rows] },
            Matrix { is_of_queries: false, layouts: &[Layout::Across] },
            Matrix { is_of_queries: false, layouts: &[Layout::Along] },
        ],
        more: 0,
    };

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn strip_of_head(&self, head: usize, strip: usize, desk: Desk) {
        let Round { shape, sight, .. } = self.round;
        let Shape { heads, queries, keys, width, .. } = shape;
        let parts = width.div_ceil(STRIP);
        let of_queries = self.round.layout(QUERIES, Layout::Rows).head(head);
        let kv = head / shape.group();
        let of_keys = self.round.layout(KEYS, Layout::Across).head(kv);
        let of_values = self.round.layout(VALUES, Layout::Along).head(kv);
        let rows = strip * STRIP..queries.min((strip + 1) * STRIP);
        let [first, last] = [rows.start, rows.end - 1].map(|query| sight.of_query(query, keys));
        let left = Left::strip(of_queries, parts, strip);
        let weights = Left { first: desk.weights, tiles: CHUNK };
        let factor = sight.scale * LOG2_E;
        let mut largest = [f32::NEG_INFINITY; STRIP];
        // SAFETY: the panels lie within the layouts, and all else within the desk.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); STRIP];
            desk.results.write_bytes(0, parts);
            for chunk in chunks(panels(first.start..last.end)) {
                let mut found = [_mm512_set1_ps(f32::NEG_INFINITY); STRIP];
                for (scores, panel) in chunk.clone().enumerate() {
                    let scores = desk.scores.add(scores);
                    multiply(left, parts, of_keys.add(panel * STRIP * parts), scores);
                    // All rows see the whole panel if the last one sees its beginning and the first one its end.
                    let is_open = last.start <= panel * STRIP && first.end >= (panel + 1) * STRIP;
                    for (row, query) in rows.clone().enumerate() {
                        let bits = if is_open { u32::MAX } else { bits(panel, &sight.of_query(query, keys)) };
                        for (half, line) in (*scores)[row].iter_mut().enumerate() {
                            let mask = (bits >> (half * TILE)) as u16;
                            let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
                            let seen = _mm512_mask_mov_ps(hidden, mask, floats(line));
                            if mask != u16::MAX {
                                _mm512_store_ps(line.0.as_mut_ptr().cast(), seen);
                            }
                            found[row] = _mm512_max_ps(found[row], seen);
                        }
                    }
                }
                // Sums and results so far are those of the largest score so far.
                let before = largest;
                for (largest, found) in largest.iter_mut().zip(found) {
                    *largest = largest.max(_mm512_reduce_max_ps(found));
                }
                let smaller = factors(&before, &largest, factor);
                for (sum, smaller) in sums.iter_mut().zip(smaller) {
                    *sum = _mm512_mul_ps(*sum, _mm512_set1_ps(smaller));
                }
                for scores in 0..chunk.len() {
                    for row in 0..rows.len() {
                        let [low, high] = &(*desk.scores.add(scores))[row];
                        let minus = _mm512_set1_ps(-factor * finite(largest[row]));
                        let times = _mm512_set1_ps(factor);
                        let e = [floats(low), floats(high)].map(|s| power_of_two(_mm512_fmadd_ps(s, times, minus)));
                        sums[row] = _mm512_add_ps(sums[row], _mm512_add_ps(e[0], e[1]));
                        let to = desk.weights.add((row / TILE * CHUNK + scores) * TILE + row % TILE);
                        to.cast::<__m512i>().write(rounded(e));
                    }
                }
                for part in 0..parts {
                    let panel = (part * keys.div_ceil(STRIP) + chunk.start) * STRIP;
                    multiply(weights, chunk.len(), of_values.add(panel), desk.product);
                    for row in 0..rows.len() {
                        let by = _mm512_set1_ps(smaller[row]);
                        let [results, more] =
                            [&mut *desk.results.add(part), &mut *desk.product].map(|all| &mut all[row]);
                        for (result, more) in results.iter_mut().zip(more) {
                            let sum = _mm512_fmadd_ps(floats(result), by, floats(more));
                            _mm512_store_ps(result.0.as_mut_ptr().cast(), sum);
                        }
                    }
                }
            }
            let (text, of_text) = self.round.text_and_head(QUERIES, head);
            for (row, query) in rows.enumerate() {
                let sum = _mm512_reduce_add_ps(sums[row]);
                let place = (text * queries + query) * heads + of_text;
                *self.lse.at(place) = finite(largest[row]) * sight.scale + sum.ln();
                // A row that sees nothing weighs nothing.
                let by = _mm512_set1_ps(if sum > 0.0 { sum.recip() } else { 0.0 });
                for part in 0..parts {
                    let [low, high] = &(*desk.results.add(part))[row];
                    let halves = rounded([low, high].map(|line| _mm512_mul_ps(floats(line), by)));
                    let entries = u32::MAX >> (STRIP - (width - part * STRIP).min(STRIP));
                    _mm512_mask_storeu_epi16(self.out.at(place * width + part * STRIP).cast(), entries, halves);
                }
            }
        }
    }
}

/// What a thread computes with.
#[derive(Clone, Copy)]
struct Desk {
    /// Scores of a chunk, a panel after the other.
    scores: *mut Sums,
    /// A product with values.
    product: *mut Sums,
    /// Results so far, a panel for each part of their width.
    results: *mut Sums,
    /// Probabilities of a chunk, as tiles.
    weights: *mut Line,
}

impl Desk {
    fn lines(parts: usize) -> usize {
        (CHUNK + 1 + parts) * LINES_OF_SUMS + CHUNK * STRIP
    }

    /// The desk in memory of [`Desk::lines`].
    fn new(memory: *mut Line, parts: usize) -> Self {
        let sums = memory.cast::<Sums>();
        let weights = memory.wrapping_add((CHUNK + 1 + parts) * LINES_OF_SUMS);
        Self { scores: sums, product: sums.wrapping_add(CHUNK), results: sums.wrapping_add(CHUNK + 1), weights }
    }
}

/// The largest score; any for a row that sees nothing.
fn finite(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}

/// By how much exponentials become smaller when the largest scores have become larger.
#[target_feature(enable = "avx512f")]
fn factors(before: &[f32; STRIP], after: &[f32; STRIP], factor: f32) -> [f32; STRIP] {
    let mut factors = [0.0; STRIP];
    for (to, (before, after)) in factors.iter_mut().zip(before.iter().zip(after)) {
        *to = (before - finite(*after)) * factor;
    }
    for to in factors.as_chunks_mut::<TILE>().0 {
        // SAFETY: a chunk is sixteen numbers.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), power_of_two(_mm512_loadu_ps(to.as_ptr()))) };
    }
    factors
}
