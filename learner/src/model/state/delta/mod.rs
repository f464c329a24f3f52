//! The gated delta rule as a block (Qwen3.5; Yang et al. 2024): projections, convolution, rule, norm and gate.

mod rule;
#[cfg(test)]
mod tests;

use shared::{DeltaRule, ModelConfig};
use tch::Tensor;

use self::rule::Rules;
use super::{
    super::{
        kinds::wide,
        linear::Linear,
        norm::RmsNorm,
        output::Output,
        parameters::{Gradients, Leaf},
        weights::Weights,
    },
    convolution::Convolution,
    passes::{self, Ruled},
};
use crate::batch::Tree;

/// What is added to the square of a query's or key's length, as in the kernels of flash-linear-attention.
const LENGTH_EPSILON: f64 = 1e-6;

/// `out(RMS(rule(q, k, v)) ⊙ silu(z))`, where `q`, `k` and `v` come from a convolution with SiLU.
#[derive(Debug)]
pub(in super::super) struct DeltaBlock {
    /// `q`, `k` and `v`, then `z`, the step sizes and the decays, one below the other.
    projection: Linear,
    convolution: Convolution,
    /// Logarithm of the decay's factor, `[value heads]`.
    decay: Leaf,
    /// Added to the decays' inputs, `[value heads]`.
    step_bias: Leaf,
    norm: RmsNorm,
    output: Output,
    sizes: Sizes,
}

/// The part of a forward pass that [`DeltaBlock::backward`] needs.
#[derive(Debug)]
pub(in super::super) struct DeltaTape {
    projected_TW: Tensor,
    ruled: Ruled,
}

/// Heads and widths.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    key_heads: i64,
    value_heads: i64,
    key_dim: i64,
    value_dim: i64,
}

/// Views of the projected input, or of its gradient.
struct Parts {
    /// Input of the convolution, `[T, channels]`.
    channels: Tensor,
    /// Input of the output's gate, `[T, value heads, value width]`.
    gate: Tensor,
    /// Inputs of step sizes and of decays, `[T, value heads]`.
    step: Tensor,
    decay: Tensor,
}

/// Inputs of the rule, with the intermediate results that their gradients need.
struct Prepared {
    /// The convolution's sums, `[T, channels]`.
    sums: Tensor,
    /// Factors that make queries and keys 1 long, `[T, key heads, 1]`.
    scales: [Tensor; 2],
    /// Inputs of the decay's softplus, `[T, value heads]`.
    decays: Tensor,
    rules: Rules,
}

impl DeltaBlock {
    /// The leaves of a layer.
    pub(in super::super) fn new(config: &ModelConfig, weights: &Weights, layer: usize, rule: DeltaRule) -> Self {
        let (names, layer_name) = (config.mixer_names(layer), format!("model.layers.{layer}"));
        let block = &format!("{layer_name}.{}", names.block);
        let [norm, _] = config.output_norm_names();
        Self {
            projection: Linear::stacked(weights, block, "in_proj", names.members),
            convolution: Convolution::new(weights, &format!("{block}.conv1d")),
            decay: weights.exact(&format!("{block}.A_log")),
            step_bias: weights.exact(&format!("{block}.dt_bias")),
            norm: RmsNorm::plain(config, weights, &format!("{block}.norm")),
            output: Output::new(config, weights, [block, names.last], &format!("{layer_name}.{norm}")),
            sizes: Sizes {
                key_heads: rule.key_heads as i64,
                value_heads: rule.value_heads as i64,
                key_dim: rule.key_dim as i64,
                value_dim: rule.value_dim as i64,
            },
        }
    }

    /// As [`Mixer::forward_onto`](super::super::mixer::Mixer::forward_onto).
    pub(in super::super) fn forward_onto(&self, onto: &Tensor, x_TH: &Tensor, trees: &[Tree]) -> (Tensor, DeltaTape) {
        let projected_TW = self.projection.forward(x_TH);
        let parts = self.parts(&projected_TW);
        let ruled = passes::forward(&self.prepare(&parts, trees).rules, trees);
        let gated = self.norm.forward(&ruled.out_TND) * wide(&parts.gate).silu();
        let sum = self.output.forward_onto(onto, &gated.flatten(1, 2).to_kind(x_TH.kind()));
        (sum, DeltaTape { projected_TW, ruled })
    }

    /// As [`Mixer::backward`](super::super::mixer::Mixer::backward). Everything but the rule's output and the states
    /// between its chunks is computed again.
    pub(in super::super) fn backward(
        &self,
        x_TH: &Tensor,
        tape: &DeltaTape,
        dy_TH: &Tensor,
        trees: &[Tree],
        gradients: &mut Gradients,
    ) -> Tensor {
        let DeltaTape { projected_TW, ruled } = tape;
        let d_projected_TW = projected_TW.empty_like();
        let (parts, mut d_parts) = (self.parts(projected_TW), self.parts(&d_projected_TW));

        let (normed, gate) = (self.norm.forward(&ruled.out_TND), wide(&parts.gate));
        let active = gate.silu();
        let gated = (&normed * &active).flatten(1, 2).to_kind(x_TH.kind());
        let d_gated = wide(&self.output.backward(&gated, dy_TH, gradients)).view_as(&normed);
        d_parts.gate.copy_(&gate.silu_backward(&(normed * &d_gated)));
        let d_out_TND = self.norm.backward(&ruled.out_TND, &(d_gated * active), gradients);

        let prepared = self.prepare(&parts, trees);
        let d_rules = passes::backward(&prepared.rules, ruled, &d_out_TND, trees);
        self.prepare_backward(&parts, &mut d_parts, &prepared, d_rules, trees, gradients);
        self.projection.backward(x_TH, &d_projected_TW, gradients)
    }

    fn parts(&self, projected_TW: &Tensor) -> Parts {
        let Sizes { key_heads, value_heads, key_dim, value_dim } = self.sizes;
        let values = value_heads * value_dim;
        let mut start = 0;
        let mut part = |width: i64| {
            start += width;
            projected_TW.narrow(1, start - width, width)
        };
        Parts {
            channels: part(2 * key_heads * key_dim + values),
            gate: part(values).view([-1, value_heads, value_dim]),
            step: part(value_heads),
            decay: part(value_heads),
        }
    }

    /// Queries, keys and values of the convolution's channels.
    fn heads(&self, channels: &Tensor) -> [Tensor; 3] {
        let Sizes { key_heads, value_heads, key_dim, value_dim } = self.sizes;
        let keys = key_heads * key_dim;
        [
            channels.narrow(1, 0, keys).view([-1, key_heads, key_dim]),
            channels.narrow(1, keys, keys).view([-1, key_heads, key_dim]),
            channels.narrow(1, 2 * keys, value_heads * value_dim).view([-1, value_heads, value_dim]),
        ]
    }

    /// The factor on queries behind that which makes them 1 long.
    fn query_factor(&self) -> f64 {
        (self.sizes.key_dim as f64).powf(-0.5)
    }

    fn prepare(&self, parts: &Parts, trees: &[Tree]) -> Prepared {
        let sums = self.convolution.forward(&parts.channels, trees);
        let [q, k, v] = self.heads(&sums.silu());
        let scale = |x: &Tensor| (x.square().sum_dim_intlist([-1i64].as_slice(), true, None) + LENGTH_EPSILON).rsqrt();
        let scales = [scale(&q), scale(&k)];
        let decays = wide(&parts.decay) + &self.step_bias.values;
        let rules = Rules {
            q: q * &scales[0] * self.query_factor(),
            k: k * &scales[1],
            v,
            g: decays.softplus() * self.decay.values.exp().neg(),
            beta: wide(&parts.step).sigmoid(),
        };
        Prepared { sums, scales, decays, rules }
    }

    /// From the gradients of the rule's inputs to those of the projected input and of the parameters before the rule.
    fn prepare_backward(
        &self,
        parts: &Parts,
        d_parts: &mut Parts,
        prepared: &Prepared,
        d_rules: Rules,
        trees: &[Tree],
        gradients: &mut Gradients,
    ) {
        let Prepared { sums, scales, decays, rules } = prepared;
        let beta = &rules.beta;
        d_parts.step.copy_(&(d_rules.beta * beta * (1 - beta)));
        gradients.add_rows(&self.decay, &(&d_rules.g * &rules.g));
        let d_decays = d_rules.g * self.decay.values.exp().neg() * decays.sigmoid();
        gradients.add_rows(&self.step_bias, &d_decays);
        d_parts.decay.copy_(&d_decays);

        let d_active = sums.empty_like();
        let [mut dq, mut dk, mut dv] = self.heads(&d_active);
        // With x̂ = s · x: dx = s · (dx̂ − x̂ · ⟨x̂, dx̂⟩).
        let along =
            |unit: &Tensor, d_unit: &Tensor| unit * (unit * d_unit).sum_dim_intlist([-1i64].as_slice(), true, None);
        let (factor, q_unit) = (self.query_factor(), &rules.q / self.query_factor());
        let dq_unit = d_rules.q * factor;
        dq.copy_(&((&dq_unit - along(&q_unit, &dq_unit)) * &scales[0]));
        dk.copy_(&((&d_rules.k - along(&rules.k, &d_rules.k)) * &scales[1]));
        dv.copy_(&d_rules.v);
        let d_sums = sums.silu_backward(&d_active);
        d_parts.channels.copy_(&self.convolution.backward(&parts.channels, &d_sums, trees, gradients));
    }
}
