//! The transformer below any head: embedding, layers and final norm, with its backward pass.
//!
//! The backward pass is written out. The gradients of a layer's parameters come from products that add to the flat
//! buffer, so they have no second copy. The code also shows what a layer keeps of its forward pass.

use shared::ModelConfig;
use tch::Tensor;

use super::{
    experts::{Chosen, ExpertLoad},
    kinds::{wide, wide_kind},
    mixer::{Mixer, MixerTape},
    mlp::{Mlp, MlpTape},
    norm::RmsNorm,
    parameters::{Gradients, Leaf},
    rope::Rotations,
    weights::Weights,
};
use crate::batch::{Packed, Tree};

pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";

#[derive(Debug)]
struct Layer {
    /// None in the families that do not norm inputs.
    input_norm: Option<RmsNorm>,
    mixer: Mixer,
    mlp_norm: Option<RmsNorm>,
    mlp: Mlp,
    /// The number among the layers with experts, and the experts of a token.
    routed: Option<(usize, i64)>,
}

/// The part of a forward pass that a layer keeps. Normed inputs and the MLP's inner product are computed again: they
/// are as large as the kept tensors, and cost next to nothing beside the matrix products.
#[derive(Debug)]
struct LayerTape {
    /// The layer's input, `[T, H]`.
    x_TH: Tensor,
    mixer: MixerTape,
    /// The MLP's input before its norm, `[T, H]`.
    middle_TH: Tensor,
    mlp: MlpTape,
}

impl Layer {
    fn record(&self, x_TH: Tensor, batch: &Packed, rotations: &Rotations) -> LayerTape {
        let trees = &batch.trees;
        let normed_TH = normed(self.input_norm.as_ref(), &x_TH);
        let (middle_TH, mixer) = self.mixer.forward_onto(&x_TH, &normed_TH, trees, rotations);
        let mlp = self.mlp.record(&normed(self.mlp_norm.as_ref(), &middle_TH), self.chosen(batch).as_ref());
        LayerTape { x_TH, mixer, middle_TH, mlp }
    }

    /// The experts that the sampler chose here.
    fn chosen(&self, batch: &Packed) -> Option<Chosen> {
        let (index, per_token) = self.routed?;
        batch.routing.as_ref().map(|routing| routing.of_layer(index, per_token))
    }

    fn output(&self, tape: &LayerTape) -> Tensor {
        self.mlp.output_onto(&tape.middle_TH, &tape.mlp)
    }

    /// Adds the parameters' gradients, given the gradient of the output, and returns that of the input.
    fn backward(
        &self,
        tape: LayerTape,
        dy_TH: Tensor,
        trees: &[Tree],
        rotations: &Rotations,
        gradients: &mut Gradients,
    ) -> Tensor {
        let LayerTape { x_TH, mixer, middle_TH, mlp } = tape;
        let normed_TH = normed(self.mlp_norm.as_ref(), &middle_TH);
        let d_normed_TH = self.mlp.backward(&normed_TH, &mlp, &dy_TH, gradients);
        let d_middle_TH = dy_TH + normed_backward(self.mlp_norm.as_ref(), &middle_TH, d_normed_TH, gradients);
        let normed_TH = normed(self.input_norm.as_ref(), &x_TH);
        let d_normed_TH = self.mixer.backward(&normed_TH, &mixer, &d_middle_TH, trees, rotations, gradients);
        d_middle_TH + normed_backward(self.input_norm.as_ref(), &x_TH, d_normed_TH, gradients)
    }
}

/// The input of a block, normed where the family does that.
fn normed(norm: Option<&RmsNorm>, x_TH: &Tensor) -> Tensor {
    norm.map_or_else(|| x_TH.shallow_clone(), |norm| norm.forward(x_TH))
}

/// The way back through [`normed`].
fn normed_backward(norm: Option<&RmsNorm>, x_TH: &Tensor, dy_TH: Tensor, gradients: &mut Gradients) -> Tensor {
    match norm {
        Some(norm) => norm.backward(x_TH, &dy_TH, gradients),
        None => dy_TH,
    }
}

/// What is kept of a layer between the passes.
#[derive(Debug)]
enum Kept {
    Tape(LayerTape),
    /// The layer's input, from which the backward pass makes the tape once more.
    Input(Tensor),
}

/// A forward pass that can be differentiated.
#[derive(Debug)]
pub(super) struct Tape {
    rotations: Rotations,
    layers: Vec<Kept>,
    /// Hidden states of the selected positions before the final norm, `[N, H]`, in float32 at least.
    selected_NH: Tensor,
    /// The same, normed.
    hidden_NH: Tensor,
    /// How evenly experts were used.
    load: ExpertLoad,
}

impl Tape {
    /// Normed hidden states of the selected positions, `[N, H]`.
    pub(super) fn hidden(&self) -> &Tensor {
        &self.hidden_NH
    }

    pub(super) fn load(&self) -> ExpertLoad {
        self.load
    }
}

/// Embedding, layers and final norm, with all weights of the model that they are part of. Nothing here uses autograd.
#[derive(Debug)]
pub(super) struct Trunk {
    config: ModelConfig,
    weights: Weights,
    gradient_checkpointing: bool,
    layers: Vec<Layer>,
    norm: RmsNorm,
    embedding: Leaf,
}

impl Trunk {
    pub(super) fn new(config: ModelConfig, weights: Weights, gradient_checkpointing: bool) -> Self {
        let norm = |name: &str| RmsNorm::new(&config, &weights, name);
        let mut with_experts = 0..;
        let mut routed = |i: usize| {
            let per_token = config.experts_of(i)?.per_token as i64;
            with_experts.next().map(|index| (index, per_token))
        };
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer {
                routed: routed(i),
                input_norm: config.input_norm().map(|name| norm(&format!("model.layers.{i}.{name}"))),
                mixer: Mixer::new(&config, &weights, i),
                mlp_norm: config.mlp_norm().map(|name| norm(&format!("model.layers.{i}.{name}"))),
                mlp: Mlp::new(&config, &weights, i, &format!("model.layers.{i}")),
            })
            .collect();
        let (norm, embedding) = (norm(config.final_norm()), weights.leaf(EMBEDDING));
        Self { layers, norm, embedding, config, weights, gradient_checkpointing }
    }

    /// The same architecture over other weights.
    pub(super) fn with_weights(&self, weights: Weights) -> Self {
        Self::new(self.config.clone(), weights, self.gradient_checkpointing)
    }

    pub(super) fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(super) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Normed hidden states of the given tokens, `[N]` places in the batch, as `[N, H]`, in float32 at least.
    pub(super) fn forward(&self, batch: &Packed, positions_N: &Tensor) -> Tensor {
        let rotations = self.rotations(batch);
        let through = |x_TH, layer: &Layer| layer.output(&layer.record(x_TH, batch, &rotations));
        let x_TH = self.layers.iter().fold(self.embed(batch), through);
        self.norm.forward(&wide(&x_TH.index_select(0, positions_N)))
    }

    /// As [`Self::forward`], to be followed by [`Self::backward`].
    pub(super) fn record(&self, batch: &Packed, positions_N: &Tensor) -> Tape {
        let (rotations, mut x_TH) = (self.rotations(batch), self.embed(batch));
        let (mut layers, mut load) = (Vec::with_capacity(self.layers.len()), ExpertLoad::default());
        for layer in &self.layers {
            let tape = layer.record(x_TH, batch, &rotations);
            load += tape.mlp.load();
            x_TH = layer.output(&tape);
            layers.push(if self.gradient_checkpointing { Kept::Input(tape.x_TH) } else { Kept::Tape(tape) });
        }
        let selected_NH = wide(&x_TH.index_select(0, positions_N));
        let hidden_NH = self.norm.forward(&selected_NH);
        Tape { rotations, layers, selected_NH, hidden_NH, load }
    }

    /// Adds the parameters' gradients, given the gradient of the normed hidden states of the same tokens, `[N, H]`.
    pub(super) fn backward(
        &self,
        batch: &Packed,
        positions_N: &Tensor,
        tape: Tape,
        gradient_NH: &Tensor,
        gradients: &mut Gradients,
    ) {
        let Tape { rotations, layers, selected_NH, .. } = tape;
        let d_selected_NH = self.norm.backward(&selected_NH, gradient_NH, gradients);
        let shape = [batch.ids_T.size()[0], self.config.hidden_size as i64];
        let mut dx_TH = Tensor::zeros(shape, (d_selected_NH.kind(), d_selected_NH.device()));
        // Branches of one stem predict their first tokens from one place, so the gradients of that place add up.
        let _ = dx_TH.index_add_(0, positions_N, &d_selected_NH);
        let mut dx_TH = dx_TH.to_kind(self.embedding.values.kind());
        for (layer, kept) in self.layers.iter().zip(layers).rev() {
            let tape = match kept {
                Kept::Tape(tape) => tape,
                Kept::Input(x_TH) => layer.record(x_TH, batch, &rotations),
            };
            dx_TH = layer.backward(tape, dx_TH, &batch.trees, &rotations, gradients);
        }
        if let Some(gradient) = gradients.of(&self.embedding) {
            let dx_TH = wide(&dx_TH);
            let dx_TH = match self.embedding_scale() {
                Some(scale) => dx_TH * scale,
                None => dx_TH,
            };
            let _ = gradient.index_add_(0, &batch.ids_T, &dx_TH);
        }
    }

    fn embed(&self, batch: &Packed) -> Tensor {
        let x_TH = Tensor::embedding(&self.embedding.values, &batch.ids_T, -1, false, false);
        match self.embedding_scale() {
            Some(scale) => x_TH * scale,
            None => x_TH,
        }
    }

    /// Rounded to the type of the weights, as in transformers.
    fn embedding_scale(&self) -> Option<Tensor> {
        let (kind, device) = (self.embedding.values.kind(), self.embedding.values.device());
        self.config.embedding_scale().map(|scale| Tensor::from_slice(&[scale]).to_kind(kind).to_device(device))
    }

    fn rotations(&self, batch: &Packed) -> Rotations {
        let (kind, device) = (self.embedding.values.kind(), self.embedding.values.device());
        Rotations::new(&self.config, batch, wide_kind(kind), device)
    }
}
