//! What the queries of a block attend to.

use std::{cell::RefCell, ops::Range};

use super::{
    super::{
        pages::{PAGE, PageShape},
        parallel::Claims,
        plan::Span,
        simd::{ByteTask, Dot, Simd, Task},
        tile::{Tiling, for_rows},
    },
    Call,
    bytes::Bytes,
    prefetch::Prefetcher,
    product::{Matrix, Part, scores, weighted},
    softmax::{Partial, exponentials, join},
    store,
};

/// Pages whose keys are multiplied with all rows before the next ones are.
pub(super) const CHUNK: usize = 4;

/// Claims blocks, each with one key/value head, and computes them.
#[derive(Clone, Copy)]
pub(super) struct Attend<'a> {
    pub call: &'a Call<'a>,
    pub claims: &'a Claims,
    /// Whether the keys and values of the tokens are still to be stored.
    pub store: bool,
}

/// One block and one key/value head.
#[derive(Clone, Copy)]
struct Job<'a> {
    call: &'a Call<'a>,
    store: bool,
    tokens: &'a Range<usize>,
    head: usize,
}

thread_local! {
    /// Queries, scores and partial results of the job at hand, and the pages of the jobs of a call.
    static MEMORY: RefCell<(Vec<f32>, Prefetcher)> = RefCell::default();
}

/// How keys and values are multiplied.
pub(super) trait Stored<S: Simd> {
    /// Words that a row needs beside its query, scores and partial results, for `positions` positions.
    fn words_of_row(shape: PageShape, positions: usize) -> usize;

    /// Scores, exponentials and weighted values of some rows over one part. Of `buffer`, each row may use a word for every
    /// position and those of [`Stored::words_of_row`].
    ///
    /// # Safety
    /// The instruction set of `S` must be available, and the pages be of this kind.
    unsafe fn part(
        part: &Part<'_>,
        queries: &[f32],
        seen: Seen,
        buffer: &mut [f32],
        out: Partial<'_>,
        ahead: &mut Prefetcher,
    );
}

/// How many positions of a part a row sees: those of the row before, and from `every` rows to the next one more.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    first: usize,
    every: usize,
}

impl Seen {
    fn all(positions: usize) -> Self {
        Self { first: positions, every: usize::MAX }
    }

    pub fn by(self, row: usize) -> usize {
        self.first + row / self.every
    }
}

impl Task for Attend<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the task is run for pages of floats; the rest is passed on to the caller.
        unsafe { self.jobs::<S, StoredFloats>() }
    }
}

impl ByteTask for Attend<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: Dot>(self) {
        // SAFETY: the task is run for pages of bytes; the rest is passed on to the caller.
        unsafe { self.jobs::<S, Bytes<D>>() }
    }
}

impl<'a> Attend<'a> {
    #[inline(always)]
    unsafe fn jobs<S: Simd, K: Stored<S>>(self) {
        // Taken out instead of borrowed in a closure, which would not be compiled for the instruction set.
        let (mut buffer, mut ahead) = MEMORY.take();
        ahead.clear(self.call.shape);
        // SAFETY: passed on to the caller.
        let mut next = unsafe { self.claim::<S>(&mut ahead) };
        while let Some(job) = next {
            // Claimed one early, so that its pages are on their way.
            // SAFETY: passed on to the caller.
            next = unsafe { self.claim::<S>(&mut ahead) };
            let needed = job.words::<S, K>();
            if buffer.len() < needed {
                buffer.resize(needed, 0.0);
            }
            // SAFETY: passed on to the caller; each job is claimed once.
            unsafe { job.run::<S, K>(&mut buffer[..needed], &mut ahead) };
        }
        MEMORY.set((buffer, ahead));
    }

    #[inline(always)]
    unsafe fn claim<S: Simd>(&self, ahead: &mut Prefetcher) -> Option<Job<'a>> {
        let task = self.claims.claim()?;
        let heads = self.call.shape.kv_heads;
        let job = Job {
            call: self.call,
            store: self.store,
            tokens: &self.call.plan.blocks[task / heads],
            head: task % heads,
        };
        // Pieces of a sequence read what the piece before has just read.
        let spans = if self.store { job.spans() } else { &[] };
        // SAFETY: passed on to the caller.
        unsafe {
            if let Some(first) = spans.first() {
                ahead.push::<S>(&job.prefix(first));
            }
            for span in spans {
                ahead.push::<S>(&job.own(span).0);
            }
        }
        Some(job)
    }
}

impl<'a> Job<'a> {
    fn spans(&self) -> &'a [Span] {
        let plan = self.call.plan;
        &plan.spans[plan.span_of[self.tokens.start]..=plan.span_of[self.tokens.end - 1]]
    }

    fn rows(&self) -> usize {
        self.tokens.len() * self.call.group()
    }

    /// The prefix of the block's sequences.
    fn prefix(&self, span: &Span) -> Part<'a> {
        let pages = span.prefix_pages.start..span.prefix_pages.start + span.prefix_len.div_ceil(PAGE);
        Part { call: self.call, head: self.head, pages }
    }

    /// A sequence's own pages as far as its last token in the block sees them, and these tokens.
    fn own(&self, span: &Span) -> (Part<'a>, Range<usize>) {
        let tokens = span.tokens.start.max(self.tokens.start)..span.tokens.end.min(self.tokens.end);
        let positions = span.own_len + tokens.end - span.tokens.start;
        let pages = span.own_pages.start..span.own_pages.start + positions.div_ceil(PAGE);
        (Part { call: self.call, head: self.head, pages }, tokens)
    }

    /// Words for queries, scores and both partial results.
    fn words<S: Simd, K: Stored<S>>(&self) -> usize {
        let (rows, shape) = (self.rows(), self.call.shape);
        let pages = |span: &Span| self.prefix(span).pages.len().max(self.own(span).0.pages.len());
        let most = self.spans().iter().map(pages).max().unwrap_or(0);
        rows * (shape.head_dim + most * PAGE + K::words_of_row(shape, most * PAGE))
            + 2 * Partial::words(rows, shape.value_width())
    }

    #[inline(always)]
    unsafe fn run<S: Simd, K: Stored<S>>(self, buffer: &mut [f32], ahead: &mut Prefetcher) {
        let (rows, group, shape) = (self.rows(), self.call.group(), self.call.shape);
        let width = shape.value_width();
        let (queries, rest) = buffer.split_at_mut(rows * shape.head_dim);
        let (prefix, rest) = rest.split_at_mut(Partial::words(rows, width));
        let (own, scores) = rest.split_at_mut(Partial::words(rows, width));
        let (mut prefix, mut own) = (Partial::new(prefix, rows), Partial::new(own, rows));
        for (row, query) in queries.chunks_exact_mut(shape.head_dim).enumerate() {
            let (token, head) = (self.tokens.start + row / group, self.head * group + row % group);
            // SAFETY: passed on to the caller.
            unsafe { store::query::<S>(self.call, token, head, query) };
        }
        let spans = self.spans();
        let length = spans[0].prefix_len;
        // SAFETY: passed on to the caller. A block of whole sequences is alone with their positions.
        unsafe {
            if length > 0 {
                K::part(
                    &self.prefix(&spans[0]),
                    queries,
                    Seen::all(length),
                    scores,
                    prefix.rows(0..rows, width),
                    ahead,
                );
            }
            for span in spans {
                let (pages, tokens) = self.own(span);
                if self.store {
                    for token in tokens.clone() {
                        store::store::<S>(self.call, token, self.head);
                    }
                }
                let before = span.own_len + tokens.start - span.tokens.start;
                let rows = (tokens.start - self.tokens.start) * group..(tokens.end - self.tokens.start) * group;
                let queries = &queries[rows.start * shape.head_dim..rows.end * shape.head_dim];
                let seen = Seen { first: before + 1, every: group };
                K::part(&pages, queries, seen, scores, own.rows(rows, width), ahead);
            }
            let prefix = (length > 0).then_some(&mut prefix);
            self.write::<S>(own, prefix);
        }
    }

    /// Joins both parts into the output.
    #[inline(always)]
    unsafe fn write<S: Simd>(self, mut own: Partial<'_>, mut prefix: Option<&mut Partial<'_>>) {
        let (group, head_dim, width) = (self.call.group(), self.call.shape.head_dim, self.call.shape.value_width());
        // SAFETY: passed on to the caller.
        unsafe { join::<S>(&mut own, prefix.as_deref_mut()) };
        for row in 0..self.rows() {
            let (token, head) = (self.tokens.start + row / group, self.head * group + row % group);
            let out = self.call.out.at((token * self.call.attention.heads + head) * head_dim);
            // SAFETY: the row of a token and a head is written by this job alone.
            let out = unsafe { std::slice::from_raw_parts_mut(out, head_dim) };
            for (x, value) in out.iter_mut().zip(&own.values[row * width..]) {
                *x = value * own.largest[row];
            }
            if let Some(prefix) = &prefix {
                for (x, value) in out.iter_mut().zip(&prefix.values[row * width..]) {
                    *x += value * prefix.largest[row];
                }
            }
        }
    }
}

/// Keys and values as they are.
struct StoredFloats;

impl<S: Simd> Stored<S> for StoredFloats {
    fn words_of_row(_: PageShape, _: usize) -> usize {
        0
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
        let shape = part.call.shape;
        let rows = queries.len() / shape.head_dim;
        let stride = part.pages.len() * PAGE;
        let queries = Matrix { data: queries.as_ptr().cast_mut(), stride: shape.head_dim };
        let weights = Matrix { data: buffer.as_mut_ptr(), stride };
        let values = Matrix { data: out.values.as_mut_ptr(), stride: shape.value_width() };
        let tiling = Tiling::new(rows, S::ROWS);
        let longest = seen.by(rows - 1);
        // SAFETY: the matrices have these rows; the rest is passed on to the caller.
        unsafe {
            for first in (0..part.pages.len()).step_by(CHUNK) {
                let pages = part.pages.start + first..part.pages.end.min(part.pages.start + first + CHUNK);
                let chunk = Part { pages, ..*part };
                for tile in 0..tiling.count() {
                    let (row, height) = tiling.tile(tile);
                    let mut to = weights.row(row);
                    to.data = to.data.add(first * PAGE);
                    for_rows!(height, scores::<S>(&chunk, queries.row(row), to, ahead));
                }
                ahead.pass(chunk.pages.len());
            }
            for (row, scores) in buffer[..rows * stride].chunks_exact_mut(stride).enumerate() {
                (out.largest[row], out.sum[row]) = exponentials::<S, false>(part, scores, seen.by(row), ahead);
            }
            for tile in 0..tiling.count() {
                let (row, height) = tiling.tile(tile);
                for_rows!(height, weighted::<S>(part, longest, weights.row(row), values.row(row), ahead));
            }
            ahead.pass(part.pages.len());
        }
    }
}
