//! What differs from layer to layer beside the mixing of tokens: widths of heads and of the MLP, layers that share keys
//! and values, inputs of a layer's own, and a factor on its result.

use serde::{Deserialize, Serialize};

use super::{Architecture, AttentionGate, AttentionKind, LayerKind, ModelConfig, Rotary};

/// Widest head that the sampler's packed kernels know.
pub const WIDEST_PACKED_HEAD: usize = 512;

/// Inputs that every layer has beside the residual stream (Gemma's per-layer embeddings). With `x₀` the scaled
/// embedding of a token, a layer's input is `(norm(projection · x₀ / √hidden) + √width · table[id]) / √2`, in which
/// projection and table have a part for each layer. The layer adds `norm(back · (act(gate · x) ⊙ input))` to the stream
/// behind the MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerLayerInput {
    /// Width of the input of one layer (`hidden_size_per_layer_input`).
    pub width: usize,
    /// Rows of the table (`vocab_size_per_layer_input`).
    pub vocab_size: usize,
}

impl PerLayerInput {
    /// The table, `[vocab_size, layers · width]`.
    pub const TABLE: &str = "model.embed_tokens_per_layer.weight";
    /// The projection of the embedding, `[layers · width, hidden]`.
    pub const PROJECTION: &str = "model.per_layer_model_projection";
    /// The norm of each layer's part of the projected embedding.
    pub const NORM: &str = "model.per_layer_projection_norm";
    /// The projection of the stream to the width of the input, within a layer.
    pub const GATE: &str = "per_layer_input_gate";
    /// The projection back to the stream, within a layer.
    pub const BACK: &str = "per_layer_projection";
    /// The norm of what is added to the stream, within a layer.
    pub const OUTPUT_NORM: &str = "post_per_layer_input_norm";

    /// Factor on the rows of the table.
    #[must_use]
    pub fn table_scale(self) -> f64 {
        (self.width as f64).sqrt()
    }

    /// Factor on the sum of projected embedding and table.
    pub const SCALE: f64 = std::f64::consts::FRAC_1_SQRT_2;

    /// Whether a tensor of the model is stored and not trained: the factor on a layer's result.
    #[must_use]
    pub fn is_buffer(name: &str) -> bool {
        name.strip_suffix(ModelConfig::LAYER_SCALAR).is_some_and(|layer| layer.ends_with('.'))
    }
}

impl ModelConfig {
    /// The factor on the result of a layer, within the layer: one number, which is not trained.
    pub const LAYER_SCALAR: &str = "layer_scalar";

    /// Whether the result of each layer has a factor, [`Self::LAYER_SCALAR`].
    #[must_use]
    pub fn layer_scalars(&self) -> bool {
        self.architecture == Architecture::Gemma4
    }

    /// Width of a head in the attention of a layer.
    #[must_use]
    pub fn head_dim_of(&self, layer: usize) -> usize {
        let is_full = self.attention(layer).is_some_and(|kind| kind.window.is_none());
        self.global_head_dim.filter(|_| is_full).unwrap_or(self.head_dim)
    }

    /// Width of the widest head.
    #[must_use]
    pub fn widest_head(&self) -> usize {
        self.global_head_dim.map_or(self.head_dim, |width| width.max(self.head_dim))
    }

    /// The part or size that the sampler's packed kernels do not know, by its key in `config.json`: such a model runs
    /// on the kernels of ONNX Runtime.
    #[must_use]
    pub fn unknown_to_packed(&self) -> Option<String> {
        let widest = self.widest_head();
        if widest > WIDEST_PACKED_HEAD {
            return Some(format!("`head_dim` {widest} is above {WIDEST_PACKED_HEAD}"));
        }
        // One product has biases for all of its outputs, and no gate of heads has any.
        let gates_heads = |layer: &LayerKind| match layer {
            LayerKind::Attention(kind) => kind.gate == Some(AttentionGate::Heads),
            LayerKind::ShortConv(_) | LayerKind::DeltaRule(_) | LayerKind::Mamba(_) => false,
        };
        let has_both = self.qkv_bias && self.layers.iter().any(gates_heads);
        has_both.then(|| "`attention_bias` beside `use_attention_gate`".to_owned())
    }

    /// The earlier layer whose keys and values a layer reads; `None` for a layer with its own. It is the last one of
    /// the same kind that has its own.
    #[must_use]
    pub fn shares_keys_of(&self, layer: usize) -> Option<usize> {
        let first = self.num_hidden_layers.saturating_sub(self.num_kv_shared_layers);
        if layer < first {
            return None;
        }
        let window = self.attention(layer)?.window;
        (0..first).rev().find(|&earlier| self.attention(earlier).is_some_and(|kind| kind.window == window))
    }

    /// The layers with attention that have keys and values of their own, each with its index.
    pub fn caching_layers(&self) -> impl Iterator<Item = (usize, AttentionKind)> {
        self.attention_layers().filter(|(layer, _)| self.shares_keys_of(*layer).is_none())
    }

    /// Width of the dense MLP of a layer.
    #[must_use]
    pub fn mlp_width(&self, layer: usize) -> usize {
        let is_wide = self.double_wide_mlp && self.shares_keys_of(layer).is_some();
        self.intermediate_size * if is_wide { 2 } else { 1 }
    }

    /// Entries of a head that rotary positions of a kind turn.
    #[must_use]
    pub fn rotary_entries(&self, rotary: Rotary) -> usize {
        match rotary {
            Rotary::Global => self.rotary_dim,
            Rotary::Local => self.rotary_local_dim.unwrap_or(self.rotary_dim),
        }
    }

    /// Whether a stored tensor is passed over: transformers' checkpoints may have keys and values of layers that read
    /// those of others.
    #[must_use]
    pub fn passes_over(&self, name: &str) -> bool {
        const UNUSED: [&str; 3] = ["self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"];
        let of_layer = || {
            let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
            let layer = layer.parse().ok().filter(|&layer: &usize| layer < self.num_hidden_layers)?;
            UNUSED.contains(&rest).then_some(layer)
        };
        of_layer().is_some_and(|layer| self.shares_keys_of(layer).is_some())
    }
}
