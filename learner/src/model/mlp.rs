//! The gated feed-forward block (SwiGLU and GEGLU, Shazeer 2020).

use shared::{Activation, ModelConfig};
use tch::Tensor;

use super::{
    experts::{Chosen, ExpertLoad, Experts, ExpertsTape},
    halves,
    linear::Linear,
    output::Output,
    parameters::Gradients,
    weights::Weights,
};

/// What stands behind the attention of a layer.
#[derive(Debug)]
pub(super) enum Mlp {
    Dense(Dense),
    Experts(Experts),
}

/// What an [`Mlp`] keeps of its forward pass.
#[derive(Debug)]
pub(super) enum MlpTape {
    /// Gate and up, `[T, 2 · inner]`.
    Dense(Tensor),
    Experts(ExpertsTape),
}

impl MlpTape {
    /// How evenly experts are used; nothing of a dense MLP.
    pub(super) fn load(&self) -> ExpertLoad {
        match self {
            Self::Dense(_) => ExpertLoad::default(),
            Self::Experts(tape) => tape.load(),
        }
    }
}

impl Mlp {
    /// The leaves of a layer's MLP or of its experts.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, index: usize, layer: &str) -> Self {
        match config.experts_of(index) {
            None => Self::Dense(Dense::new(config, weights, layer)),
            Some(experts) => Self::Experts(Experts::new(config, experts, weights, layer)),
        }
    }

    /// The part of a forward pass that is kept, of `[T, hidden]`; with the experts that the sampler chose, where they
    /// are known.
    pub(super) fn record(&self, x_TH: &Tensor, chosen: Option<&Chosen>) -> MlpTape {
        match self {
            Self::Dense(dense) => MlpTape::Dense(dense.gate_up(x_TH)),
            Self::Experts(experts) => MlpTape::Experts(experts.record(x_TH, chosen)),
        }
    }

    /// Adds the block's result to `onto`, `[T, hidden]`.
    pub(super) fn output_onto(&self, onto: &Tensor, tape: &MlpTape) -> Tensor {
        match (self, tape) {
            (Self::Dense(dense), MlpTape::Dense(gate_up)) => dense.output_onto(onto, gate_up),
            (Self::Experts(experts), MlpTape::Experts(tape)) => experts.output_onto(onto, tape),
            _ => unreachable!("a tape belongs to the block that recorded it"),
        }
    }

    /// Adds the parameters' gradients, given input, tape and the gradient of the output; returns that of the input.
    pub(super) fn backward(&self, x_TH: &Tensor, tape: &MlpTape, dy_TH: &Tensor, gradients: &mut Gradients) -> Tensor {
        match (self, tape) {
            (Self::Dense(dense), MlpTape::Dense(gate_up)) => dense.backward(x_TH, gate_up, dy_TH, gradients),
            (Self::Experts(experts), MlpTape::Experts(tape)) => experts.backward(x_TH, tape, dy_TH, gradients),
            _ => unreachable!("a tape belongs to the block that recorded it"),
        }
    }
}

/// `act(gate) · up`, of which gate and up are the halves of one tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gate(pub(super) Activation);

/// libtorch's name of the tanh approximation of GELU.
const TANH: &str = "tanh";

impl Gate {
    /// `[T, inner]` of `[T, 2 · inner]`.
    pub(super) fn forward(self, gate_up: &Tensor) -> Tensor {
        if self.is_one_pass(gate_up) {
            return halves::swiglu(gate_up);
        }
        let halves = gate_up.chunk(2, -1);
        self.active(&halves[0]).g_mul_(&halves[1])
    }

    /// Whether kernels compute it, and its gradient, in one pass.
    fn is_one_pass(self, gate_up: &Tensor) -> bool {
        self.0 == Activation::Silu && halves::take(gate_up)
    }

    /// The active gate, and [`Self::forward`].
    pub(super) fn parts(self, gate_up: &Tensor) -> [Tensor; 2] {
        let halves = gate_up.chunk(2, -1);
        let active = self.active(&halves[0]);
        let inner = &active * &halves[1];
        [active, inner]
    }

    /// The active gate, of a gate alone.
    pub(super) fn active(self, gate: &Tensor) -> Tensor {
        match self.0 {
            Activation::Silu => gate.silu(),
            Activation::GeluTanh => gate.gelu(TANH),
        }
    }

    /// The gradient of a gate alone, given that of the active gate.
    pub(super) fn active_backward(self, gate: &Tensor, d_active: &Tensor) -> Tensor {
        match self.0 {
            Activation::Silu => gate.silu_backward(d_active),
            Activation::GeluTanh => gate.gelu_backward(d_active, TANH),
        }
    }

    /// The gradient of gate and up, given the active gate and the gradient of the product, which is overwritten.
    pub(super) fn backward(self, gate_up: &Tensor, active: &Tensor, mut d_inner: Tensor) -> Tensor {
        let halves = gate_up.chunk(2, -1);
        let d_gate_up = gate_up.empty_like();
        let d_halves = d_gate_up.chunk(2, -1);
        let _ = active.multiply_out(&d_halves[1], &d_inner);
        let d_active = d_inner.g_mul_(&halves[1]);
        let _ = match self.0 {
            Activation::Silu => halves[0].silu_backward_grad_input(&d_halves[0], &d_active),
            Activation::GeluTanh => halves[0].gelu_backward_grad_input(&d_halves[0], &d_active, TANH),
        };
        d_gate_up
    }
}

/// `down(act(gate(x)) · up(x))`.
#[derive(Debug)]
pub(super) struct Dense {
    gate_up: Linear,
    down: Output,
    gate: Gate,
}

impl Dense {
    /// The leaves of the layer's MLP, and the norm behind it.
    fn new(config: &ModelConfig, weights: &Weights, layer: &str) -> Self {
        let names = config.mlp_names();
        let block = &format!("{layer}.{}", names.block);
        let leaf = if names.is_fused() { names.members[0] } else { "gate_up_proj" };
        let norm = format!("{layer}.{}", config.output_norm_names()[1]);
        Self {
            gate_up: Linear::stacked(weights, block, leaf, names.members),
            down: Output::new(config, weights, [block, names.last], &norm),
            gate: Gate(config.activation()),
        }
    }

    fn gate_up(&self, x_TH: &Tensor) -> Tensor {
        self.gate_up.forward(x_TH)
    }

    fn output_onto(&self, onto: &Tensor, gate_up: &Tensor) -> Tensor {
        self.down.forward_onto(onto, &self.gate.forward(gate_up))
    }

    fn backward(&self, x_TH: &Tensor, gate_up: &Tensor, dy_TH: &Tensor, gradients: &mut Gradients) -> Tensor {
        if self.gate.is_one_pass(gate_up) {
            let d_inner = self.down.backward(&self.gate.forward(gate_up), dy_TH, gradients);
            return self.gate_up.backward(x_TH, &halves::swiglu_backward(gate_up, &d_inner), gradients);
        }
        let [active, inner] = self.gate.parts(gate_up);
        let d_inner = self.down.backward(&inner, dy_TH, gradients);
        self.gate_up.backward(x_TH, &self.gate.backward(gate_up, &active, d_inner), gradients)
    }
}
