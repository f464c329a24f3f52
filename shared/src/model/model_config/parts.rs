//! Parts of a layer that some families leave out, add or call otherwise.

use super::{Activation, Architecture, AttentionGate, LayerKind, ModelConfig};

/// The norm before the MLP, or behind attention where its results are normed.
const POST_ATTENTION: &str = "post_attention_layernorm";

/// Names of the linear layers of attention or MLP, within a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockNames {
    /// The block: `self_attn`, `mlp`, …
    pub block: &'static str,
    /// Projections of the block's input: queries, keys and values, or gate and up; one name where the family keeps
    /// them in one tensor, in that order. A block with a state has names of its own.
    pub members: &'static [&'static str],
    /// The projection back to the residual stream.
    pub last: &'static str,
}

impl BlockNames {
    /// Whether the projections of the input are one tensor.
    #[must_use]
    pub fn is_fused(&self) -> bool {
        self.members.len() == 1
    }

    /// The projections of the input with their block: `self_attn.q_proj`, …
    pub fn inputs(&self) -> impl Iterator<Item = String> + use<> {
        let block = self.block;
        self.members.iter().map(move |member| format!("{block}.{member}"))
    }

    /// The last projection with its block: `self_attn.o_proj`, …
    #[must_use]
    pub fn output(&self) -> String {
        format!("{}.{}", self.block, self.last)
    }
}

impl ModelConfig {
    /// Names of the attention's projections.
    #[must_use]
    pub fn attention_names(&self) -> BlockNames {
        let members: &[&str] = match self.architecture {
            Architecture::Phi3 => &["qkv_proj"],
            _ => &["q_proj", "k_proj", "v_proj"],
        };
        let last = if self.architecture == Architecture::Lfm2 { "out_proj" } else { "o_proj" };
        BlockNames { block: "self_attn", members, last }
    }

    /// Names of the projections with which a layer mixes tokens: those of its attention, or of that which it has
    /// instead.
    #[must_use]
    pub fn mixer_names(&self, layer: usize) -> BlockNames {
        match self.layers[layer] {
            LayerKind::Attention(kind) if kind.gate == Some(AttentionGate::Heads) => {
                BlockNames { members: &["q_proj", "k_proj", "v_proj", "gate_proj"], ..self.attention_names() }
            }
            LayerKind::Attention(_) if self.shares_keys_of(layer).is_some() => {
                BlockNames { members: &["q_proj"], ..self.attention_names() }
            }
            LayerKind::Attention(_) => self.attention_names(),
            LayerKind::ShortConv(_) => BlockNames { block: "conv", members: &["in_proj"], last: "out_proj" },
            LayerKind::DeltaRule(_) => BlockNames {
                block: "linear_attn",
                members: &["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"],
                last: "out_proj",
            },
            LayerKind::Mamba(_) => BlockNames { block: "mamba", members: &["in_proj"], last: "out_proj" },
        }
    }

    /// Outputs of each projection of the input in [`Self::mixer_names`].
    #[must_use]
    pub fn mixer_widths(&self, layer: usize) -> Vec<usize> {
        match self.layers[layer] {
            LayerKind::Attention(kind) => {
                let [q, kv] = self.query_and_key_widths(layer);
                if self.shares_keys_of(layer).is_some() {
                    return vec![q];
                }
                let q = if kind.gate == Some(AttentionGate::Entries) { 2 * q } else { q };
                let mut widths = if self.attention_names().is_fused() { vec![q + 2 * kv] } else { vec![q, kv, kv] };
                widths.extend((kind.gate == Some(AttentionGate::Heads)).then_some(self.num_attention_heads));
                widths
            }
            LayerKind::ShortConv(_) => vec![3 * self.hidden_size],
            LayerKind::DeltaRule(rule) => {
                vec![rule.channels(), rule.values(), rule.value_heads, rule.value_heads]
            }
            LayerKind::Mamba(mamba) => vec![mamba.inner() + mamba.channels() + mamba.heads],
        }
    }

    /// Names of the MLP's projections.
    #[must_use]
    pub fn mlp_names(&self) -> BlockNames {
        match self.architecture {
            Architecture::Phi3 => BlockNames { block: "mlp", members: &["gate_up_proj"], last: "down_proj" },
            Architecture::GraniteMoeHybrid => {
                BlockNames { block: "shared_mlp", members: &["input_linear"], last: "output_linear" }
            }
            Architecture::Lfm2 | Architecture::Lfm3 => {
                BlockNames { block: "feed_forward", members: &["w1", "w3"], last: "w2" }
            }
            _ => BlockNames { block: "mlp", members: &["gate_proj", "up_proj"], last: "down_proj" },
        }
    }

    /// Widths of all queries and of all keys of a token in the attention of a layer.
    #[must_use]
    pub fn query_and_key_widths(&self, layer: usize) -> [usize; 2] {
        [self.num_attention_heads, self.num_key_value_heads].map(|heads| heads * self.head_dim_of(layer))
    }

    /// Whether every head of queries and keys has an RMS norm.
    #[must_use]
    pub fn head_norms(&self) -> bool {
        use Architecture::{Gemma3, Gemma4, Lfm2, Lfm3, Qwen3, Qwen3_5, Qwen3Moe};
        matches!(self.architecture, Qwen3 | Qwen3Moe | Gemma3 | Gemma4 | Lfm2 | Lfm3 | Qwen3_5)
    }

    /// Whether queries and keys have an RMS norm each over the whole of their width.
    #[must_use]
    pub fn width_norms(&self) -> bool {
        self.architecture == Architecture::Olmo2
    }

    /// Widths of the norms of queries and of keys in a layer, in the families that have them.
    #[must_use]
    pub fn query_and_key_norms(&self, layer: usize) -> Option<[usize; 2]> {
        let of_heads = self.head_norms().then_some([self.head_dim_of(layer); 2]);
        of_heads.or_else(|| self.width_norms().then(|| self.query_and_key_widths(layer)))
    }

    /// Whether every head of values has an RMS norm, which has no weight.
    #[must_use]
    pub fn value_norms(&self) -> bool {
        self.architecture == Architecture::Gemma4
    }

    /// Names of the norms of queries and of keys, within attention.
    #[must_use]
    pub fn query_and_key_norm_names(&self) -> [&'static str; 2] {
        if self.architecture == Architecture::Lfm2 { ["q_layernorm", "k_layernorm"] } else { ["q_norm", "k_norm"] }
    }

    /// Whether the outputs of attention and MLP are normed before they are added to the residual stream.
    #[must_use]
    pub fn output_norms(&self) -> bool {
        use Architecture::{Gemma3, Gemma4, Lfm3, Olmo2};
        matches!(self.architecture, Gemma3 | Gemma4 | Olmo2 | Lfm3)
    }

    /// Names of the norms of the outputs of attention and of the MLP, within a layer of a family with
    /// [`Self::output_norms`].
    #[must_use]
    pub fn output_norm_names(&self) -> [&'static str; 2] {
        match self.architecture {
            Architecture::Lfm3 => ["post_operator_norm", "post_ffn_norm"],
            _ => [POST_ATTENTION, "post_feedforward_layernorm"],
        }
    }

    /// Name of the norm before attention, within a layer; `None` in a family that does not norm inputs.
    #[must_use]
    pub fn input_norm(&self) -> Option<&'static str> {
        match self.architecture {
            Architecture::Olmo2 => None,
            Architecture::Lfm2 | Architecture::Lfm3 => Some("operator_norm"),
            _ => Some("input_layernorm"),
        }
    }

    /// Name of the norm before the MLP, within a layer; `None` in a family that does not norm inputs.
    #[must_use]
    pub fn mlp_norm(&self) -> Option<&'static str> {
        let name = match self.architecture {
            Architecture::Lfm2 | Architecture::Lfm3 => "ffn_norm",
            _ if self.output_norms() => "pre_feedforward_layernorm",
            _ => POST_ATTENTION,
        };
        self.input_norm().map(|_| name)
    }

    /// Name of the norm behind the last layer.
    #[must_use]
    pub fn final_norm(&self) -> &'static str {
        match self.architecture {
            Architecture::Lfm2 | Architecture::Lfm3 => "model.embedding_norm",
            _ => "model.norm",
        }
    }

    /// The number added to the stored weights of norms; the norm within a layer with a state is never stored so.
    #[must_use]
    pub fn norm_offset(&self) -> f32 {
        if matches!(self.architecture, Architecture::Gemma3 | Architecture::Qwen3_5) { 1.0 } else { 0.0 }
    }

    /// The factor on embeddings before the layers.
    #[must_use]
    pub fn embedding_scale(&self) -> Option<f64> {
        match self.architecture {
            Architecture::Gemma3 | Architecture::Gemma4 => Some((self.hidden_size as f64).sqrt()),
            _ => (self.embedding_multiplier != 1.0).then_some(self.embedding_multiplier),
        }
    }

    /// Activation of the MLP's gate.
    #[must_use]
    pub fn activation(&self) -> Activation {
        match self.architecture {
            Architecture::Gemma3 | Architecture::Gemma4 => Activation::GeluTanh,
            _ => Activation::Silu,
        }
    }
}
