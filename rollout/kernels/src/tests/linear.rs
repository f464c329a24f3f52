//! Linear layers, in every format that their weights may have.

use proptest::prelude::*;
use shared::generation::rng::Stream;

use super::{
    super::{
        element::Format,
        linear::{Activation, Input, Linear, Norm},
        packed::{Columns, PackedShape, WeightRows},
        parallel::Machine,
        simd::Isa,
        thread_pool::ThreadPool,
        tile::STRETCH,
    },
    EPSILON, assert_close, normal, normed, rounded, rounded_to_four_bits, threads,
};

/// A linear layer with all it may have.
struct Layer {
    shape: PackedShape,
    weights: Vec<Vec<f32>>,
    biases: Option<Vec<Vec<f32>>>,
    gamma: Option<Vec<f32>>,
    activation: Activation,
    factor: f32,
}

impl Layer {
    /// A product alone.
    fn plain(shape: PackedShape, weights: Vec<f32>) -> Self {
        let (weights, activation) = (vec![weights], Activation::Silu);
        Self { shape, weights, biases: None, gamma: None, activation, factor: 1.0 }
    }

    fn random(stream: &mut Stream, depth: usize, parts: &[usize], columns: Columns, bias: bool, norm: bool) -> Self {
        let outputs = if columns == Columns::Gated { parts[0] } else { parts.iter().sum() };
        Self {
            shape: PackedShape { depth, outputs, columns, format: Format::Fp32 },
            weights: parts.iter().map(|n| normal(stream, n * depth)).collect(),
            biases: bias.then(|| parts.iter().map(|&n| normal(stream, n)).collect()),
            gamma: norm.then(|| normal(stream, depth)),
            activation: if stream.next_normal() < 0.0 { Activation::Silu } else { Activation::GeluTanh },
            factor: if stream.next_normal() < 0.0 { 1.0 } else { 0.6 },
        }
    }

    fn run(&self, input: Input<'_>, rows: usize, isa: Isa, threads: &ThreadPool) -> Vec<f32> {
        let weights: Vec<WeightRows<'_>> = self.weights.iter().map(|weight| weight.as_slice().into()).collect();
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
            factor: self.factor,
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

    /// The input of the product: applies the norm, and takes it from the layer.
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
        out.iter_mut().for_each(|out| *out *= f(self.factor));
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
    fn four_bits_are_the_product_of_the_rounded_values(
        seed in any::<u64>(), rows in 1usize..=130, depth in depths(),
        parts in prop::collection::vec(1usize..90, 1..4), gated: bool, bias: bool, norm: bool,
    ) {
        let mut stream = Stream::new(&[seed]);
        let (parts, columns) = if gated { (vec![parts[0]; 2], Columns::Gated) } else { (parts, Columns::Joined) };
        let mut layer = Layer::random(&mut stream, depth, &parts, columns, bias, norm);
        layer.shape.format = Format::Int4;
        let x = normal(&mut stream, rows * depth);
        let out = layer.run_everywhere(&x, rows, seed as usize % rows);

        for weight in &mut layer.weights {
            *weight = weight.chunks(depth).flat_map(rounded_to_four_bits).collect();
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
        // With one half alone, the error is a hundred times larger.
        assert_close(&out, &layer.reference(&x, None), 1e-4);
    }

    #[test]
    fn halves_are_the_product_of_the_rounded_values(
        seed in any::<u64>(), rows in 1usize..=130, depth in depths(),
        parts in prop::collection::vec(1usize..90, 1..4), gated: bool, bias: bool, norm: bool, dot: bool,
    ) {
        let mut stream = Stream::new(&[seed]);
        let (parts, columns) = if gated { (vec![parts[0]; 2], Columns::Gated) } else { (parts, Columns::Joined) };
        let mut layer = Layer::random(&mut stream, depth, &parts, columns, bias, norm);
        layer.shape.format = if dot { Format::Bf16Dot } else { Format::Bf16 };
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
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn sums_of_pairs_are_one_chain_with_the_second_elements_first(
        seed in any::<u64>(), rows in 1usize..=30, depth in depths(), outputs in 1usize..90,
    ) {
        let mut stream = Stream::new(&[seed]);
        let mut layer = Layer::random(&mut stream, depth, &[outputs], Columns::Joined, false, false);
        (layer.shape.format, layer.factor) = (Format::Bf16Dot, 1.0);
        let x = normal(&mut stream, rows * depth);
        let out = layer.run_everywhere(&x, rows, seed as usize % rows);

        let rounded = |x: &f32| half::bf16::from_f32(*x).to_f32();
        let [x, weight] = [&x, &layer.weights[0]].map(|all| all.iter().map(rounded).collect::<Vec<f32>>());
        let chain = |x: &[f32], weight: &[f32]| {
            x.chunks(2).zip(weight.chunks(2)).fold(0.0, |sum, (x, weight)| {
                x.iter().zip(weight).rev().fold(sum, |sum, (x, weight)| x.mul_add(*weight, sum))
            })
        };
        let expected: Vec<f32> =
            x.chunks(depth).flat_map(|x| weight.chunks(depth).map(move |weight| chain(x, weight))).collect();
        prop_assert!(out == expected);
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
            WeightRows { values, change: (weight > 0).then_some(&change as _) }
        });
        for format in [Format::Fp32, Format::Int8, Format::Int4, Format::Bf16, Format::Bf16Dot, Format::Bf16x3] {
            let shape = PackedShape { format, ..layer.shape };
            let pack = |sources: &[WeightRows<'_>]| {
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
    // Many rows and columns, so that two blocks of rows, one block, and a part of one come up.
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

#[test]
fn what_is_no_number_stays_visible_in_pairs() {
    let (depth, rows) = (5, [1.0, f32::NAN].map(|x| vec![x; 5]));
    let shape = PackedShape { depth, outputs: 2, columns: Columns::Joined, format: Format::Bf16Dot };
    let layer = Layer::plain(shape, rows.concat());
    for isa in Isa::available() {
        let out = layer.run(Input { x: &rows.concat(), rows: None, residual: None }, 2, isa, &threads(1));
        assert!(out[0] == 5.0 && out[1..].iter().all(|x| x.is_nan()), "{isa:?}: {out:?}");
    }
}

/// Three columns and three inputs: the second is too small for bytes, and the third is a NaN.
#[test]
fn bytes_of_tiny_numbers_are_zeros_and_what_is_no_number_stays_visible() {
    let depth = 3;
    let rows = [1.0, 1e-38, f32::NAN].map(|x| vec![x; depth]);
    let shape = PackedShape { depth, outputs: 3, columns: Columns::Joined, format: Format::Int8 };
    let layer = Layer::plain(shape, rows.concat());
    let x = rows.concat();
    for isa in Isa::available() {
        let out = layer.run(Input { x: &x, rows: None, residual: None }, 3, isa, &threads(1));
        assert_eq!([out[0], out[1], out[3], out[4]], [3.0, 0.0, 0.0, 0.0], "{isa:?}");
        assert!([2, 5, 6, 7, 8].iter().all(|&i| out[i].is_nan()), "{isa:?}: {out:?}");
    }
}

/// Two columns: of one block, one number is a NaN. Its block is no number, and the other column is not touched.
#[test]
fn what_is_no_number_stays_visible_in_four_bits() {
    let (depth, mut weights) = (70, vec![1.0; 140]);
    weights[100] = f32::NAN;
    let shape = PackedShape { depth, outputs: 2, columns: Columns::Joined, format: Format::Int4 };
    let layer = Layer::plain(shape, weights);
    let x = [vec![1.0; depth], vec![f32::NAN; depth]].concat();
    for isa in Isa::available() {
        let out = layer.run(Input { x: &x, rows: None, residual: None }, 2, isa, &threads(1));
        assert!((out[0] - 70.0).abs() < 1e-4 && out[1..].iter().all(|x| x.is_nan()), "{isa:?}: {out:?}");
    }
}

#[test]
#[should_panic(expected = "overflow")]
fn more_bytes_than_a_sum_holds_are_refused() {
    let shape = PackedShape { depth: 70_000, outputs: 1, columns: Columns::Joined, format: Format::Int8 };
    let _ = shape.pack(&[vec![1.0; 70_000].as_slice().into()], &mut vec![0.0; shape.words()], &threads(1));
}
