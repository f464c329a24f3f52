//! Rotary positions (Su et al. 2021) in Hugging Face's layout: a head's first half is rotated against its second half.

use shared::{ModelConfig, Rotary};
use tch::{Device, Kind, Tensor};

use super::{halves, kinds::wide};
use crate::batch::Packed;

/// The rotations of one forward pass, one for each kind of rotary positions.
#[derive(Debug)]
pub(super) struct Rotations {
    keys: Vec<(Rotary, Rotation)>,
    /// The same, with the growth of queries, in the families that have it.
    queries: Option<Vec<(Rotary, Rotation)>>,
}

impl Rotations {
    /// Tables for the tokens of a batch, evaluated in float64.
    pub(super) fn new(config: &ModelConfig, batch: &Packed, kind: Kind, device: Device) -> Self {
        let tables = Tables { config, batch, kind, device };
        let all = |growth: Option<&Tensor>| -> Vec<(Rotary, Rotation)> {
            config.rotaries().map(|rotary| (rotary, tables.of(rotary, growth))).collect()
        };
        let growth = config.query_scaling.map(|scaling| {
            let factors: Vec<f64> = batch.places.iter().map(|&place| scaling.factor(place as usize)).collect();
            Tensor::from_slice(&factors).unsqueeze(1)
        });
        Self { keys: all(None), queries: growth.map(|growth| all(Some(&growth))) }
    }

    /// The rotations of queries and of keys in a layer; `None` for a layer that does not rotate.
    pub(super) fn of(&self, rotary: Option<Rotary>) -> Option<[&Rotation; 2]> {
        let index = self.keys.iter().position(|(of, _)| Some(*of) == rotary)?;
        Some([self.queries.as_ref().unwrap_or(&self.keys), &self.keys].map(|all| &all[index].1))
    }
}

/// What tables are made of.
struct Tables<'a> {
    config: &'a ModelConfig,
    batch: &'a Packed,
    kind: Kind,
    device: Device,
}

impl Tables<'_> {
    /// The rotation of every token, with a factor on each, `[T, 1]`.
    fn of(&self, rotary: Rotary, growth: Option<&Tensor>) -> Rotation {
        let Self { config, batch, kind, device } = *self;
        let longest = batch.places.iter().max().map_or(0, |last| last + 1);
        let begins: Vec<i64> = batch.lengths.iter().map(|&length| config.rotary_begin(length) as i64).collect();
        let begin = begins.iter().max().copied().unwrap_or(0);
        let angles = |long: bool, positions: i64| {
            let frequencies = Tensor::from_slice(&config.frequencies(rotary, long));
            Tensor::arange(positions, (Kind::Double, Device::Cpu)).outer(&frequencies)
        };
        let angles = if begin > 0 {
            Tensor::cat(&[angles(false, begin), angles(true, longest)], 0)
        } else {
            angles(false, longest)
        };
        let rows: Vec<i64> = batch.places.iter().zip(&begins).map(|(place, begin)| place + begin).collect();
        let rows_T = Tensor::from_slice(&rows);
        let factor = config.rotary_factor(rotary);
        let table = |first: Tensor, second: Tensor| {
            let table = Tensor::cat(&[first, second], -1);
            let table = if factor == 1.0 { table } else { table * factor };
            let table = match growth {
                // Rounded once, as everything else that is evaluated in float64.
                Some(growth) => (table.index_select(0, &rows_T) * growth).to_kind(kind),
                None => table.to_kind(kind).index_select(0, &rows_T),
            };
            table.unsqueeze(1).to_device(device)
        };
        Rotation {
            cos: table(angles.cos(), angles.cos()),
            sin: table(-angles.sin(), angles.sin()),
            entries: config.rotary_entries(rotary) as i64,
        }
    }
}

/// Cosines and sines for the tokens of one forward pass.
#[derive(Debug)]
pub(super) struct Rotation {
    /// `[T, 1, entries]`.
    cos: Tensor,
    /// `[T, 1, entries]`, the first half negated, so that a rotation is `x · cos + roll(x) · sin`.
    sin: Tensor,
    /// Entries of a head that are turned, from the first on.
    entries: i64,
}

impl Rotation {
    /// Rotates every head in place: `[T, heads, head_dim]`.
    pub(super) fn rotate(&self, x_TND: &Tensor) {
        self.turn(x_TND, &self.sin);
    }

    /// Undoes [`Self::rotate`], but for factors. The derivative of a rotation is its transpose, so gradients go back
    /// through this method.
    pub(super) fn rotate_back(&self, x_TND: &Tensor) {
        self.turn(x_TND, &self.sin.neg());
    }

    fn turn(&self, x_TND: &Tensor, sin: &Tensor) {
        let is_part = self.entries < x_TND.size()[2];
        let x_TND = if is_part { x_TND.narrow(2, 0, self.entries) } else { x_TND.shallow_clone() };
        if halves::take(&x_TND) && x_TND.stride()[2] == 1 {
            return halves::rotate(&x_TND, &self.cos, sin);
        }
        let mut turned_TND = wide(&x_TND);
        let swapped = turned_TND.roll([self.entries / 2].as_slice(), [-1i64].as_slice());
        let _ = turned_TND.g_mul_(&self.cos).addcmul_(&swapped, sin);
        if turned_TND.kind() != x_TND.kind() {
            x_TND.shallow_clone().copy_(&turned_TND);
        }
    }
}
