//! The way forward: a strip of queries of a head, and all keys that it sees.

use std::{arch::x86_64::*, f32::consts::LOG2_E};

use super::{
    super::parallel::Shared,
    Places, Shape, Sight,
    layout::{Head, Layout, Layouts, Line, STRIP, TILE},
    strip::{
        CHUNK, LINES_OF_SUMS, Left, Sums, bits, chunks, floats, multiply, panels, power_of_two, rounded, with_lines,
    },
};

/// A call's texts of a round.
#[derive(Clone, Copy)]
pub(super) struct Forward {
    pub shape: Shape,
    pub qkv: [Places<u16>; 3],
    pub sight: Sight,
    pub out: Shared<u16>,
    pub lse: Shared<f32>,
    pub memory: Shared<Line>,
    pub first_text: usize,
    pub texts: usize,
}

impl Forward {
    /// Lines of memory for the layouts of some texts.
    pub fn lines(shape: Shape, texts: usize) -> usize {
        texts * (shape.heads * shape.lines(shape.queries) + 2 * shape.kv_heads * shape.lines(shape.keys))
    }

    /// Layouts of queries, keys and values.
    fn all(&self) -> [Layouts; 3] {
        let Shape { heads, kv_heads, queries, keys, .. } = self.shape;
        let (of_queries, of_keys) = (self.shape.lines(queries), self.shape.lines(keys));
        let keys_from = self.texts * heads * of_queries;
        let values_from = keys_from + self.texts * kv_heads * of_keys;
        [(0, of_queries), (keys_from, of_keys), (values_from, of_keys)].map(|(first, lines)| Layouts {
            memory: self.memory,
            first,
            lines,
        })
    }

    pub fn layouts(&self) -> usize {
        self.texts * (self.shape.heads + 2 * self.shape.kv_heads)
    }

    /// # Safety
    /// See [`fn@super::forward`]; each layout is written once.
    pub unsafe fn lay_out(&self, task: usize) {
        let Shape { heads, kv_heads, queries, keys, width, .. } = self.shape;
        let (text, head) = (task / (heads + 2 * kv_heads), task % (heads + 2 * kv_heads));
        let (which, head, count, places, layout) = match head.checked_sub(heads) {
            None => (0, head, heads, queries, Layout::Rows),
            Some(head) if head < kv_heads => (1, head, kv_heads, keys, Layout::Across),
            Some(head) => (2, head - kv_heads, kv_heads, keys, Layout::Along),
        };
        let from = &self.qkv[which];
        let numbers = Head { first: from.at(self.first_text + text, 0, head), step: from.steps[1], places, width };
        // SAFETY: the caller vouches for the numbers and the machine, and no two layouts overlap.
        unsafe { numbers.lay_out(layout, self.all()[which].head(text * count + head)) }
    }

    pub fn strips(&self) -> usize {
        self.texts * self.shape.heads * self.shape.queries.div_ceil(STRIP)
    }

    /// # Safety
    /// See [`fn@super::forward`]; all layouts are there, tiles live on this thread, and each strip is computed once.
    pub unsafe fn attend(&self, task: usize) {
        let strips = self.shape.queries.div_ceil(STRIP);
        let (head, strip) = (task / strips, task % strips);
        let parts = self.shape.width.div_ceil(STRIP);
        with_lines(Desk::lines(parts), |memory| {
            // SAFETY: as the caller says.
            unsafe { self.strip(head, strip, Desk::new(memory, parts)) }
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn strip(&self, head: usize, strip: usize, desk: Desk) {
        let Shape { heads, queries, keys, width, .. } = self.shape;
        let (text, head) = (head / heads, head % heads);
        let parts = width.div_ceil(STRIP);
        let [of_queries, of_keys, of_values] = self.all();
        let kv = text * self.shape.kv_heads + head / self.shape.group();
        let rows = strip * STRIP..queries.min((strip + 1) * STRIP);
        let [first, last] = [rows.start, rows.end - 1].map(|query| self.sight.of_query(query, keys));
        let left = Left::strip(of_queries.head(text * heads + head), parts, strip);
        let weights = Left { first: desk.weights, tiles: CHUNK };
        let factor = self.sight.scale * LOG2_E;
        let mut largest = [f32::NEG_INFINITY; STRIP];
        // SAFETY: the panels lie within the layouts, and all else within the desk.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); STRIP];
            desk.results.write_bytes(0, parts);
            for chunk in chunks(panels(first.start..last.end)) {
                let mut found = [_mm512_set1_ps(f32::NEG_INFINITY); STRIP];
                for (scores, panel) in chunk.clone().enumerate() {
                    let scores = desk.scores.add(scores);
                    multiply(left, parts, of_keys.head(kv).add(panel * STRIP * parts), scores);
                    // All rows see the whole panel if the last one sees its beginning and the first one its end.
                    let is_open = last.start <= panel * STRIP && first.end >= (panel + 1) * STRIP;
                    for (row, query) in rows.clone().enumerate() {
                        let bits = if is_open { u32::MAX } else { bits(panel, &self.sight.of_query(query, keys)) };
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
                    multiply(weights, chunk.len(), of_values.head(kv).add(panel), desk.product);
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
            for (row, query) in rows.enumerate() {
                let sum = _mm512_reduce_add_ps(sums[row]);
                let place = ((self.first_text + text) * queries + query) * heads + head;
                *self.lse.at(place) = finite(largest[row]) * self.sight.scale + sum.ln();
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
