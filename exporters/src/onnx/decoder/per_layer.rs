//! Inputs of each layer's own beside the residual stream, and the factor on its result.

use shared::{Activation, ModelConfig, PerLayerInput};

use super::{
    super::builder::{int, text},
    Decoder, parameter,
};

impl Decoder<'_> {
    /// The inputs of all layers, `[tokens, width]` each, from the scaled embedding of the tokens. Nothing in a family
    /// without them.
    pub(super) fn inputs_of_layers(&mut self, embedding: &str) {
        let Some(input) = self.config.per_layer_input else { return };
        let (layers, width) = (self.config.num_hidden_layers, input.width as i64);
        let name = |what: &str| format!("inputs.{what}");
        let projected =
            self.gemm(&name("projected"), embedding, &format!("{}.weight", PerLayerInput::PROJECTION), None);
        let scale = (self.config.hidden_size as f64).sqrt().recip() as f32;
        let scale = self.graph.scalar(&name("projected.scale"), scale, self.dtype);
        let projected = self.graph.node("Mul", &name("projected.scaled"), &[&projected, &scale], &[]);
        let rows = self.graph.integers(&name("rows"), &[-1, width]);
        let projected = self.graph.node("Reshape", &name("projected.rows"), &[&projected, &rows], &[]);
        let projected = self.rms_norm(&name("projected.norm"), &projected, &format!("{}.weight", PerLayerInput::NORM));
        let of_tokens = self.graph.node("Gather", &name("table"), &[PerLayerInput::TABLE, "input_ids.flat"], &[]);
        let scale = self.graph.scalar(&name("table.scale"), input.table_scale() as f32, self.dtype);
        let of_tokens = self.graph.node("Mul", &name("table.scaled"), &[&of_tokens, &scale], &[]);
        let of_tokens = self.graph.node("Reshape", &name("table.rows"), &[&of_tokens, &rows], &[]);
        let sum = self.graph.node("Add", &name("sum"), &[&projected, &of_tokens], &[]);
        let scale = self.graph.scalar(&name("scale"), PerLayerInput::SCALE as f32, self.dtype);
        let sum = self.graph.node("Mul", &name("scaled"), &[&sum, &scale], &[]);
        let tokens = self.graph.integers(&name("tokens"), &[-1, layers as i64 * width]);
        let all = self.graph.node("Reshape", &name("all"), &[&sum, &tokens], &[]);
        let widths = self.graph.integers(&name("widths"), &vec![width; layers]);
        self.layer_inputs = (0..layers).map(|layer| format!("layers.{layer}.input")).collect();
        let outputs: Vec<&str> = self.layer_inputs.iter().map(String::as_str).collect();
        self.graph.operator("", "Split", &name("split"), &[&all, &widths], &outputs, &[int("axis", 1)]);
    }

    /// The stream behind a layer's MLP, with what the layer makes of its own input, times the layer's factor.
    pub(super) fn with_layer_input(&mut self, layer: usize, stream: String) -> String {
        let name = |what: &str| format!("layers.{layer}.input.{what}");
        let mut stream = stream;
        if let Some(input) = self.layer_inputs.get(layer).cloned() {
            let gate = self.linear(layer, PerLayerInput::GATE, &stream, false);
            let active = match self.config.activation() {
                Activation::GeluTanh => {
                    self.graph.node("Gelu", &name("gelu"), &[&gate], &[text("approximate", "tanh")])
                }
                Activation::Silu => {
                    let sigmoid = self.graph.node("Sigmoid", &name("sigmoid"), &[&gate], &[]);
                    self.graph.node("Mul", &name("silu"), &[&gate, &sigmoid], &[])
                }
            };
            let inner = self.graph.node("Mul", &name("inner"), &[&active, &input], &[]);
            let result = self.linear(layer, PerLayerInput::BACK, &inner, false);
            let gamma = parameter(layer, &format!("{}.weight", PerLayerInput::OUTPUT_NORM));
            let result = self.rms_norm(&name("norm"), &result, &gamma);
            stream = self.graph.node("Add", &name("residual"), &[&result, &stream], &[]);
        }
        let scalar = parameter(layer, ModelConfig::LAYER_SCALAR);
        self.graph.node("Mul", &format!("layers.{layer}.scaled"), &[&stream, &scalar], &[])
    }
}
