//! The way back: strips of keys give the gradients of keys and values, strips of queries those of queries.
//!
//! With probabilities P = exp(scale · S - lse), S = Q Kᵀ and the gradient D of the results O, the gradients are those
//! of flash attention: dV = Pᵀ D, dS = scale · P ∘ (D Vᵀ - rowsum(D ∘ O)), dK = dSᵀ Q, dQ = dS K.

use std::{arch::x86_64::*, f32::consts::LOG2_E, ops::Range};

use super::{
    super::parallel::Shared,
    Known, Shape,
    layout::{Layout, Line, STRIP, TILE},
    round::{Content, KEYS, Matrix, Pass, QUERIES, Round, VALUES},
    strip::{
        CHUNK, LINES_OF_SUMS, Left, Sums, bits, chunks, floats, multiply, panels, power_of_two, rounded, with_lines,
    },
};

/// The way back of a round.
#[derive(Clone, Copy)]
pub(super) struct Backward {
    pub round: Round,
    pub known: Known,
    pub gradients: [Shared<f32>; 3],
}

/// Queries, keys, values, and gradients of results.
const MATRICES: &[Matrix] = &[
    Matrix { is_of_queries: true, layouts: &[Layout::Rows, Layout::Across, Layout::Along] },
    Matrix { is_of_queries: false, layouts: &[Layout::Rows, Layout::Across, Layout::Along] },
    Matrix { is_of_queries: false, layouts: &[Layout::Rows, Layout::Across] },
    Matrix { is_of_queries: true, layouts: &[Layout::Rows, Layout::Across, Layout::Along] },
];
/// The place of the gradients of results.
const RESULTS: usize = 3;

/// Numbers of a query head's rows: log-sum-exps by the logarithm of base 2, and the sums over `D ∘ O`. Both have a
/// whole number of strips.
#[derive(Clone, Copy)]
struct RowNumbers([*const Line; 2]);

/// The two numbers of the queries of 32 places.
type Numbers = [[__m512; 2]; 2];

impl RowNumbers {
    /// Those of a panel of rows.
    #[target_feature(enable = "avx512f")]
    unsafe fn panel(self, panel: usize) -> Numbers {
        // SAFETY: the caller vouches for the panel.
        self.0.map(|lines| unsafe { [&*lines.add(2 * panel), &*lines.add(2 * panel + 1)] }.map(|line| floats(line)))
    }

    /// Those of one row, at all places.
    #[target_feature(enable = "avx512f")]
    unsafe fn row(self, row: usize) -> Numbers {
        // SAFETY: the caller vouches for the row.
        self.0.map(|lines| [_mm512_set1_ps(unsafe { *lines.cast::<f32>().add(row) }); 2])
    }
}

/// A strip of one side of the scores, of queries or of keys.
#[derive(Clone, Copy)]
struct Sides {
    /// The queries or keys, and the gradients of results or the values that go with them.
    rows: [Left; 2],
    /// The other side's, across.
    columns: [*const Line; 2],
    /// Parts of a head's width.
    parts: usize,
}

/// What a thread computes with.
#[derive(Clone, Copy)]
struct Desk {
    /// Probabilities of a chunk, and gradients of its scores, as tiles.
    tiles: [*mut Line; 2],
    /// Products with a panel.
    products: [*mut Sums; 2],
    /// Gradients of a strip of two matrices, a panel for each part of their width.
    gradients: [*mut Sums; 2],
}

impl Desk {
    fn lines(parts: usize) -> usize {
        2 * CHUNK * STRIP + 2 * (1 + parts) * LINES_OF_SUMS
    }

    /// The desk in memory of [`Desk::lines`].
    fn new(memory: *mut Line, parts: usize) -> Self {
        let sums = memory.wrapping_add(2 * CHUNK * STRIP).cast::<Sums>();
        Self {
            tiles: [memory, memory.wrapping_add(CHUNK * STRIP)],
            products: [sums, sums.wrapping_add(1)],
            gradients: [sums.wrapping_add(2), sums.wrapping_add(2 + parts)],
        }
    }

    /// Multiplies the tiles of one kind with a panel for each part of a width, and adds the products to gradients. The
    /// layout on the right side has `panels` panels; those of the chunk are meant.
    ///
    /// # Safety
    /// The right side is there, and tiles live on this thread.
    #[target_feature(enable = "avx512f")]
    unsafe fn add(
        self,
        kind: usize,
        chunk: &Range<usize>,
        along: *const Line,
        panels: usize,
        parts: usize,
        to: *mut Sums,
    ) {
        // SAFETY: the caller vouches for the right side, and all else is the desk's.
        unsafe {
            for part in 0..parts {
                let right = along.add((part * panels + chunk.start) * STRIP);
                let product = self.products[0];
                multiply(Left { first: self.tiles[kind], tiles: CHUNK }, chunk.len(), right, product);
                for line in 0..LINES_OF_SUMS {
                    let (to, more) = (to.add(part).cast::<Line>().add(line), product.cast::<Line>().add(line));
                    _mm512_store_ps(to.cast(), _mm512_add_ps(floats(&*to), floats(&*more)));
                }
            }
        }
    }
}

impl Pass for Backward {
    fn round(&self) -> &Round {
        &self.round
    }

    /// That of the gradients of results writes the numbers of rows too.
    unsafe fn lay_out(&self, matrix: usize, head: usize) {
        let [q, k, v] = &self.known.qkv;
        // SAFETY: as the caller says.
        unsafe {
            self.round.lay_out(matrix, head, [q, k, v, &self.known.d_out][matrix]);
            if matrix == RESULTS {
                self.number_rows(head);
            }
        }
    }

    fn strips(&self) -> usize {
        let Shape { queries, keys, .. } = self.round.shape;
        self.round.kv_heads() * keys.div_ceil(STRIP) + self.round.query_heads() * queries.div_ceil(STRIP)
    }

    /// Those of keys come first.
    unsafe fn strip(&self, strip: usize) {
        let Shape { queries, keys, width, .. } = self.round.shape;
        let [of_keys, of_queries] = [keys, queries].map(|places| places.div_ceil(STRIP));
        let parts = width.div_ceil(STRIP);
        with_lines(Desk::lines(parts), |memory| {
            let desk = Desk::new(memory, parts);
            // SAFETY: as the caller says.
            unsafe {
                match strip.checked_sub(self.round.kv_heads() * of_keys) {
                    None => self.strip_of_keys(strip / of_keys, strip % of_keys, desk),
                    Some(strip) => self.strip_of_queries(strip / of_queries, strip % of_queries, desk),
                }
            }
        });
    }
}

impl Backward {
    /// All layouts, and the numbers of rows.
    pub fn content(shape: Shape) -> Content {
        Content { matrices: MATRICES, more: 2 * lines_of_rows(shape.queries) }
    }

    /// A query head's numbers of rows.
    fn row_numbers(&self, head: usize) -> RowNumbers {
        let first = self.round.more(head).cast_const();
        RowNumbers([first, first.wrapping_add(lines_of_rows(self.round.shape.queries))])
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn number_rows(&self, head: usize) {
        let Shape { queries, width, .. } = self.round.shape;
        let (text, of_text) = self.round.text_and_head(RESULTS, head);
        let [lse, sums] = self.row_numbers(head).0.map(|lines| lines.cast_mut().cast::<f32>());
        for row in 0..queries.next_multiple_of(STRIP) {
            // SAFETY: rows that are there are the caller's; the others have memory as well.
            unsafe {
                // Beyond the last row, probabilities are 0.
                let [mut log, mut sum] = [f32::MAX, 0.0];
                if row < queries {
                    log = *self.known.lse.at(text, row, of_text) * LOG2_E;
                    let [a, b] = [self.known.d_out, self.known.out].map(|places| places.at(text, row, of_text));
                    let mut products = _mm512_setzero_ps();
                    for first in (0..width).step_by(STRIP) {
                        let entries = u32::MAX >> (STRIP - (width - first).min(STRIP));
                        let [a, b] = [a, b].map(|x| {
                            let halves = _mm512_maskz_loadu_epi16(entries, x.add(first).cast());
                            std::mem::transmute::<__m512i, __m512bh>(halves)
                        });
                        products = _mm512_dpbf16_ps(products, a, b);
                    }
                    sum = _mm512_reduce_add_ps(products);
                }
                *lse.add(row) = log;
                *sums.add(row) = sum;
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn strip_of_keys(&self, kv: usize, strip: usize, desk: Desk) {
        let Round { shape, sight, .. } = self.round;
        let Shape { kv_heads, queries, keys, width, .. } = shape;
        let parts = width.div_ceil(STRIP);
        let keys_here = strip * STRIP..keys.min((strip + 1) * STRIP);
        let [first, last] = [keys_here.start, keys_here.end - 1].map(|key| sight.of_key(key, queries));
        let seen = panels(first.start..last.end);
        let rows = [KEYS, VALUES].map(|m| Left::strip(self.round.layout(m, Layout::Rows).head(kv), parts, strip));
        // SAFETY: strips and panels lie within the layouts, and tiles and sums within the desk.
        unsafe {
            for sums in desk.gradients {
                sums.write_bytes(0, parts);
            }
            for head in kv * shape.group()..(kv + 1) * shape.group() {
                let columns = [QUERIES, RESULTS].map(|m| self.round.layout(m, Layout::Across).head(head).cast_const());
                let (sides, numbers) = (Sides { rows, columns, parts }, self.row_numbers(head));
                for chunk in chunks(seen.clone()) {
                    for panel in chunk.clone() {
                        let is_open = last.start <= panel * STRIP && first.end >= (panel + 1) * STRIP;
                        let by = |key| if is_open { u32::MAX } else { bits(panel, &sight.of_key(key, queries)) };
                        let of_columns = numbers.panel(panel);
                        let rows = keys_here.clone().map(|key| (by(key), of_columns));
                        self.panel(sides, panel, rows, panel - chunk.start, desk);
                    }
                    // Gradients of values by those of results, and those of keys by queries.
                    for (kind, matrix) in [RESULTS, QUERIES].into_iter().enumerate() {
                        let along = self.round.layout(matrix, Layout::Along).head(head);
                        desk.add(kind, &chunk, along, queries.div_ceil(STRIP), parts, desk.gradients[kind]);
                    }
                }
            }
            let (text, of_text) = self.round.text_and_head(KEYS, kv);
            let first = (text * keys + keys_here.start) * kv_heads + of_text;
            let [_, of_keys, of_values] = self.gradients;
            for (to, sums) in [of_values, of_keys].into_iter().zip(desk.gradients) {
                write(sums, keys_here.len(), width, |row| to.at((first + row * kv_heads) * width));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn strip_of_queries(&self, head: usize, strip: usize, desk: Desk) {
        let Round { shape, sight, .. } = self.round;
        let Shape { heads, queries, keys, width, .. } = shape;
        let kv = head / shape.group();
        let parts = width.div_ceil(STRIP);
        let here = strip * STRIP..queries.min((strip + 1) * STRIP);
        let [first, last] = [here.start, here.end - 1].map(|query| sight.of_query(query, keys));
        let seen = panels(first.start..last.end);
        let rows = [QUERIES, RESULTS].map(|m| Left::strip(self.round.layout(m, Layout::Rows).head(head), parts, strip));
        let columns = [KEYS, VALUES].map(|m| self.round.layout(m, Layout::Across).head(kv).cast_const());
        let (sides, numbers) = (Sides { rows, columns, parts }, self.row_numbers(head));
        // SAFETY: strips and panels lie within the layouts, and tiles and sums within the desk.
        unsafe {
            let (along, sums) = (self.round.layout(KEYS, Layout::Along).head(kv), desk.gradients[0]);
            sums.write_bytes(0, parts);
            for chunk in chunks(seen) {
                for panel in chunk.clone() {
                    let is_open = last.start <= panel * STRIP && first.end >= (panel + 1) * STRIP;
                    let of = |query| if is_open { u32::MAX } else { bits(panel, &sight.of_query(query, keys)) };
                    let rows = here.clone().map(|query| (of(query), numbers.row(query)));
                    self.panel(sides, panel, rows, panel - chunk.start, desk);
                }
                desk.add(1, &chunk, along, keys.div_ceil(STRIP), parts, sums);
            }
            let (text, of_text) = self.round.text_and_head(QUERIES, head);
            let first = (text * queries + here.start) * heads + of_text;
            write(sums, here.len(), width, |row| self.gradients[0].at((first + row * heads) * width));
        }
    }

    /// Writes probabilities and gradients of scores of a panel as the tiles with the given number. `rows` has, for each
    /// row, the columns that it sees or that see it, and the numbers of the queries at these places.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn panel(
        &self,
        sides: Sides,
        panel: usize,
        rows: impl Iterator<Item = (u32, Numbers)>,
        tile: usize,
        desk: Desk,
    ) {
        let scale = self.round.sight.scale;
        let (factor, scale) = (_mm512_set1_ps(scale * LOG2_E), _mm512_set1_ps(scale));
        // SAFETY: the caller vouches for the panel and the desk, and tiles live on this thread.
        unsafe {
            for side in 0..2 {
                let right = sides.columns[side].add(panel * STRIP * sides.parts);
                multiply(sides.rows[side], sides.parts, right, desk.products[side]);
            }
            let [scores, changes] = desk.products.map(|sums| &*sums);
            for (row, (bits, [log, sum])) in rows.enumerate() {
                let (mut p, mut d) = ([_mm512_setzero_ps(); 2], [_mm512_setzero_ps(); 2]);
                for half in 0..2 {
                    let seen = (bits >> (half * TILE)) as u16;
                    let x = _mm512_fmsub_ps(floats(&scores[row][half]), factor, log[half]);
                    p[half] = _mm512_maskz_mov_ps(seen, power_of_two(x));
                    let change = _mm512_sub_ps(floats(&changes[row][half]), sum[half]);
                    d[half] = _mm512_maskz_mul_ps(seen, _mm512_mul_ps(p[half], scale), change);
                }
                let place = (row / TILE * CHUNK + tile) * TILE + row % TILE;
                for (to, numbers) in desk.tiles.into_iter().zip([p, d]) {
                    to.add(place).cast::<__m512i>().write(rounded(numbers));
                }
            }
        }
    }
}

/// Lines for a number of each query.
fn lines_of_rows(queries: usize) -> usize {
    queries.div_ceil(STRIP) * 2
}

/// Writes rows of sums, each to its place.
#[target_feature(enable = "avx512f")]
unsafe fn write(sums: *const Sums, rows: usize, width: usize, to: impl Fn(usize) -> *mut f32) {
    for row in 0..rows {
        for first in (0..width).step_by(TILE) {
            let entries = u16::MAX >> (TILE - (width - first).min(TILE));
            // SAFETY: the caller vouches for sums and places, and the mask leaves out what lies behind a place.
            unsafe {
                let line = &(*sums.add(first / STRIP))[row][first % STRIP / TILE];
                _mm512_mask_storeu_ps(to(row).add(first), entries, floats(line));
            }
        }
    }
}
