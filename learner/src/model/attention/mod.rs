//! Causal grouped-query self-attention.
//!
//! Each branch of a tree attends to the stem and to itself, and the two results are joined by their log-sum-exps. In a
//! sliding window, queries go in runs of the window's length, and only the beginning of a branch looks back at the end
//! of the stem.

mod core;
mod part;

use shared::{AttentionGate, AttentionKind, ModelConfig, Rotary};
use tch::Tensor;

use self::core::{Attended, Sight, attend, attend_backward};
use super::{linear::Linear, norm::RmsNorm, output::Output, parameters::Gradients, rope::Rotations, weights::Weights};
use crate::batch::Tree;

/// Self-attention of one layer.
#[derive(Debug)]
pub(super) struct Attention {
    qkv: Linear,
    output: Output,
    /// Norms of q and k, in the families that have them.
    norms: Option<Norms>,
    /// Rotary positions of queries and keys; none in a layer that does not rotate.
    rotary: Option<Rotary>,
    sight: Sight,
    gate: Option<Gate>,
    query_heads: i64,
    key_heads: i64,
    head_dim: i64,
}

/// A sigmoid on the mixed values.
#[derive(Debug)]
enum Gate {
    /// Of each entry; its input lies behind that of each query.
    Entries,
    /// Of each head, with a projection of its own.
    Heads(Linear),
}

/// Norms of queries and keys.
#[derive(Debug)]
struct Norms {
    /// Of queries, of keys.
    of: [RmsNorm; 2],
    /// Whether a norm is over all heads of a token together, not over each.
    over_width: bool,
}

impl Norms {
    /// `[T, heads, head_dim]` as the norm takes it.
    fn rows(&self, x_TND: &Tensor) -> Tensor {
        if self.over_width { x_TND.flatten(1, 2) } else { x_TND.shallow_clone() }
    }

    fn forward(&self, which: usize, x_TND: &Tensor) -> Tensor {
        self.of[which].forward(&self.rows(x_TND)).view_as(x_TND)
    }

    /// Replaces the gradient of the normed values by that of their inputs.
    fn backward(&self, which: usize, x_TND: &Tensor, dy_TND: &mut Tensor, gradients: &mut Gradients) {
        let dx = self.of[which].backward(&self.rows(x_TND), &self.rows(dy_TND), gradients);
        dy_TND.copy_(&dx.view_as(dy_TND));
    }
}

/// The part of a forward pass that [`Attention::backward`] needs.
#[derive(Debug)]
pub(super) struct AttentionTape {
    /// Queries, keys and values side by side, `[T, q + 2 kv, head_dim]`; rotated if the layer rotates and queries and
    /// keys are not normed. With a gate of entries, the gate of each query is behind it.
    qkv_TND: Tensor,
    /// Normed and rotated queries and keys, where they are normed.
    normed: Option<(Tensor, Tensor)>,
    attended: Attended,
    /// The gate's inputs, `[T, heads, 1]`, where they have a projection of their own.
    gates: Option<Tensor>,
}

impl Attention {
    /// The leaves below `model.layers.{layer}.self_attn.`.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, layer: usize, kind: AttentionKind) -> Self {
        let layer = format!("model.layers.{layer}");
        let name = &format!("{layer}.self_attn");
        let norm = |which: &str| RmsNorm::new(config, weights, &format!("{name}.{which}"));
        let names = config.attention_names();
        let ([of_output, _], [of_queries, of_keys]) = (config.output_norm_names(), config.query_and_key_norm_names());
        Self {
            qkv: Linear::stacked(weights, name, "qkv_proj", names.members),
            output: Output::new(config, weights, [name, names.last], &format!("{layer}.{of_output}")),
            norms: config
                .query_and_key_norms()
                .map(|_| Norms { of: [norm(of_queries), norm(of_keys)], over_width: config.width_norms() }),
            rotary: kind.rotary,
            sight: Sight { window: kind.window.map(|window| window as i64), scale: config.attention_scale },
            gate: kind.gate.map(|gate| match gate {
                AttentionGate::Entries => Gate::Entries,
                AttentionGate::Heads => Gate::Heads(Linear::new(weights, name, "gate_proj")),
            }),
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
        let qkv_TND = self.qkv.forward(x_TH).view([-1, self.query_rows() + 2 * self.key_heads, self.head_dim]);
        let [q_TND, k_TND, v_TND] = self.parts(&qkv_TND);
        let normed = self.norms.as_ref().map(|norms| (norms.forward(0, &q_TND), norms.forward(1, &k_TND)));
        let (q_TND, k_TND) = match &normed {
            Some((q_TND, k_TND)) => (q_TND.shallow_clone(), k_TND.shallow_clone()),
            None => (q_TND, k_TND),
        };
        if let Some([queries, keys]) = rotations.of(self.rotary) {
            queries.rotate(&q_TND);
            keys.rotate(&k_TND);
        }
        let attended = attend([&q_TND, &k_TND, &v_TND], trees, self.sight);
        let gates = match &self.gate {
            Some(Gate::Heads(projection)) => Some(projection.forward(x_TH).unsqueeze(-1)),
            _ => None,
        };
        let tape = AttentionTape { qkv_TND, normed, attended, gates };
        let sum = self.output.forward_onto(onto, &self.gated(&tape).flatten(1, 2));
        (sum, tape)
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
        let (out_TND, d_qkv_TND) = (&tape.attended.out_TND, tape.qkv_TND.empty_like());
        let mixed = self.gated(tape).flatten(1, 2);
        let mut d_mixed_TND = self.output.backward(&mixed, dy_TH, gradients).view_as(out_TND);
        let mut dx_TH: Option<Tensor> = None;
        if let Some(gate) = self.gates(tape) {
            let open = gate.sigmoid();
            let slope = &open * (1 - &open);
            let d_open = &d_mixed_TND * out_TND;
            match &self.gate {
                Some(Gate::Heads(projection)) => {
                    let d_open = d_open.sum_dim_intlist([-1i64].as_slice(), true, None);
                    let d_gate: Tensor = d_open * slope;
                    dx_TH = Some(projection.backward(x_TH, &d_gate.squeeze_dim(-1), gradients));
                }
                _ => self.gates_of_entries(&d_qkv_TND).copy_(&(d_open * slope)),
            }
            d_mixed_TND *= open;
        }
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
        if let Some([queries, keys]) = rotations.of(self.rotary) {
            queries.rotate_back(&dq_TND);
            keys.rotate_back(&dk_TND);
        }
        if let Some(norms) = &self.norms {
            norms.backward(0, &q_TND, &mut dq_TND, gradients);
            norms.backward(1, &k_TND, &mut dk_TND, gradients);
        }
        let d_of_qkv = self.qkv.backward(x_TH, &d_qkv_TND.flatten(1, 2), gradients);
        match dx_TH {
            Some(d_of_gate) => d_of_gate + d_of_qkv,
            None => d_of_qkv,
        }
    }

    /// Rows of all queries of a token and of their gates.
    fn query_rows(&self) -> i64 {
        self.query_heads * self.query_step()
    }

    fn query_step(&self) -> i64 {
        if matches!(self.gate, Some(Gate::Entries)) { 2 } else { 1 }
    }

    /// Queries, keys and values as views.
    fn parts(&self, qkv_TND: &Tensor) -> [Tensor; 3] {
        let (rows, kv) = (self.query_rows(), self.key_heads);
        let queries = qkv_TND.slice(1, 0, rows, self.query_step());
        [queries, qkv_TND.narrow(1, rows, kv), qkv_TND.narrow(1, rows + kv, kv)]
    }

    /// The inputs of gates of entries as a view, `[T, heads, head_dim]`.
    fn gates_of_entries(&self, qkv_TND: &Tensor) -> Tensor {
        qkv_TND.slice(1, 1, self.query_rows(), 2)
    }

    /// The gates' inputs, `[T, heads, head_dim]` or `[T, heads, 1]`.
    fn gates(&self, tape: &AttentionTape) -> Option<Tensor> {
        match self.gate.as_ref()? {
            Gate::Entries => Some(self.gates_of_entries(&tape.qkv_TND)),
            Gate::Heads(_) => tape.gates.as_ref().map(Tensor::shallow_clone),
        }
    }

    /// Mixed values behind the gate.
    fn gated(&self, tape: &AttentionTape) -> Tensor {
        let out_TND = &tape.attended.out_TND;
        self.gates(tape).map_or_else(|| out_TND.shallow_clone(), |gate| out_TND * gate.sigmoid())
    }
}
