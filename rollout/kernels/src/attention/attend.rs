//! The attention of the queries of a block.

use std::{cell::RefCell, ops::Range};

use super::{
    super::{
        pages::{PAGE, Piece},
        parallel::Claims,
        simd::{ByteTask, Dot, LANES, PairDot, PairTask, Simd, Task, load_up_to, sigmoid, store_up_to},
        spans::Span,
    },
    Call, Pieces,
    bytes::Bytes,
    floats::Floats,
    pairs::Pairs,
    part::HeadPages,
    prefetch::{Prefetcher, Stretch},
    product::{Stored, attend_to},
    softmax::{Partial, join},
    store,
};

/// Claims blocks, each with one key/value head, and computes them.
#[derive(Clone, Copy)]
pub(super) struct Attend<'a> {
    pub call: &'a Call<'a>,
    pub claims: &'a Claims,
    /// Whether the keys and values of the tokens are still to be stored.
    pub store: bool,
    /// Whether blocks hold whole sequences.
    pub is_whole: bool,
}

/// One block and one key/value head.
#[derive(Clone, Copy)]
struct BlockOfHead<'a> {
    call: &'a Call<'a>,
    store: bool,
    tokens: &'a Range<usize>,
    head: usize,
    pieces: [Pieces; 4],
}

/// Neighbouring pages of a list, and the position in it that they begin with.
#[derive(Clone, Copy)]
struct Run<'a> {
    pages: &'a [u32],
    start: usize,
}

thread_local! {
    /// Queries, scores and partial results of the block at hand, and the pages of the blocks of a call.
    static MEMORY: RefCell<(Vec<f32>, Vec<Stretch>)> = RefCell::default();
}

impl Task for Attend<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the task is run for pages of floats; the caller vouches for the instruction set.
        unsafe { self.blocks::<S, Floats>() }
    }
}

impl ByteTask for Attend<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: Dot>(self) {
        // SAFETY: the task is run for pages of bytes; the caller vouches for the instruction sets.
        unsafe { self.blocks::<S, Bytes<D>>() }
    }
}

impl PairTask for Attend<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: PairDot>(self) {
        // SAFETY: the task is run for pages of bf16; the caller vouches for the instruction sets.
        unsafe { self.blocks::<S, Pairs<D>>() }
    }
}

impl<'a> Attend<'a> {
    #[inline(always)]
    unsafe fn blocks<S: Simd, K: Stored>(self) {
        // Taken out instead of borrowed in a closure, which would not be compiled for the instruction set.
        let (mut buffer, stretches) = MEMORY.take();
        let mut ahead = Prefetcher::new(stretches, self.call.shape);
        // SAFETY: the caller vouches for the instruction sets; each block is claimed once.
        unsafe {
            let mut next = self.claim::<S>(&mut ahead);
            while let Some(block) = next {
                // The next block is claimed early, so that its pages are on their way.
                next = self.claim::<S>(&mut ahead);
                let needed = block.words::<K>();
                if buffer.len() < needed {
                    buffer.resize(needed, 0.0);
                }
                block.run::<S, K>(&mut buffer[..needed], &mut ahead);
            }
        }
        MEMORY.set((buffer, ahead.stretches));
    }

    #[inline(always)]
    unsafe fn claim<S: Simd>(&self, ahead: &mut Prefetcher) -> Option<BlockOfHead<'a>> {
        let task = self.claims.claim()?;
        let (block, head) = (task / self.call.shape.kv_heads, task % self.call.shape.kv_heads);
        let block = BlockOfHead {
            call: self.call,
            store: self.store,
            tokens: &self.call.spans.blocks[block],
            head,
            pieces: Piece::ALL.map(|piece| self.call.pieces(head, piece)),
        };
        // Pieces of a sequence need no prefetching: the piece before has just read the same pages.
        let spans = if self.is_whole { block.spans() } else { &[] };
        // SAFETY: the caller vouches for the instruction set.
        unsafe {
            if !spans.is_empty() {
                ahead.push::<S>(&block.part(block.prefix().pages));
            }
            for span in spans {
                ahead.push::<S>(&block.part(block.own(span).0.pages));
            }
        }
        Some(block)
    }
}

impl<'a> BlockOfHead<'a> {
    fn spans(&self) -> &'a [Span] {
        let spans = self.call.spans;
        &spans.all[spans.span_of[self.tokens.start]..=spans.span_of[self.tokens.end - 1]]
    }

    fn rows(&self) -> usize {
        self.tokens.len() * self.call.group()
    }

    fn part(&self, pages: &'a [u32]) -> HeadPages<'a> {
        HeadPages { shape: self.call.shape, pages, pieces: self.pieces }
    }

    /// The pages of the shared prefix that a token of the block sees.
    fn prefix(&self) -> Run<'a> {
        let span = &self.spans()[0];
        let seen = |token| self.call.first_seen(token);
        let first = if self.call.attention.window.is_some() { self.tokens.clone().map(seen).min() } else { None };
        self.pages(&span.prefix_pages, first.unwrap_or(0), span.prefix_len)
    }

    /// A sequence's own pages that its tokens in the block see, and these tokens.
    fn own(&self, span: &Span) -> (Run<'a>, Range<usize>) {
        let tokens = span.tokens.start.max(self.tokens.start)..span.tokens.end.min(self.tokens.end);
        let positions = span.own_len + tokens.end - span.tokens.start;
        let first = self.call.first_seen(tokens.start).saturating_sub(span.prefix_len);
        (self.pages(&span.own_pages, first, positions), tokens)
    }

    /// The pages among `all` that hold positions from `first` to `end`.
    fn pages(&self, all: &Range<usize>, first: usize, end: usize) -> Run<'a> {
        let first = if first < end { first / PAGE } else { end.div_ceil(PAGE) };
        Run { pages: &self.call.spans.pages[all.clone()][first..end.div_ceil(PAGE)], start: first * PAGE }
    }

    /// Words for queries, scores and both partial results.
    fn words<K: Stored>(&self) -> usize {
        let (rows, shape) = (self.rows(), self.call.shape);
        let own = self.spans().iter().map(|span| self.own(span).0.pages.len());
        let positions = PAGE * own.chain([self.prefix().pages.len()]).max().unwrap_or(0);
        rows * (shape.head_dim + positions + K::words(shape.head_dim) + K::words(positions))
            + 2 * Partial::words(rows, shape.value_width())
    }

    #[inline(always)]
    unsafe fn run<S: Simd, K: Stored>(self, buffer: &mut [f32], ahead: &mut Prefetcher) {
        let (rows, group, shape) = (self.rows(), self.call.group(), self.call.shape);
        let width = shape.value_width();
        let (queries, rest) = buffer.split_at_mut(rows * shape.head_dim);
        let (prefix, rest) = rest.split_at_mut(Partial::words(rows, width));
        let (own, scores) = rest.split_at_mut(Partial::words(rows, width));
        let (mut prefix, mut own) = (Partial::new(prefix, rows), Partial::new(own, rows));
        for (row, query) in queries.chunks_exact_mut(shape.head_dim).enumerate() {
            let (token, head) = (self.tokens.start + row / group, self.head * group + row % group);
            // SAFETY: the caller vouches for the instruction set.
            unsafe { store::query::<S>(self.call, token, head, query) };
        }
        let spans = self.spans();
        let seen = |row: usize| self.call.first_seen(self.tokens.start + row / group);
        let (shared, length) = (self.prefix(), spans[0].prefix_len);
        let sees_prefix = !shared.pages.is_empty();
        // SAFETY: the caller vouches for instruction sets and pages. A block of whole sequences is alone with their
        // positions.
        unsafe {
            if sees_prefix {
                let (part, out) = (self.part(shared.pages), prefix.rows(0..rows, width));
                let seen = |row| seen(row).clamp(shared.start, length) - shared.start..length - shared.start;
                attend_to::<S, K>(&part, queries, seen, scores, out, ahead);
            }
            for span in spans {
                let (Run { pages, start }, tokens) = self.own(span);
                if self.store {
                    for token in tokens.clone() {
                        store::store::<S>(self.call, token, self.head);
                    }
                }
                let before = span.own_len + tokens.start - span.tokens.start;
                let rows = (tokens.start - self.tokens.start) * group..(tokens.end - self.tokens.start) * group;
                let queries = &queries[rows.start * shape.head_dim..rows.end * shape.head_dim];
                let (begin, first_row) = (span.prefix_len + start, rows.start);
                let seen = |row: usize| seen(first_row + row).saturating_sub(begin)..before + 1 + row / group - start;
                attend_to::<S, K>(&self.part(pages), queries, seen, scores, own.rows(rows, width), ahead);
            }
            let prefix = sees_prefix.then_some(&mut prefix);
            self.write::<S>(own, prefix);
        }
    }

    /// Joins both parts into the output.
    #[inline(always)]
    unsafe fn write<S: Simd>(self, mut own: Partial<'_>, mut prefix: Option<&mut Partial<'_>>) {
        let (group, head_dim, width) = (self.call.group(), self.call.shape.head_dim, self.call.shape.value_width());
        // SAFETY: the caller vouches for the instruction set.
        unsafe { join::<S>(&mut own, prefix.as_deref_mut()) };
        for row in 0..self.rows() {
            let (token, head) = (self.tokens.start + row / group, self.head * group + row % group);
            let out = self.call.out.at((token * self.call.attention.heads + head) * head_dim);
            // SAFETY: the row of a token and a head is written by this block alone.
            let out = unsafe { std::slice::from_raw_parts_mut(out, head_dim) };
            for (x, value) in out.iter_mut().zip(&own.values[row * width..]) {
                *x = value * own.largest[row];
            }
            if let Some(prefix) = &prefix {
                for (x, value) in out.iter_mut().zip(&prefix.values[row * width..]) {
                    *x += value * prefix.largest[row];
                }
            }
            if let Some(gates) = self.call.gate(token, head) {
                // SAFETY: the caller vouches for the instruction set.
                unsafe { open::<S>(gates, out) };
            }
        }
    }
}

/// Multiplies with the sigmoids of gates, or with that of one gate.
///
/// # Safety
/// The instruction set of `S` must be available.
#[inline(always)]
unsafe fn open<S: Simd>(gates: &[f32], out: &mut [f32]) {
    let one = [gates[0]; LANES];
    for (i, out) in out.chunks_mut(LANES).enumerate() {
        let gates = if gates.len() == 1 { &one[..] } else { &gates[i * LANES..] };
        // SAFETY: both have so many numbers; the caller vouches for the instruction set.
        unsafe {
            let x = load_up_to::<S>(out.as_ptr(), out.len());
            let open = sigmoid::<S>(load_up_to::<S>(gates.as_ptr(), out.len()));
            store_up_to::<S>(out.as_mut_ptr(), out.len(), S::mul(x, open));
        }
    }
}
