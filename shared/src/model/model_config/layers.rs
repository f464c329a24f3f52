//! Differences between the layers of a model: how they mix tokens, and what a sequence keeps in them.

use serde::{Deserialize, Serialize};

use super::ModelConfig;

/// The tables that rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rotary {
    /// The tables of `rope_theta` and its scaling.
    Global,
    /// The tables of `rope_local_theta`, without scaling.
    Local,
}

/// How the tokens of one layer are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LayerKind {
    /// Self-attention over keys and values of all earlier tokens, or of those in a window.
    Attention(AttentionKind),
    /// A gated short convolution (LFM2).
    ShortConv(ShortConv),
    /// A gated delta rule behind a short convolution (Qwen3.5).
    DeltaRule(DeltaRule),
    /// A state space behind a short convolution (Granite 4).
    Mamba(Mamba),
}

/// Self-attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionKind {
    /// Rotary positions; `None` for a layer without any.
    pub rotary: Option<Rotary>,
    /// Sliding window: most positions that a query attends to, its own and those right before it. `None` for all
    /// positions.
    pub window: Option<usize>,
    /// The gate on the mixed values, in the families that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<AttentionGate>,
}

/// A sigmoid on the result of attention, before the output projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionGate {
    /// One number for each entry: `q_proj` has, head by head, the rows of the query and then those of the gate.
    Entries,
    /// One number for each head, of a projection of its own, `gate_proj`.
    Heads,
}

/// A gated short convolution: of thirds `B`, `C` and `u` of the projected input, `C ⊙ conv(B ⊙ u)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortConv {
    /// Inputs of each sum, the token's own and those before it.
    pub kernel: usize,
    /// Whether the convolution and both projections have a bias.
    pub bias: bool,
}

/// A gated delta rule (Yang et al. 2024) behind a short convolution with SiLU. Several value heads may share a key
/// head: value head `h` has key head `h · key_heads / value_heads`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaRule {
    /// Heads of queries and keys; divides the value heads.
    pub key_heads: usize,
    /// Heads of values, each with a state.
    pub value_heads: usize,
    /// Width of a query or key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Inputs of each sum of the convolution.
    pub kernel: usize,
}

impl DeltaRule {
    /// Width of all queries of a token, and of all keys.
    #[must_use]
    pub fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all values of a token.
    #[must_use]
    pub fn values(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values, in that order.
    #[must_use]
    pub fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// A state space of Mamba-2 (Dao and Gu 2024) behind a short convolution with SiLU. The heads of a group share what is
/// written with (`B`) and read with (`C`): head `h` belongs to group `h · groups / heads`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba {
    /// Heads, each with a state (`mamba_n_heads`).
    pub heads: usize,
    /// Width of a head (`mamba_d_head`).
    pub head_dim: usize,
    /// Groups of heads; divides the heads (`mamba_n_groups`).
    pub groups: usize,
    /// Width of a `B` or a `C` (`mamba_d_state`).
    pub state_dim: usize,
    /// Inputs of each sum of the convolution (`mamba_d_conv`).
    pub kernel: usize,
    /// Whether the convolution has a bias (`mamba_conv_bias`).
    pub conv_bias: bool,
    /// Whether both projections have a bias (`mamba_proj_bias`).
    pub proj_bias: bool,
}

impl Mamba {
    /// Width of all heads of a token.
    #[must_use]
    pub fn inner(self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of the convolution: the heads, then `B` and `C` of all groups.
    #[must_use]
    pub fn channels(self) -> usize {
        self.inner() + 2 * self.groups * self.state_dim
    }
}

/// What a sequence keeps in a layer with a state, in float32 numbers. Its size is the same at every length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateParts {
    /// The convolution's last inputs: channels, and inputs of each.
    pub window: [usize; 2],
    /// The rule's matrices: value heads, width of a key, width of a value. Of a state space: heads, width of a `B`,
    /// width of a head.
    pub matrix: [usize; 3],
}

impl StateParts {
    /// Numbers of both parts together.
    #[must_use]
    pub fn numbers(self) -> usize {
        self.window.iter().product::<usize>() + self.matrix.iter().product::<usize>()
    }
}

impl ModelConfig {
    /// The attention of a layer; `None` for a layer with a state.
    #[must_use]
    pub fn attention(&self, layer: usize) -> Option<AttentionKind> {
        match self.layers[layer] {
            LayerKind::Attention(kind) => Some(kind),
            LayerKind::ShortConv(_) | LayerKind::DeltaRule(_) | LayerKind::Mamba(_) => None,
        }
    }

    /// The layers with attention, each with its index.
    pub fn attention_layers(&self) -> impl Iterator<Item = (usize, AttentionKind)> {
        (0..self.layers.len()).filter_map(|layer| Some((layer, self.attention(layer)?)))
    }

    /// Whether any layer has a state.
    #[must_use]
    pub fn has_states(&self) -> bool {
        self.attention_layers().count() < self.layers.len()
    }

    /// What a sequence keeps in a layer: the convolution's window, then the rule's matrices. Nothing for attention,
    /// whose keys and values grow with the sequence.
    #[must_use]
    pub fn state_parts(&self, layer: usize) -> StateParts {
        match self.layers[layer] {
            LayerKind::Attention(_) => StateParts::default(),
            LayerKind::ShortConv(ShortConv { kernel, .. }) => {
                StateParts { window: [self.hidden_size, kernel - 1], matrix: [0; 3] }
            }
            LayerKind::DeltaRule(rule) => StateParts {
                window: [rule.channels(), rule.kernel - 1],
                matrix: [rule.value_heads, rule.key_dim, rule.value_dim],
            },
            LayerKind::Mamba(mamba) => StateParts {
                window: [mamba.channels(), mamba.kernel - 1],
                matrix: [mamba.heads, mamba.state_dim, mamba.head_dim],
            },
        }
    }
}
