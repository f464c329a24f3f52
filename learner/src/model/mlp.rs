//! The gated feed-forward block (SwiGLU and GEGLU, Shazeer 2020).

use shared::{Activation, ModelConfig};
use tch::Tensor;

use super::{linear::Linear, output::Output, parameters::Gradients, weights::Weights};

/// `down(act(gate(x)) · up(x))`.
#[derive(Debug)]
pub(super) struct Mlp {
    gate_up: Linear,
    down: Output,
    activation: Activation,
}

/// libtorch's name of the tanh approximation of GELU.
const TANH: &str = "tanh";

impl Mlp {
    /// The leaves of the layer's MLP, and the norm behind it.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, layer: &str) -> Self {
        let names = config.mlp_names();
        let block = &format!("{layer}.{}", names.block);
        let leaf = if names.is_fused() { names.members[0] } else { "gate_up_proj" };
        let norm = format!("{layer}.{}", config.output_norm_names()[1]);
        Self {
            gate_up: Linear::stacked(weights, block, leaf, names.members),
            down: Output::new(config, weights, [block, names.last], &norm),
            activation: config.activation(),
        }
    }

    /// Gate and up, `[T, 2 · inner]`, of `[T, hidden]`.
    pub(super) fn gate_up(&self, x_TH: &Tensor) -> Tensor {
        self.gate_up.forward(x_TH)
    }

    /// Adds the block's result for gate and up to `onto`, `[T, hidden]`.
    pub(super) fn output_onto(&self, onto: &Tensor, gate_up: &Tensor) -> Tensor {
        let halves = gate_up.chunk(2, -1);
        self.down.forward_onto(onto, &self.active(&halves[0]).g_mul_(&halves[1]))
    }

    fn active(&self, gate: &Tensor) -> Tensor {
        match self.activation {
            Activation::Silu => gate.silu(),
            Activation::GeluTanh => gate.gelu(TANH),
        }
    }

    /// Adds the parameters' gradients, given input, gate and up, and the gradient of the output; returns that of the
    /// input.
    pub(super) fn backward(
        &self,
        x_TH: &Tensor,
        gate_up: &Tensor,
        dy_TH: &Tensor,
        gradients: &mut Gradients,
    ) -> Tensor {
        let halves = gate_up.chunk(2, -1);
        let active = self.active(&halves[0]);
        let mut inner = self.down.backward(&(&active * &halves[1]), dy_TH, gradients);
        let d_gate_up = gate_up.empty_like();
        let d_halves = d_gate_up.chunk(2, -1);
        let _ = active.multiply_out(&d_halves[1], &inner);
        let d_active = inner.g_mul_(&halves[1]);
        let _ = match self.activation {
            Activation::Silu => halves[0].silu_backward_grad_input(&d_halves[0], &d_active),
            Activation::GeluTanh => halves[0].gelu_backward_grad_input(&d_halves[0], &d_active, TANH),
        };
        self.gate_up.backward(x_TH, &d_gate_up, gradients)
    }
}
