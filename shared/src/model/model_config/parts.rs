//! Parts of a layer that some families leave out, add or call otherwise.

use super::{Activation, Architecture, ModelConfig};

/// The norm before the MLP where the results of blocks are normed too.
pub(super) const PRE_FEEDFORWARD: &str = "pre_feedforward_layernorm";

/// Names of the linear layers of attention or MLP, within a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockNames {
    /// The block: `self_attn`, `mlp`, …
    pub block: &'static str,
    /// Projections of the block's input: queries, keys and values, or gate and up; one name where the family keeps
    /// them in one tensor, in that order.
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
        BlockNames { block: "self_attn", members, last: "o_proj" }
    }

    /// Names of the MLP's projections.
    #[must_use]
    pub fn mlp_names(&self) -> BlockNames {
        match self.architecture {
            Architecture::Phi3 => BlockNames { block: "mlp", members: &["gate_up_proj"], last: "down_proj" },
            Architecture::GraniteMoeHybrid => {
                BlockNames { block: "shared_mlp", members: &["input_linear"], last: "output_linear" }
            }
            _ => BlockNames { block: "mlp", members: &["gate_proj", "up_proj"], last: "down_proj" },
        }
    }

    /// Widths of all queries and of all keys of a token.
    #[must_use]
    pub fn query_and_key_widths(&self) -> [usize; 2] {
        [self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim]
    }

    /// Whether every head of queries and keys has an RMS norm.
    #[must_use]
    pub fn head_norms(&self) -> bool {
        matches!(self.architecture, Architecture::Qwen3 | Architecture::Qwen3Moe | Architecture::Gemma3)
    }

    /// Whether queries and keys have an RMS norm each over the whole of their width.
    #[must_use]
    pub fn width_norms(&self) -> bool {
        self.architecture == Architecture::Olmo2
    }

    /// Widths of the norms of queries and of keys, in the families that have them.
    #[must_use]
    pub fn query_and_key_norms(&self) -> Option<[usize; 2]> {
        let of_heads = self.head_norms().then_some([self.head_dim; 2]);
        of_heads.or_else(|| self.width_norms().then(|| self.query_and_key_widths()))
    }

    /// Whether the outputs of attention and MLP are normed before they are added to the residual stream.
    #[must_use]
    pub fn output_norms(&self) -> bool {
        matches!(self.architecture, Architecture::Gemma3 | Architecture::Olmo2)
    }

    /// Name of the norm before attention, within a layer; `None` in a family that does not norm inputs.
    #[must_use]
    pub fn input_norm(&self) -> Option<&'static str> {
        (self.architecture != Architecture::Olmo2).then_some("input_layernorm")
    }

    /// Name of the norm before the MLP, within a layer; `None` in a family that does not norm inputs.
    #[must_use]
    pub fn mlp_norm(&self) -> Option<&'static str> {
        let name = if self.output_norms() { PRE_FEEDFORWARD } else { "post_attention_layernorm" };
        self.input_norm().map(|_| name)
    }

    /// The number added to the stored weights of norms.
    #[must_use]
    pub fn norm_offset(&self) -> f32 {
        if self.architecture == Architecture::Gemma3 { 1.0 } else { 0.0 }
    }

    /// The factor on embeddings before the layers.
    #[must_use]
    pub fn embedding_scale(&self) -> Option<f64> {
        match self.architecture {
            Architecture::Gemma3 => Some((self.hidden_size as f64).sqrt()),
            _ => (self.embedding_multiplier != 1.0).then_some(self.embedding_multiplier),
        }
    }

    /// Activation of the MLP's gate.
    #[must_use]
    pub fn activation(&self) -> Activation {
        if self.architecture == Architecture::Gemma3 { Activation::GeluTanh } else { Activation::Silu }
    }
}
