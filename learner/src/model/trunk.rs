//! The transformer below any head: embedding, layers and final norm, with its backward pass.
//!
//! The backward pass is written out. The gradients of a layer's parameters come from products that add to the flat
//! buffer, so they have no second copy. The code also shows what a layer keeps of its forward pass.

use shared::ModelConfig;
use tch::Tensor;

use super::{
    attention::SharedKeys,
    experts::{Chosen, ExpertLoad},
    kinds::{wide, wide_kind},
    mixer::{Mixer, MixerTape, Pass},
    mlp::{Mlp, MlpTape},
    norm::RmsNorm,
    parameters::{Gradients, Leaf},
    per_layer::{InputTape, InputsTape, LayerInput, LayerInputs},
    rope::Rotations,
    weights::Weights,
};
use crate::batch::Packed;

pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";

#[derive(Debug)]
struct Layer {
    /// None in the families that do not norm inputs.
    input_norm: Option<RmsNorm>,
    mixer: Mixer,
    mlp_norm: Option<RmsNorm>,
    mlp: Mlp,
    /// What the layer makes of its own input, in the families that have one.
    input: Option<LayerInput>,
    /// The factor on the result, in the families that have one. It is not trained.
    scalar: Option<Leaf>,
    index: usize,
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
    input: Option<InputTape>,
}

/// What all layers of a pass read, and what they leave for each other.
#[derive(Debug)]
struct Common {
    rotations: Rotations,
    inputs: Option<InputsTape>,
    shared: SharedKeys,
}

impl Layer {
    fn record(&self, x_TH: Tensor, batch: &Packed, common: &mut Common) -> LayerTape {
        let Common { rotations, shared, .. } = common;
        let pass = Pass { trees: &batch.trees, rotations };
        let normed_TH = normed(self.input_norm.as_ref(), &x_TH);
        let (middle_TH, mixer) = self.mixer.forward_onto(&x_TH, &normed_TH, pass, shared);
        let mlp = self.mlp.record(&normed(self.mlp_norm.as_ref(), &middle_TH), self.chosen(batch).as_ref());
        let input = self.input.as_ref().map(|input| input.record(self.mlp.output_onto(&middle_TH, &mlp)));
        LayerTape { x_TH, mixer, middle_TH, mlp, input }
    }

    /// The experts that the sampler chose here.
    fn chosen(&self, batch: &Packed) -> Option<Chosen> {
        let (index, per_token) = self.routed?;
        batch.routing.as_ref().map(|routing| routing.of_layer(index, per_token))
    }

    fn output(&self, tape: &LayerTape, common: &Common) -> Tensor {
        let y_TH = match self.own_input(tape, common) {
            Some((input, tape, input_TP)) => input.output(tape, &input_TP),
            None => self.mlp.output_onto(&tape.middle_TH, &tape.mlp),
        };
        match &self.scalar {
            Some(scalar) => y_TH * &scalar.values,
            None => y_TH,
        }
    }

    /// What the layer makes of its own input, with its tape and the input.
    fn own_input<'a>(
        &'a self,
        tape: &'a LayerTape,
        common: &Common,
    ) -> Option<(&'a LayerInput, &'a InputTape, Tensor)> {
        Some((self.input.as_ref()?, tape.input.as_ref()?, common.inputs.as_ref()?.of(self.index)))
    }

    /// Adds the parameters' gradients, given the gradient of the output, and returns that of the layer's input from the
    /// stream. That of its own input goes to its place in `d_inputs`.
    fn backward(
        &self,
        tape: LayerTape,
        mut dy_TH: Tensor,
        batch: &Packed,
        common: &mut Common,
        d_inputs: Option<&Tensor>,
        gradients: &mut Gradients,
    ) -> Tensor {
        if let Some(scalar) = &self.scalar {
            dy_TH *= &scalar.values;
        }
        if let Some((input, tape, input_TP)) = self.own_input(&tape, common) {
            let [d_stream_TH, d_input_TP] = input.backward(tape, &input_TP, &dy_TH, gradients);
            dy_TH = d_stream_TH;
            if let Some(d_inputs) = d_inputs {
                d_inputs.select(1, self.index as i64).copy_(&d_input_TP);
            }
        }
        let Common { rotations, shared, .. } = common;
        let pass = Pass { trees: &batch.trees, rotations };
        let LayerTape { x_TH, mixer, middle_TH, mlp, .. } = tape;
        let normed_TH = normed(self.mlp_norm.as_ref(), &middle_TH);
        let d_normed_TH = self.mlp.backward(&normed_TH, &mlp, &dy_TH, gradients);
        let d_middle_TH = dy_TH + normed_backward(self.mlp_norm.as_ref(), &middle_TH, d_normed_TH, gradients);
        let normed_TH = normed(self.input_norm.as_ref(), &x_TH);
        let d_normed_TH = self.mixer.backward(&normed_TH, &mixer, &d_middle_TH, pass, shared, gradients);
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
    Tape(Box<LayerTape>),
    /// The layer's input, from which the backward pass makes the tape once more.
    Input(Tensor),
}

/// A forward pass that can be differentiated.
#[derive(Debug)]
pub(super) struct Tape {
    common: Common,
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
    inputs: Option<LayerInputs>,
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
                input: LayerInput::new(&config, &weights, &format!("model.layers.{i}")),
                scalar: config
                    .layer_scalars()
                    .then(|| weights.leaf(&format!("model.layers.{i}.{}", ModelConfig::LAYER_SCALAR))),
                index: i,
            })
            .collect();
        let (norm, embedding) = (norm(config.final_norm()), weights.leaf(EMBEDDING));
        Self {
            inputs: LayerInputs::new(&config, &weights),
            layers,
            norm,
            embedding,
            config,
            weights,
            gradient_checkpointing,
        }
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
        let x_TH = self.embed(batch);
        let mut common = self.common(batch, &x_TH);
        let through = |x_TH, layer: &Layer| {
            let tape = layer.record(x_TH, batch, &mut common);
            layer.output(&tape, &common)
        };
        let x_TH = self.layers.iter().fold(x_TH, through);
        self.norm.forward(&wide(&x_TH.index_select(0, positions_N)))
    }

    /// As [`Self::forward`], to be followed by [`Self::backward`].
    pub(super) fn record(&self, batch: &Packed, positions_N: &Tensor) -> Tape {
        let mut x_TH = self.embed(batch);
        let mut common = self.common(batch, &x_TH);
        let (mut layers, mut load) = (Vec::with_capacity(self.layers.len()), ExpertLoad::default());
        for layer in &self.layers {
            let tape = layer.record(x_TH, batch, &mut common);
            load += tape.mlp.load();
            x_TH = layer.output(&tape, &common);
            layers.push(if self.gradient_checkpointing { Kept::Input(tape.x_TH) } else { Kept::Tape(Box::new(tape)) });
        }
        let selected_NH = wide(&x_TH.index_select(0, positions_N));
        let hidden_NH = self.norm.forward(&selected_NH);
        Tape { common, layers, selected_NH, hidden_NH, load }
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
        let Tape { mut common, layers, selected_NH, .. } = tape;
        let d_selected_NH = self.norm.backward(&selected_NH, gradient_NH, gradients);
        let shape = [batch.ids_T.size()[0], self.config.hidden_size as i64];
        let mut dx_TH = Tensor::zeros(shape, (d_selected_NH.kind(), d_selected_NH.device()));
        // Branches of one stem predict their first tokens from one place, so the gradients of that place add up.
        let _ = dx_TH.index_add_(0, positions_N, &d_selected_NH);
        let mut dx_TH = dx_TH.to_kind(self.embedding.values.kind());
        let d_inputs = common.inputs.as_ref().map(InputsTape::gradients);
        for (layer, kept) in self.layers.iter().zip(layers).rev() {
            let tape = match kept {
                Kept::Tape(tape) => *tape,
                Kept::Input(x_TH) => layer.record(x_TH, batch, &mut common),
            };
            dx_TH = layer.backward(tape, dx_TH, batch, &mut common, d_inputs.as_ref(), gradients);
        }
        if let (Some(inputs), Some(tape), Some(d_inputs)) = (&self.inputs, &common.inputs, d_inputs) {
            dx_TH += inputs.backward(&batch.ids_T, tape, d_inputs, gradients);
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

    /// What the layers of a pass begin with.
    fn common(&self, batch: &Packed, embedded_TH: &Tensor) -> Common {
        let (kind, device) = (self.embedding.values.kind(), self.embedding.values.device());
        Common {
            rotations: Rotations::new(&self.config, batch, wide_kind(kind), device),
            inputs: self.inputs.as_ref().map(|inputs| inputs.record(&batch.ids_T, embedded_TH)),
            shared: SharedKeys::default(),
        }
    }
}
