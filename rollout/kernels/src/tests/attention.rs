//! Attention over pages that sequences share, in every format that keys and values may have.

use proptest::prelude::*;
use shared::generation::rng::Stream;

use super::{
    super::{
        attention::{Attention, Gate, RotaryTables},
        element::KvFormat,
        linear::Norm,
        pages::{FreePages, PageShape, Pages},
        parallel::Machine,
        simd::Isa,
        spans::Spans,
        thread_pool::ThreadPool,
    },
    EPSILON, assert_close, normal, normed, rounded, threads,
};

/// Sizes of a model's attention.
#[derive(Debug, Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

const POSITIONS: usize = 80;
/// Rows of tables before those of a sequence that does not begin with the first.
const BEGIN: usize = 7;

/// A sequence with all that was ever put into it.
struct Sequence {
    prefix: usize,
    own: Vec<u32>,
    own_len: usize,
    /// `[position][(heads + 2 kv_heads) * head_dim]`, prefix included.
    qkv: Vec<Vec<f32>>,
}

struct Model {
    sizes: Heads,
    format: KvFormat,
    cos: Vec<f32>,
    sin: Vec<f32>,
    norms: Option<[Vec<f32>; 2]>,
    /// Factors of the norm of values.
    value_norm: Option<Vec<f32>>,
    /// Entries of a head that are turned.
    entries: usize,
    /// Row of the tables with the first position.
    begin: usize,
    /// Factors on the queries of each position.
    growth: Option<Vec<f32>>,
    rotates: bool,
    window: Option<usize>,
    gate: Option<Gate>,
}

/// Another factor than the root of the head's width.
const SCALE: f32 = 0.3;

impl Model {
    fn random(stream: &mut Stream, sizes: Heads, norms: bool, format: KvFormat) -> Self {
        let angles = normal(stream, (POSITIONS + BEGIN) * sizes.head_dim / 2);
        Self {
            entries: sizes.head_dim,
            begin: 0,
            growth: None,
            sizes,
            format,
            cos: angles.iter().map(|a| a.cos()).collect(),
            sin: angles.iter().map(|a| a.sin()).collect(),
            norms: norms.then(|| [normal(stream, sizes.head_dim), normal(stream, sizes.head_dim)]),
            value_norm: None,
            rotates: true,
            window: None,
            gate: None,
        }
    }

    /// Row of a query head among those of a token.
    fn query_row(&self, head: usize) -> usize {
        head * if self.gate == Some(Gate::Entries) { 2 } else { 1 }
    }

    /// Numbers of all rows of a token.
    fn rows(&self) -> usize {
        (self.query_row(self.sizes.heads) + 2 * self.sizes.kv_heads) * self.sizes.head_dim
    }

    fn row(&self) -> usize {
        self.rows() + if self.gate == Some(Gate::Heads) { self.sizes.heads } else { 0 }
    }

    /// What the result of a query head is multiplied with.
    fn opened(&self, qkv: &[f32], head: usize, d: usize) -> f64 {
        let at = match self.gate {
            None => return 1.0,
            Some(Gate::Entries) => (self.query_row(head) + 1) * self.sizes.head_dim + d,
            Some(Gate::Heads) => self.rows() + head,
        };
        (1.0 + f64::from(-qkv[at]).exp()).recip()
    }

    fn run(&self, qkv: &[f32], spans: &Spans, pages: &mut Pages, isa: Isa, threads: &ThreadPool) -> Vec<f32> {
        let out = self.attend(qkv, false, spans, pages, isa, threads);
        // A layer that reads these keys and values sees what the one sees that has stored them.
        let queries = qkv.chunks(self.row()).flat_map(|token| {
            [&token[..self.query_row(self.sizes.heads) * self.sizes.head_dim], &token[self.rows()..]].concat()
        });
        let queries: Vec<f32> = queries.collect();
        assert!(self.attend(&queries, true, spans, pages, isa, threads) == out, "a reader sees something else");
        out
    }

    fn attend(
        &self,
        qkv: &[f32],
        is_reader: bool,
        spans: &Spans,
        pages: &mut Pages,
        isa: Isa,
        threads: &ThreadPool,
    ) -> Vec<f32> {
        let norm = |i: usize| self.norms.as_ref().map(|n| Norm { gamma: &n[i], epsilon: EPSILON });
        let attention = Attention {
            heads: self.sizes.heads,
            gate: self.gate,
            rotary: self.rotates.then_some(RotaryTables { cos: &self.cos, sin: &self.sin, entries: self.entries }),
            query_factors: self.growth.as_deref(),
            window: self.window,
            scale: SCALE,
            q_norm: norm(0),
            k_norm: norm(1),
            v_norm: self.value_norm.as_deref().map(|gamma| Norm { gamma, epsilon: EPSILON }),
            is_reader,
            layer: 1,
        };
        let mut out = vec![f32::NAN; spans.tokens() * self.sizes.heads * self.sizes.head_dim];
        attention.run(qkv, spans, pages, &mut out, Machine { isa, threads, scratch: &mut Vec::new() });
        out
    }

    /// In single precision, for the sake of what becomes bytes, as in [`normed`].
    fn rotated(&self, x: &[f32], position: usize, norm: usize) -> Vec<f32> {
        let half = self.entries / 2;
        let x = self.norms.as_ref().map_or_else(|| x.to_vec(), |norms| normed(x, &norms[norm]));
        if !self.rotates {
            return x;
        }
        let table = |t: &[f32], d: usize| t[(self.begin + position) * half + d % half];
        (0..x.len())
            .map(|d| {
                if d >= self.entries {
                    return x[d];
                }
                let other = if d < half { -x[d + half] } else { x[d - half] };
                x[d] * table(&self.cos, d) + other * table(&self.sin, d)
            })
            .collect()
    }

    /// A value, in single precision likewise.
    fn value(&self, x: &[f32]) -> Vec<f32> {
        self.value_norm.as_ref().map_or_else(|| x.to_vec(), |gamma| normed(x, gamma))
    }

    /// A key or a value as the cache stores it.
    fn stored(&self, x: &[f32]) -> Vec<f32> {
        match self.format {
            KvFormat::Fp32 => x.to_vec(),
            KvFormat::Int8 => rounded(x),
            KvFormat::Bf16 => x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect(),
        }
    }

    /// A query as it is multiplied, its factor included. Those of sixteen bits count as they are.
    fn query(&self, x: &[f32], position: usize) -> Vec<f32> {
        let scale = SCALE * self.growth.as_ref().map_or(1.0, |growth| growth[position]);
        let scaled: Vec<f32> = x.iter().map(|x| x * scale).collect();
        if self.format == KvFormat::Bf16 { self.stored(&scaled) } else { scaled }
    }

    /// How far off the kernels may be: with bytes, queries and weights are of sixteen bits, with bf16 they are bf16.
    fn tolerance(&self) -> f64 {
        match self.format {
            KvFormat::Fp32 => 1e-5,
            KvFormat::Int8 => 5e-4,
            KvFormat::Bf16 => 5e-3,
        }
    }

    /// The attention of the last position of `qkv`.
    fn reference(&self, qkv: &[Vec<f32>]) -> Vec<f64> {
        let Heads { heads, kv_heads, head_dim } = self.sizes;
        let last = qkv.len() - 1;
        let first = self.window.map_or(0, |window| qkv.len().saturating_sub(window));
        (0..heads)
            .flat_map(|head| {
                let (row, kv) = (self.query_row(head), self.query_row(heads) + head / (heads / kv_heads));
                let q = self.query(&self.rotated(&qkv[last][row * head_dim..][..head_dim], last, 0), last);
                let scores: Vec<f64> = (first..=last)
                    .map(|p| {
                        let k = self.stored(&self.rotated(&qkv[p][kv * head_dim..][..head_dim], p, 1));
                        q.iter().zip(k).map(|(&q, k)| f64::from(q) * f64::from(k)).sum::<f64>()
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let value = |p: usize| self.value(&qkv[p][(kv + kv_heads) * head_dim..][..head_dim]);
                let values: Vec<Vec<f32>> = (first..=last).map(|p| self.stored(&value(p))).collect();
                let mean =
                    |d: usize| weights.iter().zip(&values).map(|(w, value)| w * f64::from(value[d])).sum::<f64>();
                (0..head_dim).map(|d| mean(d) / sum * self.opened(&qkv[last], head, d)).collect::<Vec<_>>()
            })
            .collect()
    }
}

fn formats() -> impl Strategy<Value = KvFormat> {
    prop_oneof![Just(KvFormat::Fp32), Just(KvFormat::Int8), Just(KvFormat::Bf16)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn attention_over_shared_prompts_is_plain_attention(
        seed in any::<u64>(), kv_heads in 1usize..4, group in 1usize..=8, eighths in 1usize..=16, norms: bool,
        format in formats(), value_norms: bool,
        prompts in prop::collection::vec((1usize..40, 1usize..4, 0usize..3), 1..4),
        steps in 1usize..36,
        burst in 1usize..=3, rotates: bool, window in prop::option::of(1usize..60),
        parts in 1usize..=4, begins: bool, grows: bool,
        gate in prop_oneof![Just(None), Just(Some(Gate::Entries)), Just(Some(Gate::Heads))],
    ) {
        let sizes = Heads { heads: kv_heads * group, kv_heads, head_dim: 8 * eighths };
        let mut stream = Stream::new(&[seed]);
        // The whole head is turned, or its beginning.
        let (entries, begin) = (2 * eighths * parts, if begins { BEGIN } else { 0 });
        let growth = grows.then(|| (0..POSITIONS).map(|position| 1.0 + 0.1 * (position / 16) as f32).collect());
        let random = Model::random(&mut stream, sizes, norms, format);
        let value_norm = value_norms.then(|| normal(&mut stream, sizes.head_dim));
        let model = Model { rotates, window, entries, begin, growth, gate, value_norm, ..random };
        let row = model.row();
        let shape = PageShape { layers: 2, kv_heads, head_dim: sizes.head_dim, pages: 64, format };
        // Places that nobody has written may hold anything, as after a sequence that went wrong.
        let stale = || {
            let mut pages = Pages::new(shape).unwrap();
            pages.data().fill(f32::NAN);
            pages
        };
        let mut pools: Vec<_> = Isa::available().into_iter().map(|isa| (isa, stale())).collect();
        let mut free = FreePages::new(shape.pages);

        let (mut prefixes, mut sequences) = (Vec::new(), Vec::new());
        for &(length, completions, late) in &prompts {
            let qkv: Vec<Vec<f32>> = (0..length).map(|_| normal(&mut stream, row)).collect();
            let mut pages = Vec::new();
            free.extend(&mut pages, PageShape::pages_for(length)).unwrap();
            let mut spans = Spans::default();
            // Prompts may come in two pieces.
            let pieces = if late < length { vec![length - late, late] } else { vec![length] };
            let mut done = 0;
            for piece in pieces.into_iter().filter(|&n| n > 0) {
                spans.clear();
                spans.push(&[], 0, &pages, done, piece);
                spans.rotary_from(begin);
                spans.cut(group);
                let flat = qkv[done..done + piece].concat();
                let mut outs = Vec::new();
                for (isa, pool) in &mut pools {
                    outs.push(model.run(&flat, &spans, pool, *isa, &threads(2)));
                }
                let expected: Vec<f64> = (done..done + piece).flat_map(|p| model.reference(&qkv[..=p])).collect();
                assert_close(&outs[0], &expected, model.tolerance());
                prop_assert!(outs.iter().all(|out| out == &outs[0]), "instruction sets differ");
                done += piece;
            }
            for _ in 0..completions {
                sequences.push(Sequence { prefix: prefixes.len(), own: Vec::new(), own_len: 0, qkv: qkv.clone() });
            }
            prefixes.push((pages, length));
        }
        let width = sizes.heads * sizes.head_dim;
        for step in 0..steps {
            let mut spans = Spans::default();
            let mut flat = Vec::new();
            // Several tokens at once, as when drafts are checked.
            let new = 1 + step % burst;
            if sequences.iter().any(|s| s.qkv.len() + new > POSITIONS) {
                break;
            }
            for s in &mut sequences {
                free.extend(&mut s.own, PageShape::pages_for(s.own_len + new)).unwrap();
                s.qkv.extend((0..new).map(|_| normal(&mut stream, row)));
                flat.extend(s.qkv[s.qkv.len() - new..].concat());
                let (pages, length) = &prefixes[s.prefix];
                spans.push(pages, *length, &s.own, s.own_len, new);
                spans.rotary_from(begin);
                s.own_len += new;
            }
            spans.cut(group);
            let run = |(isa, pool): &mut (Isa, Pages)| model.run(&flat, &spans, pool, *isa, &threads(2));
            let outs: Vec<_> = pools.iter_mut().map(run).collect();
            prop_assert!(outs.iter().all(|out| out == &outs[0]), "instruction sets differ");
            // One sequence alone gives the same bits; it writes what is already there.
            let i = step % sequences.len();
            let s = &sequences[i];
            let mut alone = Spans::default();
            alone.push(&prefixes[s.prefix].0, prefixes[s.prefix].1, &s.own, s.own_len - new, new);
            alone.rotary_from(begin);
            alone.cut(group);
            let (isa, pool) = &mut pools[0];
            let out = model.run(&s.qkv[s.qkv.len() - new..].concat(), &alone, pool, *isa, &threads(1));
            prop_assert!(out == outs[0][i * new * width..(i + 1) * new * width], "sequence {i} alone");
            if step + 1 == steps || step % 17 == 0 {
                let ends = |s: &Sequence| s.qkv.len() - new + 1..=s.qkv.len();
                let expected: Vec<f64> =
                    sequences.iter().flat_map(|s| ends(s).flat_map(|end| model.reference(&s.qkv[..end]))).collect();
                assert_close(&outs[0], &expected, model.tolerance());
            }
        }
    }
}
