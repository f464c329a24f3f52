//! Causal grouped-query self-attention.
//!
//! Each branch of a tree attends to the stem and to itself, and the two results are joined by their log-sum-exps. In a
//! sliding window, queries go in runs of the window's length, and only the beginning of a branch looks back at the end
//! of the stem.

mod core;
mod part;

use shared::{ModelConfig, Rotary};
use tch::Tensor;

use self::core::{Attended, Sight, attend, attend_backward};
use super::{linear::Linear, norm::RmsNorm, output::Output, parameters::Gradients, rope::Rotations, weights::Weights};
use crate::batch::Tree;

/// Self-attention of one layer.
#[derive(Debug)]
pub(super) struct Attention {
    qkv: Linear,
    output: Output,
    /// Norms on each head of q and k, in the families that have them.
    head_norms: Option<(RmsNorm, RmsNorm)>,
    /// Rotary positions of queries and keys; none in a layer that does not rotate.
    rotary: Option<Rotary>,
    sight: Sight,
    query_heads: i64,
    key_heads: i64,
    head_dim: i64,
}

/// The part of a forward pass that [`Attention::backward`] needs.
#[derive(Debug)]
pub(super) struct AttentionTape {
    /// Queries, keys and values side by side, `[T, q + 2 kv, head_dim]`; rotated if the layer rotates and its heads are
    /// not normed.
    qkv_TND: Tensor,
    /// Normed and rotated queries and keys, where the heads are normed.
    normed: Option<(Tensor, Tensor)>,
    attended: Attended,
}

impl Attention {
    /// The leaves below `model.layers.{layer}.self_attn.`.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, layer: usize) -> Self {
        let (kind, layer) = (config.layers[layer], format!("model.layers.{layer}"));
        let name = &format!("{layer}.self_attn");
        let norm = |which: &str| RmsNorm::new(config, weights, &format!("{name}.{which}"));
        Self {
            qkv: Linear::stacked(weights, name, "qkv_proj", &["q_proj", "k_proj", "v_proj"]),
            output: Output::new(config, weights, [name, "o_proj"], &format!("{layer}.post_attention_layernorm")),
            head_norms: config.head_norms().then(|| (norm("q_norm"), norm("k_norm"))),
            rotary: kind.rotary,
            sight: Sight { window: kind.window.map(|window| window as i64), scale: config.attention_scale },
            query_heads: config.num_attention_heads as i64,
            key_heads: config.num_key_value_heads as i64,
            head_dim: config.head_dim as i64,
        }
    }

    /// Adds the attention of `x_TH`, `[T, hidden]`, to `onto`. Returns the sum, and the tape for [`Self::backward`].
    pub(super) fn forward_onto(
        &self,
        onto: &Tensor,
        x_TH: &Tensor,
        trees: &[Tree],
        rotations: &Rotations,
    ) -> (Tensor, AttentionTape) {
        let qkv_TND = self.qkv.forward(x_TH).view([-1, self.query_heads + 2 * self.key_heads, self.head_dim]);
        let [q_TND, k_TND, v_TND] = self.parts(&qkv_TND);
        let normed = self.head_norms.as_ref().map(|(q_norm, k_norm)| (q_norm.forward(&q_TND), k_norm.forward(&k_TND)));
        let (q_TND, k_TND) = match &normed {
            Some((q_TND, k_TND)) => (q_TND.shallow_clone(), k_TND.shallow_clone()),
            None => (q_TND, k_TND),
        };
        if let Some(rotation) = rotations.of(self.rotary) {
            rotation.rotate(&q_TND);
            rotation.rotate(&k_TND);
        }
        let attended = attend([&q_TND, &k_TND, &v_TND], trees, self.sight);
        let sum = self.output.forward_onto(onto, &attended.out_TND.flatten(1, 2));
        (sum, AttentionTape { qkv_TND, normed, attended })
    }

    /// Adds the parameters' gradients, given input, tape and the gradient of the output; returns that of the input.
    pub(super) fn backward(
        &self,
        x_TH: &Tensor,
        tape: &AttentionTape,
        dy_TH: &Tensor,
        trees: &[Tree],
        rotations: &Rotations,
        gradients: &mut Gradients,
    ) -> Tensor {
        let [q_TND, k_TND, v_TND] = self.parts(&tape.qkv_TND);
        let mixed = tape.attended.out_TND.flatten(1, 2);
        let d_mixed_TND = self.output.backward(&mixed, dy_TH, gradients).view_as(&tape.attended.out_TND);
        let d_qkv_TND = tape.qkv_TND.empty_like();
        let [mut dq_TND, mut dk_TND, dv_TND] = self.parts(&d_qkv_TND);
        let (q_rotated, k_rotated) = tape.normed.as_ref().map_or((&q_TND, &k_TND), |(q, k)| (q, k));
        attend_backward(
            [q_rotated, k_rotated, &v_TND],
            &tape.attended,
            &d_mixed_TND,
            trees,
            self.sight,
            [&dq_TND, &dk_TND, &dv_TND],
        );
        if let Some(rotation) = rotations.of(self.rotary) {
            rotation.rotate_back(&dq_TND);
            rotation.rotate_back(&dk_TND);
        }
        if let Some((q_norm, k_norm)) = &self.head_norms {
            dq_TND.copy_(&q_norm.backward(&q_TND, &dq_TND, gradients));
            dk_TND.copy_(&k_norm.backward(&k_TND, &dk_TND, gradients));
        }
        self.qkv.backward(x_TH, &d_qkv_TND.flatten(1, 2), gradients)
    }

    /// Queries, keys and values as views.
    fn parts(&self, qkv_TND: &Tensor) -> [Tensor; 3] {
        let (q, kv) = (self.query_heads, self.key_heads);
        [qkv_TND.narrow(1, 0, q), qkv_TND.narrow(1, q, kv), qkv_TND.narrow(1, q + kv, kv)]
    }
}
