//! Attention over keys and values of earlier tokens.

use shared::{AttentionGate, AttentionKind, Head, Rotary};

use super::{
    super::{
        builder::{Dim, MICROSOFT, data_type, float, int},
        inputs::BATCH,
    },
    Decoder, QUERY_FACTORS, fused_rotary, parameter, rotary_names,
};

impl Decoder<'_> {
    /// `[tokens, hidden]` to `[tokens, hidden]`.
    pub(super) fn attention(&mut self, layer: usize, kind: AttentionKind, input: &str) -> String {
        let names = self.config.attention_names();
        let mut gate = None;
        let [q, k, v] = match self.constants.parts[0].clone() {
            Some(parts) => {
                let qkv = self.linear(layer, &format!("self_attn.{}", names.members[0]), input, self.config.qkv_bias);
                let of = ["q", "k", "v"].map(|part| format!("layers.{layer}.{part}.part"));
                self.split(&qkv, &parts, &of.each_ref().map(String::as_str));
                let [q, k, v] = of;
                let [q, k] = [("q", q), ("k", k)].map(|(which, x)| self.query_or_key(layer, kind, which, x));
                [q, k, v]
            }
            None => {
                let [q, k] = ["q", "k"].map(|which| {
                    let mut x = self.linear(layer, &format!("self_attn.{which}_proj"), input, self.config.qkv_bias);
                    if which == "q" && kind.gate == Some(AttentionGate::Entries) {
                        (x, gate) = self.query_and_gate(layer, &x);
                    }
                    self.query_or_key(layer, kind, which, x)
                });
                [q, k, self.linear(layer, "self_attn.v_proj", input, self.config.qkv_bias)]
            }
        };
        let v = self.as_batch(&format!("layers.{layer}.v"), &v);
        let mut attended = self.grouped_query_attention(layer, kind, &q, &k, &v);
        if kind.gate == Some(AttentionGate::Heads) {
            attended = self.gate_heads(layer, input, &attended);
        }
        let flat = format!("layers.{layer}.attended.tokens");
        let mut attended = self.graph.node("Reshape", &flat, &[&attended, &self.constants.tokens], &[]);
        if let Some(gate) = gate {
            attended = self.graph.node("Mul", &format!("layers.{layer}.attended.gated"), &[&attended, &gate], &[]);
        }
        self.linear(layer, &names.output(), &attended, self.config.attention_output_bias)
    }

    /// Queries and factors on the result, from one projection that has both head by head: `[tokens * heads, head_dim]`
    /// and `[tokens, heads * head_dim]`.
    fn query_and_gate(&mut self, layer: usize, both: &str) -> (String, Option<String>) {
        let width = self.config.head_dim as i64;
        let name = |what: &str| format!("layers.{layer}.{what}");
        let shape = self.graph.integers_once("shape.gated_heads", &[-1, 2 * width]);
        let halves = self.graph.integers_once("parts.gated_heads", &[width; 2]);
        let heads = self.graph.node("Reshape", &name("q.with_gate"), &[both, &shape], &[]);
        let (q, gate) = (name("q.part"), name("gate.part"));
        self.split(&heads, &halves, &[&q, &gate]);
        let gate = self.graph.node("Reshape", &name("gate"), &[&gate, &self.constants.tokens], &[]);
        (q, Some(self.graph.node("Sigmoid", &name("gate.sigmoid"), &[&gate], &[])))
    }

    /// The result of attention with a factor on each head, from a projection of its own: `[tokens * heads, head_dim]`.
    fn gate_heads(&mut self, layer: usize, input: &str, attended: &str) -> String {
        let name = |what: &str| format!("layers.{layer}.{what}");
        let heads = self.graph.integers_once("shape.attended_heads", &[-1, self.config.head_dim as i64]);
        let column = self.graph.integers_once("shape.gate_of_heads", &[-1, 1]);
        let gate = self.linear(layer, "self_attn.gate_proj", input, false);
        let gate = self.graph.node("Sigmoid", &name("gate.sigmoid"), &[&gate], &[]);
        let gate = self.graph.node("Reshape", &name("gate.column"), &[&gate, &column], &[]);
        let heads = self.graph.node("Reshape", &name("attended.heads"), &[attended, &heads], &[]);
        self.graph.node("Mul", &name("attended.gated"), &[&heads, &gate], &[])
    }

    /// The family's norm and (when the attention does not do it) rotation of queries or keys, and growth of queries:
    /// `[batch, sequence, heads * head_dim]`.
    fn query_or_key(&mut self, layer: usize, kind: AttentionKind, which: &str, mut x: String) -> String {
        let norm = self.config.query_and_key_norm_names()[usize::from(which == "k")];
        let gamma = parameter(layer, &format!("self_attn.{norm}.weight"));
        if let Some(shape) = &self.constants.heads {
            let heads = self.graph.node("Reshape", &format!("layers.{layer}.{which}.heads"), &[&x, shape], &[]);
            x = self.rms_norm(&format!("layers.{layer}.{which}_norm"), &heads, &gamma);
        } else if self.config.width_norms() {
            x = self.rms_norm(&format!("layers.{layer}.{which}_norm"), &x, &gamma);
        }
        let mut x = self.as_batch(&format!("layers.{layer}.{which}"), &x);
        let Some(positions) = self.inputs.position_ids.clone() else { return x };
        if let Some(rotary) = kind.rotary.filter(|_| !fused_rotary(self.config)) {
            x = self.rotate(layer, which, &x, &positions, rotary);
        }
        if let Some(axis) = self.constants.last_axis.clone().filter(|_| which == "q") {
            let name = |what: &str| format!("layers.{layer}.q.{what}");
            let factors = self.graph.node("Gather", &name("factors"), &[QUERY_FACTORS, &positions], &[]);
            let factors = self.graph.node("Unsqueeze", &name("factors.column"), &[&factors, &axis], &[]);
            x = self.graph.node("Mul", &name("grown"), &[&x, &factors], &[]);
        }
        x
    }

    fn rotate(&mut self, layer: usize, which: &str, input: &str, positions: &str, rotary: Rotary) -> String {
        let name = format!("layers.{layer}.{which}.rotated");
        let [cos, sin] = rotary_names(rotary);
        let inputs = [input, positions, cos, sin];
        let mut attributes = vec![int("interleaved", 0)];
        if self.config.rotary_dim < self.config.head_dim {
            let heads = if which == "q" { self.config.num_attention_heads } else { self.config.num_key_value_heads };
            attributes.push(int("num_heads", heads as i64));
            attributes.push(int("rotary_embedding_dim", self.config.rotary_dim as i64));
        }
        self.graph.operator(MICROSOFT, "RotaryEmbedding", &name, &inputs, &[&name], &attributes);
        name
    }

    fn grouped_query_attention(&mut self, layer: usize, kind: AttentionKind, q: &str, k: &str, v: &str) -> String {
        let name = format!("layers.{layer}.attended");
        // The kernel writes the keys and values of a call in any case; without a cache they are values like others.
        let present = self.cache_names("present", layer);
        let past = match self.config.head {
            Head::LanguageModel => {
                let past = self.cache_names("past_key_values", layer);
                self.declare_cache(&past, &present);
                past
            }
            Head::Score { .. } => Default::default(),
        };
        let mut inputs = vec![q, k, v, &past[0], &past[1], &self.inputs.seqlens_k, &self.inputs.total_sequence_length];
        let fused = kind.rotary.filter(|_| fused_rotary(self.config));
        if let Some(rotary) = fused {
            inputs.extend(rotary_names(rotary));
        }
        let mut attributes = vec![
            int("num_heads", self.config.num_attention_heads as i64),
            int("kv_num_heads", self.config.num_key_value_heads as i64),
            float("scale", self.config.attention_scale as f32),
            int("do_rotary", i64::from(fused.is_some())),
            int("rotary_interleaved", 0),
        ];
        if let Some(window) = kind.window {
            attributes.push(int("local_window_size", window as i64));
        }
        let outputs = [name.as_str(), &present[0], &present[1]];
        self.graph.operator(MICROSOFT, "GroupQueryAttention", &name, &inputs, &outputs, &attributes);
        name
    }

    fn cache_names(&self, prefix: &str, layer: usize) -> [String; 2] {
        ["key", "value"].map(|kind| format!("{prefix}.{layer}.{kind}"))
    }

    fn declare_cache(&mut self, past: &[String; 2], present: &[String; 2]) {
        let shape = |length| {
            let heads = Dim::Fixed(self.config.num_key_value_heads);
            [BATCH, heads, Dim::Named(length), Dim::Fixed(self.config.head_dim)]
        };
        let [before, after] = self.inputs.cache_lengths.map(shape);
        let element = data_type(self.dtype);
        for (past, present) in past.iter().zip(present) {
            self.graph.input(past, element, &before);
            self.graph.output(present, element, &after);
        }
    }
}
