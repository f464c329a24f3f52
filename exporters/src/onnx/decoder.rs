//! The decoder graph: one model for prefill and decode, with the KV cache updated in place. A model with a score head
//! (a reward model) has the same layers, but sees its sequences whole and keeps no cache.
//!
//! Activations are two-dimensional, `[tokens, features]` with tokens = batch × sequence, so that every linear layer
//! is a `Gemm` with `transB = 1` on the Hugging Face weight as it is (`[out, in]`): a new version of the weights is a
//! straight copy. Only what mixes the tokens of a sequence sees batch and sequence apart: com.microsoft
//! `GroupQueryAttention` in `attention`, `CausalConvWithState` in `short_conv`, `LinearAttention` in `delta_rule` and
//! `mamba`.

mod attention;
mod delta_rule;
mod experts;
mod head;
mod mamba;
mod mlp;
mod per_layer;
mod short_conv;

use shared::{Dtype, LayerKind, ModelConfig, Rotary, TensorEntry};

use super::{
    blocked::Blocked,
    builder::{Dim, External, GraphBuilder, MICROSOFT, data_type, float, int},
    inputs::{Asked, BATCH, Inputs, SCORES, SEQUENCE},
    proto::{DataType, ModelProto},
};

/// Name of the table of rotary cosines, `[rows, rotary_entries / 2]` ([`ModelConfig::rotary_tables`]).
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
fn fused_rotary(config: &ModelConfig, rotary: Rotary) -> bool {
    config.rotary_entries(rotary).is_multiple_of(FUSED_ROTARY_MULTIPLE) && config.original_length().is_none()
}

/// Whether the graph has an input `position_ids`: some layer rotates, and its attention does not do that itself, or
/// queries grow with their position.
#[must_use]
pub fn reads_positions(config: &ModelConfig) -> bool {
    let unfused = |rotary| !fused_rotary(config, rotary);
    config.query_scaling.is_some() || config.attention_layers().any(|(_, kind)| kind.rotary.is_some_and(unfused))
}

/// Names and shapes of the constants of a graph for so many positions.
pub(crate) fn constants(config: &ModelConfig, positions: usize) -> Vec<(String, Vec<usize>)> {
    let tables = config.rotaries().flat_map(|rotary| {
        let shape = vec![config.rotary_rows(positions), config.rotary_entries(rotary) / 2];
        rotary_names(rotary).map(|name| (name.to_owned(), shape.clone()))
    });
    tables.chain(config.query_scaling.map(|_| (QUERY_FACTORS.to_owned(), vec![positions]))).collect()
}

/// Builds the graph over the tensors of `weights.data`.
///
/// Inputs: `input_ids` i64 `[B, S]`; `seqlens_k` i32 `[B]`, each row's length including this call, minus 1;
/// `total_sequence_length` i32 scalar, the longest of these lengths; `last_index` i64 `[B]`, the position in `S` of
/// each row's last token; `position_ids` i64 `[B, S]` if [`reads_positions`], rows of the rotary tables (with longrope,
/// [`ModelConfig::rotary_begin`] of the row's whole length is added to the positions); `past_key_values.{i}.key` and
/// `.value` `[B, kv_heads, M, head_dim]` of layers with keys and values of their own, and
/// [`graph_states`](super::states::graph_states) of the others.
///
/// Outputs: `logits` f32 `[B, V]` of each row's last token; `present.{i}.key` and `.value`, and the states, which may
/// be bound to the buffers of the past. A state takes in every token of a row: rows with states are not padded.
///
/// With [`Head::Score`](shared::Head::Score), there is no cache, and in place of `last_index` and `logits` there are an
/// input `score_index` i64 `[N]`, positions in the `B * S` tokens, and an output `scores` f32 `[N, labels]`. All layers
/// are causal, so whatever stands to the right of a position does not change its scores: rows may be padded there.
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
/// `[B, kv_heads, P, head_dim]` of layers with attention, and states as in [`decoder`].
///
/// Outputs: `logits` f32 `[B, S, V]`; `present.{i}.key` and `.value` `[B, kv_heads, T, head_dim]`, which may be bound
/// to the buffers of the past where these have room; states as in [`decoder`].
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
    /// The factor on the results of mixer and MLP, in the families that have it.
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
                    let [q, kv] = config.query_and_key_widths(0).map(|width| width as i64);
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
    /// The inputs of each layer's own, in the families that have them.
    layer_inputs: Vec<String>,
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
        Self { config, dtype, graph, inputs, constants, blocked, layer_inputs: Vec::new() }
    }

    fn build(mut self) -> ModelProto {
        let mut residual = self.embedding();
        self.inputs_of_layers(&residual);
        let mut normed = match self.norm_before(0) {
            Some(gamma) => self.rms_norm("layers.0.input_norm", &residual, &gamma),
            None => residual.clone(),
        };
        let [after_mixer, after_mlp] = self.config.output_norm_names();
        for layer in 0..self.config.num_hidden_layers {
            let mixed = match self.config.layers[layer] {
                LayerKind::Attention(kind) => self.attention(layer, kind, &normed),
                LayerKind::ShortConv(conv) => self.short_conv(layer, conv, &normed),
                LayerKind::DeltaRule(rule) => self.delta_rule(layer, rule, &normed),
                LayerKind::Mamba(mamba) => self.mamba(layer, mamba, &normed),
            };
            let mixed = self.result(layer, after_mixer, mixed);
            let gamma = self.config.mlp_norm().map(|norm| parameter(layer, &format!("{norm}.weight")));
            (normed, residual) =
                self.add_and_norm(&format!("layers.{layer}.attention_norm"), &mixed, &residual, gamma.as_deref());
            let mlp = self.mlp(layer, &normed);
            let mlp = self.result(layer, after_mlp, mlp);
            let gamma = self.norm_before(layer + 1);
            let name = format!("layers.{layer}.mlp_norm");
            if self.config.layer_scalars() {
                (_, residual) = self.add_and_norm(&name, &mlp, &residual, None);
                residual = self.with_layer_input(layer, residual);
                normed = match gamma {
                    Some(gamma) => self.rms_norm(&name, &residual, &gamma),
                    None => residual.clone(),
                };
                continue;
            }
            (normed, residual) = self.add_and_norm(&name, &mlp, &residual, gamma.as_deref());
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

    /// What is added to the residual stream of the output of mixer or MLP: some families norm it first, others have
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

    /// Name of the weight of the norm that stands at the beginning of a layer, if there is one. After the last layer,
    /// it is the final norm's.
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

    /// A value of the graph's type in float32, for operators that want it.
    fn as_float(&mut self, value: &str) -> String {
        if self.dtype == Dtype::Fp32 {
            return value.into();
        }
        let name = format!("{value}.float");
        self.graph.node("Cast", &name, &[value], &[int("to", DataType::Float as i64)])
    }

    /// The way back from [`Self::as_float`].
    fn as_stored(&mut self, value: &str) -> String {
        if self.dtype == Dtype::Fp32 {
            return value.into();
        }
        let name = format!("{value}.stored");
        self.graph.node("Cast", &name, &[value], &[int("to", data_type(self.dtype) as i64)])
    }

    /// Parts of the features of `[tokens, features]`.
    fn split(&mut self, input: &str, widths: &str, outputs: &[&str]) {
        let name = format!("{input}.split");
        self.graph.operator("", "Split", &name, &[input, widths], outputs, &[int("axis", 1)]);
    }

    fn as_batch(&mut self, name: &str, input: &str) -> String {
        self.graph.node("Reshape", name, &[input, &self.constants.batch], &[])
    }
}

fn parameter(layer: usize, name: &str) -> String {
    format!("model.layers.{layer}.{name}")
}
