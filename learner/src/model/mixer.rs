//! The part of a layer that mixes tokens: attention, or that which a layer with a state has instead.

use shared::{LayerKind, ModelConfig};
use tch::Tensor;

use super::{
    attention::{Attention, AttentionTape, SharedKeys},
    parameters::Gradients,
    rope::Rotations,
    state::{DeltaBlock, DeltaTape, MambaBlock, MambaTape, ShortConvBlock, ShortConvTape},
    weights::Weights,
};
use crate::batch::Tree;

/// What all layers of a pass read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) trees: &'a [Tree],
    pub(super) rotations: &'a Rotations,
}

/// How a layer mixes tokens.
#[derive(Debug)]
pub(super) enum Mixer {
    Attention(Attention),
    ShortConv(ShortConvBlock),
    DeltaRule(DeltaBlock),
    Mamba(MambaBlock),
}

/// The part of a forward pass that [`Mixer::backward`] needs.
#[derive(Debug)]
pub(super) enum MixerTape {
    Attention(AttentionTape),
    ShortConv(ShortConvTape),
    DeltaRule(DeltaTape),
    Mamba(MambaTape),
}

impl Mixer {
    /// The leaves of a layer.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, layer: usize) -> Self {
        match config.layers[layer] {
            LayerKind::Attention(kind) => Self::Attention(Attention::new(config, weights, layer, kind)),
            LayerKind::ShortConv(_) => Self::ShortConv(ShortConvBlock::new(config, weights, layer)),
            LayerKind::DeltaRule(rule) => Self::DeltaRule(DeltaBlock::new(config, weights, layer, rule)),
            LayerKind::Mamba(mamba) => Self::Mamba(MambaBlock::new(config, weights, layer, mamba)),
        }
    }

    /// Adds the result for `x_TH`, `[T, hidden]`, to `onto`. Returns the sum, and the tape for [`Self::backward`].
    pub(super) fn forward_onto(
        &self,
        onto: &Tensor,
        x_TH: &Tensor,
        pass: Pass<'_>,
        shared: &mut SharedKeys,
    ) -> (Tensor, MixerTape) {
        match self {
            Self::Attention(attention) => {
                let (sum, tape) = attention.forward_onto(onto, x_TH, pass, shared);
                (sum, MixerTape::Attention(tape))
            }
            Self::ShortConv(block) => {
                let (sum, tape) = block.forward_onto(onto, x_TH, pass.trees);
                (sum, MixerTape::ShortConv(tape))
            }
            Self::DeltaRule(block) => {
                let (sum, tape) = block.forward_onto(onto, x_TH, pass.trees);
                (sum, MixerTape::DeltaRule(tape))
            }
            Self::Mamba(block) => {
                let (sum, tape) = block.forward_onto(onto, x_TH, pass.trees);
                (sum, MixerTape::Mamba(tape))
            }
        }
    }

    /// Adds the parameters' gradients, given input, tape and the gradient of the output; returns that of the input.
    ///
    /// # Panics
    /// With the tape of another kind of layer: a mistake in the model's code.
    pub(super) fn backward(
        &self,
        x_TH: &Tensor,
        tape: &MixerTape,
        dy_TH: &Tensor,
        pass: Pass<'_>,
        shared: &mut SharedKeys,
        gradients: &mut Gradients,
    ) -> Tensor {
        match (self, tape) {
            (Self::Attention(attention), MixerTape::Attention(tape)) => {
                attention.backward(x_TH, tape, dy_TH, pass, shared, gradients)
            }
            (Self::ShortConv(block), MixerTape::ShortConv(tape)) => {
                block.backward(x_TH, tape, dy_TH, pass.trees, gradients)
            }
            (Self::DeltaRule(block), MixerTape::DeltaRule(tape)) => {
                block.backward(x_TH, tape, dy_TH, pass.trees, gradients)
            }
            (Self::Mamba(block), MixerTape::Mamba(tape)) => block.backward(x_TH, tape, dy_TH, pass.trees, gradients),
            _ => unreachable!("a layer gets its own tape"),
        }
    }
}
