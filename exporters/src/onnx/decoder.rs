//! The decoder graph: one model for prefill and decode, with the KV cache updated in place. A model with a score head
//! (a reward model) has the same layers, but sees its sequences whole and keeps no cache.
//!
//! Activations are two-dimensional, `[tokens, features]` with tokens = batch × sequence, so that every linear layer
//! is a `Gemm` with `transB = 1` on the Hugging Face weight as it is (`[out, in]`): a new version of the weights is a
//! straight copy. Attention is com.microsoft `GroupQueryAttention`, the only node that sees batch and sequence apart.

use shared::{Activation, Dtype, Head, ModelConfig, Rotary, TensorEntry};

use super::{
    blocked::Blocked,
    builder::{Dim, External, GraphBuilder, MICROSOFT, data_type, float, int, text},
    inputs::{Asked, BATCH, Inputs, SCORES, SEQUENCE},
    proto::{DataType, ModelProto},
};

/// Name of the table of rotary cosines, `[rows, rotary_dim / 2]` ([`ModelConfig::rotary_tables`]).
pub const ROTARY_COS: &str = "rotary.cos";
/// Name of the table of rotary sines, as that of the cosines.
pub const ROTARY_SIN: &str = "rotary.sin";

/// Name of the factors on queries, one for each position, in the families whose queries grow.
pub const QUERY_FACTORS: &str = "query.factors";

/// Names of the tables of cosines and sines.
#[must_use]
pub fn rotary_names(rotary: Rotary) -> [&'static str; 2] {
    match rotary {
        Rotary::Global => [ROTARY_COS, ROTARY_SIN],
        Rotary::Local => ["rotary.local.cos", "rotary.local.sin"],
    }
}

/// `GroupQueryAttention` works on head widths that are a multiple of this.
pub(crate) const HEAD_DIM_MULTIPLE: usize = 8;
/// Its fused rotary embedding turns a number of entries that is a multiple of this.
const FUSED_ROTARY_MULTIPLE: usize = 16;

/// Name of the embedding.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of the language-model head where it is not the embedding.
pub(crate) const LM_HEAD: &str = "lm_head.weight";

/// Whether `GroupQueryAttention` rotates q and k itself. It takes position 0 for the first row of the tables, which is
/// not so in long sequences with longrope.
fn fused_rotary(config: &ModelConfig) -> bool {
    config.rotary_dim.is_multiple_of(FUSED_ROTARY_MULTIPLE) && config.original_length().is_none()
}

/// Whether the graph has an input `position_ids`: some layer rotates, and its attention does not do that itself, or
/// queries grow with their position.
#[must_use]
pub fn reads_positions(config: &ModelConfig) -> bool {
    config.query_scaling.is_some()
        || !fused_rotary(config) && config.attention_layers().any(|(_, layer)| layer.rotary.is_some())
}

/// Names and shapes of the constants of a graph for so many positions.
pub(crate) fn constants(config: &ModelConfig, positions: usize) -> Vec<(String, Vec<usize>)> {
    let shape = vec![config.rotary_rows(positions), config.rotary_dim / 2];
    let tables = config.rotaries().flat_map(rotary_names).map(|name| (name.to_owned(), shape.clone()));
    tables.chain(config.query_scaling.map(|_| (QUERY_FACTORS.to_owned(), vec![positions]))).collect()
}

/// Builds the graph over the tensors of `weights.data`.
///
/// Inputs: `input_ids` i64 `[B, S]`; `seqlens_k` i32 `[B]`, each row's length including this call, minus 1;
/// `total_sequence_length` i32 scalar, the longest of these lengths; `last_index` i64 `[B]`, the position in `S` of
/// each row's last token; `position_ids` i64 `[B, S]` if [`reads_positions`], rows of the rotary tables (with longrope,
/// [`ModelConfig::rotary_begin`] of the row's whole length is added to the positions); `past_key_values.{i}.key` and
/// `.value` `[B, kv_heads, M, head_dim]`.
///
/// Outputs: `logits` f32 `[B, V]` of each row's last token; `present.{i}.key` and `.value`, which may be bound to the
/// buffers of the past.
///
/// With [`Head::Score`], there is no cache, and in place of `last_index` and `logits` there are an input `score_index`
/// i64 `[N]`, positions in the `B * S` tokens, and an output `scores` f32 `[N, labels]`. Attention is causal, so
/// whatever stands to the right of a position does not change its scores: rows may be padded there.
#[must_use]
pub fn decoder(config: &ModelConfig, tensors: &[TensorEntry], dtype: Dtype) -> ModelProto {
    let mut graph = GraphBuilder::default();
    for tensor in tensors {
        graph.external(&External::of(tensor));
    }
    let inputs = Inputs::of_engine(config, &mut graph);
    Decoder::new(config, dtype, inputs, &Blocked::default(), graph).build()
}

/// The same layers with the inputs and outputs of ONNX Runtime GenAI, over tensors that `graph` has already.
///
/// Inputs: `input_ids` i64 `[B, S]`; `attention_mask` i64 `[B, T]`, 1 for each token so far, this call included;
/// `position_ids` i64 `[B, S]` if [`reads_positions`]; `past_key_values.{i}.key` and `.value`
/// `[B, kv_heads, P, head_dim]`.
///
/// Outputs: `logits` f32 `[B, S, V]`; `present.{i}.key` and `.value` `[B, kv_heads, T, head_dim]`, which may be bound
/// to the buffers of the past where these have room.
pub(crate) fn genai_decoder(
    config: &ModelConfig,
    dtype: Dtype,
    blocked: &Blocked,
    mut graph: GraphBuilder,
) -> ModelProto {
    let inputs = Inputs::of_genai(config, &mut graph);
    Decoder::new(config, dtype, inputs, blocked, graph).build()
}

/// Targets of `Reshape`, and other constants that every layer reads.
struct Constants {
    /// `[-1]`: token ids in one row.
    flat: String,
    /// `[-1, heads * head_dim]`: the attention's output as tokens.
    tokens: String,
    /// `[-1, head_dim]`: every head a row, for the families that norm their heads.
    heads: Option<String>,
    /// `[batch, sequence, -1]`: tokens as the attention wants them.
    batch: String,
    /// What the family adds to the weights of its norms.
    norm_offset: Option<String>,
    /// `[q, kv, kv]` and `[inner, inner]`: widths of what one product gives, where projections are one tensor.
    parts: [Option<String>; 2],
    /// The factor on the results of attention and MLP, in the families that have it.
    residual_multiplier: Option<String>,
    /// `[2]`: the axis of features, of batches.
    last_axis: Option<String>,
}

impl Constants {
    fn declare(config: &ModelConfig, dtype: Dtype, input_ids: &str, graph: &mut GraphBuilder) -> Self {
        let width = (config.num_attention_heads * config.head_dim) as i64;
        let rest = graph.integers("shape.rest", &[-1]);
        let of_ids = graph.node("Shape", "shape.input_ids", &[input_ids], &[]);
        Self {
            tokens: graph.integers("shape.tokens", &[-1, width]),
            heads: config.head_norms().then(|| graph.integers("shape.heads", &[-1, config.head_dim as i64])),
            batch: graph.node("Concat", "shape.batch", &[&of_ids, &rest], &[int("axis", 0)]),
            flat: rest,
            norm_offset: (config.norm_offset() != 0.0)
                .then(|| graph.scalar("norm.offset", config.norm_offset(), dtype)),
            parts: [
                config.attention_names().is_fused().then(|| {
                    let [q, kv] = config.query_and_key_widths().map(|width| width as i64);
                    graph.integers("parts.qkv", &[q, kv, kv])
                }),
                config
                    .mlp_names()
                    .is_fused()
                    .then(|| graph.integers("parts.gate_up", &[config.intermediate_size as i64; 2])),
            ],
            residual_multiplier: (config.residual_multiplier != 1.0)
                .then(|| graph.scalar("residual.multiplier", config.residual_multiplier as f32, dtype)),
            last_axis: config.query_scaling.map(|_| graph.integers("axis.features", &[2])),
        }
    }
}

struct Decoder<'a> {
    config: &'a ModelConfig,
    dtype: Dtype,
    graph: GraphBuilder,
    inputs: Inputs,
    constants: Constants,
    blocked: &'a Blocked,
}

impl<'a> Decoder<'a> {
    fn new(
        config: &'a ModelConfig,
        dtype: Dtype,
        inputs: Inputs,
        blocked: &'a Blocked,
        mut graph: GraphBuilder,
    ) -> Self {
        let vocabulary = Dim::Fixed(config.vocab_size);
        match inputs.asked {
            Asked::Last(_) => graph.output("logits", DataType::Float, &[BATCH, vocabulary]),
            Asked::Scored(_, labels) => graph.output("scores", DataType::Float, &[SCORES, Dim::Fixed(labels)]),
            Asked::All => graph.output("logits", DataType::Float, &[BATCH, SEQUENCE, vocabulary]),
        }
        let constants = Constants::declare(config, dtype, &inputs.input_ids, &mut graph);
        Self { config, dtype, graph, inputs, constants, blocked }
    }

    fn build(mut self) -> ModelProto {
        let mut residual = self.embedding();
        let mut normed = match self.norm_before(0) {
            Some(gamma) => self.rms_norm("layers.0.input_norm", &residual, &gamma),
            None => residual.clone(),
        };
        for layer in 0..self.config.num_hidden_layers {
            let attention = self.attention(layer, &normed);
            let attention = self.result(layer, self.config.output_norm_names()[0], attention);
            let gamma = self.config.mlp_norm().map(|norm| parameter(layer, &format!("{norm}.weight")));
            (normed, residual) =
                self.add_and_norm(&format!("layers.{layer}.attention_norm"), &attention, &residual, gamma.as_deref());
            let mlp = self.mlp(layer, &normed);
            let mlp = self.result(layer, self.config.output_norm_names()[1], mlp);
            let gamma = self.norm_before(layer + 1);
            (normed, residual) =
                self.add_and_norm(&format!("layers.{layer}.mlp_norm"), &mlp, &residual, gamma.as_deref());
        }
        match self.inputs.asked.clone() {
            Asked::Last(index) => self.last_token_head(&normed, &index),
            Asked::Scored(index, _) => self.score_head(&normed, &index),
            Asked::All => self.language_model_head(&normed),
        }
        self.graph.finish("decoder")
    }

    /// `[tokens, hidden]` embeddings of `input_ids`.
    fn embedding(&mut self) -> String {
        let ids = self.graph.node("Reshape", "input_ids.flat", &[&self.inputs.input_ids, &self.constants.flat], &[]);
        let rows = match self.blocked.rows(EMBEDDING, &ids, "embedding", &mut self.graph) {
            Some(rows) => rows,
            None => self.graph.node("Gather", "embedding", &[EMBEDDING, &ids], &[]),
        };
        match self.config.embedding_scale() {
            None => rows,
            Some(scale) => {
                let scale = self.graph.scalar("embedding.scale", scale as f32, self.dtype);
                self.graph.node("Mul", "embedding.scaled", &[&rows, &scale], &[])
            }
        }
    }

    /// What is added to the residual stream of the output of attention or MLP: some families norm it first, others have
    /// a factor on it.
    fn result(&mut self, layer: usize, norm: &str, output: String) -> String {
        if self.config.output_norms() {
            return self.rms_norm(
                &format!("layers.{layer}.{norm}"),
                &output,
                &parameter(layer, &format!("{norm}.weight")),
            );
        }
        match self.constants.residual_multiplier.clone() {
            None => output,
            Some(factor) => self.graph.node("Mul", &format!("{output}.scaled"), &[&output, &factor], &[]),
        }
    }

    /// The factors of a norm: its weight, with what the family adds to it.
    fn gamma(&mut self, weight: &str) -> String {
        match &self.constants.norm_offset {
            None => weight.into(),
            Some(offset) => self.graph.node("Add", &format!("{weight}.factors"), &[weight, offset], &[]),
        }
    }

    /// Name of the weight of the norm that stands before a layer's attention, if there is one. After the last layer, it
    /// is the final norm's.
    fn norm_before(&self, layer: usize) -> Option<String> {
        if layer < self.config.num_hidden_layers {
            self.config.input_norm().map(|norm| parameter(layer, &format!("{norm}.weight")))
        } else {
            Some(format!("{}.weight", self.config.final_norm()))
        }
    }

    fn rms_norm(&mut self, name: &str, input: &str, gamma: &str) -> String {
        let (gamma, epsilon) = (self.gamma(gamma), float("epsilon", self.config.rms_norm_eps as f32));
        self.graph.node("SimplifiedLayerNormalization", name, &[input, &gamma], &[int("axis", -1), epsilon])
    }

    /// (norm of the sum, sum) of a sub-layer's output and the residual stream; the sum twice where no norm follows.
    fn add_and_norm(&mut self, name: &str, output: &str, residual: &str, gamma: Option<&str>) -> (String, String) {
        let sum = format!("{name}.residual");
        let Some(gamma) = gamma else {
            let sum = self.graph.node("Add", &sum, &[output, residual], &[]);
            return (sum.clone(), sum);
        };
        let gamma = self.gamma(gamma);
        let epsilon = float("epsilon", self.config.rms_norm_eps as f32);
        // The second and third outputs (mean and inverse deviation) are only for training.
        let outputs = [name, "", "", &sum];
        self.graph.operator(
            MICROSOFT,
            "SkipSimplifiedLayerNormalization",
            name,
            &[output, residual, &gamma],
            &outputs,
            &[epsilon],
        );
        (name.into(), sum)
    }

    /// `input @ weight.T (+ bias)` for a layer's projection.
    fn linear(&mut self, layer: usize, projection: &str, input: &str, bias: bool) -> String {
        let weight = parameter(layer, &format!("{projection}.weight"));
        let bias = bias.then(|| parameter(layer, &format!("{projection}.bias")));
        self.gemm(&format!("layers.{layer}.{projection}"), input, &weight, bias.as_deref())
    }

    /// `input @ weight.T (+ bias)`.
    fn gemm(&mut self, name: &str, input: &str, weight: &str, bias: Option<&str>) -> String {
        if let Some(product) = self.blocked.product(weight, input, bias, name, &mut self.graph) {
            return product;
        }
        let inputs: Vec<&str> = [input, weight].into_iter().chain(bias).collect();
        self.graph.node("Gemm", name, &inputs, &[int("transB", 1)])
    }

    /// `[tokens, hidden]` to `[tokens, hidden]`.
    fn attention(&mut self, layer: usize, input: &str) -> String {
        let names = self.config.attention_names();
        let [q, k, v] = match self.constants.parts[0].clone() {
            Some(parts) => {
                let qkv = self.linear(layer, &format!("self_attn.{}", names.members[0]), input, self.config.qkv_bias);
                let of = ["q", "k", "v"].map(|part| format!("layers.{layer}.{part}.part"));
                self.split(&qkv, &parts, &of.each_ref().map(String::as_str));
                let [q, k, v] = of;
                let [q, k] = [("q", q), ("k", k)].map(|(which, x)| self.query_or_key(layer, which, x));
                [q, k, v]
            }
            None => {
                let [q, k] = ["q", "k"].map(|which| {
                    let x = self.linear(layer, &format!("self_attn.{which}_proj"), input, self.config.qkv_bias);
                    self.query_or_key(layer, which, x)
                });
                [q, k, self.linear(layer, "self_attn.v_proj", input, self.config.qkv_bias)]
            }
        };
        let v = self.as_batch(&format!("layers.{layer}.v"), &v);
        let attended = self.grouped_query_attention(layer, &q, &k, &v);
        let flat = format!("layers.{layer}.attended.tokens");
        let attended = self.graph.node("Reshape", &flat, &[&attended, &self.constants.tokens], &[]);
        self.linear(layer, &names.output(), &attended, self.config.attention_output_bias)
    }

    /// Parts of the features of `[tokens, features]`.
    fn split(&mut self, input: &str, widths: &str, outputs: &[&str]) {
        let name = format!("{input}.split");
        self.graph.operator("", "Split", &name, &[input, widths], outputs, &[int("axis", 1)]);
    }

    /// The family's norm and (when the attention does not do it) rotation of queries or keys, and growth of queries:
    /// `[batch, sequence, heads * head_dim]`.
    fn query_or_key(&mut self, layer: usize, which: &str, mut x: String) -> String {
        let gamma = parameter(layer, &format!("self_attn.{which}_norm.weight"));
        if let Some(shape) = &self.constants.heads {
            let heads = self.graph.node("Reshape", &format!("layers.{layer}.{which}.heads"), &[&x, shape], &[]);
            x = self.rms_norm(&format!("layers.{layer}.{which}_norm"), &heads, &gamma);
        } else if self.config.width_norms() {
            x = self.rms_norm(&format!("layers.{layer}.{which}_norm"), &x, &gamma);
        }
        let mut x = self.as_batch(&format!("layers.{layer}.{which}"), &x);
        let Some(positions) = self.inputs.position_ids.clone() else { return x };
        let rotary = self.config.attention(layer).and_then(|kind| kind.rotary);
        if let Some(rotary) = rotary.filter(|_| !fused_rotary(self.config)) {
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

    fn as_batch(&mut self, name: &str, input: &str) -> String {
        self.graph.node("Reshape", name, &[input, &self.constants.batch], &[])
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

    fn grouped_query_attention(&mut self, layer: usize, q: &str, k: &str, v: &str) -> String {
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
        let kind = self.config.attention(layer).expect("the layer has attention");
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

    /// `down(act(gate(x)) * up(x))`.
    fn mlp(&mut self, layer: usize, input: &str) -> String {
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

    /// Logits of each row's last token; the other rows never reach the large projection.
    fn last_token_head(&mut self, normed: &str, index: &str) {
        let rows = self.as_batch("final.batch", normed);
        let last_axis = self.graph.integers("axis.last", &[-1]);
        let index = self.graph.node("Unsqueeze", "last_index.column", &[index, &last_axis], &[]);
        let last = self.graph.node("GatherND", "final.last", &[&rows, &index], &[int("batch_dims", 1)]);
        self.logits("logits", &last);
    }

    /// Logits of every token.
    fn language_model_head(&mut self, normed: &str) {
        self.logits("logits.tokens", normed);
        self.as_batch("logits", "logits.tokens");
    }

    /// Logits as the fp32 value `name`, divided where the family does that.
    fn logits(&mut self, name: &str, input: &str) {
        if self.config.logits_scaling == 1.0 {
            self.output_gemm(name, "lm_head", input, self.head_weight());
            return;
        }
        let product = format!("{name}.undivided");
        self.output_gemm(&product, "lm_head", input, self.head_weight());
        let divisor = self.graph.scalar("logits.scaling", self.config.logits_scaling as f32, Dtype::Fp32);
        self.graph.node("Div", name, &[&product, &divisor], &[]);
    }

    fn head_weight(&self) -> &'static str {
        if self.config.tie_word_embeddings { EMBEDDING } else { LM_HEAD }
    }

    /// Scores of the tokens that are asked for.
    fn score_head(&mut self, normed: &str, index: &str) {
        let tokens = self.graph.node("Gather", "final.scored", &[normed, index], &[]);
        self.output_gemm("scores", "score", &tokens, "score.weight");
    }

    /// `input @ weight.T` as the fp32 value `name`; `inner` names the product where it is of another type.
    fn output_gemm(&mut self, name: &str, inner: &str, input: &str, weight: &str) {
        if self.dtype == Dtype::Fp32 {
            self.gemm(name, input, weight, None);
        } else {
            let product = self.gemm(inner, input, weight, None);
            self.graph.node("Cast", name, &[&product], &[int("to", DataType::Float as i64)]);
        }
    }
}

fn parameter(layer: usize, name: &str) -> String {
    format!("model.layers.{layer}.{name}")
}
