//! Causal grouped-query self-attention.

use shared::{Architecture, ModelConfig};
use tch::Tensor;

use super::{linear::Linear, norm::RmsNorm, parameters::Parameters, rope::Rotation};

/// Self-attention of one layer.
#[derive(Debug)]
pub(super) struct Attention {
    qkv: Linear,
    output: Linear,
    /// Qwen3's norms on each head of q and k.
    head_norms: Option<(RmsNorm, RmsNorm)>,
    query_heads: i64,
    key_heads: i64,
    head_dim: i64,
}

impl Attention {
    /// The leaves below `{name}.`.
    pub(super) fn new(config: &ModelConfig, parameters: &Parameters, name: &str) -> Self {
        let norm = |which: &str| RmsNorm::new(parameters, &format!("{name}.{which}"), config.rms_norm_eps);
        Self {
            qkv: Linear::new(parameters, &format!("{name}.qkv_proj")),
            output: Linear::new(parameters, &format!("{name}.o_proj")),
            head_norms: (config.architecture == Architecture::Qwen3).then(|| (norm("q_norm"), norm("k_norm"))),
            query_heads: config.num_attention_heads as i64,
            key_heads: config.num_key_value_heads as i64,
            head_dim: config.head_dim as i64,
        }
    }

    /// `[B, S, hidden]` to `[B, S, hidden]`. Rows are padded on the right, so the causal mask already keeps real
    /// tokens from seeing padding.
    pub(super) fn forward(&self, x_BSH: &Tensor, rotation: &Rotation) -> Tensor {
        let (batch, length) = (x_BSH.size()[0], x_BSH.size()[1]);
        let (q, kv, dim) = (self.query_heads, self.key_heads, self.head_dim);
        let qkv = self.qkv.forward(x_BSH).view([batch, length, q + 2 * kv, dim]);
        let parts = match &self.head_norms {
            None => {
                let parts = qkv.split_with_sizes([q + kv, kv], 2);
                let rotated = rotation.apply(&parts[0]).split_with_sizes([q, kv], 2);
                [rotated[0].shallow_clone(), rotated[1].shallow_clone(), parts[1].shallow_clone()]
            }
            Some((query_norm, key_norm)) => {
                let parts = qkv.split_with_sizes([q, kv, kv], 2);
                let rotate = |norm: &RmsNorm, x: &Tensor| rotation.apply(&norm.forward(x));
                [rotate(query_norm, &parts[0]), rotate(key_norm, &parts[1]), parts[2].shallow_clone()]
            }
        };
        let [q_BNSD, k_BNSD, v_BNSD] = parts.map(|x| x.transpose(1, 2));
        // Flash attention on the CPU as well, grouped heads included; no [S, S] matrix is stored.
        let mixed =
            Tensor::scaled_dot_product_attention(&q_BNSD, &k_BNSD, &v_BNSD, None::<Tensor>, 0.0, true, None, q != kv);
        self.output.forward(&mixed.transpose(1, 2).reshape([batch, length, q * dim]))
    }
}
