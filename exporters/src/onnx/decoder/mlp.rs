//! The gated MLP.

use shared::Activation;

use super::{super::builder::text, Decoder};

impl Decoder<'_> {
    /// The MLP of a layer, or its experts.
    pub(super) fn mlp(&mut self, layer: usize, input: &str) -> String {
        match self.config.experts_of(layer) {
            Some(experts) => self.experts(layer, experts, input),
            None => self.gated(layer, self.config.mlp_names().block, input),
        }
    }

    /// `down(act(gate(x)) * up(x))` of a block of the layer.
    pub(super) fn gated(&mut self, layer: usize, block: &str, input: &str) -> String {
        let (bias, names) = (self.config.mlp_bias, self.config.mlp_names());
        // Values of a dense MLP have a name that does not depend on the family.
        let values = if block == names.block { "mlp" } else { block };
        let of: Vec<String> =
            names.members.iter().map(|name| self.linear(layer, &format!("{block}.{name}"), input, bias)).collect();
        let [gate, up] = match self.constants.parts[1].clone() {
            Some(parts) => {
                let halves = ["gate", "up"].map(|half| format!("layers.{layer}.{values}.{half}.part"));
                self.split(&of[0], &parts, &halves.each_ref().map(String::as_str));
                halves
            }
            None => [of[0].clone(), of[1].clone()],
        };
        let active = match self.config.activation() {
            Activation::Silu => {
                let sigmoid = self.graph.node("Sigmoid", &format!("layers.{layer}.{values}.sigmoid"), &[&gate], &[]);
                self.graph.node("Mul", &format!("layers.{layer}.{values}.silu"), &[&gate, &sigmoid], &[])
            }
            Activation::GeluTanh => {
                let tanh = [text("approximate", "tanh")];
                self.graph.node("Gelu", &format!("layers.{layer}.{values}.gelu"), &[&gate], &tanh)
            }
        };
        let inner = self.graph.node("Mul", &format!("layers.{layer}.{values}.inner"), &[&active, &up], &[]);
        self.linear(layer, &format!("{block}.{}", names.last), &inner, bias)
    }
}
