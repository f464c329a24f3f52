//! Grouped-query attention over a paged cache, with prompts shared by their completions.
//!
//! A sequence is a prefix, which other sequences may share and nobody extends any more, followed by pages of its own.
//! The query heads of a key/value head, and the sequences of a prefix, are the rows of one product over the keys and
//! values of that prefix, which are read once for all of them. The two parts of a row's softmax are joined by their
//! log-sum-exps. Whether rows are multiplied together does not show in any of them.

use std::{cell::RefCell, ops::Range};

use super::{
    linear::{Norm, inverse_rms},
    pages::{PAGE, PageShape, Pages},
    parallel::{Claims, Machine, Shared},
    plan::{Plan, Span},
    simd::{self, LANES, Simd, Task},
    tile::{Ahead, LINE, Left, Right, Tiling, for_rows, multiply},
};

/// Tokens whose keys and values one task stores: neighbours may share cache lines of a page.
const STORE_TOKENS: usize = 8;

/// What does not change from call to call.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Query heads.
    pub heads: usize,
    /// Position tables `[positions, head_dim / 2]`.
    pub cos: &'a [f32],
    /// See `cos`.
    pub sin: &'a [f32],
    /// Norm of every query head (Qwen3).
    pub q_norm: Option<Norm<'a>>,
    /// Norm of every key head (Qwen3).
    pub k_norm: Option<Norm<'a>>,
    /// Layer of the cache.
    pub layer: usize,
}

impl Attention<'_> {
    /// Rotates and stores the keys and values of `qkv` (`[tokens, (heads + 2 kv_heads) * head_dim]`), and writes what
    /// each query attends to into `out` (`[tokens, heads * head_dim]`). Scores are scaled by `head_dim^-0.5`.
    ///
    /// # Panics
    /// When sizes do not fit each other, or a sequence has fewer pages or table rows than positions.
    pub fn run(
        &self,
        qkv: &[f32],
        plan: &Plan,
        pages: &mut Pages,
        out: &mut [f32],
        Machine { isa, threads, scratch }: Machine<'_>,
    ) {
        let shape = pages.shape();
        self.check(qkv, plan, shape, out);
        let width = self.heads * shape.head_dim;
        if scratch.len() < plan.tokens() * width {
            scratch.resize(plan.tokens() * width, 0.0);
        }
        let call = Call {
            attention: *self,
            shape,
            plan,
            qkv,
            queries: Shared::new(&mut scratch[..plan.tokens() * width]),
            cache: Shared::new(pages.data()),
            out: Shared::new(out),
        };
        let (to_store, to_attend) =
            (Claims::new(plan.tokens().div_ceil(STORE_TOKENS)), Claims::new(plan.blocks.len() * shape.kv_heads));
        threads.run(&|| {
            to_store.run_all(|chunk| {
                let tokens = chunk * STORE_TOKENS..((chunk + 1) * STORE_TOKENS).min(plan.tokens());
                isa.run(Store { call: &call, tokens });
            });
            to_attend.run_all(|task| {
                let (block, head) = (task / shape.kv_heads, task % shape.kv_heads);
                isa.run(Attend { call: &call, tokens: plan.blocks[block].clone(), head });
            });
        });
    }

    fn check(&self, qkv: &[f32], plan: &Plan, shape: PageShape, out: &[f32]) {
        let PageShape { kv_heads, head_dim, pages, layers, .. } = shape;
        assert!(self.heads.is_multiple_of(kv_heads) && head_dim.is_multiple_of(2) && self.layer < layers);
        assert_eq!(qkv.len(), plan.tokens() * (self.heads + 2 * kv_heads) * head_dim, "queries, keys and values");
        assert_eq!(out.len(), plan.tokens() * self.heads * head_dim, "the output");
        assert_eq!(self.cos.len(), self.sin.len(), "the tables of positions");
        assert!([self.q_norm, self.k_norm].iter().flatten().all(|norm| norm.gamma.len() == head_dim), "norms of heads");
        assert!(plan.pages.iter().all(|&page| (page as usize) < pages), "a page outside the pool");
        for span in &plan.spans {
            let own = span.own_len + span.tokens.len();
            assert!(span.prefix_pages.len() * PAGE >= span.prefix_len && span.own_pages.len() * PAGE >= own);
            assert!((span.prefix_len + own) * (head_dim / 2) <= self.cos.len(), "more positions than the tables have");
        }
        let blocks: usize = plan.blocks.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(blocks, plan.tokens(), "a plan is cut after the last sequence was added");
    }
}

struct Call<'a> {
    attention: Attention<'a>,
    shape: PageShape,
    plan: &'a Plan,
    qkv: &'a [f32],
    /// `[kv_heads, tokens, group, head_dim]`: rotated and scaled.
    queries: Shared<f32>,
    cache: Shared<f32>,
    out: Shared<f32>,
}

impl Call<'_> {
    fn group(&self) -> usize {
        self.attention.heads / self.shape.kv_heads
    }

    /// Keys of a page; its values follow after [`Call::values_at`].
    fn page(&self, head: usize, page: usize) -> *mut f32 {
        self.cache.at(self.shape.offset(self.attention.layer, head, self.plan.pages[page]))
    }

    fn values_at(&self) -> usize {
        PAGE * self.shape.head_dim
    }
}

/// Rotates the heads of some tokens and stores their keys and values.
struct Store<'a> {
    call: &'a Call<'a>,
    tokens: Range<usize>,
}

/// Widest head.
pub const MAX_HEAD_DIM: usize = 512;

impl Task for Store<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // Written before it is read, up to the width of a head.
        let mut rotated = [0.0_f32; MAX_HEAD_DIM];
        for token in self.tokens {
            // SAFETY: passed on to the caller.
            unsafe { store::<S>(self.call, token, &mut rotated) };
        }
    }
}

#[inline(always)]
unsafe fn store<S: Simd>(call: &Call<'_>, token: usize, rotated: &mut [f32; MAX_HEAD_DIM]) {
    let PageShape { kv_heads, head_dim, .. } = call.shape;
    let (heads, group) = (call.attention.heads, call.group());
    let span = &call.plan.spans[call.plan.span_of[token]];
    let own = span.own_len + token - span.tokens.start;
    let position = span.prefix_len + own;
    let half = head_dim / 2;
    let table = position * half..(position + 1) * half;
    let (cos, sin) = (&call.attention.cos[table.clone()], &call.attention.sin[table]);
    let row = &call.qkv[token * (heads + 2 * kv_heads) * head_dim..][..(heads + 2 * kv_heads) * head_dim];
    let scale = (head_dim as f32).powf(-0.5);
    // SAFETY: the instruction set is the caller's. Each token has its own query rows and its own positions in the
    // cache, which no other task writes.
    unsafe {
        for head in 0..heads {
            rotate::<S>(&row[head * head_dim..][..head_dim], call.attention.q_norm, cos, sin, rotated);
            let place = (head / group * call.plan.tokens() + token) * group + head % group;
            let to = call.queries.at(place * head_dim);
            for (d, x) in rotated[..head_dim].iter().enumerate() {
                *to.add(d) = x * scale;
            }
        }
        for head in 0..kv_heads {
            let key = &row[(heads + head) * head_dim..][..head_dim];
            let value = &row[(heads + kv_heads + head) * head_dim..][..head_dim];
            rotate::<S>(key, call.attention.k_norm, cos, sin, rotated);
            let page = call.page(head, span.own_pages.start + own / PAGE);
            for (d, &x) in rotated[..head_dim].iter().enumerate() {
                *page.add(d * PAGE + own % PAGE) = x;
            }
            let to = page.add(call.values_at() + own % PAGE * call.shape.value_width());
            for (d, &x) in value.iter().enumerate() {
                *to.add(d) = x;
            }
        }
    }
}

/// Norm and rotation of one head, halves against each other (not interleaved).
#[inline(always)]
unsafe fn rotate<S: Simd>(x: &[f32], norm: Option<Norm<'_>>, cos: &[f32], sin: &[f32], out: &mut [f32; MAX_HEAD_DIM]) {
    let out = &mut out[..x.len()];
    match norm {
        None => out.copy_from_slice(x),
        Some(Norm { gamma, epsilon }) => {
            // SAFETY: the instruction set is the caller's.
            let inverse = unsafe { inverse_rms::<S>(x, epsilon) };
            for (to, (x, gamma)) in out.iter_mut().zip(x.iter().zip(gamma)) {
                *to = x * inverse * gamma;
            }
        }
    }
    let (low, high) = out.split_at_mut(cos.len());
    for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
        (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
    }
}

thread_local! {
    /// Scores and partial results of the task at hand.
    static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Attention of a run of tokens with one key/value head.
struct Attend<'a> {
    call: &'a Call<'a>,
    tokens: Range<usize>,
    head: usize,
}

/// Softmax-weighted values over a part of the positions: per row the maximum, the sum of exponentials, and the sum of
/// values weighted by these.
struct Partial<'a> {
    largest: &'a mut [f32],
    sum: &'a mut [f32],
    values: &'a mut [f32],
}

impl Task for Attend<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let plan = self.call.plan;
        let spans = &plan.spans[plan.span_of[self.tokens.start]..=plan.span_of[self.tokens.end - 1]];
        let longest = |span: &Span| span.prefix_len.max(span.own_len + span.tokens.len());
        let positions = spans.iter().map(longest).max().unwrap_or(0).next_multiple_of(2 * PAGE);
        let rows = self.tokens.len() * self.call.group();
        let width = self.call.shape.value_width();
        let needed = rows * (positions + 2 * (width + 2));
        // Taken out instead of borrowed in a closure, which would not be compiled for the instruction set.
        let mut buffer = BUFFER.take();
        if buffer.len() < needed {
            buffer.resize(needed, 0.0);
        }
        let (scores, rest) = buffer[..needed].split_at_mut(rows * positions);
        let (prefix, own) = rest.split_at_mut(rows * (width + 2));
        // SAFETY: the instruction set is the caller's.
        unsafe { self.attend::<S>(spans, scores, partial(prefix, rows), partial(own, rows)) };
        BUFFER.set(buffer);
    }
}

fn partial(buffer: &mut [f32], rows: usize) -> Partial<'_> {
    let (largest, rest) = buffer.split_at_mut(rows);
    let (sum, values) = rest.split_at_mut(rows);
    Partial { largest, sum, values }
}

impl Attend<'_> {
    #[inline(always)]
    unsafe fn attend<S: Simd>(&self, spans: &[Span], scores: &mut [f32], prefix: Partial<'_>, own: Partial<'_>) {
        let (group, width) = (self.call.group(), self.call.shape.value_width());
        let rows = self.tokens.len() * group;
        let head = &spans[0];
        // SAFETY: passed on to the caller.
        unsafe {
            self.fetch_first::<S>(head);
            if head.prefix_len > 0 {
                let part = Partial { largest: prefix.largest, sum: prefix.sum, values: prefix.values };
                self.part::<S>(0..rows, &head.prefix_pages, |_| head.prefix_len, scores, part);
            }
            for (i, span) in spans.iter().enumerate() {
                if let Some(next) = spans.get(i + 1) {
                    self.fetch_first::<S>(next);
                }
                let tokens = span.tokens.start.max(self.tokens.start)..span.tokens.end.min(self.tokens.end);
                let first = (tokens.start - self.tokens.start) * group;
                let range = first..first + tokens.len() * group;
                let before = span.own_len + tokens.start - span.tokens.start;
                let part = Partial {
                    largest: &mut own.largest[range.clone()],
                    sum: &mut own.sum[range.clone()],
                    values: &mut own.values[range.start * width..range.end * width],
                };
                self.part::<S>(range, &span.own_pages, |row| before + row / group + 1, scores, part);
            }
        }
        let shared = head.prefix_len > 0;
        for row in 0..rows {
            let largest = if shared { own.largest[row].max(prefix.largest[row]) } else { own.largest[row] };
            let own_weight = (own.largest[row] - largest).exp();
            let prefix_weight = if shared { (prefix.largest[row] - largest).exp() } else { 0.0 };
            let prefix_sum = if shared { prefix.sum[row] * prefix_weight } else { 0.0 };
            let inverse = 1.0 / (own.sum[row] * own_weight + prefix_sum);
            let (own_weight, prefix_weight) = (own_weight * inverse, prefix_weight * inverse);
            let head = self.head * group + row % group;
            let head_dim = self.call.shape.head_dim;
            let token = self.tokens.start + row / group;
            let out = self.call.out.at((token * self.call.attention.heads + head) * head_dim);
            // SAFETY: the row of a token and a head is written by this task alone.
            let out = unsafe { std::slice::from_raw_parts_mut(out, head_dim) };
            for (x, own) in out.iter_mut().zip(&own.values[row * width..]) {
                *x = own * own_weight;
            }
            if shared {
                for (x, prefix) in out.iter_mut().zip(&prefix.values[row * width..]) {
                    *x += prefix * prefix_weight;
                }
            }
        }
    }

    /// Scores, exponentials and weighted values of some rows of the block over some pages; `length(row)` positions
    /// count for a row (counted from the first of `rows`).
    #[inline(always)]
    unsafe fn part<S: Simd>(
        &self,
        rows: Range<usize>,
        pages: &Range<usize>,
        length: impl Fn(usize) -> usize,
        scores: &mut [f32],
        out: Partial<'_>,
    ) {
        let longest = length(rows.len() - 1);
        let pages = pages.start..pages.start + longest.div_ceil(PAGE);
        let stride = pages.len() * PAGE;
        let first = self.head * self.call.plan.tokens() * self.call.group()
            + self.tokens.start * self.call.group()
            + rows.start;
        let queries = self.call.queries.at(first * self.call.shape.head_dim).cast_const();
        let tiling = Tiling::new(rows.len(), S::ROWS);
        // SAFETY: pages and rows are within their buffers, as `Attention::check` found; the rest is passed on.
        unsafe {
            for pair in pages.clone().step_by(2) {
                for next in pair + 2..(pair + 4).min(pages.end) {
                    self.fetch::<S>(next);
                }
                let single = pair + 1 == pages.end;
                for tile in 0..tiling.count() {
                    let (row, height) = tiling.tile(tile);
                    let queries = queries.add(row * self.call.shape.head_dim);
                    let to = scores.as_mut_ptr().add(row * stride + (pair - pages.start) * PAGE);
                    if single {
                        for_rows!(height, one_page::<S>(self, queries, pair, to, stride));
                    } else {
                        for_rows!(height, two_pages::<S>(self, queries, pair, to, stride));
                    }
                }
            }
            for row in 0..rows.len() {
                let scores = &mut scores[row * stride..(row + 1) * stride];
                (out.largest[row], out.sum[row]) = exponentials::<S>(scores, length(row));
            }
            let width = self.call.shape.value_width();
            for tile in 0..tiling.count() {
                let (row, height) = tiling.tile(tile);
                let scores = scores.as_ptr().add(row * stride);
                let to = out.values.as_mut_ptr().add(row * width);
                for_rows!(height, weighted_values::<S>(self, scores, stride, &pages, longest, to));
            }
        }
    }

    /// Asks for the first pages of a sequence's own; those after them are asked for on the way.
    #[inline(always)]
    unsafe fn fetch_first<S: Simd>(&self, span: &Span) {
        let filled = (span.own_len + span.tokens.len()).div_ceil(PAGE);
        for page in span.own_pages.clone().take(filled.min(2)) {
            // SAFETY: passed on to the caller.
            unsafe { self.fetch::<S>(page) };
        }
    }

    /// Asks for the keys and values of a page.
    #[inline(always)]
    unsafe fn fetch<S: Simd>(&self, page: usize) {
        let address = self.call.page(self.head, page).cast_const();
        for line in (0..self.call.shape.page_len()).step_by(LINE) {
            // SAFETY: passed on to the caller.
            unsafe { S::prefetch(address.wrapping_add(line)) };
        }
    }
}

#[inline(always)]
unsafe fn one_page<S: Simd, const R: usize>(
    job: &Attend<'_>,
    queries: *const f32,
    page: usize,
    to: *mut f32,
    stride: usize,
) {
    // SAFETY: passed on to the caller.
    unsafe { keys::<S, R, 1>(job, queries, [job.call.page(job.head, page)], to, stride) };
}

#[inline(always)]
unsafe fn two_pages<S: Simd, const R: usize>(
    job: &Attend<'_>,
    queries: *const f32,
    page: usize,
    to: *mut f32,
    stride: usize,
) {
    let blocks = [job.call.page(job.head, page), job.call.page(job.head, page + 1)];
    // SAFETY: passed on to the caller.
    unsafe { keys::<S, R, 2>(job, queries, blocks, to, stride) };
}

#[inline(always)]
unsafe fn keys<S: Simd, const R: usize, const N: usize>(
    job: &Attend<'_>,
    queries: *const f32,
    blocks: [*mut f32; N],
    to: *mut f32,
    stride: usize,
) {
    let head_dim = job.call.shape.head_dim;
    // SAFETY: passed on to the caller.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; R];
        let a = Left { data: queries, row_step: head_dim, step: 1 };
        let b = Right { blocks: blocks.map(<*mut f32>::cast_const), step: PAGE };
        multiply::<S, R, N>(head_dim, a, b, Ahead::NOTHING, &mut sums);
        for (r, row) in sums.into_iter().enumerate() {
            for (n, v) in row.into_iter().enumerate() {
                S::store(to.add(r * stride + n * LANES), v);
            }
        }
    }
}

/// Turns scores into `e^(score - largest)`, 0 from `length` on; returns the largest and the sum.
#[inline(always)]
unsafe fn exponentials<S: Simd>(scores: &mut [f32], length: usize) -> (f32, f32) {
    let end = length.next_multiple_of(LANES);
    scores[length..end].fill(f32::NEG_INFINITY);
    scores[end..].fill(0.0);
    let (blocks, _) = scores[..end].as_chunks_mut::<LANES>();
    // SAFETY: a chunk is a block; the instruction set is the caller's.
    unsafe {
        let mut largest = S::splat(f32::NEG_INFINITY);
        for block in &*blocks {
            largest = S::max(largest, S::load(block.as_ptr()));
        }
        let largest = simd::largest::<S>(largest);
        let shift = S::splat(-largest);
        let mut sums = S::splat(0.0);
        let last = blocks.len() - 1;
        for (i, block) in blocks.iter_mut().enumerate() {
            let e = simd::exp::<S>(S::add(S::load(block.as_ptr()), shift));
            S::store(block.as_mut_ptr(), e);
            if i == last {
                block[length - last * LANES..].fill(0.0);
            }
            sums = S::add(sums, S::load(block.as_ptr()));
        }
        (largest, simd::sum::<S>(sums))
    }
}

/// `to[r] = Σ scores[r][position] * values[position]`, over the width of a head.
#[inline(always)]
unsafe fn weighted_values<S: Simd, const R: usize>(
    job: &Attend<'_>,
    scores: *const f32,
    stride: usize,
    pages: &Range<usize>,
    longest: usize,
    to: *mut f32,
) {
    let blocks = job.call.shape.value_width() / LANES;
    let mut block = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        while block + 2 <= blocks {
            columns::<S, R, 2>(job, scores, stride, pages, longest, block, to);
            block += 2;
        }
        if block < blocks {
            columns::<S, R, 1>(job, scores, stride, pages, longest, block, to);
        }
    }
}

#[inline(always)]
unsafe fn columns<S: Simd, const R: usize, const N: usize>(
    job: &Attend<'_>,
    scores: *const f32,
    stride: usize,
    pages: &Range<usize>,
    longest: usize,
    block: usize,
    to: *mut f32,
) {
    let width = job.call.shape.value_width();
    // SAFETY: passed on to the caller. Positions beyond the longest row are not read: what lies there may be stale.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; R];
        for (i, page) in pages.clone().enumerate() {
            let values = job.call.page(job.head, page).add(job.call.values_at() + block * LANES).cast_const();
            let a = Left { data: scores.add(i * PAGE), row_step: stride, step: 1 };
            let b = Right { blocks: std::array::from_fn(|n| values.add(n * LANES)), step: width };
            multiply::<S, R, N>(PAGE.min(longest - i * PAGE), a, b, Ahead::NOTHING, &mut sums);
        }
        for (r, row) in sums.into_iter().enumerate() {
            for (n, v) in row.into_iter().enumerate() {
                S::store(to.add(r * width + (block + n) * LANES), v);
            }
        }
    }
}
