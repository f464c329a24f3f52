//! The gated MLP.

use shared::Activation;

use super::{super::builder::text, Decoder};

impl Decoder<'_> {
    /// `down(act(gate(x)) * up(x))`.
    pub(super) fn mlp(&mut self, layer: usize, input: &str) -> String {
        let (bias, names) = (self.config.mlp_bias, self.config.mlp_names());
        let of: Vec<String> = names.inputs().map(|name| self.linear(layer, &name, input, bias)).collect();
        let [gate, up] = match self.constants.parts[1].clone() {
            Some(parts) => {
                let halves = ["gate", "up"].map(|half| format!("layers.{layer}.mlp.{half}.part"));
                self.split(&of[0], &parts, &halves.each_ref().map(String::as_str));
                halves
            }
            None => [of[0].clone(), of[1].clone()],
        };
        let active = match self.config.activation() {
            Activation::Silu => {
                let sigmoid = self.graph.node("Sigmoid", &format!("layers.{layer}.mlp.sigmoid"), &[&gate], &[]);
                self.graph.node("Mul", &format!("layers.{layer}.mlp.silu"), &[&gate, &sigmoid], &[])
            }
            Activation::GeluTanh => {
                let tanh = [text("approximate", "tanh")];
                self.graph.node("Gelu", &format!("layers.{layer}.mlp.gelu"), &[&gate], &tanh)
            }
        };
        let inner = self.graph.node("Mul", &format!("layers.{layer}.mlp.inner"), &[&active, &up], &[]);
        self.linear(layer, &names.output(), &inner, bias)
    }
}
