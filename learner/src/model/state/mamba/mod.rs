//! The layers of Mamba-2 (Granite 4; Dao and Gu 2024): projection, convolution, state space, gate and norm.

mod scan;
#[cfg(test)]
mod tests;

use shared::{Mamba, ModelConfig};
use tch::Tensor;

use self::scan::Inputs;
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

/// `out(RMS((scan(x, B, C) + D x) ⊙ silu(z)))`, where `x`, `B` and `C` come from a convolution with SiLU.
#[derive(Debug)]
pub(in super::super) struct MambaBlock {
    /// `z`, then `x`, `B` and `C`, then the steps, one below the other.
    projection: Linear,
    convolution: Convolution,
    /// Logarithm of the decay's factor, `[heads]`.
    decay: Leaf,
    /// Added to the steps' inputs, `[heads]`.
    step_bias: Leaf,
    /// `D`, `[heads]`.
    skip: Leaf,
    norm: RmsNorm,
    output: Output,
    sizes: Sizes,
}

/// The part of a forward pass that [`MambaBlock::backward`] needs.
#[derive(Debug)]
pub(in super::super) struct MambaTape {
    projected_TW: Tensor,
    ruled: Ruled,
}

/// Heads and widths.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    heads: i64,
    head_dim: i64,
    groups: i64,
    state_dim: i64,
}

/// Views of the projected input, or of its gradient.
struct Parts {
    /// Input of the output's gate, `[T, heads · head width]`.
    gate: Tensor,
    /// Input of the convolution, `[T, channels]`.
    channels: Tensor,
    /// Inputs of the steps, `[T, heads]`.
    step: Tensor,
}

/// Inputs of the state space, with the intermediate results that their gradients need.
struct Prepared {
    /// The convolution's sums, `[T, channels]`.
    sums: Tensor,
    /// `[T, heads, head width]`.
    x: Tensor,
    /// Inputs of the steps' softplus, and the steps `Δ`, `[T, heads]`.
    raw_steps: Tensor,
    steps: Tensor,
    inputs: Inputs,
}

/// Gradients of the state space's output and of its inputs.
struct Found {
    d_out_TND: Tensor,
    d_inputs: Inputs,
}

impl MambaBlock {
    /// The leaves of a layer.
    pub(in super::super) fn new(config: &ModelConfig, weights: &Weights, layer: usize, mamba: Mamba) -> Self {
        let (names, layer_name) = (config.mixer_names(layer), format!("model.layers.{layer}"));
        let block = &format!("{layer_name}.{}", names.block);
        let [norm, _] = config.output_norm_names();
        Self {
            projection: Linear::new(weights, block, names.members[0]),
            convolution: Convolution::new(weights, &format!("{block}.conv1d")),
            decay: weights.exact(&format!("{block}.A_log")),
            step_bias: weights.exact(&format!("{block}.dt_bias")),
            skip: weights.exact(&format!("{block}.D")),
            norm: RmsNorm::grouped(config, weights, &format!("{block}.norm"), mamba.groups),
            output: Output::new(config, weights, [block, names.last], &format!("{layer_name}.{norm}")),
            sizes: Sizes {
                heads: mamba.heads as i64,
                head_dim: mamba.head_dim as i64,
                groups: mamba.groups as i64,
                state_dim: mamba.state_dim as i64,
            },
        }
    }

    /// As [`Mixer::forward_onto`](super::super::mixer::Mixer::forward_onto).
    pub(in super::super) fn forward_onto(&self, onto: &Tensor, x_TH: &Tensor, trees: &[Tree]) -> (Tensor, MambaTape) {
        let projected_TW = self.projection.forward(x_TH);
        let parts = self.parts(&projected_TW);
        let prepared = self.prepare(&parts, trees);
        let ruled = passes::forward(&prepared.inputs, trees);
        let gated = self.result(&ruled, &prepared) * wide(&parts.gate).silu();
        let sum = self.output.forward_onto(onto, &self.norm.forward(&gated).to_kind(x_TH.kind()));
        (sum, MambaTape { projected_TW, ruled })
    }

    /// As [`Mixer::backward`](super::super::mixer::Mixer::backward). Everything but the state space's output and the
    /// states between its chunks is computed again.
    pub(in super::super) fn backward(
        &self,
        x_TH: &Tensor,
        tape: &MambaTape,
        dy_TH: &Tensor,
        trees: &[Tree],
        gradients: &mut Gradients,
    ) -> Tensor {
        let MambaTape { projected_TW, ruled } = tape;
        let d_projected_TW = projected_TW.empty_like();
        let (parts, mut d_parts) = (self.parts(projected_TW), self.parts(&d_projected_TW));

        let prepared = self.prepare(&parts, trees);
        let (result, gate) = (self.result(ruled, &prepared), wide(&parts.gate));
        let active = gate.silu();
        let gated = &result * &active;
        let normed = self.norm.forward(&gated).to_kind(x_TH.kind());
        let d_normed = wide(&self.output.backward(&normed, dy_TH, gradients));
        let d_gated = self.norm.backward(&gated, &d_normed, gradients);
        d_parts.gate.copy_(&gate.silu_backward(&(result * &d_gated)));
        let d_out_TND = (d_gated * active).view_as(&ruled.out_TND);
        let d_inputs = passes::backward(&prepared.inputs, ruled, &d_out_TND, trees);
        let found = Found { d_out_TND, d_inputs };
        self.prepare_backward(&parts, &mut d_parts, &prepared, &found, trees, gradients);
        self.projection.backward(x_TH, &d_projected_TW, gradients)
    }

    fn parts(&self, projected_TW: &Tensor) -> Parts {
        let Sizes { heads, head_dim, groups, state_dim } = self.sizes;
        let inner = heads * head_dim;
        let channels = inner + 2 * groups * state_dim;
        Parts {
            gate: projected_TW.narrow(1, 0, inner),
            channels: projected_TW.narrow(1, inner, channels),
            step: projected_TW.narrow(1, inner + channels, heads),
        }
    }

    /// `x`, `B` and `C` of the convolution's channels.
    fn heads(&self, channels: &Tensor) -> [Tensor; 3] {
        let Sizes { heads, head_dim, groups, state_dim } = self.sizes;
        let (inner, of_groups) = (heads * head_dim, groups * state_dim);
        [
            channels.narrow(1, 0, inner).view([-1, heads, head_dim]),
            channels.narrow(1, inner, of_groups).view([-1, groups, state_dim]),
            channels.narrow(1, inner + of_groups, of_groups).view([-1, groups, state_dim]),
        ]
    }

    fn prepare(&self, parts: &Parts, trees: &[Tree]) -> Prepared {
        let sums = self.convolution.forward(&parts.channels, trees);
        let [x, b, c] = self.heads(&sums.silu());
        let raw_steps = wide(&parts.step) + &self.step_bias.values;
        let steps = raw_steps.softplus();
        let (v, g) = (&x * steps.unsqueeze(-1), &steps * self.decay.values.exp().neg());
        Prepared { sums, x, raw_steps, steps, inputs: Inputs { c, b, v, g } }
    }

    /// `scan(x, B, C) + D x`, `[T, heads · head width]`.
    fn result(&self, ruled: &Ruled, prepared: &Prepared) -> Tensor {
        (&ruled.out_TND + &prepared.x * self.skip.values.unsqueeze(-1)).flatten(1, 2)
    }

    /// From the gradients of the state space's output and inputs to those of the projected input and of the parameters
    /// before it.
    fn prepare_backward(
        &self,
        parts: &Parts,
        d_parts: &mut Parts,
        prepared: &Prepared,
        Found { d_out_TND, d_inputs }: &Found,
        trees: &[Tree],
        gradients: &mut Gradients,
    ) {
        let Prepared { sums, x, raw_steps, steps, inputs } = prepared;
        let of_heads = |product: Tensor| product.sum_dim_intlist([-1i64].as_slice(), false, None);
        gradients.add_rows(&self.skip, &of_heads(d_out_TND * x));
        gradients.add_rows(&self.decay, &(&d_inputs.g * &inputs.g));
        let d_steps = of_heads(&d_inputs.v * x) - &d_inputs.g * self.decay.values.exp();
        let d_raw = d_steps * raw_steps.sigmoid();
        gradients.add_rows(&self.step_bias, &d_raw);
        d_parts.step.copy_(&d_raw);

        let d_active = sums.empty_like();
        let [mut dx, mut db, mut dc] = self.heads(&d_active);
        dx.copy_(&(d_out_TND * self.skip.values.unsqueeze(-1) + &d_inputs.v * steps.unsqueeze(-1)));
        db.copy_(&d_inputs.b);
        dc.copy_(&d_inputs.c);
        let d_sums = sums.silu_backward(&d_active);
        d_parts.channels.copy_(&self.convolution.backward(&parts.channels, &d_sums, trees, gradients));
    }
}
