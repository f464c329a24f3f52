//! The kernels against plain loops in double precision, over shapes that fit nothing.

use std::time::Duration;

use proptest::prelude::*;
use shared::rng::Stream;

use super::{
    attention::Attention,
    element::{Format, KvFormat},
    linear::{Activation, Input, Linear, Norm, rms_norm},
    packed::{Columns, PackedShape, Source},
    pages::{FreePages, PageShape, Pages},
    parallel::Machine,
    residual::add_normed,
    simd::{Isa, LANES, Simd, Task},
    spans::Spans,
    tile::STRETCH,
    workers::Workers,
};

fn threads(count: usize) -> Workers {
    Workers::new(count, Duration::ZERO).unwrap()
}

fn normal(stream: &mut Stream, n: usize) -> Vec<f32> {
    let mut uniform = || stream.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
    (0..n).map(|_| uniform() + uniform()).collect()
}

fn assert_close(got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1e-3_f64, |m, x| m.max(x.abs()));
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(g) - e).abs() <= tolerance * scale, "entry {i}: {g} against {e} (scale {scale})");
    }
}

/// A row after its norm, with the bits that the kernels have: what lies between two bytes, or two halves, is rounded to the same
/// one.
fn normed(x: &[f32], gamma: &[f32]) -> Vec<f32> {
    struct Normed<'a>(&'a [f32], &'a [f32]);
    impl Task for Normed<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> Vec<f32> {
            let mut out = vec![f32::NAN; self.0.len()];
            // SAFETY: the instruction set is the caller's.
            unsafe { rms_norm::<S>(self.0, Norm { gamma: self.1, epsilon: EPSILON }, &mut out) };
            out
        }
    }
    let out = Isa::detect().run(Normed(x, gamma));
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    let expected: Vec<f64> = x.iter().zip(gamma).map(|(&x, &g)| f64::from(x) * inverse * f64::from(g)).collect();
    assert_close(&out, &expected, 1e-6);
    out
}

#[test]
fn exponentials_are_accurate_and_the_same_everywhere() {
    struct Exp<'a>(&'a [f32; LANES]);
    impl Task for Exp<'_> {
        type Output = [f32; LANES];
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            // SAFETY: both arrays are blocks.
            unsafe { S::store(out.as_mut_ptr(), super::simd::exp::<S>(S::load(self.0.as_ptr()))) };
            out
        }
    }
    for i in -8700..=8800 {
        let x: [f32; LANES] = std::array::from_fn(|lane| (i as f32 + lane as f32 / 16.0) / 100.0);
        let got: Vec<_> = Isa::available().into_iter().map(|isa| isa.run(Exp(&x))).collect();
        for (lane, &y) in got[0].iter().enumerate() {
            let expected = f64::from(x[lane].clamp(-87.0, 88.0)).exp();
            assert!((f64::from(y) / expected - 1.0).abs() < 2.5e-7, "e^{} = {y}", x[lane]);
        }
        assert!(got.windows(2).all(|pair| pair[0] == pair[1]), "{got:?}");
    }
    for isa in Isa::available() {
        assert!(isa.run(Exp(&[f32::NAN; LANES])).iter().all(|x| x.is_nan()), "{isa:?}");
    }
}

/// A linear layer with all it may have.
struct Layer {
    shape: PackedShape,
    weights: Vec<Vec<f32>>,
    biases: Option<Vec<Vec<f32>>>,
    gamma: Option<Vec<f32>>,
    activation: Activation,
}

const EPSILON: f32 = 1e-5;

impl Layer {
    fn random(stream: &mut Stream, depth: usize, parts: &[usize], columns: Columns, bias: bool, norm: bool) -> Self {
        let outputs = if columns == Columns::Gated { parts[0] } else { parts.iter().sum() };
        Self {
            shape: PackedShape { depth, outputs, columns, format: Format::Fp32 },
            weights: parts.iter().map(|n| normal(stream, n * depth)).collect(),
            biases: bias.then(|| parts.iter().map(|&n| normal(stream, n)).collect()),
            gamma: norm.then(|| normal(stream, depth)),
            activation: if stream.next_normal() < 0.0 { Activation::Silu } else { Activation::GeluTanh },
        }
    }

    fn run(&self, input: Input<'_>, rows: usize, isa: Isa, threads: &Workers) -> Vec<f32> {
        let weights: Vec<Source<'_>> = self.weights.iter().map(|weight| weight.as_slice().into()).collect();
        let mut panels = vec![f32::NAN; self.shape.words()];
        let quantized = self.shape.pack(&weights, &mut panels, threads);
        let bias = self.biases.as_ref().map(|b| {
            let biases: Vec<&[f32]> = b.iter().map(Vec::as_slice).collect();
            self.shape.pack_bias(&biases)
        });
        let norm = self.gamma.as_ref().map(|gamma| Norm { gamma, epsilon: EPSILON });
        let layer = Linear {
            shape: self.shape,
            panels: &panels,
            quantized: quantized.as_ref(),
            bias: bias.as_deref(),
            norm,
            activation: self.activation,
        };
        let mut out = vec![f32::NAN; rows * self.shape.outputs];
        layer.run(input, &mut out, Machine { isa, threads, scratch: &mut Vec::new() });
        out
    }

    /// Computes all rows under every instruction set, and one of them alone: the bits are the same.
    fn run_everywhere(&self, x: &[f32], rows: usize, row: usize) -> Vec<f32> {
        let input = Input { x, rows: None, residual: None };
        let mut all = Isa::available().into_iter().map(|isa| self.run(input, rows, isa, &threads(2)));
        let first = all.next().expect("plain Rust is always there");
        assert!(all.all(|other| other == first), "instruction sets differ");
        let alone = self.run(Input { rows: Some(&[row]), ..input }, 1, Isa::detect(), &threads(1));
        assert!(alone == first[row * self.shape.outputs..(row + 1) * self.shape.outputs], "row {row} alone");
        first
    }

    /// What the product is made of, by a norm that the layer does not have from now on.
    fn take_norm(&mut self, x: &[f32]) -> Vec<f32> {
        match self.gamma.take() {
            Some(gamma) => x.chunks(self.shape.depth).flat_map(|row| normed(row, &gamma)).collect(),
            None => x.to_vec(),
        }
    }

    fn reference(&self, x: &[f32], residual: Option<&[f32]>) -> Vec<f64> {
        let f = |x: f32| f64::from(x);
        let depth = self.shape.depth;
        let mut out = Vec::new();
        for row in x.chunks(depth) {
            let inverse = 1.0 / (row.iter().map(|&x| f(x) * f(x)).sum::<f64>() / depth as f64 + f(EPSILON)).sqrt();
            let normed: Vec<f64> = match &self.gamma {
                Some(gamma) => row.iter().zip(gamma).map(|(&x, &g)| f(x) * inverse * f(g)).collect(),
                None => row.iter().map(|&x| f(x)).collect(),
            };
            let part = |w: usize| {
                let bias = |o: usize| self.biases.as_ref().map_or(0.0, |b| f(b[w][o]));
                let rows = self.weights[w].chunks(depth).enumerate();
                rows.map(|(o, weight)| bias(o) + weight.iter().zip(&normed).map(|(&w, x)| f(w) * x).sum::<f64>())
                    .collect::<Vec<f64>>()
            };
            match self.shape.columns {
                Columns::Joined => out.extend((0..self.weights.len()).flat_map(part)),
                Columns::Gated => {
                    let gate = |g: f64| match self.activation {
                        Activation::Silu => g / (1.0 + (-g).exp()),
                        Activation::GeluTanh => {
                            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                            g / 2.0 * (1.0 + inner.tanh())
                        }
                    };
                    out.extend(part(0).into_iter().zip(part(1)).map(|(g, u)| gate(g) * u));
                }
            }
        }
        for (out, &r) in out.iter_mut().zip(residual.into_iter().flatten()) {
            *out += f(r);
        }
        out
    }
}

/// Small ones, and some on both sides of the ends of stretches, which hold one, two or four elements in a word.
fn depths() -> impl Strategy<Value = usize> {
    let ends = (prop_oneof![Just(1), Just(2), Just(4)], 0usize..40).prop_map(|(n, past)| n * STRETCH - 5 + past);
    prop_oneof![3 => 1usize..150, 1 => ends]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_linear_layer_is_what_its_formula_says(
        seed in any::<u64>(), rows in 1usize..=130, depth in depths(),
        parts in prop::collection::vec(1usize..90, 1..4), gated: bool, bias: bool, norm: bool, residual: bool,
    ) {
        let mut stream = Stream::new(&[seed]);
        let (parts, columns) = if gated { (vec![parts[0]; 2], Columns::Gated) } else { (parts, Columns::Joined) };
        let layer = Layer::random(&mut stream, depth, &parts, columns, bias, norm);
        let x = normal(&mut stream, rows * depth);
        let residual = residual.then(|| normal(&mut stream, rows * layer.shape.outputs));
        let input = Input { x: &x, rows: None, residual: residual.as_deref() };
        let expected = layer.reference(&x, residual.as_deref());
        let all: Vec<_> = Isa::available().into_iter().map(|isa| layer.run(input, rows, isa, &threads(2))).collect();
        assert_close(&all[0], &expected, 1e-5);
        prop_assert!(all.iter().all(|other| other == &all[0]), "instruction sets differ");

        // One row alone, out of a selection, on one thread.
        let row = seed as usize % rows;
        let residual = residual.as_ref().map(|r| &r[row * layer.shape.outputs..(row + 1) * layer.shape.outputs]);
        let alone = layer.run(Input { x: &x, rows: Some(&[row]), residual }, 1, Isa::detect(), &threads(1));
        prop_assert!(alone == all[0][row * layer.shape.outputs..(row + 1) * layer.shape.outputs], "row {row} alone");
    }
}

/// The weights and inputs that the bytes stand for.
fn rounded(row: &[f32]) -> Vec<f32> {
    let largest = row.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    row.iter().map(|x| (x * (127.0 / largest)).round_ties_even() * (largest / 127.0)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn bytes_are_the_product_of_the_rounded_values(
        seed in any::<u64>(), rows in 1usize..=130, depth in depths(),
        parts in prop::collection::vec(1usize..90, 1..4), gated: bool, bias: bool, norm: bool,
    ) {
        let mut stream = Stream::new(&[seed]);
        let (parts, columns) = if gated { (vec![parts[0]; 2], Columns::Gated) } else { (parts, Columns::Joined) };
        let mut layer = Layer::random(&mut stream, depth, &parts, columns, bias, norm);
        layer.shape.format = Format::Int8;
        let x = normal(&mut stream, rows * depth);
        let out = layer.run_everywhere(&x, rows, seed as usize % rows);

        for weight in &mut layer.weights {
            *weight = weight.chunks(depth).flat_map(rounded).collect();
        }
        let x: Vec<f32> = layer.take_norm(&x).chunks(depth).flat_map(rounded).collect();
        assert_close(&out, &layer.reference(&x, None), 1e-5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn two_halves_are_close_to_the_product_of_the_values(
        seed in any::<u64>(), rows in 1usize..=130, depth in depths(),
        parts in prop::collection::vec(1usize..90, 1..4), gated: bool, bias: bool, norm: bool,
    ) {
        let mut stream = Stream::new(&[seed]);
        let (parts, columns) = if gated { (vec![parts[0]; 2], Columns::Gated) } else { (parts, Columns::Joined) };
        let mut layer = Layer::random(&mut stream, depth, &parts, columns, bias, norm);
        layer.shape.format = Format::Bf16x3;
        let x = normal(&mut stream, rows * depth);
        let out = layer.run_everywhere(&x, rows, seed as usize % rows);
        // One half alone is a hundred times further off.
        assert_close(&out, &layer.reference(&x, None), 1e-4);
    }

    #[test]
    fn halves_are_the_product_of_the_rounded_values(
        seed in any::<u64>(), rows in 1usize..=130, depth in depths(),
        parts in prop::collection::vec(1usize..90, 1..4), gated: bool, bias: bool, norm: bool,
    ) {
        let mut stream = Stream::new(&[seed]);
        let (parts, columns) = if gated { (vec![parts[0]; 2], Columns::Gated) } else { (parts, Columns::Joined) };
        let mut layer = Layer::random(&mut stream, depth, &parts, columns, bias, norm);
        layer.shape.format = Format::Bf16;
        let x = normal(&mut stream, rows * depth);
        let out = layer.run_everywhere(&x, rows, seed as usize % rows);

        let rounded = |x: &f32| half::bf16::from_f32(*x).to_f32();
        for weight in &mut layer.weights {
            *weight = weight.iter().map(rounded).collect();
        }
        let x: Vec<f32> = layer.take_norm(&x).iter().map(rounded).collect();
        assert_close(&out, &layer.reference(&x, None), 1e-5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn rows_that_are_changed_on_the_way_are_packed_as_if_they_had_been_stored_so(
        seed in any::<u64>(), depth in 1usize..80, parts in prop::collection::vec(1usize..90, 1..4), gated: bool,
    ) {
        let mut stream = Stream::new(&[seed]);
        let (parts, columns) = if gated { (vec![parts[0]; 2], Columns::Gated) } else { (parts, Columns::Joined) };
        let layer = Layer::random(&mut stream, depth, &parts, columns, false, false);
        let change = |row: usize, values: &mut [f32]| values.iter_mut().for_each(|value| *value += row as f32);
        // All but the first.
        let changed: Vec<Vec<f32>> = layer.weights.iter().enumerate().map(|(weight, values)| {
            let mut values = values.clone();
            values.chunks_mut(depth).enumerate().filter(|_| weight > 0).for_each(|(row, values)| change(row, values));
            values
        }).collect();
        let on_the_way = layer.weights.iter().enumerate().map(|(weight, values)| {
            Source { values, change: (weight > 0).then_some(&change as _) }
        });
        for format in [Format::Fp32, Format::Int8, Format::Bf16, Format::Bf16x3] {
            let shape = PackedShape { format, ..layer.shape };
            let pack = |sources: &[Source<'_>]| {
                let mut panels = vec![f32::NAN; shape.words()];
                let quantized = shape.pack(sources, &mut panels, &threads(2));
                (panels.into_iter().map(f32::to_bits).collect::<Vec<_>>(), quantized)
            };
            let stored = changed.iter().map(|values| values.as_slice().into()).collect::<Vec<_>>();
            prop_assert!(pack(&on_the_way.clone().collect::<Vec<_>>()) == pack(&stored), "{format:?}");
        }
    }
}

#[test]
fn tiles_are_used_where_the_machine_has_them() {
    // Of many rows and columns, so that two blocks of rows, one, and a part of one come up.
    let mut stream = Stream::new(&[7]);
    for (format, name) in [(Format::Int8, "amx-int8"), (Format::Bf16, "amx-bf16"), (Format::Bf16x3, "amx-bf16x3")] {
        let mut layer = Layer::random(&mut stream, 576, &[192], Columns::Joined, false, true);
        layer.shape.format = format;
        for rows in [1, 16, 17, 32, 33, 48, 100] {
            let x = normal(&mut stream, rows * 576);
            let input = Input { x: &x, rows: None, residual: None };
            let outs = Isa::available().into_iter().map(|isa| (isa, layer.run(input, rows, isa, &threads(2))));
            let outs: Vec<_> = outs.collect();
            assert!(outs.iter().all(|(_, out)| out == &outs[0].1), "{name}, {rows} rows");
            assert!(outs.iter().all(|(isa, _)| isa.has_tiles() == (isa.name(format) == name)));
        }
    }
}

/// Of three columns and three inputs, the second is too small for bytes and the third is not a number.
#[test]
fn bytes_of_tiny_numbers_are_zeros_and_what_is_no_number_stays_visible() {
    let depth = 3;
    let rows = [1.0, 1e-38, f32::NAN].map(|x| vec![x; depth]);
    let shape = PackedShape { depth, outputs: 3, columns: Columns::Joined, format: Format::Int8 };
    let layer = Layer { shape, weights: vec![rows.concat()], biases: None, gamma: None, activation: Activation::Silu };
    let x = rows.concat();
    for isa in Isa::available() {
        let out = layer.run(Input { x: &x, rows: None, residual: None }, 3, isa, &threads(1));
        assert_eq!([out[0], out[1], out[3], out[4]], [3.0, 0.0, 0.0, 0.0], "{isa:?}");
        assert!([2, 5, 6, 7, 8].iter().all(|&i| out[i].is_nan()), "{isa:?}: {out:?}");
    }
}

#[test]
#[should_panic(expected = "overflow")]
fn more_bytes_than_a_sum_holds_are_refused() {
    let shape = PackedShape { depth: 70_000, outputs: 1, columns: Columns::Joined, format: Format::Int8 };
    let _ = shape.pack(&[vec![1.0; 70_000].as_slice().into()], &mut vec![0.0; shape.words()], &threads(1));
}

/// Sizes of a model's attention.
#[derive(Debug, Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

const POSITIONS: usize = 80;

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
    rotates: bool,
    window: Option<usize>,
}

/// Another factor than the root of the head's width.
const SCALE: f32 = 0.3;

impl Model {
    fn random(stream: &mut Stream, sizes: Heads, norms: bool, format: KvFormat) -> Self {
        let angles = normal(stream, POSITIONS * sizes.head_dim / 2);
        Self {
            sizes,
            format,
            cos: angles.iter().map(|a| a.cos()).collect(),
            sin: angles.iter().map(|a| a.sin()).collect(),
            norms: norms.then(|| [normal(stream, sizes.head_dim), normal(stream, sizes.head_dim)]),
            rotates: true,
            window: None,
        }
    }

    fn row(&self) -> usize {
        (self.sizes.heads + 2 * self.sizes.kv_heads) * self.sizes.head_dim
    }

    fn run(&self, qkv: &[f32], spans: &Spans, pages: &mut Pages, isa: Isa, threads: &Workers) -> Vec<f32> {
        let norm = |i: usize| self.norms.as_ref().map(|n| Norm { gamma: &n[i], epsilon: EPSILON });
        let attention = Attention {
            heads: self.sizes.heads,
            rotary: self.rotates.then_some([&self.cos[..], &self.sin[..]]),
            window: self.window,
            scale: SCALE,
            q_norm: norm(0),
            k_norm: norm(1),
            layer: 1,
        };
        let mut out = vec![f32::NAN; spans.tokens() * self.sizes.heads * self.sizes.head_dim];
        attention.run(qkv, spans, pages, &mut out, Machine { isa, threads, scratch: &mut Vec::new() });
        out
    }

    /// In single precision, for the sake of what becomes bytes, as in [`normed`].
    fn rotated(&self, x: &[f32], position: usize, norm: usize) -> Vec<f32> {
        let half = x.len() / 2;
        let x = self.norms.as_ref().map_or_else(|| x.to_vec(), |norms| normed(x, &norms[norm]));
        if !self.rotates {
            return x;
        }
        let table = |t: &[f32], d: usize| t[position * half + d % half];
        (0..x.len())
            .map(|d| {
                let other = if d < half { -x[d + half] } else { x[d - half] };
                x[d] * table(&self.cos, d) + other * table(&self.sin, d)
            })
            .collect()
    }

    /// What becomes of a key or a value in the cache.
    fn stored(&self, x: &[f32]) -> Vec<f32> {
        match self.format {
            KvFormat::Fp32 => x.to_vec(),
            KvFormat::Int8 => rounded(x),
        }
    }

    /// How far off the kernels may be: with bytes, queries and weights are of sixteen bits.
    fn tolerance(&self) -> f64 {
        match self.format {
            KvFormat::Fp32 => 1e-5,
            KvFormat::Int8 => 5e-4,
        }
    }

    /// What the last position of `qkv` attends to.
    fn reference(&self, qkv: &[Vec<f32>]) -> Vec<f64> {
        let Heads { heads, kv_heads, head_dim } = self.sizes;
        let last = qkv.len() - 1;
        let first = self.window.map_or(0, |window| qkv.len().saturating_sub(window));
        (0..heads)
            .flat_map(|head| {
                let kv = heads + head / (heads / kv_heads);
                let q = self.rotated(&qkv[last][head * head_dim..][..head_dim], last, 0);
                let scores: Vec<f64> = (first..=last)
                    .map(|p| {
                        let k = self.stored(&self.rotated(&qkv[p][kv * head_dim..][..head_dim], p, 1));
                        q.iter().zip(k).map(|(&q, k)| f64::from(q) * f64::from(k)).sum::<f64>() * f64::from(SCALE)
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let values: Vec<Vec<f32>> =
                    (first..=last).map(|p| self.stored(&qkv[p][(kv + kv_heads) * head_dim..][..head_dim])).collect();
                (0..head_dim)
                    .map(|d| weights.iter().zip(&values).map(|(w, value)| w * f64::from(value[d])).sum::<f64>() / sum)
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

#[test]
fn a_normed_result_is_added_to_the_residual_stream() {
    let mut stream = Stream::new(&[11]);
    for (rows, width) in [(1, 5), (3, 32), (9, 70)] {
        let [x, residual] = [(); 2].map(|()| normal(&mut stream, rows * width));
        let gamma = normal(&mut stream, width);
        let norm = Norm { gamma: &gamma, epsilon: EPSILON };
        let run = |isa, count, rows: std::ops::Range<usize>| {
            let part = rows.start * width..rows.end * width;
            let mut out = vec![f32::NAN; part.len()];
            let machine = Machine { isa, threads: &threads(count), scratch: &mut Vec::new() };
            add_normed(norm, &x[part.clone()], &residual[part], &mut out, machine);
            out
        };
        let outs: Vec<_> = Isa::available().into_iter().map(|isa| run(isa, 2, 0..rows)).collect();
        assert!(outs.iter().all(|out| *out == outs[0]), "instruction sets differ");
        assert_eq!(run(Isa::detect(), 1, rows - 1..rows), outs[0][(rows - 1) * width..], "the last row alone");
        let rows = x.chunks(width).zip(residual.chunks(width));
        let expected: Vec<f64> = rows
            .flat_map(|(x, residual)| {
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
                let inverse = (mean + f64::from(EPSILON)).sqrt().recip();
                let row = x.iter().zip(&gamma).zip(residual);
                row.map(|((&x, &g), &r)| f64::from(x) * inverse * f64::from(g) + f64::from(r)).collect::<Vec<_>>()
            })
            .collect();
        assert_close(&outs[0], &expected, 1e-6);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn attention_over_shared_prompts_is_plain_attention(
        seed in any::<u64>(), kv_heads in 1usize..4, group in 1usize..=8, eighths in 1usize..=16, norms: bool,
        bytes: bool, prompts in prop::collection::vec((1usize..40, 1usize..4, 0usize..3), 1..4), steps in 1usize..36,
        burst in 1usize..=3, rotates: bool, window in prop::option::of(1usize..60),
    ) {
        let sizes = Heads { heads: kv_heads * group, kv_heads, head_dim: 8 * eighths };
        let mut stream = Stream::new(&[seed]);
        let format = if bytes { KvFormat::Int8 } else { KvFormat::Fp32 };
        let model = Model { rotates, window, ..Model::random(&mut stream, sizes, norms, format) };
        let row = model.row();
        let shape = PageShape { layers: 2, kv_heads, head_dim: sizes.head_dim, pages: 64, format };
        let mut pools: Vec<_> = Isa::available().into_iter().map(|isa| (isa, Pages::new(shape).unwrap())).collect();
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
                s.own_len += new;
            }
            spans.cut(group);
            let outs: Vec<_> = pools.iter_mut().map(|(isa, pool)| model.run(&flat, &spans, pool, *isa, &threads(2))).collect();
            prop_assert!(outs.iter().all(|out| out == &outs[0]), "instruction sets differ");
            // One sequence alone gives the same bits; it writes what is already there.
            let i = step % sequences.len();
            let s = &sequences[i];
            let mut alone = Spans::default();
            alone.push(&prefixes[s.prefix].0, prefixes[s.prefix].1, &s.own, s.own_len - new, new);
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
