//! Causal grouped-query self-attention.
//!
//! Each branch of a tree attends to the stem and to itself, and the two results are joined by their log-sum-exps. In a
//! sliding window, queries go in runs of the window's length, and only the beginning of a branch looks back at the end
//! of the stem.

mod core;
mod part;
mod shared_keys;
#[cfg(target_arch = "x86_64")]
mod tiles;

use shared::{AttentionGate, AttentionKind, ModelConfig, Rotary};
use tch::Tensor;

use self::core::{Attended, Sight, attend, attend_backward};
pub(super) use self::shared_keys::SharedKeys;
use super::{
    linear::Linear,
    mixer::Pass,
    norm::{RmsNorm, UnitNorm},
    output::Output,
    parameters::Gradients,
    weights::Weights,
};

/// Self-attention of one layer.
#[derive(Debug)]
pub(super) struct Attention {
    qkv: Linear,
    output: Output,
    /// Norms of q and k, in the families that have them.
    norms: Option<Norms>,
    /// Norm of v, in the families that have one.
    value_norm: Option<UnitNorm>,
    /// Rotary positions of queries and keys; none in a layer that does not rotate.
    rotary: Option<Rotary>,
    sight: Sight,
    gate: Option<Gate>,
    query_heads: i64,
    /// Heads of keys and values of its own.
    key_heads: i64,
    head_dim: i64,
    keys: Keys,
}

/// Whose keys and values a layer attends to.
#[derive(Debug, Clone, Copy)]
enum Keys {
    Own,
    /// Its own, which later layers read too. The number is that of the layer.
    Given(usize),
    /// Those of an earlier layer.
    Of(usize),
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
    /// Of queries, and of keys where the layer has some.
    of: Vec<RmsNorm>,
    /// Whether a norm is over all heads of a token together, not over each.
    over_width: bool,
}

impl Norms {
    /// `[T, heads, head_dim]` as the norm takes it.
    fn rows(&self, x_TND: &Tensor) -> Tensor {
        if self.over_width { x_TND.flatten(1, 2) } else { x_TND.shallow_clone() }
    }

    fn forward(&self, which: usize, x_TND: &Tensor) -> Tensor {
        match self.of.get(which) {
            Some(norm) => norm.forward(&self.rows(x_TND)).view_as(x_TND),
            None => x_TND.shallow_clone(),
        }
    }

    /// Replaces the gradient of the normed values by that of their inputs.
    fn backward(&self, which: usize, x_TND: &Tensor, dy_TND: &mut Tensor, gradients: &mut Gradients) {
        if let Some(norm) = self.of.get(which) {
            let dx = norm.backward(&self.rows(x_TND), &self.rows(dy_TND), gradients);
            dy_TND.copy_(&dx.view_as(dy_TND));
        }
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
    /// Normed values, where they are normed.
    values: Option<Tensor>,
    attended: Attended,
    /// The gate's inputs, `[T, heads, 1]`, where they have a projection of their own.
    gates: Option<Tensor>,
}

impl Attention {
    /// The leaves below `model.layers.{layer}.self_attn.`.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, layer: usize, kind: AttentionKind) -> Self {
        let keys = match config.shares_keys_of(layer) {
            Some(source) => Keys::Of(source),
            None if (layer..config.num_hidden_layers).any(|later| config.shares_keys_of(later) == Some(layer)) => {
                Keys::Given(layer)
            }
            None => Keys::Own,
        };
        let has_keys = !matches!(keys, Keys::Of(_));
        let (own_names, head_dim) = (config.mixer_names(layer), config.head_dim_of(layer) as i64);
        let has_norms = config.query_and_key_norms(layer).is_some();
        let layer = format!("model.layers.{layer}");
        let name = &format!("{layer}.self_attn");
        let norm = |which: &&str| RmsNorm::new(config, weights, &format!("{name}.{which}"));
        let names = config.attention_names();
        let members = if has_keys { names.members } else { own_names.members };
        let ([of_output, _], of) = (config.output_norm_names(), config.query_and_key_norm_names());
        let normed = if has_keys { &of[..] } else { &of[..1] };
        Self {
            qkv: Linear::stacked(weights, name, "qkv_proj", members),
            output: Output::new(config, weights, [name, names.last], &format!("{layer}.{of_output}")),
            norms: has_norms.then(|| Norms { of: normed.iter().map(norm).collect(), over_width: config.width_norms() }),
            value_norm: (has_keys && config.value_norms()).then(|| UnitNorm::new(config)),
            rotary: kind.rotary,
            sight: Sight { window: kind.window.map(|window| window as i64), scale: config.attention_scale },
            gate: kind.gate.map(|gate| match gate {
                AttentionGate::Entries => Gate::Entries,
                AttentionGate::Heads => Gate::Heads(Linear::new(weights, name, "gate_proj")),
            }),
            query_heads: config.num_attention_heads as i64,
            key_heads: if has_keys { config.num_key_value_heads as i64 } else { 0 },
            head_dim,
            keys,
        }
    }

    /// Adds the attention of `x_TH`, `[T, hidden]`, to `onto`. Returns the sum, and the tape for [`Self::backward`].
    pub(super) fn forward_onto(
        &self,
        onto: &Tensor,
        x_TH: &Tensor,
        Pass { trees, rotations }: Pass<'_>,
        shared: &mut SharedKeys,
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
        let values = self.value_norm.as_ref().map(|norm| norm.forward(&v_TND));
        let own = [k_TND, values.as_ref().unwrap_or(&v_TND).shallow_clone()];
        let [k_TND, v_TND] = match self.keys {
            Keys::Own => own,
            Keys::Given(layer) => {
                shared.keep(layer, &own);
                own
            }
            Keys::Of(source) => shared.of(source),
        };
        let attended = attend([&q_TND, &k_TND, &v_TND], trees, self.sight);
        let gates = match &self.gate {
            Some(Gate::Heads(projection)) => Some(projection.forward(x_TH).unsqueeze(-1)),
            _ => None,
        };
        let tape = AttentionTape { qkv_TND, normed, values, attended, gates };
        let sum = self.output.forward_onto(onto, &self.gated(&tape).flatten(1, 2));
        (sum, tape)
    }

    /// Adds the parameters' gradients, given input, tape and the gradient of the output; returns that of the input.
    pub(super) fn backward(
        &self,
        x_TH: &Tensor,
        tape: &AttentionTape,
        dy_TH: &Tensor,
        Pass { trees, rotations }: Pass<'_>,
        shared: &mut SharedKeys,
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
        let [mut dq_TND, mut dk_TND, mut dv_TND] = self.parts(&d_qkv_TND);
        let (q_rotated, k_rotated) = tape.normed.as_ref().map_or((&q_TND, &k_TND), |(q, k)| (q, k));
        let back = |[k, v]: [&Tensor; 2], [dk, dv]: [&Tensor; 2]| {
            let (qkv, d_qkv) = ([q_rotated, k, v], [&dq_TND, dk, dv]);
            attend_backward(qkv, &tape.attended, &d_mixed_TND, trees, self.sight, d_qkv);
        };
        if let Keys::Of(source) = self.keys {
            let [k, v] = shared.of(source);
            let found = [k.empty_like(), v.empty_like()];
            back([&k, &v], found.each_ref());
            shared.add(source, found);
        } else {
            back([k_rotated, tape.values.as_ref().unwrap_or(&v_TND)], [&dk_TND, &dv_TND]);
        }
        if let Keys::Given(layer) = self.keys
            && let Some([of_k, of_v]) = shared.take(layer)
        {
            dk_TND += of_k;
            dv_TND += of_v;
        }
        if let Some([queries, keys]) = rotations.of(self.rotary) {
            queries.rotate_back(&dq_TND);
            keys.rotate_back(&dk_TND);
        }
        if let Some(norms) = &self.norms {
            norms.backward(0, &q_TND, &mut dq_TND, gradients);
            norms.backward(1, &k_TND, &mut dk_TND, gradients);
        }
        if let Some(norm) = &self.value_norm {
            dv_TND.copy_(&norm.backward(&v_TND, &dv_TND));
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
