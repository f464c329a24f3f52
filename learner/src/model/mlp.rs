//! The gated feed-forward block (SwiGLU, Shazeer 2020).

use tch::Tensor;

use super::{
    linear::Linear,
    parameters::{Gradients, Parameters},
};

/// `down(silu(gate(x)) · up(x))`.
#[derive(Debug)]
pub(super) struct Mlp {
    gate_up: Linear,
    down: Linear,
}

impl Mlp {
    /// The leaves below `{name}.`.
    pub(super) fn new(parameters: &Parameters, name: &str) -> Self {
        Self {
            gate_up: Linear::new(parameters, &format!("{name}.gate_up_proj")),
            down: Linear::new(parameters, &format!("{name}.down_proj")),
        }
    }

    /// `[T, hidden]`, added to `onto`, to the sum and what [`Self::backward`] needs: gate and up, `[T, 2 · inner]`.
    pub(super) fn forward_onto(&self, onto: &Tensor, x_TH: &Tensor) -> (Tensor, Tensor) {
        let gate_up = self.gate_up.forward(x_TH);
        let halves = gate_up.chunk(2, -1);
        let sum = self.down.forward_onto(onto, &halves[0].silu().g_mul_(&halves[1]));
        (sum, gate_up)
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
