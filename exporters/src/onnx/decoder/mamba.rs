//! Layers of Mamba-2 (Granite 4): a matrix for each head, which every token changes and is read from.
//!
//! All of it is float32, in graphs of every type.

use shared::Mamba;

use super::{
    super::{
        builder::{MICROSOFT, float, int, text},
        states::GraphState,
    },
    Decoder, parameter,
};

impl Decoder<'_> {
    /// `[tokens, hidden]` to `[tokens, hidden]`.
    pub(super) fn mamba(&mut self, layer: usize, mamba: Mamba, input: &str) -> String {
        let names = self.config.mixer_names(layer);
        let name = |what: &str| format!("layers.{layer}.{}.{what}", names.block);
        let of_layer = |part: &str| format!("{}.{part}", names.block);
        let (inner, of_groups) = (mamba.inner() as i64, (mamba.groups * mamba.state_dim) as i64);
        let projected = self.linear(layer, &of_layer(names.members[0]), input, mamba.proj_bias);
        let projected = self.as_float(&projected);
        let widths = [inner, mamba.channels() as i64, mamba.heads as i64];
        let widths = self.graph.integers_once("parts.mamba", &widths);
        let [gate, channels, step] = ["gate", "channels", "step"].map(name);
        self.split(&projected, &widths, &[&gate, &channels, &step]);
        let mixed = self.causal_conv(layer, &of_layer("conv1d"), mamba.conv_bias, "silu", &channels, mamba.channels());
        let widths = self.graph.integers_once("parts.channels", &[inner, of_groups, of_groups]);
        let [x, write, read] = ["input", "write", "read"].map(name);
        self.split(&mixed, &widths, &[&x, &write, &read]);

        let [step, decay] = self.step_and_decay(layer, &step);
        let heads = self.graph.integers_once("shape.mamba", &[-1, mamba.heads as i64, mamba.head_dim as i64]);
        let x = self.graph.node("Reshape", &name("input.heads"), &[&x, &heads], &[]);
        let value = self.graph.node("Mul", &name("value"), &[&x, &step], &[]);
        let [read, write, value, decay] = [("read", read), ("write", write), ("value", value), ("decay", decay)]
            .map(|(which, of)| self.as_batch(&name(&format!("{which}.batch")), &of));
        let matrix = GraphState::matrix(self.config, layer).expect("a layer of Mamba-2 has matrices");
        let past = self.past_of(&matrix);
        let ruled = name("ruled");
        // Reads stand in the place of queries, and writes in that of keys.
        let attributes = [
            text("update_rule", "gated"),
            int("q_num_heads", mamba.groups as i64),
            int("kv_num_heads", mamba.heads as i64),
            float("scale", 1.0),
        ];
        let inputs = [read.as_str(), &write, &value, &past, &decay];
        self.graph.operator(MICROSOFT, "LinearAttention", &ruled, &inputs, &[&ruled, &matrix.present], &attributes);

        let ruled = self.graph.node("Reshape", &name("ruled.heads"), &[&ruled, &heads], &[]);
        let axis = self.graph.integers_once("axis.mamba.skip", &[1]);
        let skip = self.graph.node("Unsqueeze", &name("skip"), &[&parameter(layer, &of_layer("D")), &axis], &[]);
        let skipped = self.graph.node("Mul", &name("skipped"), &[&x, &skip], &[]);
        let result = self.graph.node("Add", &name("result"), &[&ruled, &skipped], &[]);
        let tokens = self.graph.integers_once("shape.mamba.tokens", &[-1, inner]);
        let result = self.graph.node("Reshape", &name("result.tokens"), &[&result, &tokens], &[]);
        let open = self.graph.node("Sigmoid", &name("gate.open"), &[&gate], &[]);
        let active = self.graph.node("Mul", &name("gate.active"), &[&gate, &open], &[]);
        let gated = self.graph.node("Mul", &name("gated"), &[&result, &active], &[]);
        let normed = self.norm_by_group(layer, mamba, &gated, &tokens);
        let normed = self.as_stored(&normed);
        self.linear(layer, &names.output(), &normed, mamba.proj_bias)
    }

    /// How far each head goes at a token, `[tokens, heads, 1]`, and the logarithm of its matrix's decay there,
    /// `[tokens, heads]`.
    fn step_and_decay(&mut self, layer: usize, step: &str) -> [String; 2] {
        let block = self.config.mixer_names(layer).block;
        let name = |what: &str| format!("layers.{layer}.{block}.{what}");
        // Both are stored in float32.
        let [bias, logarithm] = ["dt_bias", "A_log"].map(|of| parameter(layer, &format!("{block}.{of}")));
        let sum = self.graph.node("Add", &name("step.sum"), &[step, &bias], &[]);
        let step = self.graph.node("Softplus", &name("step.size"), &[&sum], &[]);
        let factor = self.graph.node("Exp", &name("decay.factor"), &[&logarithm], &[]);
        let factor = self.graph.node("Neg", &name("decay.scale"), &[&factor], &[]);
        let decay = self.graph.node("Mul", &name("decay"), &[&step, &factor], &[]);
        let axis = self.graph.integers_once("axis.mamba.step", &[2]);
        [self.graph.node("Unsqueeze", &name("step.heads"), &[&step, &axis], &[]), decay]
    }

    /// An RMS norm over the results of each group, of all heads in it.
    fn norm_by_group(&mut self, layer: usize, mamba: Mamba, input: &str, tokens: &str) -> String {
        let block = self.config.mixer_names(layer).block;
        let name = |what: &str| format!("layers.{layer}.{block}.{what}");
        // The norm's weight is stored as it is, whatever the family adds to others.
        let gamma = self.as_float(&parameter(layer, &format!("{block}.norm.weight")));
        let attributes = [int("axis", -1), float("epsilon", self.config.rms_norm_eps as f32)];
        const NORM: &str = "SimplifiedLayerNormalization";
        if mamba.groups == 1 {
            return self.graph.node(NORM, &name("normed"), &[input, &gamma], &attributes);
        }
        let width = mamba.inner() / mamba.groups;
        let shape = self.graph.integers_once("shape.mamba.groups", &[-1, width as i64]);
        let ones = self.graph.floats_once("mamba.groups", &vec![1.0; width]);
        let apart = self.graph.node("Reshape", &name("gated.groups"), &[input, &shape], &[]);
        let normed = self.graph.node(NORM, &name("normed.groups"), &[&apart, &ones], &attributes);
        let normed = self.graph.node("Reshape", &name("normed.tokens"), &[&normed, tokens], &[]);
        self.graph.node("Mul", &name("normed"), &[&normed, &gamma], &[])
    }
}
