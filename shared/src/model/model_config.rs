//! The model's architecture, read from a Hugging Face `config.json`.
//!
//! Both layouts are understood: the hub's (`rope_theta`, `rope_scaling`) and transformers 5's (`rope_parameters`). A
//! feature that would change the mathematics and is not supported is refused with its key and value, never ignored.

mod layers;
mod read;
mod rope;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use layers::{LayerKind, Rotary};
pub use rope::RopeScaling;

use crate::config::{ConfigError, TrainConfig};

/// The model family, by `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// `LlamaForCausalLM`.
    Llama,
    /// `Qwen2ForCausalLM` (Qwen2 and Qwen2.5): bias on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: RMS norm on each head of q and k.
    Qwen3,
    /// `SmolLM3ForCausalLM`: some layers without rotary positions.
    SmolLm3,
    /// `Gemma3ForCausalLM`, the text model: sliding windows with rotary frequencies of their own, norms on both sides
    /// of attention and MLP and on each head of q and k, norm weights that are stored minus 1, scaled embeddings and a
    /// GELU gate.
    Gemma3,
}

/// Activation of the MLP's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// Tanh approximation of GELU (`gelu_pytorch_tanh`).
    GeluTanh,
}

/// The head on top of the transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Head {
    /// `…ForCausalLM`: logits of the next token.
    #[default]
    LanguageModel,
    /// `…ForSequenceClassification` (reward models, critics): `score.weight`, without bias; the first label is the
    /// score.
    Score {
        /// Rows of `score.weight`.
        labels: usize,
    },
}

/// A decoder-only transformer with RMS norms, grouped-query attention and a gated MLP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Kind of every layer's attention.
    pub layers: Vec<LayerKind>,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Factor on attention scores; `head_dim^-0.5` for all families except Gemma.
    pub attention_scale: f64,
    /// Width of a head; need not be `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest supported sequence.
    pub max_position_embeddings: usize,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<RopeScaling>,
    /// Base of the rotary frequencies in layers with [`Rotary::Local`], where there are any.
    pub rope_local_theta: Option<f64>,
    /// Whether q, k and v have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias (Llama's `attention_bias`).
    pub attention_output_bias: bool,
    /// Whether the MLP's projections have a bias (Llama's `mlp_bias`).
    pub mlp_bias: bool,
    /// Whether the language-model head is the embedding.
    pub tie_word_embeddings: bool,
    /// The head on top.
    #[serde(default)]
    pub head: Head,
}

/// A `config.json` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigJsonError {
    /// The text is not JSON, or not an object.
    #[error("not a valid config.json: {0}")]
    Json(String),
    /// A required key is missing or has the wrong type.
    #[error("config.json: `{key}` {problem}")]
    Key {
        /// The key.
        key: String,
        /// The fault.
        problem: String,
    },
    /// An unsupported feature that would change the model's mathematics.
    #[error("config.json: `{key}` = {value} is not supported ({hint})")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The supported values.
        hint: String,
    },
}

impl ModelConfig {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// See [`ConfigJsonError`].
    pub fn from_json(text: &str) -> Result<Self, ConfigJsonError> {
        read::config(text)
    }

    /// Query heads per key/value head.
    #[must_use]
    pub fn group_size(&self) -> usize {
        self.num_attention_heads / self.num_key_value_heads
    }

    /// Whether every head of queries and keys has an RMS norm.
    #[must_use]
    pub fn head_norms(&self) -> bool {
        matches!(self.architecture, Architecture::Qwen3 | Architecture::Gemma3)
    }

    /// Whether the outputs of attention and MLP are normed before they are added to the residual stream.
    #[must_use]
    pub fn output_norms(&self) -> bool {
        self.architecture == Architecture::Gemma3
    }

    /// Name of the norm before the MLP, within a layer.
    #[must_use]
    pub fn mlp_norm(&self) -> &'static str {
        if self.output_norms() { "pre_feedforward_layernorm" } else { "post_attention_layernorm" }
    }

    /// The number added to the stored weights of norms.
    #[must_use]
    pub fn norm_offset(&self) -> f32 {
        if self.architecture == Architecture::Gemma3 { 1.0 } else { 0.0 }
    }

    /// The factor on embeddings before the layers.
    #[must_use]
    pub fn embedding_scale(&self) -> Option<f64> {
        (self.architecture == Architecture::Gemma3).then(|| (self.hidden_size as f64).sqrt())
    }

    /// Activation of the MLP's gate.
    #[must_use]
    pub fn activation(&self) -> Activation {
        if self.architecture == Architecture::Gemma3 { Activation::GeluTanh } else { Activation::Silu }
    }

    /// The rotary tables of the model.
    pub fn rotaries(&self) -> impl Iterator<Item = Rotary> {
        [Rotary::Global].into_iter().chain(self.rope_local_theta.map(|_| Rotary::Local))
    }

    /// Every parameter as (Hugging Face name, shape), in the model's order; the head's come last. With tied embeddings
    /// there is no `lm_head.weight`.
    #[must_use]
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (q, kv) = (self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim);
        let mut list = vec![("model.embed_tokens.weight".to_string(), vec![self.vocab_size, hidden])];
        for layer in 0..self.num_hidden_layers {
            let mut add = |name: &str, shape: Vec<usize>| list.push((format!("model.layers.{layer}.{name}"), shape));
            add("input_layernorm.weight", vec![hidden]);
            for (name, width) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
                add(&format!("self_attn.{name}.weight"), vec![width, hidden]);
                if self.qkv_bias {
                    add(&format!("self_attn.{name}.bias"), vec![width]);
                }
            }
            if self.head_norms() {
                add("self_attn.q_norm.weight", vec![self.head_dim]);
                add("self_attn.k_norm.weight", vec![self.head_dim]);
            }
            add("self_attn.o_proj.weight", vec![hidden, q]);
            if self.attention_output_bias {
                add("self_attn.o_proj.bias", vec![hidden]);
            }
            add("post_attention_layernorm.weight", vec![hidden]);
            if self.output_norms() {
                add("pre_feedforward_layernorm.weight", vec![hidden]);
            }
            for (name, shape) in
                [("gate_proj", [inner, hidden]), ("up_proj", [inner, hidden]), ("down_proj", [hidden, inner])]
            {
                add(&format!("mlp.{name}.weight"), shape.to_vec());
                if self.mlp_bias {
                    add(&format!("mlp.{name}.bias"), vec![shape[0]]);
                }
            }
            if self.output_norms() {
                add("post_feedforward_layernorm.weight", vec![hidden]);
            }
        }
        list.push(("model.norm.weight".to_string(), vec![hidden]));
        match self.head {
            Head::Score { labels } => list.push(("score.weight".to_string(), vec![labels, hidden])),
            Head::LanguageModel if self.tie_word_embeddings => {}
            Head::LanguageModel => list.push(("lm_head.weight".to_string(), vec![self.vocab_size, hidden])),
        }
        list
    }

    /// Number of trainable scalars.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        self.parameters().iter().map(|(_, shape)| shape.iter().product::<usize>() as u64).sum()
    }
}

impl TrainConfig {
    /// Checks options that concern the model against the model.
    ///
    /// # Errors
    /// A [`ConfigError::Value`] that names the option.
    pub fn check_model(&self, model: &ModelConfig) -> Result<(), ConfigError> {
        let limit = model.max_position_embeddings;
        match self.max_model_len.filter(|&asked| asked > limit) {
            Some(asked) => {
                Err(ConfigError::Value(format!("`max_model_len` {asked} is above the model's limit of {limit}")))
            }
            None => Ok(()),
        }
    }
}
