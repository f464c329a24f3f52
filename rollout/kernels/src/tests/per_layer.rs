//! Inputs of each layer's own, and bounds of logits.

use proptest::prelude::*;
use shared::generation::rng::Stream;

use super::{
    super::{
        cap::cap_logits,
        linear::{Activation, Norm},
        parallel::Machine,
        per_layer::{LayerInputs, open_input},
        simd::Isa,
    },
    EPSILON, assert_close, normal, threads,
};

/// The result on every instruction set, which is the same one.
fn everywhere(length: usize, run: impl Fn(&mut [f32], Machine<'_>)) -> Vec<f32> {
    let on = |isa| {
        let mut out = vec![f32::NAN; length];
        run(&mut out, Machine { isa, threads: &threads(2), scratch: &mut Vec::new() });
        out
    };
    let outs: Vec<_> = Isa::available().into_iter().map(on).collect();
    assert!(outs.iter().all(|out| *out == outs[0]), "instruction sets differ");
    outs.into_iter().next().expect("every machine has an instruction set")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn the_input_of_a_layer_is_the_normed_projection_and_the_row_of_the_table(
        seed in any::<u64>(), tokens in 1usize..10, layers in 1usize..5, width in 1usize..40,
    ) {
        let mut stream = Stream::new(&[seed]);
        let all = layers * width;
        let (projected, table) = (normal(&mut stream, tokens * all), normal(&mut stream, 3 * all));
        let gamma = normal(&mut stream, width);
        let rows: Vec<&[f32]> = (0..tokens).map(|token| &table[token % 3 * all..][..all]).collect();
        let inputs =
            LayerInputs { norm: Norm { gamma: &gamma, epsilon: EPSILON }, table_factor: 3.0, factor: 0.5 };
        let got = everywhere(tokens * all, |out, machine| inputs.run(&projected, &rows, out, machine));
        let expected: Vec<f64> = projected.chunks(width).enumerate().flat_map(|(part, x)| {
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
            let inverse = (mean + f64::from(EPSILON)).sqrt().recip();
            let row = &rows[part / layers][part % layers * width..];
            let sum = |((&x, &g), &t): ((&f32, &f32), &f32)| {
                0.5 * (f64::from(x) * inverse * f64::from(g) + 3.0 * f64::from(t))
            };
            x.iter().zip(&gamma).zip(row).map(sum).collect::<Vec<_>>()
        }).collect();
        assert_close(&got, &expected, 1e-5);
        let alone = LayerInputs::run;
        let mut last = vec![f32::NAN; all];
        let begin = (tokens - 1) * all;
        let machine = Machine { isa: Isa::detect(), threads: &threads(1), scratch: &mut Vec::new() };
        alone(&inputs, &projected[begin..], &rows[tokens - 1..], &mut last, machine);
        prop_assert!(last == got[begin..], "the last token alone");
    }

    #[test]
    fn a_gate_opens_the_part_of_its_layer(
        seed in any::<u64>(), tokens in 1usize..10, layers in 1usize..5, width in 1usize..40, silu: bool,
    ) {
        let mut stream = Stream::new(&[seed]);
        let layer = seed as usize % layers;
        let (gates, inputs) = (normal(&mut stream, tokens * width), normal(&mut stream, tokens * layers * width));
        let activation = if silu { Activation::Silu } else { Activation::GeluTanh };
        let place = [layer, layers, width];
        let got = everywhere(gates.len(), |out, machine| open_input(activation, &gates, &inputs, place, out, machine));
        let active = |x: f64| match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            }
        };
        let expected: Vec<f64> = gates.iter().enumerate().map(|(i, &gate)| {
            let input = inputs[(i / width * layers + layer) * width + i % width];
            active(f64::from(gate)) * f64::from(input)
        }).collect();
        assert_close(&got, &expected, 1e-5);
    }

    #[test]
    fn logits_are_held_within_their_bound(seed in any::<u64>(), count in 1usize..9000) {
        let logits: Vec<f32> = normal(&mut Stream::new(&[seed]), count).iter().map(|x| 20.0 * x).collect();
        let got = everywhere(count, |out, machine| {
            out.copy_from_slice(&logits);
            cap_logits(5.0, out, machine);
        });
        let expected: Vec<f64> = logits.iter().map(|&z| 5.0 * (f64::from(z) / 5.0).tanh()).collect();
        assert_close(&got, &expected, 1e-6);
    }
}
