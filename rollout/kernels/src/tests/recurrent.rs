//! Layers with a state: sequences in pieces, beside others, against whole sequences in double precision.

use proptest::prelude::*;
use shared::generation::rng::Stream;

use super::{
    super::{
        linear::Norm,
        parallel::Machine,
        recurrent::{Taps, delta_rule::DeltaRule, mamba::Mamba, short_conv::ShortConv},
        simd::Isa,
        spans::Spans,
        states::{LayerState, StateShape, States},
        thread_pool::ThreadPool,
    },
    EPSILON, assert_close, normal, threads,
};

/// A convolution as checkpoints have it.
struct Stored {
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    kernel: usize,
    channels: usize,
}

impl Stored {
    fn random(stream: &mut Stream, kernel: usize, channels: usize, bias: bool) -> Self {
        let bias = bias.then(|| normal(stream, channels));
        Self { taps: normal(stream, channels * kernel), bias, kernel, channels }
    }

    fn packed(&self) -> Taps {
        Taps::of(&self.taps, self.bias.as_deref(), self.kernel)
    }

    /// What is made of a channel's inputs.
    fn reference(&self, channel: usize, inputs: &[f64]) -> Vec<f64> {
        let taps = &self.taps[channel * self.kernel..][..self.kernel];
        let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
        let tap = |t: usize, j: usize| (t + j + 1).checked_sub(self.kernel).map_or(0.0, |at| inputs[at]);
        let at = |t: usize| bias + taps.iter().enumerate().map(|(j, &w)| f64::from(w) * tap(t, j)).sum::<f64>();
        (0..inputs.len()).map(at).collect()
    }
}

/// A layer, and its formula for a whole sequence.
trait Layer {
    /// Inputs of a token.
    fn width(&self) -> usize;
    fn outputs(&self) -> usize;
    fn state(&self) -> LayerState;
    fn run(&self, x: &[f32], spans: &Spans, states: &mut States, out: &mut [f32], machine: Machine<'_>);
    fn reference(&self, x: &[Vec<f32>]) -> Vec<f64>;
}

struct Gated(Stored);

impl Layer for Gated {
    fn width(&self) -> usize {
        3 * self.0.channels
    }

    fn outputs(&self) -> usize {
        self.0.channels
    }

    fn state(&self) -> LayerState {
        LayerState { kept: self.0.kernel - 1, channels: self.0.channels, heads: 0, key_dim: 0, value_dim: 0 }
    }

    fn run(&self, x: &[f32], spans: &Spans, states: &mut States, out: &mut [f32], machine: Machine<'_>) {
        let taps = self.0.packed();
        ShortConv { convolution: taps.convolution(), layer: 1 }.run(x, spans, states, out, machine);
    }

    fn reference(&self, x: &[Vec<f32>]) -> Vec<f64> {
        let channels = self.0.channels;
        let at = |t: usize, part: usize, channel: usize| f64::from(x[t][part * channels + channel]);
        let mixed: Vec<Vec<f64>> = (0..channels)
            .map(|c| self.0.reference(c, &(0..x.len()).map(|t| at(t, 0, c) * at(t, 2, c)).collect::<Vec<_>>()))
            .collect();
        (0..x.len()).flat_map(|t| (0..channels).map(|c| at(t, 1, c) * mixed[c][t]).collect::<Vec<_>>()).collect()
    }
}

struct Rule {
    taps: Stored,
    heads: [usize; 2],
    dims: [usize; 2],
    rates: Vec<f32>,
    dt_bias: Vec<f32>,
    gamma: Vec<f32>,
}

impl Rule {
    fn values(&self) -> usize {
        self.heads[1] * self.dims[1]
    }
}

impl Layer for Rule {
    fn width(&self) -> usize {
        self.taps.channels + self.values() + 2 * self.heads[1]
    }

    fn outputs(&self) -> usize {
        self.values()
    }

    fn state(&self) -> LayerState {
        let ([_, heads], [key_dim, value_dim]) = (self.heads, self.dims);
        LayerState { kept: self.taps.kernel - 1, channels: self.taps.channels, heads, key_dim, value_dim }
    }

    fn run(&self, x: &[f32], spans: &Spans, states: &mut States, out: &mut [f32], machine: Machine<'_>) {
        let taps = self.taps.packed();
        let rule = DeltaRule {
            convolution: taps.convolution(),
            key_heads: self.heads[0],
            value_heads: self.heads[1],
            key_dim: self.dims[0],
            value_dim: self.dims[1],
            rates: &self.rates,
            dt_bias: &self.dt_bias,
            norm: Norm { gamma: &self.gamma, epsilon: EPSILON },
            layer: 1,
        };
        assert_eq!(rule.width(), self.width());
        rule.run(x, spans, states, out, machine);
    }

    fn reference(&self, x: &[Vec<f32>]) -> Vec<f64> {
        let ([key_heads, value_heads], [keys, values]) = (self.heads, self.dims);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let input = |t: usize, at: usize| f64::from(x[t][at]);
        let channel = |c: usize| {
            let inputs: Vec<f64> = (0..x.len()).map(|t| input(t, c)).collect();
            self.taps.reference(c, &inputs).into_iter().map(silu).collect::<Vec<f64>>()
        };
        let qkv: Vec<Vec<f64>> = (0..self.taps.channels).map(channel).collect();
        let mut out = vec![vec![0.0; self.values()]; x.len()];
        for head in 0..value_heads {
            let key_head = head * key_heads / value_heads;
            let mut matrix = vec![vec![0.0; values]; keys];
            for (t, out) in out.iter_mut().enumerate() {
                let [q, k] = [0, 1].map(|part| {
                    let first = (part * key_heads + key_head) * keys;
                    let x: Vec<f64> = (0..keys).map(|i| qkv[first + i][t]).collect();
                    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.into_iter().map(|x| x / norm).collect::<Vec<f64>>()
                });
                let first = 2 * key_heads * keys + head * values;
                let of_b = self.taps.channels + self.values() + head;
                let beta = (1.0 + (-input(t, of_b)).exp()).recip();
                let time = (input(t, of_b + value_heads) + f64::from(self.dt_bias[head])).exp().ln_1p();
                let decay = (-f64::from(self.rates[head]) * time).exp();
                matrix.iter_mut().flatten().for_each(|x| *x *= decay);
                let mut result = vec![0.0; values];
                for (j, result) in result.iter_mut().enumerate() {
                    let found: f64 = matrix.iter().zip(&k).map(|(row, k)| row[j] * k).sum();
                    let change = beta * (qkv[first + j][t] - found);
                    matrix.iter_mut().zip(&k).for_each(|(row, k)| row[j] += k * change);
                    let sum: f64 = matrix.iter().zip(&q).map(|(row, q)| row[j] * q).sum();
                    *result = sum / (keys as f64).sqrt();
                }
                let mean = result.iter().map(|x| x * x).sum::<f64>() / values as f64;
                let inverse = (mean + f64::from(EPSILON)).sqrt().recip();
                for (j, result) in result.iter().enumerate() {
                    let gate = silu(input(t, self.taps.channels + head * values + j));
                    out[head * values + j] = result * inverse * f64::from(self.gamma[j]) * gate;
                }
            }
        }
        out.concat()
    }
}

struct StateSpace {
    taps: Stored,
    /// Groups, and heads.
    heads: [usize; 2],
    /// Widths of a state and of a head.
    dims: [usize; 2],
    rates: Vec<f32>,
    dt_bias: Vec<f32>,
    skips: Vec<f32>,
    gamma: Vec<f32>,
}

impl Layer for StateSpace {
    fn width(&self) -> usize {
        self.outputs() + self.taps.channels + self.heads[1]
    }

    fn outputs(&self) -> usize {
        self.heads[1] * self.dims[1]
    }

    fn state(&self) -> LayerState {
        let ([_, heads], [key_dim, value_dim]) = (self.heads, self.dims);
        LayerState { kept: self.taps.kernel - 1, channels: self.taps.channels, heads, key_dim, value_dim }
    }

    fn run(&self, x: &[f32], spans: &Spans, states: &mut States, out: &mut [f32], machine: Machine<'_>) {
        let taps = self.taps.packed();
        let mamba = Mamba {
            convolution: taps.convolution(),
            heads: self.heads[1],
            head_dim: self.dims[1],
            groups: self.heads[0],
            state_dim: self.dims[0],
            rates: &self.rates,
            dt_bias: &self.dt_bias,
            skips: &self.skips,
            norm: Norm { gamma: &self.gamma, epsilon: EPSILON },
            layer: 1,
        };
        assert_eq!(mamba.width(), self.width());
        mamba.run(x, spans, states, out, machine);
    }

    fn reference(&self, x: &[Vec<f32>]) -> Vec<f64> {
        let ([groups, heads], [states, width]) = (self.heads, self.dims);
        let inner = heads * width;
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let input = |t: usize, at: usize| f64::from(x[t][at]);
        let channel = |c: usize| {
            let inputs: Vec<f64> = (0..x.len()).map(|t| input(t, inner + c)).collect();
            self.taps.reference(c, &inputs).into_iter().map(silu).collect::<Vec<f64>>()
        };
        let xbc: Vec<Vec<f64>> = (0..self.taps.channels).map(channel).collect();
        let mut out = vec![vec![0.0; inner]; x.len()];
        for head in 0..heads {
            let of_group = inner + head * groups / heads * states;
            let mut matrix = vec![vec![0.0; width]; states];
            for (t, out) in out.iter_mut().enumerate() {
                let dt = input(t, inner + self.taps.channels + head) + f64::from(self.dt_bias[head]);
                let time = dt.exp().ln_1p();
                let decay = (-f64::from(self.rates[head]) * time).exp();
                for (i, row) in matrix.iter_mut().enumerate() {
                    let write = xbc[of_group + i][t];
                    for (j, s) in row.iter_mut().enumerate() {
                        *s = decay * *s + write * time * xbc[head * width + j][t];
                    }
                }
                for j in 0..width {
                    let of_read = of_group + groups * states;
                    let found: f64 = matrix.iter().enumerate().map(|(i, row)| xbc[of_read + i][t] * row[j]).sum();
                    let at = head * width + j;
                    out[at] = (found + f64::from(self.skips[head]) * xbc[at][t]) * silu(input(t, at));
                }
            }
        }
        for group in out.iter_mut().flat_map(|row| row.chunks_exact_mut(inner / groups)) {
            let mean = group.iter().map(|x| x * x).sum::<f64>() / group.len() as f64;
            let inverse = (mean + f64::from(EPSILON)).sqrt().recip();
            group.iter_mut().for_each(|x| *x *= inverse);
        }
        for row in &mut out {
            row.iter_mut().zip(&self.gamma).for_each(|(x, gamma)| *x *= f64::from(*gamma));
        }
        out.concat()
    }
}

/// Sequences that share calls as `lengths` says: for each sequence the tokens of each call, of which there may be none.
fn check(layer: &dyn Layer, stream: &mut Stream, lengths: &[Vec<usize>], tolerance: f64) {
    let (width, outputs) = (layer.width(), layer.outputs());
    let blocks = lengths.len() + 1;
    let run = |isa, x: &[f32], spans: &Spans, states: &mut States, threads: &ThreadPool| {
        let mut out = vec![f32::NAN; spans.tokens() * outputs];
        layer.run(x, spans, states, &mut out, Machine { isa, threads, scratch: &mut Vec::new() });
        out
    };
    // Blocks that nobody has written may hold anything, as after a sequence that went wrong.
    let stale = || {
        let other = LayerState { kept: 1, channels: 3, heads: 0, key_dim: 0, value_dim: 0 };
        let mut states = States::new(StateShape { layers: vec![other, layer.state(), other], blocks }).unwrap();
        states.data().fill(f32::NAN);
        states
    };
    let inputs: Vec<Vec<Vec<f32>>> =
        lengths.iter().map(|calls| (0..calls.iter().sum()).map(|_| normal(stream, width)).collect()).collect();
    let mut pools: Vec<_> = Isa::available().into_iter().map(|isa| (isa, stale())).collect();
    let mut got = vec![Vec::new(); lengths.len()];
    for call in 0..lengths.iter().map(Vec::len).max().unwrap_or(0) {
        let (mut spans, mut x, mut order) = (Spans::default(), Vec::new(), Vec::new());
        for (sequence, calls) in lengths.iter().enumerate() {
            let (before, tokens) = (calls[..call].iter().sum::<usize>(), calls[call]);
            if tokens > 0 {
                spans.push(&[], 0, &[], before, tokens);
                // Not in the order of the sequences, and the last block is nobody's.
                spans.state_in((lengths.len() - 1 - sequence) as u32);
                x.extend(inputs[sequence][before..before + tokens].concat());
                order.push((sequence, tokens));
            }
        }
        let outs: Vec<_> = pools.iter_mut().map(|(isa, states)| run(*isa, &x, &spans, states, &threads(2))).collect();
        assert!(outs.iter().all(|out| out == &outs[0]), "instruction sets differ");
        let mut rest = outs[0].as_slice();
        for (sequence, tokens) in order {
            let (own, others) = rest.split_at(tokens * outputs);
            got[sequence].extend_from_slice(own);
            rest = others;
        }
    }
    for (_, states) in &mut pools {
        let words = states.shape().words();
        assert!(states.data()[(blocks - 1) * words..].iter().all(|x| x.is_nan()), "a block of nobody was written");
    }
    for (sequence, x) in inputs.iter().enumerate().filter(|(_, x)| !x.is_empty()) {
        assert_close(&got[sequence], &layer.reference(x), tolerance);
        let mut spans = Spans::default();
        spans.push(&[], 0, &[], 0, x.len());
        spans.state_in(0);
        let whole = run(Isa::detect(), &x.concat(), &spans, &mut stale(), &threads(1));
        assert!(whole == got[sequence], "sequence {sequence} alone and whole");
    }
}

/// Calls of a few sequences: prompts in pieces, single tokens, and none.
fn calls() -> impl Strategy<Value = Vec<Vec<usize>>> {
    let tokens = prop_oneof![3 => Just(1), 1 => Just(0), 2 => 0usize..40];
    (1usize..5, 1usize..6).prop_flat_map(move |(sequences, calls)| {
        prop::collection::vec(prop::collection::vec(tokens.clone(), calls), sequences)
    })
}

/// Widths of heads. Where heads have whole blocks of sixteen channels, each key head is a task of its own.
fn width() -> impl Strategy<Value = usize> {
    prop_oneof![Just(8), Just(16), Just(32), 1usize..40]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_short_convolution_is_its_formula_however_its_tokens_come(
        seed in any::<u64>(), kernel in 2usize..=8, channels in 1usize..300, bias: bool, calls in calls(),
    ) {
        let mut stream = Stream::new(&[seed]);
        let layer = Gated(Stored::random(&mut stream, kernel, channels, bias));
        check(&layer, &mut stream, &calls, 1e-6);
    }

    #[test]
    fn the_delta_rule_is_its_formula_however_its_tokens_come(
        seed in any::<u64>(), kernel in 2usize..=8, key_heads in 1usize..4, group in 1usize..4, keys in width(),
        values in width(), calls in calls(),
    ) {
        let mut stream = Stream::new(&[seed]);
        let value_heads = key_heads * group;
        let taps = Stored::random(&mut stream, kernel, 2 * key_heads * keys + value_heads * values, false);
        let layer = Rule {
            taps,
            heads: [key_heads, value_heads],
            dims: [keys, values],
            rates: normal(&mut stream, value_heads).iter().map(|x| x.exp()).collect(),
            dt_bias: normal(&mut stream, value_heads),
            gamma: normal(&mut stream, values),
        };
        check(&layer, &mut stream, &calls, 3e-5);
    }

    #[test]
    fn the_state_space_is_its_formula_however_its_tokens_come(
        seed in any::<u64>(), kernel in 2usize..=5, groups in 1usize..3, shared in 1usize..4, states in 1usize..40,
        width in 1usize..40, bias: bool, calls in calls(),
    ) {
        let mut stream = Stream::new(&[seed]);
        let heads = groups * shared;
        let inner = heads * width;
        let layer = StateSpace {
            taps: Stored::random(&mut stream, kernel, inner + 2 * groups * states, bias),
            heads: [groups, heads],
            dims: [states, width],
            rates: normal(&mut stream, heads).iter().map(|x| x.exp()).collect(),
            dt_bias: normal(&mut stream, heads),
            skips: normal(&mut stream, heads),
            gamma: normal(&mut stream, inner),
        };
        check(&layer, &mut stream, &calls, 3e-5);
    }
}
