//! The model's architecture, read from a Hugging Face `config.json`.
//!
//! Both layouts are understood: the hub's (`rope_theta`, `rope_scaling`) and transformers 5's (`rope_parameters`). A
//! feature that would change the mathematics and is not supported is refused with its key and value, never ignored.

mod experts;
#[cfg(test)]
mod gemma4_tests;
mod layers;
#[cfg(test)]
mod newer_tests;
mod parameters;
mod parts;
mod per_layer;
mod read;
mod rope;
#[cfg(test)]
mod rope_tests;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use experts::Experts;
pub use layers::{AttentionGate, AttentionKind, DeltaRule, LayerKind, Mamba, Rotary, ShortConv, StateParts};
pub use parts::BlockNames;
pub use per_layer::{PerLayerInput, WIDEST_PACKED_HEAD};
pub use rope::{QueryScaling, RopeScaling};

use crate::config::{ConfigError, RouterReplay, TrainConfig};

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
    /// `Gemma4ForCausalLM` without experts, the text model: Gemma 3's layers with plain norm weights, unscaled scores
    /// and normed values, wider heads in layers without a window, layers that read the keys and values of earlier ones,
    /// inputs of each layer's own, a factor on each layer's result, and a bound of logits.
    Gemma4,
    /// `Olmo2ForCausalLM`: norms on the results of attention and MLP and none on their inputs, and RMS norms over the
    /// whole width of q and of k.
    Olmo2,
    /// `Ministral3ForCausalLM`: YaRN, and queries that grow with their position.
    Ministral3,
    /// `Phi3ForCausalLM` (Phi-3, Phi-3.5 and Phi-4-mini): q, k and v in one tensor, gate and up in another one, rotary
    /// positions of a part of each head, and longrope.
    Phi3,
    /// `GraniteMoeHybridForCausalLM` without experts (Granite 4): Mamba-2 in most layers of the hybrid models,
    /// multipliers of embeddings, residuals and logits, and gate and up in one tensor.
    GraniteMoeHybrid,
    /// `Qwen3MoeForCausalLM`: Qwen3 with experts in the place of MLPs.
    Qwen3Moe,
    /// `Lfm2ForCausalLM` (LFM2 and LFM2.5): short convolutions, and attention in some layers.
    Lfm2,
    /// `Qwen3_5ForConditionalGeneration`, the text model: gated delta rule, and attention with a gate in every fourth
    /// layer.
    Qwen3_5,
    /// `Lfm3ForCausalLM`: LFM2's layers and layers with a window, norms on both sides of each block, and a gate on each
    /// head of attention.
    Lfm3,
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

/// A decoder-only transformer with RMS norms, grouped-query attention or a state in each layer, and a gated MLP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Whether the MLP is twice as wide in layers that read the keys and values of earlier ones (Gemma's
    /// `use_double_wide_mlp`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub double_wide_mlp: bool,
    /// The inputs that layers have beside the residual stream, in the families that have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_layer_input: Option<PerLayerInput>,
    /// The experts that layers have in the place of the MLP; `None` for a dense model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// How every layer mixes tokens.
    pub layers: Vec<LayerKind>,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Factor on attention scores; `head_dim^-0.5` for all families except Gemma.
    pub attention_scale: f64,
    /// Width of a head; need not be `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Width of a head in layers without a window, where it is another one (Gemma's `global_head_dim`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_head_dim: Option<usize>,
    /// Last layers that read the keys and values of an earlier layer and have none of their own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub num_kv_shared_layers: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest supported sequence.
    pub max_position_embeddings: usize,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f64,
    /// Entries of a head that rotary positions turn, from the first on; the whole head in most families.
    pub rotary_dim: usize,
    /// The same in layers with [`Rotary::Local`], where it is another number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_local_dim: Option<usize>,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<RopeScaling>,
    /// Base of the rotary frequencies in layers with [`Rotary::Local`], where there are any.
    pub rope_local_theta: Option<f64>,
    /// Growth of the queries with their position, in the families that have it.
    pub query_scaling: Option<QueryScaling>,
    /// Factor on embeddings (Granite's `embedding_multiplier`).
    pub embedding_multiplier: f64,
    /// Factor on the results of attention and MLP before they are added to the residual stream (Granite's
    /// `residual_multiplier`).
    pub residual_multiplier: f64,
    /// Divisor of logits (Granite's `logits_scaling`).
    pub logits_scaling: f64,
    /// Bound `c` of logits, which become `c · tanh(logit / c)` (Gemma's `final_logit_softcapping`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_cap: Option<f64>,
    /// Whether q, k and v have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias (Llama's `attention_bias`).
    pub attention_output_bias: bool,
    /// Whether the MLP's projections have a bias (Llama's `mlp_bias`).
    pub mlp_bias: bool,
    /// Whether the language-model head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether the model is the text part of a model of images and text: `config.json` has it in `text_config`. Its
    /// files have other names for the parameters, and tensors beside them.
    #[serde(default)]
    pub wrapped: bool,
    /// The head on top.
    #[serde(default)]
    pub head: Head,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
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

    /// The rotary tables of the model.
    pub fn rotaries(&self) -> impl Iterator<Item = Rotary> {
        [Rotary::Global].into_iter().chain(self.rope_local_theta.map(|_| Rotary::Local))
    }

    /// Why so many drafts of a sequence cannot be checked in one step, where they cannot.
    #[must_use]
    pub fn refuses_drafts(&self, drafts: usize) -> Option<String> {
        let message = "is not possible with layers that keep a recurrent state: a draft that does not come true has \
                       changed the state, and the one before is gone; leave the option at 0";
        (drafts > 0 && self.has_states()).then(|| format!("`speculative_tokens` {drafts} {message}"))
    }

    /// Why prompts cannot be computed together by padding, or steps be recorded, where they cannot.
    #[must_use]
    pub fn refuses_batches(&self, prefill_batch: usize, cuda_graphs: bool) -> Option<String> {
        if !self.has_states() {
            return None;
        }
        if prefill_batch > 1 {
            return Some(format!(
                "`rollout_prefill_batch` {prefill_batch} is not possible with layers that keep a recurrent state: the \
                 padding of the shorter prompts would change it; leave the option at 1"
            ));
        }
        cuda_graphs.then(|| {
            "`rollout_cuda_graphs` is not possible with layers that keep a recurrent state: a recording is checked by \
             a second run of the same step, which would change it once more; leave the option out"
                .to_owned()
        })
    }

    /// Why no scorer, a critic or a reward model, can be made of the model, where none can.
    #[must_use]
    pub fn refuses_scorers(&self) -> Option<&'static str> {
        if self.wrapped {
            return Some(
                "is a model of images and text (config.json: `text_config`); a critic or a reward model is made of a \
                 text model alone: save its text model by `save_pretrained`, and name that folder",
            );
        }
        (self.architecture == Architecture::Gemma4).then_some(
            "is of a family (gemma4_text) that has no class of sequence classifiers in transformers; make the critic \
             or the reward model of a model of another family with the same token ids (gemma3_text has such a class)",
        )
    }

    /// Number of trainable scalars.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        let trained = self.parameters().into_iter().filter(|(name, _)| !PerLayerInput::is_buffer(name));
        trained.map(|(_, shape)| shape.iter().product::<usize>() as u64).sum()
    }
}

impl TrainConfig {
    /// Checks options that concern the model against the model.
    ///
    /// # Errors
    /// A [`ConfigError::Value`] that names the option.
    pub fn check_model(&self, model: &ModelConfig) -> Result<(), ConfigError> {
        let of_batches = || model.refuses_batches(self.rollout_prefill_batch, self.rollout_cuda_graphs);
        if let Some(reason) = model.refuses_drafts(self.speculative_tokens).or_else(of_batches) {
            return Err(ConfigError::Value(reason));
        }
        if self.router_replay != RouterReplay::Disabled && model.experts.is_none() {
            let message =
                format!("`router_replay` {} is for models with experts, and this one has none", self.router_replay);
            return Err(ConfigError::Value(message));
        }
        if let Some(original) = model.original_length().filter(|_| self.agent.is_some())
            && self.max_model_len.is_none_or(|longest| longest > original)
        {
            return Err(ConfigError::Value(format!(
                "`agent` is not possible with longer sequences than {original} tokens of this model, whose positions \
                 turn by a sequence's length: conversations of one sample may have other lengths; set `max_model_len` \
                 to {original}"
            )));
        }
        let limit = model.max_position_embeddings;
        match self.max_model_len.filter(|&asked| asked > limit) {
            Some(asked) => {
                Err(ConfigError::Value(format!("`max_model_len` {asked} is above the model's limit of {limit}")))
            }
            None => Ok(()),
        }
    }
}
