//! The gated feed-forward block (SwiGLU, Shazeer 2020).

use tch::Tensor;

use super::{linear::Linear, parameters::Gradients, weights::Weights};

/// `down(silu(gate(x)) · up(x))`.
#[derive(Debug)]
pub(super) struct Mlp {
    gate_up: Linear,
    down: Linear,
}

impl Mlp {
    /// The leaves below `{name}.`.
    pub(super) fn new(weights: &Weights, name: &str) -> Self {
        Self {
            gate_up: Linear::stacked(weights, name, "gate_up_proj", &["gate_proj", "up_proj"]),
            down: Linear::new(weights, name, "down_proj"),
        }
    }

    /// Gate and up, `[T, 2 · inner]`, of `[T, hidden]`.
    pub(super) fn gate_up(&self, x_TH: &Tensor) -> Tensor {
        self.gate_up.forward(x_TH)
    }

    /// The block's result of gate and up, added to `onto`, `[T, hidden]`.
    pub(super) fn output_onto(&self, onto: &Tensor, gate_up: &Tensor) -> Tensor {
        let halves = gate_up.chunk(2, -1);
        self.down.forward_onto(onto, &halves[0].silu().g_mul_(&halves[1]))
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
        let active = halves[0].silu();
        let mut inner = self.down.backward(&(&active * &halves[1]), dy_TH, gradients);
        let d_gate_up = gate_up.empty_like();
        let d_halves = d_gate_up.chunk(2, -1);
        let _ = active.multiply_out(&d_halves[1], &inner);
        let _ = halves[0].silu_backward_grad_input(&d_halves[0], &inner.g_mul_(&halves[1]));
        self.gate_up.backward(x_TH, &d_gate_up, gradients)
    }
}
