//! Convolutions over the last inputs of each channel, and the layers that are one with two gates (LFM2).

use shared::{Head, ShortConv};

use super::{
    super::{
        builder::{MICROSOFT, int, text},
        states::GraphState,
    },
    Decoder, parameter,
};

impl Decoder<'_> {
    /// `[tokens, hidden]` to `[tokens, hidden]`.
    pub(super) fn short_conv(&mut self, layer: usize, conv: ShortConv, input: &str) -> String {
        let (names, hidden) = (self.config.mixer_names(layer), self.config.hidden_size);
        let name = |what: &str| format!("layers.{layer}.{}.{what}", names.block);
        let thirds = self.graph.integers_once("parts.thirds", &[hidden as i64; 3]);
        let all = self.linear(layer, &format!("{}.{}", names.block, names.members[0]), input, conv.bias);
        let [before, behind, of_tokens] = ["before", "behind", "input"].map(name);
        self.split(&all, &thirds, &[&before, &behind, &of_tokens]);
        let gated = self.graph.node("Mul", &name("gated"), &[&before, &of_tokens], &[]);
        let gated = self.as_float(&gated);
        let mixed = self.causal_conv(layer, &format!("{}.conv", names.block), conv.bias, "none", &gated, hidden);
        let mixed = self.as_stored(&mixed);
        let mixed = self.graph.node("Mul", &name("mixed"), &[&behind, &mixed], &[]);
        self.linear(layer, &names.output(), &mixed, conv.bias)
    }

    /// `[tokens, channels]` to `[tokens, channels]`, both in float32: every channel's sum over its last inputs, of this
    /// call and before it.
    pub(super) fn causal_conv(
        &mut self,
        layer: usize,
        weight: &str,
        bias: bool,
        activation: &str,
        input: &str,
        channels: usize,
    ) -> String {
        let name = format!("layers.{layer}.{weight}");
        let shape = self.graph.integers_once("shape.channels", &[-1, channels as i64]);
        let batch = self.as_batch(&format!("{name}.input"), input);
        let bias = if bias { self.as_float(&parameter(layer, &format!("{weight}.bias"))) } else { String::new() };
        let weight = self.as_float(&parameter(layer, &format!("{weight}.weight")));
        let window = GraphState::window(self.config, layer).expect("a layer with a convolution has a window");
        let past = self.past_of(&window);
        let attributes = [int("ndim", 1), int("channels_last", 1), text("activation", activation)];
        let (inputs, outputs) = ([batch.as_str(), &weight, &bias, &past], [name.as_str(), &window.present]);
        self.graph.operator(MICROSOFT, "CausalConvWithState", &name, &inputs, &outputs, &attributes);
        self.graph.node("Reshape", &format!("{name}.tokens"), &[&name, &shape], &[])
    }

    /// Name of the state before a call; none where sequences are whole.
    pub(super) fn past_of(&mut self, state: &GraphState) -> String {
        match self.config.head {
            Head::LanguageModel => {
                state.declare(&mut self.graph);
                state.past.clone()
            }
            Head::Score { .. } => String::new(),
        }
    }
}
