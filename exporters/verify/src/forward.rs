//! A plain forward pass in fp32: one sequence, all positions, no cache, and no more code than the formulas have.

use std::{collections::HashMap, ops::Range};

use ndarray::{Array1, Array2, ArrayViewMut1, Axis, Slice};
use rayon::prelude::*;

use crate::{Activation, Architecture, Layer, Mixer, Mixture, Reader, VerifyError, Weights};

/// Rows of a weight that one core multiplies with at once.
const ROWS: usize = 512;

/// Weights with the sizes that they belong to. Each tensor is read when it is needed, so a model need not fit into
/// memory.
pub struct Model {
    architecture: Architecture,
    weights: Box<dyn Weights>,
    /// The parameters that it has: biases are added where there are some.
    names: Vec<String>,
}

impl Model {
    /// A model of a file.
    #[must_use]
    pub fn new(architecture: Architecture, weights: Box<dyn Weights>) -> Self {
        let names = weights.names();
        Self { architecture, weights, names }
    }

    /// Its sizes and frequencies.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Its parameters.
    #[must_use]
    pub fn weights(&self) -> &dyn Weights {
        &*self.weights
    }

    /// The first of some names that the file has a weight of: families call the same part otherwise.
    fn named<'n>(&self, names: &[&'n str], before: &str) -> &'n str {
        let is_there = |name: &&&str| self.names.contains(&format!("{before}{name}.weight"));
        names.iter().find(is_there).unwrap_or(&names[0])
    }

    fn matrix(&self, name: &str) -> Result<Array2<f32>, VerifyError> {
        let tensor = self.weights.read(name)?;
        let [rows, columns] = tensor.shape[..] else {
            return Err(VerifyError::Differs(format!("tensor {name} has the shape {:?}, no matrix", tensor.shape)));
        };
        let found = tensor.values.len();
        Array2::from_shape_vec((rows, columns), tensor.values)
            .map_err(|_| VerifyError::Differs(format!("tensor {name} has {found} values for {rows} x {columns}")))
    }

    pub(crate) fn vector(&self, name: &str, length: usize) -> Result<Array1<f32>, VerifyError> {
        let values = self.weights.read(name)?.values;
        if values.len() != length {
            let message = format!("tensor {name} has {} values, {length} are needed", values.len());
            return Err(VerifyError::Differs(message));
        }
        Ok(values.into())
    }

    /// `x W^T`, and a bias where the file has one.
    pub(crate) fn linear(&self, name: &str, x: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        let weight = self.matrix(&format!("{name}.weight"))?;
        let mut y = product(name, x, &weight)?;
        let bias = format!("{name}.bias");
        if self.names.contains(&bias) {
            y += &self.vector(&bias, y.ncols())?;
        }
        Ok(y)
    }

    /// RMS norm of each row.
    fn norm(&self, name: &str, x: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        let gamma = self.vector(&format!("{name}.weight"), x.ncols())? + self.architecture.norm_offset;
        let mut y = x.clone();
        for mut row in y.rows_mut() {
            let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / row.len() as f64;
            let factor = (mean + self.architecture.epsilon).sqrt().recip() as f32;
            row.zip_mut_with(&gamma, |value, gamma| *value *= factor * gamma);
        }
        Ok(y)
    }

    /// The projections of a block's input: as tensors of their own, or from one tensor that has them in order, in these
    /// widths.
    fn inputs<const N: usize>(
        &self,
        own: [String; N],
        one: &str,
        widths: [usize; N],
        x: &Array2<f32>,
    ) -> Result<[Array2<f32>; N], VerifyError> {
        let mut found = Vec::with_capacity(N);
        if self.names.contains(&format!("{one}.weight")) {
            let all = self.linear(one, x)?;
            if all.ncols() != widths.iter().sum::<usize>() {
                return Err(VerifyError::Differs(format!("{one} has {} outputs, not {widths:?}", all.ncols())));
            }
            let mut begin = 0;
            for width in widths {
                found.push(all.slice_axis(Axis(1), Slice::from(begin..begin + width)).to_owned());
                begin += width;
            }
        } else {
            for name in &own {
                found.push(self.linear(name, x)?);
            }
        }
        Ok(found.try_into().expect("as many as are asked for"))
    }

    /// Queries or keys, normed where the family does, and turned by their positions: `[tokens, heads * head_dim]`.
    fn turned(&self, name: &str, layer: &Layer, mut heads: Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        let head_dim = layer.head_dim.unwrap_or(self.architecture.head_dim);
        let (rows, width) = heads.dim();
        if !width.is_multiple_of(head_dim) {
            return Err(VerifyError::Differs(format!("{name}_proj has {width} rows, no whole heads of {head_dim}")));
        }
        if self.architecture.head_norms {
            let count = heads.len() / head_dim;
            let flat = heads.into_shape_with_order((count, head_dim)).expect("whole heads, in order");
            let norm = self.named(&["_norm", "_layernorm"], name);
            let normed = self.norm(&format!("{name}{norm}"), &flat)?;
            heads = normed.into_shape_with_order((rows, width)).expect("as many values as before");
        }
        if self.architecture.width_norms {
            heads = self.norm(&format!("{name}_norm"), &heads)?;
        }
        let scale = self.architecture.turn_scale as f32;
        let beyond = self.architecture.beyond.as_ref().filter(|(length, _)| rows > *length);
        let frequencies = beyond.map(|(_, frequencies)| frequencies).filter(|_| layer.frequencies.is_some());
        if let Some(frequencies) = frequencies.or(layer.frequencies.as_ref()) {
            for (position, mut row) in heads.rows_mut().into_iter().enumerate() {
                for (pair, frequency) in frequencies.iter().enumerate() {
                    let (sin, cos) = (position as f64 * frequency).sin_cos();
                    let (sin, cos) = (sin as f32 * scale, cos as f32 * scale);
                    let (first, second) = if self.architecture.interleaved {
                        (2 * pair, 2 * pair + 1)
                    } else {
                        (pair, pair + frequencies.len())
                    };
                    for head in (0..width).step_by(head_dim) {
                        let (a, b) = (row[head + first], row[head + second]);
                        row[head + first] = a * cos - b * sin;
                        row[head + second] = b * cos + a * sin;
                    }
                }
            }
        }
        Ok(heads)
    }

    /// Keys, turned, and values of a layer's own.
    fn keys_and_values(
        &self,
        name: &str,
        layer: &Layer,
        [k, mut v]: [Array2<f32>; 2],
    ) -> Result<[Array2<f32>; 2], VerifyError> {
        if self.architecture.value_norms {
            let width = layer.head_dim.unwrap_or(self.architecture.head_dim);
            for mut row in v.rows_mut() {
                for mut head in row.axis_chunks_iter_mut(Axis(0), width) {
                    let mean = head.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / head.len() as f64;
                    head *= (mean + self.architecture.epsilon).sqrt().recip() as f32;
                }
            }
        }
        Ok([self.turned(&format!("{name}.k"), layer, k)?, v])
    }

    /// Attention of a layer; `kept` has keys and values of the layers before.
    fn attention(
        &self,
        index: usize,
        layer: &Layer,
        x: &Array2<f32>,
        kept: &mut HashMap<usize, [Array2<f32>; 2]>,
    ) -> Result<Array2<f32>, VerifyError> {
        let Architecture { heads, kv_heads, attention_scale, .. } = self.architecture;
        let (name, head_dim) =
            (&format!("model.layers.{index}.self_attn"), layer.head_dim.unwrap_or(self.architecture.head_dim));
        let (mut q, k, v) = if let Some(source) = layer.reads {
            let [k, v] = kept.get(&source).cloned().ok_or_else(|| {
                VerifyError::Differs(format!("{name} reads the keys of layer {source}, which has none"))
            })?;
            (self.linear(&format!("{name}.q_proj"), x)?, k, v)
        } else {
            let own = ["q", "k", "v"].map(|part| format!("{name}.{part}_proj"));
            let widths = [heads, kv_heads, kv_heads].map(|heads| heads * head_dim);
            let [q, k, v] = self.inputs(own, &format!("{name}.qkv_proj"), widths, x)?;
            let [k, v] = self.keys_and_values(name, layer, [k, v])?;
            if self.architecture.layers.iter().any(|layer| layer.reads == Some(index)) {
                kept.insert(index, [k.clone(), v.clone()]);
            }
            (q, k, v)
        };
        let gate = if self.architecture.gated { Some(halves_of_heads(name, &mut q, heads)?) } else { None };
        let mut q = self.turned(&format!("{name}.q"), layer, q)?;
        if let Some((length, factor)) = self.architecture.growth {
            for (position, mut row) in q.rows_mut().into_iter().enumerate() {
                row *= (1.0 + factor * (1.0 + (position / length) as f64).ln()) as f32;
            }
        }
        if [q.ncols(), k.ncols(), v.ncols()] != [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim] {
            return Err(VerifyError::Differs(format!("{name} has projections of other widths than its heads")));
        }
        let mut mixed = Array2::zeros((x.nrows(), heads * head_dim));
        for head in 0..heads {
            let columns = |head: usize| Slice::from(head * head_dim..(head + 1) * head_dim);
            let of = |values: &Array2<f32>, head: usize| values.slice_axis(Axis(1), columns(head)).to_owned();
            let shared = head / (heads / kv_heads);
            let mut scores = of(&q, head).dot(&of(&k, shared).t()) * attention_scale as f32;
            for (query, row) in scores.rows_mut().into_iter().enumerate() {
                let first = layer.window.map_or(0, |window| (query + 1).saturating_sub(window));
                softmax_within(row, first..query + 1);
            }
            mixed.slice_axis_mut(Axis(1), columns(head)).assign(&scores.dot(&of(&v, shared)));
        }
        if let Some(gate) = gate {
            mixed.zip_mut_with(&gate, |value, gate| *value /= 1.0 + (-gate).exp());
        }
        // LFM3 has one gate for each head.
        let of_heads = format!("{name}.gate_proj");
        if self.names.contains(&format!("{of_heads}.weight")) {
            let gates = self.linear(&of_heads, x)?;
            if gates.ncols() != heads {
                let message = format!("{of_heads} has {} outputs, and there are {heads} heads", gates.ncols());
                return Err(VerifyError::Differs(message));
            }
            for ((row, column), value) in mixed.indexed_iter_mut() {
                *value /= 1.0 + (-gates[(row, column / head_dim)]).exp();
            }
        }
        let last = self.named(&["o_proj", "out_proj"], &format!("{name}."));
        self.linear(&format!("{name}.{last}"), &mixed)
    }

    /// The MLP of a layer, or its experts.
    fn mlp(&self, layer: &str, x: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        let router = format!("{layer}.mlp.gate");
        match self.architecture.mixture {
            Some(mixture) if self.names.contains(&format!("{router}.weight")) => {
                self.experts(&format!("{layer}.mlp.experts"), mixture, &self.linear(&router, x)?, x)
            }
            _ => self.dense(layer, x),
        }
    }

    /// Each token's experts, one after the other, given the router's logits.
    fn experts(
        &self,
        name: &str,
        mixture: Mixture,
        logits: &Array2<f32>,
        x: &Array2<f32>,
    ) -> Result<Array2<f32>, VerifyError> {
        let Mixture { count, per_token, width, normalised } = mixture;
        if logits.ncols() != count || per_token > count {
            return Err(VerifyError::Differs(format!("the router of {name} has {} outputs", logits.ncols())));
        }
        let mut weights = Array2::<f32>::zeros(logits.dim());
        for (mut row, logits) in weights.rows_mut().into_iter().zip(logits.rows()) {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let masses: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let chosen = &order[..per_token];
            let of_chosen: f32 = chosen.iter().map(|&expert| masses[expert]).sum();
            let total = if normalised { of_chosen } else { masses.iter().sum() };
            chosen.iter().for_each(|&expert| row[expert] = masses[expert] / total);
        }
        let mut sum = Array2::zeros(x.dim());
        for (expert, weights) in weights.columns().into_iter().enumerate() {
            let rows: Vec<usize> = (0..x.nrows()).filter(|&row| weights[row] != 0.0).collect();
            if rows.is_empty() {
                continue;
            }
            let part = |part: &str| format!("{name}.{expert}.{part}_proj");
            let own = x.select(Axis(0), &rows);
            let inner = self.gated(self.linear(&part("gate"), &own)?, &self.linear(&part("up"), &own)?, name)?;
            if inner.ncols() != width {
                return Err(VerifyError::Differs(format!("{name}.{expert} has the width {}", inner.ncols())));
            }
            let result = self.linear(&part("down"), &inner)?;
            for (&row, result) in rows.iter().zip(result.rows()) {
                sum.row_mut(row).scaled_add(weights[row], &result);
            }
        }
        Ok(sum)
    }

    /// `act(gate) * up`.
    fn gated(&self, mut gate: Array2<f32>, up: &Array2<f32>, name: &str) -> Result<Array2<f32>, VerifyError> {
        gate.mapv_inplace(match self.architecture.activation {
            Activation::Silu => |x: f32| x / (1.0 + (-x).exp()),
            Activation::GeluTanh => |x: f32| {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            },
        });
        if gate.dim() != up.dim() {
            return Err(VerifyError::Differs(format!("gate and up of {name} have other shapes")));
        }
        Ok(gate * up)
    }

    fn dense(&self, layer: &str, x: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        // Granite's is what its mixtures share.
        let granite = format!("{layer}.shared_mlp");
        let is_granite = self.names.contains(&format!("{granite}.input_linear.weight"));
        // LFM2 numbers its projections.
        let lfm2 = format!("{layer}.feed_forward");
        let is_lfm2 = self.names.contains(&format!("{lfm2}.w1.weight"));
        let (name, members, one, last) = if is_granite {
            (&granite, ["gate_proj", "up_proj"], "input_linear", "output_linear")
        } else if is_lfm2 {
            (&lfm2, ["w1", "w3"], "w13", "w2")
        } else {
            (&format!("{layer}.mlp"), ["gate_proj", "up_proj"], "gate_up_proj", "down_proj")
        };
        let own = members.map(|part| format!("{name}.{part}"));
        let widths = [self.architecture.intermediate_size; 2];
        let [gate, up] = self.inputs(own, &format!("{name}.{one}"), widths, x)?;
        self.linear(&format!("{name}.{last}"), &self.gated(gate, &up, name)?)
    }

    /// A layer; `input` is the one of its own, in the families that have one.
    fn layer(
        &self,
        index: usize,
        layer: &Layer,
        mut x: Array2<f32>,
        input: Option<&Array2<f32>>,
        kept: &mut HashMap<usize, [Array2<f32>; 2]>,
    ) -> Result<Array2<f32>, VerifyError> {
        let name = &format!("model.layers.{index}");
        let Architecture { input_norms, output_norms, residual_scale, .. } = self.architecture;
        let normed_if = |norms: bool, norm: &str, y: Array2<f32>| {
            if norms { self.norm(&format!("{name}.{norm}"), &y) } else { Ok(y) }
        };
        let part = format!("{name}.");
        let usual = if output_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        let before_mlp = self.named(&[usual, "ffn_norm"], &part);
        let first = self.named(&["input_layernorm", "operator_norm"], &part);
        let normed = normed_if(input_norms, first, x.clone())?;
        let attended = match layer.mixer {
            Mixer::Attention => self.attention(index, layer, &normed, kept)?,
            Mixer::ShortConv(kernel) => self.short_conv(&format!("{name}.conv"), kernel, &normed)?,
            Mixer::DeltaRule { .. } => self.delta_rule(&format!("{name}.linear_attn"), layer.mixer, &normed)?,
            Mixer::Mamba { .. } => self.mamba(&format!("{name}.mamba"), layer.mixer, &normed)?,
        };
        let attended =
            normed_if(output_norms, self.named(&["post_attention_layernorm", "post_operator_norm"], &part), attended)?;
        add(&mut x, &(attended * residual_scale as f32), name)?;
        let normed = normed_if(input_norms, before_mlp, x.clone())?;
        let inner = self.mlp(name, &normed)?;
        let inner =
            normed_if(output_norms, self.named(&["post_feedforward_layernorm", "post_ffn_norm"], &part), inner)?;
        add(&mut x, &(inner * residual_scale as f32), name)?;
        if let Some(input) = input {
            let gate = self.linear(&format!("{name}.per_layer_input_gate"), &x)?;
            let result = self.linear(&format!("{name}.per_layer_projection"), &self.gated(gate, input, name)?)?;
            add(&mut x, &self.norm(&format!("{name}.post_per_layer_input_norm"), &result)?, name)?;
        }
        let factor = format!("{name}.layer_scalar");
        if self.names.contains(&factor) {
            x *= self.vector(&factor, 1)?[0];
        }
        Ok(x)
    }

    /// The inputs of each layer's own (Gemma's per-layer embeddings), in the families that have them.
    fn inputs_of_layers(&self, rows: &[usize], x: &Array2<f32>) -> Result<Option<Vec<Array2<f32>>>, VerifyError> {
        const TABLE: &str = "model.embed_tokens_per_layer.weight";
        if !self.names.iter().any(|name| name == TABLE) {
            return Ok(None);
        }
        let table = self.matrix(TABLE)?;
        let layers = self.architecture.layers.len();
        let width = table.ncols() / layers;
        if table.ncols() != layers * width || rows.iter().any(|&row| row >= table.nrows()) {
            return Err(VerifyError::Differs(format!("tensor {TABLE} has no row of {layers} layers for each token")));
        }
        let of_tokens = table.select(Axis(0), rows) * (width as f32).sqrt();
        let name = "model.per_layer_model_projection";
        let projected = self.linear(name, x)? / (x.ncols() as f32).sqrt();
        if projected.dim() != of_tokens.dim() {
            return Err(VerifyError::Differs(format!("{name} has another width than the table of inputs")));
        }
        let part = |layer: usize| {
            let of =
                |all: &Array2<f32>| all.slice_axis(Axis(1), Slice::from(layer * width..(layer + 1) * width)).to_owned();
            let normed = self.norm("model.per_layer_projection_norm", &of(&projected))?;
            Ok((normed + of(&of_tokens)) / 2_f32.sqrt())
        };
        (0..layers).map(part).collect::<Result<_, _>>().map(Some)
    }
}

impl Reader for Model {
    fn logits(&mut self, tokens: &[u32]) -> Result<Array2<f32>, VerifyError> {
        let embedding = self.matrix("model.embed_tokens.weight")?;
        let vocabulary = embedding.nrows();
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(VerifyError::Token { token, vocabulary });
        }
        let rows: Vec<usize> = tokens.iter().map(|token| *token as usize).collect();
        let mut x = embedding.select(Axis(0), &rows) * self.architecture.embedding_scale as f32;
        let (inputs, mut kept) = (self.inputs_of_layers(&rows, &x)?, HashMap::new());
        for (index, layer) in self.architecture.layers.iter().enumerate() {
            x = self.layer(index, layer, x, inputs.as_ref().map(|inputs| &inputs[index]), &mut kept)?;
        }
        let last = self.named(&["norm", "embedding_norm"], "model.");
        let normed = self.norm(&format!("model.{last}"), &x)?;
        let head = if self.architecture.tied { embedding } else { self.matrix("lm_head.weight")? };
        let logits = product("the output layer", &normed, &head)? / self.architecture.logit_divisor as f32;
        Ok(match self.architecture.logit_cap {
            Some(cap) => logits.mapv(|logit| (f64::from(logit) / cap).tanh() as f32 * cap as f32),
            None => logits,
        })
    }
}

/// Takes the second half of each of some heads out of `[tokens, heads * 2 * width]`.
fn halves_of_heads(name: &str, both: &mut Array2<f32>, heads: usize) -> Result<Array2<f32>, VerifyError> {
    let (rows, width) = (both.nrows(), both.ncols() / heads / 2);
    if both.ncols() != heads * 2 * width {
        return Err(VerifyError::Differs(format!("{name} has no gate beside each of its {heads} heads")));
    }
    let half = |which: usize| {
        Array2::from_shape_fn((rows, heads * width), |(row, column)| {
            both[(row, column / width * 2 * width + which * width + column % width)]
        })
    };
    let (first, second) = (half(0), half(1));
    *both = first;
    Ok(second)
}

/// `x W^T`. The blocks are the same whatever the number of cores, so the bits are too.
fn product(name: &str, x: &Array2<f32>, weight: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
    if x.ncols() != weight.ncols() {
        let message = format!("{name} has {} columns, but its input has {}", weight.ncols(), x.ncols());
        return Err(VerifyError::Differs(message));
    }
    let mut y = Array2::zeros((x.nrows(), weight.nrows()));
    let blocks = y.axis_chunks_iter_mut(Axis(1), ROWS).zip(weight.axis_chunks_iter(Axis(0), ROWS));
    let blocks: Vec<_> = blocks.collect();
    blocks.into_par_iter().for_each(|(mut y, block)| y.assign(&x.dot(&block.t())));
    Ok(y)
}

fn add(x: &mut Array2<f32>, y: &Array2<f32>, name: &str) -> Result<(), VerifyError> {
    if x.dim() != y.dim() {
        return Err(VerifyError::Differs(format!("{name} has outputs of width {}, not {}", y.ncols(), x.ncols())));
    }
    *x += y;
    Ok(())
}

/// Softmax over the scores that a query sees; the others become 0.
fn softmax_within(mut scores: ArrayViewMut1<'_, f32>, seen: Range<usize>) {
    let largest = seen.clone().map(|key| scores[key]).fold(f32::NEG_INFINITY, f32::max);
    let exponential = |(key, score): (usize, &mut f32)| {
        *score = if seen.contains(&key) { (*score - largest).exp() } else { 0.0 };
        *score
    };
    let sum: f32 = scores.iter_mut().enumerate().map(exponential).sum();
    scores /= sum;
}
