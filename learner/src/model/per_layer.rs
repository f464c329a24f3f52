//! Inputs of each layer's own beside the residual stream ([`PerLayerInput`]).

use shared::{ModelConfig, PerLayerInput};
use tch::Tensor;

use super::{
    kinds::wide,
    linear::Linear,
    mlp::Gate,
    norm::RmsNorm,
    parameters::{Gradients, Leaf},
    weights::Weights,
};

/// Where the inputs of all layers come from.
#[derive(Debug)]
pub(super) struct LayerInputs {
    table: Leaf,
    projection: Linear,
    norm: RmsNorm,
    input: PerLayerInput,
    layers: i64,
    /// Factor on the projected embedding.
    scale: f64,
}

/// The part of a forward pass that [`LayerInputs::backward`] and the layers need.
#[derive(Debug)]
pub(super) struct InputsTape {
    /// The scaled embedding, `[T, hidden]`.
    embedded_TH: Tensor,
    /// The scaled projection before its norm, `[T, layers, width]`.
    projected: Tensor,
    /// The inputs, `[T, layers, width]`.
    values: Tensor,
}

impl InputsTape {
    /// The inputs of a layer, `[T, width]`.
    pub(super) fn of(&self, layer: usize) -> Tensor {
        self.values.select(1, layer as i64)
    }

    /// Room for the gradients of all inputs.
    pub(super) fn gradients(&self) -> Tensor {
        self.values.empty_like()
    }
}

impl LayerInputs {
    /// The leaves outside the layers; `None` in a family without such inputs.
    pub(super) fn new(config: &ModelConfig, weights: &Weights) -> Option<Self> {
        let input = config.per_layer_input?;
        let (block, name) = PerLayerInput::PROJECTION.split_once('.').expect("a block and the name within");
        Some(Self {
            table: weights.leaf(PerLayerInput::TABLE),
            projection: Linear::new(weights, block, name),
            norm: RmsNorm::new(config, weights, PerLayerInput::NORM),
            input,
            layers: config.num_hidden_layers as i64,
            scale: (config.hidden_size as f64).sqrt().recip(),
        })
    }

    /// The inputs of tokens with these ids and scaled embeddings.
    pub(super) fn record(&self, ids_T: &Tensor, embedded_TH: &Tensor) -> InputsTape {
        let shape = [-1, self.layers, self.input.width as i64];
        let projected = (self.projection.forward(embedded_TH) * self.scale).view(shape);
        let rows = Tensor::embedding(&self.table.values, ids_T, -1, false, false) * self.table_scale();
        let values = (self.norm.forward(&projected) + rows.view(shape)) * PerLayerInput::SCALE;
        InputsTape { embedded_TH: embedded_TH.shallow_clone(), projected, values }
    }

    /// Adds the parameters' gradients, given that of the inputs, and returns that of the scaled embedding.
    pub(super) fn backward(
        &self,
        ids_T: &Tensor,
        tape: &InputsTape,
        d_values: Tensor,
        gradients: &mut Gradients,
    ) -> Tensor {
        let d_sum = d_values * PerLayerInput::SCALE;
        if let Some(gradient) = gradients.of(&self.table) {
            let _ = gradient.index_add_(0, ids_T, &wide(&(d_sum.flatten(1, 2) * self.table_scale())));
        }
        let d_projected = self.norm.backward(&tape.projected, &d_sum, gradients) * self.scale;
        self.projection.backward(&tape.embedded_TH, &d_projected.flatten(1, 2), gradients)
    }

    /// Rounded to the type of the weights, as in transformers.
    fn table_scale(&self) -> Tensor {
        let (kind, device) = (self.table.values.kind(), self.table.values.device());
        Tensor::from_slice(&[self.input.table_scale()]).to_kind(kind).to_device(device)
    }
}

/// What a layer adds to the stream of its own input.
#[derive(Debug)]
pub(super) struct LayerInput {
    gate: Linear,
    back: Linear,
    norm: RmsNorm,
    activation: Gate,
}

/// The part of a forward pass that [`LayerInput::backward`] needs.
#[derive(Debug)]
pub(super) struct InputTape {
    /// The stream before the input is added, `[T, hidden]`.
    x_TH: Tensor,
    /// Its projection to the width of the input, `[T, width]`.
    gate_TP: Tensor,
}

impl LayerInput {
    /// The leaves of a layer; `None` in a family without such inputs.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, layer: &str) -> Option<Self> {
        config.per_layer_input.map(|_| Self {
            gate: Linear::new(weights, layer, PerLayerInput::GATE),
            back: Linear::new(weights, layer, PerLayerInput::BACK),
            norm: RmsNorm::new(config, weights, &format!("{layer}.{}", PerLayerInput::OUTPUT_NORM)),
            activation: Gate(config.activation()),
        })
    }

    pub(super) fn record(&self, x_TH: Tensor) -> InputTape {
        InputTape { gate_TP: self.gate.forward(&x_TH), x_TH }
    }

    /// The stream with what the layer makes of its input, `[T, width]`.
    pub(super) fn output(&self, tape: &InputTape, input_TP: &Tensor) -> Tensor {
        let inner_TP = self.activation.active(&tape.gate_TP) * input_TP;
        &tape.x_TH + self.norm.forward(&self.back.forward(&inner_TP))
    }

    /// Adds the parameters' gradients, given that of the output. Returns those of the stream and of the input.
    pub(super) fn backward(
        &self,
        tape: &InputTape,
        input_TP: &Tensor,
        dy_TH: &Tensor,
        gradients: &mut Gradients,
    ) -> [Tensor; 2] {
        let InputTape { x_TH, gate_TP } = tape;
        let active_TP = self.activation.active(gate_TP);
        let inner_TP = &active_TP * input_TP;
        let d_result_TH = self.norm.backward(&self.back.forward(&inner_TP), dy_TH, gradients);
        let d_inner_TP = self.back.backward(&inner_TP, &d_result_TH, gradients);
        let d_gate_TP = self.activation.active_backward(gate_TP, &(&d_inner_TP * input_TP));
        [dy_TH + self.gate.backward(x_TH, &d_gate_TP, gradients), d_inner_TP * active_TP]
    }
}
