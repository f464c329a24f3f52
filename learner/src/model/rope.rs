//! Rotary positions (Su et al. 2021) in Hugging Face's layout: a head's first half is rotated against its second half.

use shared::{ModelConfig, Rotary};
use tch::{Device, Kind, Tensor};

use super::kinds::wide;

/// The rotations of one forward pass, one for each kind of rotary positions.
#[derive(Debug)]
pub(super) struct Rotations(Vec<(Rotary, Rotation)>);

impl Rotations {
    /// Tables for the given positions, `[T]`, evaluated in float64.
    pub(super) fn new(config: &ModelConfig, positions: &[i64], kind: Kind, device: Device) -> Self {
        let rotation = |rotary| Rotation::new(config, rotary, positions, kind, device);
        Self(config.rotaries().map(|rotary| (rotary, rotation(rotary))).collect())
    }

    /// The rotation of a layer; `None` for a layer that does not rotate.
    pub(super) fn of(&self, rotary: Option<Rotary>) -> Option<&Rotation> {
        self.0.iter().find(|(of, _)| Some(*of) == rotary).map(|(_, rotation)| rotation)
    }
}

/// Cosines and sines for the positions of one forward pass.
#[derive(Debug)]
pub(super) struct Rotation {
    /// `[T, 1, head_dim]`.
    cos: Tensor,
    /// `[T, 1, head_dim]`, the first half negated, so that a rotation is `x · cos + roll(x) · sin`.
    sin: Tensor,
    half: i64,
}

impl Rotation {
    fn new(config: &ModelConfig, rotary: Rotary, positions: &[i64], kind: Kind, device: Device) -> Self {
        let frequencies = Tensor::from_slice(&config.inverse_frequencies(rotary));
        let longest = positions.iter().max().map_or(0, |last| last + 1);
        let angles = Tensor::arange(longest, (Kind::Double, Device::Cpu)).outer(&frequencies);
        let positions_T = Tensor::from_slice(positions);
        let table = |first: Tensor, second: Tensor| {
            let table = Tensor::cat(&[first, second], -1).to_kind(kind).index_select(0, &positions_T);
            table.unsqueeze(1).to_device(device)
        };
        Self {
            cos: table(angles.cos(), angles.cos()),
            sin: table(-angles.sin(), angles.sin()),
            half: config.head_dim as i64 / 2,
        }
    }

    /// Rotates every head in place: `[T, heads, head_dim]`.
    pub(super) fn rotate(&self, x_TND: &Tensor) {
        self.turn(x_TND, &self.sin);
    }

    /// Undoes [`Self::rotate`]. The inverse of a rotation is its transpose, so gradients go back through this method.
    pub(super) fn rotate_back(&self, x_TND: &Tensor) {
        self.turn(x_TND, &self.sin.neg());
    }

    fn turn(&self, x_TND: &Tensor, sin: &Tensor) {
        let mut turned_TND = wide(x_TND);
        let swapped = turned_TND.roll([self.half].as_slice(), [-1i64].as_slice());
        let _ = turned_TND.g_mul_(&self.cos).addcmul_(&swapped, sin);
        if turned_TND.kind() != x_TND.kind() {
            x_TND.shallow_clone().copy_(&turned_TND);
        }
    }
}
