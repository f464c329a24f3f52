//! Mixtures of experts.

use proptest::prelude::*;
use shared::generation::rng::Stream;

use super::{
    super::{
        experts::{ExpertMemory, Experts},
        linear::{Activation, Linear, Norm},
        packed::{Columns, PackedShape, Quantized, WeightRows},
        parallel::Machine,
        simd::Isa,
    },
    *,
};

/// A packed product.
struct Packed {
    shape: PackedShape,
    panels: Vec<f32>,
    quantized: Option<Quantized>,
}

impl Packed {
    fn of(parts: &[&[f32]], shape: PackedShape) -> Self {
        let rows: Vec<_> = parts.iter().map(|values| WeightRows { values, change: None }).collect();
        let mut panels = vec![0.0; shape.words()];
        let quantized = shape.pack(&rows, &mut panels, &threads(1));
        Self { shape, panels, quantized }
    }

    fn linear<'a>(&'a self, norm: Option<Norm<'a>>) -> Linear<'a> {
        let Self { shape, panels, quantized } = self;
        let activation = Activation::Silu;
        Linear { shape: *shape, panels, quantized: quantized.as_ref(), bias: None, norm, activation, factor: 1.0 }
    }
}

fn product(weight: &[f32], x: &[f64]) -> Vec<f64> {
    weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_token_is_the_weighted_sum_of_its_experts_whatever_its_neighbours_are(
        seed in any::<u64>(), tokens in 1usize..9, hidden in 3usize..40, width in 1usize..40, count in 1usize..7,
        most in 1usize..7, normalised in any::<bool>(),
    ) {
        let (mut stream, per_token) = (Stream::new(&[seed]), most.min(count));
        let (x, gamma) = (normal(&mut stream, tokens * hidden), normal(&mut stream, hidden));
        let router = normal(&mut stream, count * hidden);
        let weights: Vec<[Vec<f32>; 3]> =
            (0..count).map(|_| [(); 3].map(|()| normal(&mut stream, width * hidden))).collect();
        let shape = |depth, outputs, columns| PackedShape { depth, outputs, columns, format: Format::Fp32 };
        let packed: Vec<[Packed; 2]> = weights.iter().map(|[gate, up, down]| [
            Packed::of(&[gate, up], shape(hidden, width, Columns::Gated)),
            Packed::of(&[down], shape(width, hidden, Columns::Joined)),
        ]).collect();
        let packed_router = Packed::of(&[&router], shape(hidden, count, Columns::Joined));
        let norm = Some(Norm { gamma: &gamma, epsilon: EPSILON });
        let of = |expert: usize| [packed[expert][0].linear(norm), packed[expert][1].linear(None)];
        let experts = Experts { router: packed_router.linear(norm), experts: &of, per_token, normalised };
        let mut memory = ExpertMemory::default();
        let mut run = |isa, count, x: &[f32]| {
            let mut out = vec![f32::NAN; x.len()];
            let machine = Machine { isa, threads: &threads(count), scratch: &mut Vec::new() };
            experts.run(x, &mut out, &mut memory, machine);
            out
        };
        let out = run(Isa::detect(), 2, &x);
        for isa in Isa::available() {
            prop_assert!(run(isa, 1, &x) == out, "{isa:?}");
        }
        for (token, x) in x.chunks(hidden).enumerate() {
            prop_assert!(run(Isa::detect(), 2, x) == out[token * hidden..][..hidden], "token {token} alone");
        }
        // Nearly equal logits may choose otherwise in double precision.
        let mut margin = f64::INFINITY;
        let expected: Vec<f64> = x.chunks(hidden).flat_map(|x| {
            let row: Vec<f64> = normed(x, &gamma).iter().map(|&x| f64::from(x)).collect();
            let logits = product(&router, &row);
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let chosen = &order[..per_token];
            if let Some(&next) = order.get(per_token) {
                margin = margin.min(logits[chosen[per_token - 1]] - logits[next]);
            }
            let all: f64 = logits.iter().map(|logit| logit.exp()).sum();
            let sum: f64 = chosen.iter().map(|&expert| logits[expert].exp()).sum();
            let mut y: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            for &expert in chosen {
                let [gate, up, down] = &weights[expert];
                let gated = product(gate, &row).into_iter().zip(product(up, &row));
                let inner: Vec<f64> = gated.map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                let weight = logits[expert].exp() / if normalised { sum } else { all };
                y.iter_mut().zip(product(down, &inner)).for_each(|(y, result)| *y += weight * result);
            }
            y
        }).collect();
        prop_assume!(margin > 1e-4);
        assert_close(&out, &expected, 1e-4);
    }
}
