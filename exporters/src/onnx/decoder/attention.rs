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
        if let Some(source) = self.config.shares_keys_of(layer) {
            return self.attention_to(layer, kind, source, input);
        }
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
        let v = if self.config.value_norms() { self.norm_values(layer, &v) } else { v };
        let v = self.as_batch(&format!("layers.{layer}.v"), &v);
        let past = self.declare_cache(layer);
        let present = self.cache_names("present", layer);
        let mut attended = self.grouped_query_attention(layer, kind, [&q, &k, &v], &past, &present);
        if kind.gate == Some(AttentionGate::Heads) {
            attended = self.gate_heads(layer, input, &attended);
        }
        let mut attended = self.attended_tokens(layer, &attended);
        if let Some(gate) = gate {
            attended = self.graph.node("Mul", &format!("layers.{layer}.attended.gated"), &[&attended, &gate], &[]);
        }
        self.linear(layer, &names.output(), &attended, self.config.attention_output_bias)
    }

    /// [`Self::attention`] of a layer that reads the keys and values of an earlier one.
    fn attention_to(&mut self, layer: usize, kind: AttentionKind, source: usize, input: &str) -> String {
        let q = self.linear(layer, "self_attn.q_proj", input, self.config.qkv_bias);
        let q = self.query_or_key(layer, kind, "q", q);
        // Keys of no token: those of the call are in the cache already.
        let [_, width] = self.config.query_and_key_widths(layer).map(|width| width as i64);
        let begin = self.graph.integers_once("none.begin", &[0, 0]);
        let end = self.graph.integers_once(&format!("none.end.{width}"), &[0, width]);
        let axes = self.graph.integers_once("none.axes", &[1, 2]);
        let none = self.graph.node("Slice", &format!("layers.{layer}.none"), &[&q, &begin, &end, &axes], &[]);
        let past = self.cache_names("present", source);
        let attended = self.grouped_query_attention(layer, kind, [&q, &none, &none], &past, &[]);
        let attended = self.attended_tokens(layer, &attended);
        self.linear(layer, &self.config.attention_names().output(), &attended, self.config.attention_output_bias)
    }

    /// The attention's output as tokens.
    fn attended_tokens(&mut self, layer: usize, attended: &str) -> String {
        let shape = match self.config.head_dim_of(layer) {
            width if width == self.config.head_dim => self.constants.tokens.clone(),
            width => {
                let all = (self.config.num_attention_heads * width) as i64;
                self.graph.integers_once(&format!("shape.tokens.{width}"), &[-1, all])
            }
        };
        self.graph.node("Reshape", &format!("layers.{layer}.attended.tokens"), &[attended, &shape], &[])
    }

    /// The shape with every head a row, in the families that norm their heads.
    fn heads_as_rows(&mut self, layer: usize) -> Option<String> {
        let shape = self.constants.heads.clone()?;
        Some(match self.config.head_dim_of(layer) {
            width if width == self.config.head_dim => shape,
            width => self.graph.integers_once(&format!("shape.heads.{width}"), &[-1, width as i64]),
        })
    }

    /// Values with a norm without weight on each head: `[tokens * kv_heads, head_dim]`.
    fn norm_values(&mut self, layer: usize, v: &str) -> String {
        let Some(shape) = self.heads_as_rows(layer) else { return v.to_owned() };
        let width = self.config.head_dim_of(layer);
        let heads = self.graph.node("Reshape", &format!("layers.{layer}.v.heads"), &[v, &shape], &[]);
        let ones = self.graph.ones_once(&format!("ones.{width}"), width, self.dtype);
        self.rms_norm(&format!("layers.{layer}.v_norm"), &heads, &ones)
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
        if let Some(shape) = self.heads_as_rows(layer) {
            let heads = self.graph.node("Reshape", &format!("layers.{layer}.{which}.heads"), &[&x, &shape], &[]);
            x = self.rms_norm(&format!("layers.{layer}.{which}_norm"), &heads, &gamma);
        } else if self.config.width_norms() {
            x = self.rms_norm(&format!("layers.{layer}.{which}_norm"), &x, &gamma);
        }
        let mut x = self.as_batch(&format!("layers.{layer}.{which}"), &x);
        let Some(positions) = self.inputs.position_ids.clone() else { return x };
        if let Some(rotary) = kind.rotary.filter(|&rotary| !fused_rotary(self.config, rotary)) {
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
        let entries = self.config.rotary_entries(rotary);
        if entries < self.config.head_dim_of(layer) {
            let heads = if which == "q" { self.config.num_attention_heads } else { self.config.num_key_value_heads };
            attributes.push(int("num_heads", heads as i64));
            attributes.push(int("rotary_embedding_dim", entries as i64));
        }
        self.graph.operator(MICROSOFT, "RotaryEmbedding", &name, &inputs, &[&name], &attributes);
        name
    }

    fn grouped_query_attention(
        &mut self,
        layer: usize,
        kind: AttentionKind,
        [q, k, v]: [&str; 3],
        past: &[String; 2],
        present: &[String],
    ) -> String {
        let name = format!("layers.{layer}.attended");
        let mut inputs = vec![q, k, v, &past[0], &past[1], &self.inputs.seqlens_k, &self.inputs.total_sequence_length];
        let fused = kind.rotary.filter(|&rotary| fused_rotary(self.config, rotary));
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
        let outputs: Vec<&str> = [name.as_str()].into_iter().chain(present.iter().map(String::as_str)).collect();
        self.graph.operator(MICROSOFT, "GroupQueryAttention", &name, &inputs, &outputs, &attributes);
        name
    }

    fn cache_names(&self, prefix: &str, layer: usize) -> [String; 2] {
        ["key", "value"].map(|kind| format!("{prefix}.{layer}.{kind}"))
    }

    /// Declares the keys and values of a layer as inputs and outputs of the graph, and returns the names of the inputs.
    /// The kernel writes the keys and values of a call in any case; without a cache they are values like others, and
    /// there are no inputs.
    fn declare_cache(&mut self, layer: usize) -> [String; 2] {
        let Head::LanguageModel = self.config.head else { return Default::default() };
        let past = self.cache_names("past_key_values", layer);
        let present = self.cache_names("present", layer);
        let width = self.config.head_dim_of(layer);
        let shape = |length| {
            let heads = Dim::Fixed(self.config.num_key_value_heads);
            [BATCH, heads, Dim::Named(length), Dim::Fixed(width)]
        };
        let [before, after] = self.inputs.cache_lengths.map(shape);
        let element = data_type(self.dtype);
        for (past, present) in past.iter().zip(&present) {
            self.graph.input(past, element, &before);
            self.graph.output(present, element, &after);
        }
        past
    }
}
