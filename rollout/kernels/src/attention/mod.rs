//! Grouped-query attention over a paged cache, with prompts shared by their completions.
//!
//! A sequence is a prefix followed by pages of its own. Other sequences may share the prefix, and nobody extends it any
//! more. All query heads and sequences that attend to the prefix are the rows of one product, so its keys and values
//! are read once. Whether rows are multiplied together does not show in any of them. The two parts of a row's softmax
//! are joined by their log-sum-exps.
//!
//! A step of many sequences reads every key and value once and does little with it. So it is as fast as the memory, as
//! long as something is always under way from there. [`prefetch`] asks for coming pages during products and
//! exponentials.
//!
//! Pages that lie before a sliding window are left out. Keys and values in bytes or bf16 (`kv_dtype`) are rounded when
//! they are stored, so they depend on nothing else in the call.

mod attend;
mod bytes;
mod floats;
mod pairs;
mod part;
mod prefetch;
mod product;
mod softmax;
mod store;

use super::{
    element::KvFormat,
    linear::Norm,
    pages::{PAGE, PageShape, Pages, Piece},
    parallel::{Claims, Machine, Shared},
    simd::MAX_BYTE_PRODUCTS,
    spans::Spans,
};

/// Widest head.
pub const MAX_HEAD_DIM: usize = 512;

/// Cosines and sines of positions, each `[rows, entries / 2]`. A sequence's first position is at the row that its span
/// names.
#[derive(Debug, Clone, Copy)]
pub struct RotaryTables<'a> {
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
    /// Entries of a head that are turned, from the first on: the first half against the second.
    pub entries: usize,
}

/// Where the gates of a token lie among its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// One for each entry: behind each query head, a gate of its width.
    Entries,
    /// One for each query head, behind the values.
    Heads,
}

/// The part of a layer's attention that does not change from call to call.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Query heads.
    pub heads: usize,
    /// The gates whose sigmoids results are multiplied with, in the families that have them.
    pub gate: Option<Gate>,
    /// Rotary positions; `None` in a layer that does not rotate.
    pub rotary: Option<RotaryTables<'a>>,
    /// Factors on the queries of each position, in the families that have them.
    pub query_factors: Option<&'a [f32]>,
    /// How many positions a query sees at most, its own and those right before it.
    pub window: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// Norm of every query head, in the families that have one.
    pub q_norm: Option<Norm<'a>>,
    /// Norm of every key head.
    pub k_norm: Option<Norm<'a>>,
    /// Norm of every value head, in the families that have one.
    pub v_norm: Option<Norm<'a>>,
    /// Whether an earlier layer has stored the keys and values that this one reads. Its inputs are queries alone then.
    pub is_reader: bool,
    /// Layer of the cache.
    pub layer: usize,
}

impl Attention<'_> {
    /// Rotates and stores the keys and values of `qkv` (`[tokens, (heads + 2 kv_heads) * head_dim]`, and gates between
    /// or behind them), and writes what each query attends to into `out` (`[tokens, heads * head_dim]`).
    ///
    /// # Panics
    /// When sizes do not fit each other, or a sequence has fewer pages or table rows than positions.
    pub fn run(
        &self,
        qkv: &[f32],
        spans: &Spans,
        pages: &mut Pages,
        out: &mut [f32],
        Machine { isa, threads, .. }: Machine<'_>,
    ) {
        let shape = pages.shape();
        self.check(qkv, spans, shape, out);
        let call =
            Call { attention: *self, shape, spans, qkv, cache: Shared::new(pages.data()), out: Shared::new(out) };
        // A block of whole sequences stores its own keys and values. A piece of a sequence needs keys and values that
        // other tasks store, so all are stored before.
        let is_whole = !spans.cuts_sequences();
        let apart = if is_whole || self.is_reader { 0 } else { store::tasks(spans) };
        let (to_store, to_attend) = (Claims::new(apart), Claims::new(spans.blocks.len() * shape.kv_heads));
        threads.run(&|| {
            to_store.run_all(|chunk| isa.run(store::StoreTask { call: &call, chunk }));
            let store = is_whole && !self.is_reader;
            let attend = attend::Attend { call: &call, claims: &to_attend, store, is_whole };
            match shape.format {
                KvFormat::Fp32 => isa.run(attend),
                KvFormat::Int8 => isa.run_bytes(attend),
                KvFormat::Bf16 => isa.run_pairs(attend),
            }
        });
    }

    /// Rows of a query head and its gate.
    fn rows_of_query(&self) -> usize {
        if self.gate == Some(Gate::Entries) { 2 } else { 1 }
    }

    /// Inputs of a token without those behind the values.
    fn width_of_rows(&self, shape: PageShape) -> usize {
        let stored = if self.is_reader { 0 } else { 2 * shape.kv_heads };
        (self.heads * self.rows_of_query() + stored) * shape.head_dim
    }

    /// Inputs of a token.
    fn width(&self, shape: PageShape) -> usize {
        self.width_of_rows(shape) + if self.gate == Some(Gate::Heads) { self.heads } else { 0 }
    }

    fn check(&self, qkv: &[f32], spans: &Spans, shape: PageShape, out: &[f32]) {
        let PageShape { kv_heads, head_dim, pages, layers, .. } = shape;
        assert!(self.heads.is_multiple_of(kv_heads) && head_dim.is_multiple_of(2) && self.layer < layers);
        assert!(head_dim <= MAX_HEAD_DIM, "a head of {head_dim}");
        assert_eq!(qkv.len(), spans.tokens() * self.width(shape), "queries, keys and values");
        assert_eq!(out.len(), spans.tokens() * self.heads * head_dim, "the output");
        let fits =
            |r: RotaryTables<'_>| r.cos.len() == r.sin.len() && r.entries.is_multiple_of(2) && r.entries <= head_dim;
        assert!(self.rotary.is_none_or(fits), "the tables of positions");
        assert!(self.window != Some(0), "a window holds the query's own position");
        assert!(
            [self.q_norm, self.k_norm, self.v_norm].iter().flatten().all(|norm| norm.gamma.len() == head_dim),
            "norms of heads"
        );
        assert!(spans.pages.iter().all(|&page| (page as usize) < pages), "a page outside the pool");
        for span in &spans.all {
            let own = span.own_len + span.tokens.len();
            assert!(span.prefix_pages.len() * PAGE >= span.prefix_len && span.own_pages.len() * PAGE >= own);
            let end = span.prefix_len + own;
            let has_rows = |r: RotaryTables<'_>| (span.rotary_begin + end) * (r.entries / 2) <= r.cos.len();
            assert!(self.rotary.is_none_or(has_rows), "more positions than the tables have");
            assert!(self.query_factors.is_none_or(|factors| end <= factors.len()), "more positions than factors");
            let most = if shape.format == KvFormat::Int8 { MAX_BYTE_PRODUCTS } else { usize::MAX };
            assert!(span.prefix_len + own <= most, "sums over {} positions overflow", span.prefix_len + own);
        }
        let blocks: usize = spans.blocks.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(blocks, spans.tokens(), "spans are cut into blocks after the last was added");
    }
}

struct Call<'a> {
    attention: Attention<'a>,
    shape: PageShape,
    spans: &'a Spans,
    qkv: &'a [f32],
    cache: Shared<f32>,
    out: Shared<f32>,
}

impl Call<'_> {
    /// Query heads of a key/value head.
    fn group(&self) -> usize {
        self.attention.heads / self.shape.kv_heads
    }

    /// One row of a token: the query heads, each before its gate, then the heads of the keys, then those of the values.
    fn row(&self, token: usize, row: usize) -> &[f32] {
        let (width, head_dim) = (self.attention.width(self.shape), self.shape.head_dim);
        &self.qkv[token * width + row * head_dim..][..head_dim]
    }

    /// Row of the first key head.
    fn first_key(&self) -> usize {
        self.attention.heads * self.attention.rows_of_query()
    }

    /// Gates of a query head, where there are any: one for each entry, or one for all.
    fn gate(&self, token: usize, head: usize) -> Option<&[f32]> {
        Some(match self.attention.gate? {
            Gate::Entries => self.row(token, 2 * head + 1),
            Gate::Heads => {
                let first = token * self.attention.width(self.shape) + self.attention.width_of_rows(self.shape);
                &self.qkv[first + head..][..1]
            }
        })
    }

    /// Place of a token in its sequence.
    fn position(&self, token: usize) -> usize {
        let span = &self.spans.all[self.spans.span_of[token]];
        span.prefix_len + span.own_len + token - span.tokens.start
    }

    /// Row of the rotary tables with a token's position.
    fn rotary_row(&self, token: usize) -> usize {
        self.spans.all[self.spans.span_of[token]].rotary_begin + self.position(token)
    }

    /// First position of its sequence that a token sees.
    fn first_seen(&self, token: usize) -> usize {
        self.attention.window.map_or(0, |window| (self.position(token) + 1).saturating_sub(window))
    }

    /// A piece of the pages of a head.
    fn pieces(&self, head: usize, piece: Piece) -> Pieces {
        let first = self.cache.at(self.shape.offset(self.attention.layer, head, piece));
        Pieces { first, len: self.shape.piece_len(piece) }
    }
}

/// One piece of every page of the pool.
#[derive(Clone, Copy)]
struct Pieces {
    first: *mut f32,
    len: usize,
}

impl Pieces {
    fn of(self, page: u32) -> *mut f32 {
        self.first.wrapping_add(page as usize * self.len)
    }
}
