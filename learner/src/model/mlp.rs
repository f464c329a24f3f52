//! The gated feed-forward block (SwiGLU, Shazeer 2020).

use tch::Tensor;

use super::{linear::Linear, parameters::Parameters};

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

    /// `[B, S, hidden]` to `[B, S, hidden]`.
    pub(super) fn forward(&self, x_BSH: &Tensor) -> Tensor {
        let gate_up = self.gate_up.forward(x_BSH).chunk(2, -1);
        self.down.forward(&(gate_up[0].silu() * &gate_up[1]))
    }
}
