//! The gated delta rule (Qwen3.5, after Yang et al. 2024, "Gated Delta Networks").
//!
//! Each value head has a matrix `S` (`[key_dim, value_dim]`) and takes a token at a time:
//! `S ← e^g S; S ← S + β k (v - Sᵀk)ᵀ; o = Sᵀq`. Sixteen columns of `S` never meet the others. They stay in the first
//! cache while they take some tokens, so in a decode step a state is read from memory once and written once.
//!
//! A task is a key head with its value heads, from the convolution of their channels to their results. So one thread
//! may convolve while another moves its matrices through memory. Where the channels of a head are not whole blocks of
//! sixteen, all heads of a sequence are one task.

use std::{cell::RefCell, ops::Range};

use super::{
    super::{
        linear::{Norm, inverse_rms},
        parallel::{Claims, Machine, Shared},
        simd::{LANES, Simd, Task, load_up_to, sigmoid, silu, store_up_to},
        spans::{Span, Spans},
        states::{LayerState, States},
    },
    Convolution, LayerStates,
    convolution::{Channels, convolve, part},
    matrix::{CHAINS, steps_and_decays, take_in},
};

/// How many blocks of sixteen columns ahead of the current one are requested from memory. One block takes in a token in
/// less time than memory needs to answer.
const AHEAD: usize = 2;

/// Added to the sum of squares of a query or a key.
const EPSILON: f32 = 1e-6;

/// The part of a layer that does not change from call to call.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRule<'a> {
    /// The convolution over queries, keys and values.
    pub convolution: Convolution<'a>,
    /// Heads of queries and keys; divides the value heads.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// `e^A_log` of each value head.
    pub rates: &'a [f32],
    /// What is added to the `a` of each value head.
    pub dt_bias: &'a [f32],
    /// Norm of the results of a head, before the gate.
    pub norm: Norm<'a>,
    /// Layer of the states.
    pub layer: usize,
}

impl DeltaRule<'_> {
    /// Queries, keys and values of a token.
    fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.values()
    }

    /// Values of a token.
    fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Inputs of a token: queries, keys and values, the gate `z`, and `b` and `a` of each value head.
    #[must_use]
    pub fn width(&self) -> usize {
        self.channels() + self.values() + 2 * self.value_heads
    }

    /// Computes `out` (`[tokens, value_heads * value_dim]`) of `x` (`[tokens, width]`), and moves the states on.
    ///
    /// # Panics
    /// When sizes do not fit each other, or a sequence has no state.
    pub fn run(&self, x: &[f32], spans: &Spans, states: &mut States, out: &mut [f32], machine: Machine<'_>) {
        let tokens = spans.tokens();
        assert_eq!(x.len(), tokens * self.width(), "the inputs");
        assert_eq!(out.len(), tokens * self.values(), "the output");
        self.check(states.shape().layers[self.layer]);
        spans.check_states(states.shape().blocks);
        let Machine { isa, threads, scratch } = machine;
        let states = LayerStates::of(states, self.layer);
        let channels = Channels::new(x, [self.width(), 0], self.convolution, scratch);
        let call = Call { layer: self, channels, out: Shared::new(out) };
        let heads = self.key_heads_of_a_task();
        let tasks = self.key_heads / heads;
        let claims = Claims::new(spans.all.len() * tasks);
        threads.run(&|| {
            claims.run_all(|task| {
                let (span, first) = (&spans.all[task / tasks], task % tasks * heads);
                isa.run(Heads { call: &call, span, states, key_heads: first..first + heads });
            });
        });
    }

    /// One where the channels of each head are whole blocks of sixteen; otherwise two heads may share a block.
    fn key_heads_of_a_task(&self) -> usize {
        let values = self.value_dim * self.value_heads_of_a_key_head();
        let are_whole = self.key_dim.is_multiple_of(LANES) && values.is_multiple_of(LANES);
        if are_whole { 1 } else { self.key_heads }
    }

    fn value_heads_of_a_key_head(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Channels of the queries, keys and values of a task's heads.
    fn channels_of(&self, key_heads: &Range<usize>) -> [Range<usize>; 3] {
        if key_heads.len() == self.key_heads {
            return [0..self.channels(), 0..0, 0..0];
        }
        let values = self.value_dim * self.value_heads_of_a_key_head();
        let of = |first: usize, width: usize| first + key_heads.start * width..first + key_heads.end * width;
        let keys = self.key_heads * self.key_dim;
        [of(0, self.key_dim), of(keys, self.key_dim), of(2 * keys, values)]
    }

    fn check(&self, state: LayerState) {
        assert!(self.key_heads > 0 && self.value_heads.is_multiple_of(self.key_heads), "heads of keys and of values");
        assert_eq!(self.convolution.channels, self.channels(), "the channels of the convolution");
        assert_eq!([self.rates.len(), self.dt_bias.len()], [self.value_heads; 2], "one number for each value head");
        assert_eq!(self.norm.gamma.len(), self.value_dim, "the norm of a head");
        let matrix = (self.value_heads, self.key_dim, self.value_dim);
        assert_eq!((state.heads, state.key_dim, state.value_dim), matrix, "the matrices of the state");
        self.convolution.check(state);
    }
}

struct Call<'a> {
    layer: &'a DeltaRule<'a>,
    /// Queries, keys and values, which come first among the inputs.
    channels: Channels<'a>,
    out: Shared<f32>,
}

thread_local! {
    /// Queries, keys and results of the tokens at hand.
    static MEMORY: RefCell<Vec<f32>> = RefCell::default();
}

/// Some key heads of a sequence with their value heads.
struct Heads<'a> {
    call: &'a Call<'a>,
    span: &'a Span,
    states: LayerStates,
    key_heads: Range<usize>,
}

impl Task for Heads<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { call, span, states, key_heads } = self;
        let (layer, of_one) = (call.layer, call.layer.value_heads_of_a_key_head());
        let value_heads = key_heads.start * of_one..key_heads.end * of_one;
        // SAFETY: sizes are checked, and each task has channels and matrices of its own (`Spans::cut`); the caller
        // vouches for the instruction set.
        unsafe {
            let channels = layer.channels_of(&key_heads);
            let blocks: usize = channels.iter().map(|range| range.len().div_ceil(LANES)).sum();
            // Each block of channels requests some lines of the first matrix, so that its first columns arrive during
            // the convolution.
            let mut ahead = states.matrix_at(span, value_heads.start).cast_const();
            let lines = (AHEAD * layer.key_dim).div_ceil(blocks);
            for channel in channels.into_iter().flat_map(|range| range.step_by(LANES)) {
                for _ in 0..lines {
                    S::prefetch(ahead);
                    ahead = ahead.wrapping_add(LANES);
                }
                convolve::<S, _>(&layer.convolution, &call.channels, span, &states, channel);
            }
            for head in value_heads.clone() {
                Mix { call, span, states, head, is_last: head + 1 == value_heads.end }.run::<S>();
            }
        }
    }
}

/// One value head of a sequence.
struct Mix<'a> {
    call: &'a Call<'a>,
    span: &'a Span,
    states: LayerStates,
    head: usize,
    /// Whether the matrices behind this head's are another task's. A line that one thread requests while the other
    /// writes it would have to be fetched again.
    is_last: bool,
}

/// Decay and step of some tokens.
struct Steps {
    decay: [f32; LANES],
    beta: [f32; LANES],
}

impl Mix<'_> {
    /// # Safety
    /// The instruction set of `S` must be available, the head's channels be convolved, and nobody else touch its
    /// matrix.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let layer = self.call.layer;
        let (keys, padded) = (layer.key_dim, layer.value_dim.next_multiple_of(LANES));
        // SAFETY: the matrix is this task's alone.
        let matrix = unsafe { self.states.matrix(self.span, self.head) };
        // Taken out instead of borrowed in a closure, which would not be compiled for the instruction set.
        let mut memory = MEMORY.take();
        let needed = LANES * (2 * keys + padded);
        if memory.len() < needed {
            memory.resize(needed, 0.0);
        }
        let (queries, rest) = memory.split_at_mut(LANES * keys);
        let (of_keys, results) = rest.split_at_mut(LANES * keys);
        for first in self.span.tokens.clone().step_by(LANES) {
            let count = LANES.min(self.span.tokens.end - first);
            // SAFETY: the caller vouches for the instruction set; the buffers have places for so many tokens.
            unsafe {
                let steps = self.steps::<S>(first, count);
                for token in 0..count {
                    self.normed::<S>(first + token, 0, layer.key_dim, &mut queries[token * keys..][..keys]);
                    self.normed::<S>(first + token, 1, 1, &mut of_keys[token * keys..][..keys]);
                }
                for column in (0..padded).step_by(LANES) {
                    let columns = matrix.add(column * keys);
                    let behind = (padded - column) / LANES - 1;
                    let ahead = if self.is_last { AHEAD.min(behind) } else { AHEAD };
                    for token in 0..count {
                        let values = self.values::<S>(first + token, column);
                        let (q, k) = (&queries[token * keys..][..keys], &of_keys[token * keys..][..keys]);
                        let out =
                            take_token::<S>(columns, [q, k], values, [steps.decay[token], steps.beta[token]], ahead);
                        S::store(results[token * padded + column..].as_mut_ptr(), out);
                    }
                }
                for token in 0..count {
                    self.gate::<S>(first + token, &results[token * padded..][..layer.value_dim]);
                }
            }
        }
        MEMORY.set(memory);
    }

    /// `e^g` and `β` of `count` tokens from `first` on.
    #[inline(always)]
    unsafe fn steps<S: Simd>(&self, first: usize, count: usize) -> Steps {
        let layer = self.call.layer;
        let of_b = layer.channels() + layer.values() + self.head;
        let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
        for token in 0..count {
            let row = self.call.channels.row(first + token);
            (b[token], a[token]) = (row[of_b], row[of_b + layer.value_heads]);
        }
        let mut beta = [0.0; LANES];
        // SAFETY: arrays are blocks; the caller vouches for the instruction set.
        unsafe {
            S::store(beta.as_mut_ptr(), sigmoid::<S>(S::load(b.as_ptr())));
            let [_, decay] = steps_and_decays::<S>(&a, layer.dt_bias[self.head], layer.rates[self.head]);
            Steps { decay, beta }
        }
    }

    /// A token's query (part 0) or key (part 1) of this head's key head, of length `width^-½`.
    #[inline(always)]
    unsafe fn normed<S: Simd>(&self, token: usize, part: usize, width: usize, to: &mut [f32]) {
        let layer = self.call.layer;
        let head = part * layer.key_heads + self.head * layer.key_heads / layer.value_heads;
        let from = self.call.channels.results(token).wrapping_add(head * layer.key_dim);
        // SAFETY: the head lies within the token's queries and keys, which nobody writes any more; the caller vouches
        // for the instruction set.
        unsafe {
            let x = std::slice::from_raw_parts(from, layer.key_dim);
            let mut squares = S::splat(0.0);
            for (block, x) in x.chunks(LANES).enumerate() {
                let v = load_up_to::<S>(from.add(block * LANES), x.len());
                squares = S::fma(v, v, squares);
            }
            let factor = 1.0 / ((S::sum(squares) + EPSILON).sqrt() * (width as f32).sqrt());
            for (to, x) in to.iter_mut().zip(x) {
                *to = x * factor;
            }
        }
    }

    /// Sixteen of a token's values of this head, zeros behind the last.
    #[inline(always)]
    unsafe fn values<S: Simd>(&self, token: usize, column: usize) -> S::V {
        let layer = self.call.layer;
        let first = 2 * layer.key_heads * layer.key_dim + self.head * layer.value_dim + column;
        let from = self.call.channels.results(token).wrapping_add(first);
        // SAFETY: as for `normed`.
        unsafe { load_up_to::<S>(from, LANES.min(layer.value_dim - column)) }
    }

    /// Norm and gate of a token's results.
    #[inline(always)]
    unsafe fn gate<S: Simd>(&self, token: usize, results: &[f32]) {
        let layer = self.call.layer;
        let gates = &self.call.channels.row(token)[layer.channels() + self.head * layer.value_dim..][..layer.value_dim];
        let to = self.call.out.at(token * layer.values() + self.head * layer.value_dim);
        // SAFETY: the head of a token is written by this task alone; the caller vouches for the instruction set.
        unsafe {
            let inverse = S::splat(inverse_rms::<S>(results, layer.norm.epsilon));
            for first in (0..layer.value_dim).step_by(LANES) {
                let count = LANES.min(layer.value_dim - first);
                let x = S::mul(part::<S>(results.as_ptr(), first, count), inverse);
                let x = S::mul(x, part::<S>(layer.norm.gamma.as_ptr(), first, count));
                let gate = silu::<S>(part::<S>(gates.as_ptr(), first, count));
                store_up_to::<S>(to.add(first), count, S::mul(x, gate));
            }
        }
    }
}

/// Sixteen columns of a matrix take a token; returns what its query finds there. The columns that come `ahead` blocks
/// later are requested from memory.
///
/// # Safety
/// The instruction set of `S` must be available, and the columns have as many rows as query and key.
#[inline(always)]
unsafe fn take_token<S: Simd>(
    columns: *mut f32,
    [query, key]: [&[f32]; 2],
    values: S::V,
    [decay, beta]: [f32; 2],
    ahead: usize,
) -> S::V {
    let rows = key.len();
    let whole = rows / CHAINS * CHAINS;
    // SAFETY: rows are within the columns; the caller vouches for the instruction set.
    unsafe {
        let zero = S::splat(0.0);
        let mut sums = [zero; CHAINS];
        for row in (0..whole).step_by(CHAINS) {
            for (chain, sum) in sums.iter_mut().enumerate() {
                let row = row + chain;
                *sum = S::fma(S::splat(*key.get_unchecked(row)), S::load(columns.add(row * LANES)), *sum);
            }
        }
        for (row, &x) in (whole..).zip(&key[whole..]) {
            sums[0] = S::fma(S::splat(x), S::load(columns.add(row * LANES)), sums[0]);
        }
        let found = S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]));
        let change = S::mul(S::fma(S::splat(-decay), found, values), S::splat(beta));
        take_in::<S>(columns, [query, key], decay, change, ahead)
    }
}
