//! Layers with a gated delta rule (Qwen3.5): a matrix for each value head, which every token changes and is read from.
//!
//! All of it is float32, in graphs of every type.

use shared::DeltaRule;

use super::{
    super::{
        builder::{MICROSOFT, float, int, text},
        states::GraphState,
    },
    Decoder, parameter,
};

/// What is added to the sum of squares of a query or key before it is divided by its length.
const LENGTH_EPSILON: f64 = 1e-6;

impl Decoder<'_> {
    /// `[tokens, hidden]` to `[tokens, hidden]`.
    pub(super) fn delta_rule(&mut self, layer: usize, rule: DeltaRule, input: &str) -> String {
        let names = self.config.mixer_names(layer);
        let name = |what: &str| format!("layers.{layer}.{}.{what}", names.block);
        let [qkv, gate, step, decay] = [0, 1, 2, 3].map(|member| {
            let projected = self.linear(layer, &format!("{}.{}", names.block, names.members[member]), input, false);
            self.as_float(&projected)
        });
        let conv = format!("{}.conv1d", names.block);
        let mixed = self.causal_conv(layer, &conv, false, "silu", &qkv, rule.channels());
        let widths = [rule.keys(), rule.keys(), rule.values()].map(|width| width as i64);
        let widths = self.graph.integers_once("parts.rule", &widths);
        let [q, k, v] = ["query", "key", "value"].map(name);
        self.split(&mixed, &widths, &[&q, &k, &v]);
        let [q, k] = [q, k].map(|x| self.of_length_one(&x, rule.key_dim));
        let v = self.as_batch(&name("value.batch"), &v);
        let [decay, step] = self.decay_and_step(layer, &decay, &step);

        let matrix = GraphState::matrix(self.config, layer).expect("a layer with a delta rule has matrices");
        let past = self.past_of(&matrix);
        let ruled = name("ruled");
        let attributes = [
            text("update_rule", "gated_delta"),
            int("q_num_heads", rule.key_heads as i64),
            int("kv_num_heads", rule.value_heads as i64),
            float("scale", (rule.key_dim as f32).sqrt().recip()),
        ];
        let inputs = [q.as_str(), &k, &v, &past, &decay, &step];
        self.graph.operator(MICROSOFT, "LinearAttention", &ruled, &inputs, &[&ruled, &matrix.present], &attributes);

        let shape = self.graph.integers_once("shape.values", &[-1, rule.values() as i64]);
        let tokens = self.graph.node("Reshape", &name("ruled.tokens"), &[&ruled, &shape], &[]);
        // The norm's weight is stored as it is, whatever the family adds to others.
        let gamma = self.as_float(&parameter(layer, &format!("{}.norm.weight", names.block)));
        let attributes = [text("activation", "silu"), float("epsilon", self.config.rms_norm_eps as f32)];
        let normed = name("normed");
        self.graph.operator(MICROSOFT, "GatedRMSNorm", &normed, &[&tokens, &gamma, &gate], &[&normed], &attributes);
        let normed = self.as_stored(&normed);
        self.linear(layer, &names.output(), &normed, false)
    }

    /// Every query or key, `[tokens, heads * width]`, divided by its length: `[batch, sequence, heads * width]`.
    fn of_length_one(&mut self, input: &str, width: usize) -> String {
        // An RMS norm, whose sum is a mean and whose result is the square root of the width too long.
        let gamma = self.graph.floats_once("rule.length", &vec![(width as f32).sqrt().recip(); width]);
        let shape = self.graph.integers_once("shape.keys", &[-1, width as i64]);
        let heads = self.graph.node("Reshape", &format!("{input}.heads"), &[input, &shape], &[]);
        let attributes = [int("axis", -1), float("epsilon", (LENGTH_EPSILON / width as f64) as f32)];
        let name = format!("{input}.unit");
        let unit = self.graph.node("SimplifiedLayerNormalization", &name, &[&heads, &gamma], &attributes);
        self.as_batch(&format!("{input}.batch"), &unit)
    }

    /// By how much each matrix decays at a token, as a logarithm, and how far the rule goes there: `[batch, sequence,
    /// value_heads]` each.
    fn decay_and_step(&mut self, layer: usize, decay: &str, step: &str) -> [String; 2] {
        let block = self.config.mixer_names(layer).block;
        let name = |what: &str| format!("layers.{layer}.{block}.{what}");
        let [decay, step] = [("decay", decay), ("step", step)].map(|(which, x)| self.as_batch(&name(which), x));
        // Both are stored in float32.
        let [bias, logarithm] = ["dt_bias", "A_log"].map(|of| parameter(layer, &format!("{block}.{of}")));
        let factor = self.graph.node("Exp", &name("decay.factor"), &[&logarithm], &[]);
        let factor = self.graph.node("Neg", &name("decay.scale"), &[&factor], &[]);
        let outputs = [name("decay.gate"), name("step.gate")];
        let of_outputs = outputs.each_ref().map(String::as_str);
        let inputs = [decay.as_str(), &bias, &factor, &step];
        self.graph.operator(MICROSOFT, "LinearAttentionGate", &outputs[0], &inputs, &of_outputs, &[]);
        outputs
    }
}
