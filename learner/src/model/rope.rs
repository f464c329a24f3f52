//! Rotary positions (Su et al. 2021) in Hugging Face's layout: a head's first half is rotated against its second half.

use shared::ModelConfig;
use tch::{Device, Kind, Tensor};

/// Cosines and sines of the positions `0..S`, for one forward pass.
#[derive(Debug)]
pub(super) struct Rotation {
    /// `[S, 1, head_dim]`.
    cos: Tensor,
    /// `[S, 1, head_dim]`, the first half negated, so that a rotation is `x · cos + roll(x) · sin`.
    sin: Tensor,
    half: i64,
}

impl Rotation {
    /// Tables for `positions` positions, evaluated in float64.
    pub(super) fn new(config: &ModelConfig, positions: i64, kind: Kind, device: Device) -> Self {
        let double = (Kind::Double, Device::Cpu);
        let frequencies = Tensor::from_slice(&config.inverse_frequencies());
        let angles = Tensor::arange(positions, double).outer(&frequencies);
        let table = |first: Tensor, second: Tensor| {
            Tensor::cat(&[first, second], -1).unsqueeze(1).to_kind(kind).to_device(device)
        };
        Self {
            cos: table(angles.cos(), angles.cos()),
            sin: table(-angles.sin(), angles.sin()),
            half: config.head_dim as i64 / 2,
        }
    }

    /// Rotates every head: `[B, S, heads, head_dim]` to the same shape.
    pub(super) fn apply(&self, x_BSND: &Tensor) -> Tensor {
        let swapped = x_BSND.roll([self.half].as_slice(), [-1i64].as_slice());
        (x_BSND * &self.cos).addcmul(&swapped, &self.sin)
    }
}
