//! The gated short convolution of LFM2 (Liquid AI 2025).

use shared::ModelConfig;
use tch::Tensor;

use super::{
    super::{kinds::wide, linear::Linear, output::Output, parameters::Gradients, weights::Weights},
    convolution::Convolution,
};
use crate::batch::Tree;

/// `out(C ⊙ conv(B ⊙ u))`, where `B`, `C` and `u` are thirds of the projected input.
#[derive(Debug)]
pub(in super::super) struct ShortConvBlock {
    projection: Linear,
    convolution: Convolution,
    output: Output,
}

/// The part of a forward pass that [`ShortConvBlock::backward`] needs.
#[derive(Debug)]
pub(in super::super) struct ShortConvTape {
    /// `B`, `C` and `u` side by side, `[T, 3 · hidden]`.
    thirds_T3H: Tensor,
}

impl ShortConvBlock {
    /// The leaves of a layer.
    pub(in super::super) fn new(config: &ModelConfig, weights: &Weights, layer: usize) -> Self {
        let (names, layer_name) = (config.mixer_names(layer), format!("model.layers.{layer}"));
        let block = &format!("{layer_name}.{}", names.block);
        let [norm, _] = config.output_norm_names();
        Self {
            projection: Linear::new(weights, block, names.members[0]),
            convolution: Convolution::new(weights, &format!("{block}.conv")),
            output: Output::new(config, weights, [block, names.last], &format!("{layer_name}.{norm}")),
        }
    }

    /// As [`Mixer::forward_onto`](super::super::mixer::Mixer::forward_onto).
    pub(in super::super) fn forward_onto(
        &self,
        onto: &Tensor,
        x_TH: &Tensor,
        trees: &[Tree],
    ) -> (Tensor, ShortConvTape) {
        let thirds_T3H = self.projection.forward(x_TH);
        let [before, after, u] = thirds(&thirds_T3H);
        let convolved = self.convolution.forward(&(before * u), trees);
        let sum = self.output.forward_onto(onto, &(convolved * after).to_kind(x_TH.kind()));
        (sum, ShortConvTape { thirds_T3H })
    }

    /// As [`Mixer::backward`](super::super::mixer::Mixer::backward). The convolution is computed again, which costs
    /// next to nothing beside the projections.
    pub(in super::super) fn backward(
        &self,
        x_TH: &Tensor,
        tape: &ShortConvTape,
        dy_TH: &Tensor,
        trees: &[Tree],
        gradients: &mut Gradients,
    ) -> Tensor {
        let [before, after, u] = thirds(&tape.thirds_T3H);
        let input = &before * &u;
        let convolved = self.convolution.forward(&input, trees);
        let gated = (&convolved * &after).to_kind(x_TH.kind());
        let d_gated = wide(&self.output.backward(&gated, dy_TH, gradients));
        let d_thirds_T3H = tape.thirds_T3H.empty_like();
        let [mut d_before, mut d_after, mut d_u] = thirds(&d_thirds_T3H);
        d_after.copy_(&(convolved * &d_gated));
        let d_input = self.convolution.backward(&input, &(d_gated * after), trees, gradients);
        d_before.copy_(&(&d_input * u));
        d_u.copy_(&(d_input * before));
        self.projection.backward(x_TH, &d_thirds_T3H, gradients)
    }
}

fn thirds(x_T3H: &Tensor) -> [Tensor; 3] {
    let width = x_T3H.size()[1] / 3;
    [0, 1, 2].map(|third| x_T3H.narrow(1, third * width, width))
}
