//! How much is kept of a tensor, and the numbers that stand for it again.

use std::ops::Range;

use rollout_kernels::{
    element::BLOCK as STEPS,
    rounded::{
        BLOCK_BYTES, from_bytes_of_row, from_halves, from_nibbles_of_row, shortened, to_bytes_of_row, to_halves,
        to_nibbles_of_row,
    },
};
use serde::{Deserialize, Serialize};
use shared::{BaseFormat, PerLayerInput, TensorEntry, config::RolloutDtype};

/// Numbers that are packed together: some for each core even of a small tensor, and enough for compression to pay.
const BLOCK: usize = 1 << 17;

/// The form in which the numbers of a tensor are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// All numbers as they are.
    Whole,
    /// Numbers with the same sum of two bf16, most of which end in zeros.
    Short,
    /// bf16.
    Halves,
    /// Bytes, behind the largest magnitudes of their rows.
    Bytes,
    /// Halves of bytes, behind the scales of their blocks.
    Nibbles,
}

/// Whether a tensor is used as the weight of a linear layer only. A head that is tied to the embedding has no tensor of
/// its own.
fn is_linear(name: &str, shape: &[usize]) -> bool {
    let projection = name.strip_suffix(".weight") == Some(PerLayerInput::PROJECTION);
    name == "lm_head.weight" || projection || BaseFormat::matrix(name, shape).is_some()
}

impl Form {
    /// The form in which a sampler that computes in `dtype` keeps a tensor.
    #[must_use]
    pub fn of(name: &str, shape: &[usize], dtype: RolloutDtype) -> Self {
        match dtype {
            _ if !is_linear(name, shape) => Self::Whole,
            RolloutDtype::Auto => Self::Whole,
            RolloutDtype::Bf16x3 => Self::Short,
            RolloutDtype::Bf16 | RolloutDtype::Bf16Dot => Self::Halves,
            RolloutDtype::Int8 => Self::Bytes,
            // The head has bytes, as in the sampler.
            RolloutDtype::Int4 if name.starts_with("model.layers.") => Self::Nibbles,
            RolloutDtype::Int4 => Self::Bytes,
        }
    }

    /// The layout of so many rounded rows: runs of words, each with the width of a word in bytes and the number of
    /// words.
    pub(crate) fn runs(self, rows: usize, depth: usize) -> impl Iterator<Item = (usize, usize)> {
        let (first, second) = match self {
            Self::Whole | Self::Short => ((4, rows * depth), None),
            Self::Halves => ((2, rows * depth), None),
            Self::Bytes => ((4, rows), Some((1, rows * depth))),
            Self::Nibbles => {
                let blocks = rows * depth.div_ceil(STEPS);
                ((2, blocks), Some((1, blocks * BLOCK_BYTES)))
            }
        };
        [first].into_iter().chain(second)
    }

    /// Rounds some rows. `None` where the form cannot stand for them.
    pub(crate) fn round(self, values: &[f32], depth: usize) -> Option<Vec<u8>> {
        match self {
            Self::Whole => Some(bytemuck::cast_slice(values).to_vec()),
            Self::Short => {
                let short: Vec<f32> = values.iter().map(|&x| shortened(x)).collect();
                Some(bytemuck::cast_slice(&short).to_vec())
            }
            Self::Halves => {
                let mut halves = vec![0_u16; values.len()];
                to_halves(values, &mut halves);
                Some(bytemuck::cast_slice(&halves).to_vec())
            }
            Self::Bytes => {
                let rows = values.len() / depth;
                let mut rounded = vec![0; 4 * rows + values.len()];
                let (largest, bytes) = rounded.split_at_mut(4 * rows);
                let rows = values.chunks(depth).zip(bytes.chunks_mut(depth)).zip(largest.chunks_mut(4));
                for ((row, bytes), largest) in rows {
                    let found = to_bytes_of_row(row, bytemuck::cast_slice_mut(bytes))?;
                    largest.copy_from_slice(&found.to_le_bytes());
                }
                Some(rounded)
            }
            Self::Nibbles => {
                let blocks = depth.div_ceil(STEPS);
                let all = values.len() / depth * blocks;
                let (mut scales, mut bytes) = (vec![0; all], vec![0; all * BLOCK_BYTES]);
                let rows =
                    values.chunks(depth).zip(scales.chunks_mut(blocks)).zip(bytes.chunks_mut(blocks * BLOCK_BYTES));
                for ((row, scales), bytes) in rows {
                    to_nibbles_of_row(row, scales, bytes)?;
                }
                Some([bytemuck::cast_slice(&scales), &*bytes].concat())
            }
        }
    }

    /// Writes the numbers that the rounded rows stand for.
    pub(crate) fn widen(self, rounded: &[u8], depth: usize, values: &mut [f32]) {
        match self {
            Self::Whole | Self::Short => bytemuck::cast_slice_mut(values).copy_from_slice(rounded),
            Self::Halves => {
                let halves: Vec<u16> = rounded.as_chunks().0.iter().map(|&half| u16::from_le_bytes(half)).collect();
                from_halves(&halves, values);
            }
            Self::Bytes => {
                let (largest, bytes) = rounded.split_at(rounded.len() - values.len());
                let rows = values.chunks_mut(depth).zip(bytes.chunks(depth)).zip(largest.as_chunks().0);
                for ((row, bytes), &largest) in rows {
                    from_bytes_of_row(f32::from_le_bytes(largest), bytemuck::cast_slice(bytes), row);
                }
            }
            Self::Nibbles => {
                let blocks = depth.div_ceil(STEPS);
                let (scales, bytes) = rounded.split_at(values.len() / depth * blocks * size_of::<u16>());
                let scales: Vec<u16> = scales.as_chunks().0.iter().map(|&scale| u16::from_le_bytes(scale)).collect();
                let rows = values.chunks_mut(depth).zip(scales.chunks(blocks)).zip(bytes.chunks(blocks * BLOCK_BYTES));
                for ((row, scales), bytes) in rows {
                    from_nibbles_of_row(scales, bytes, row);
                }
            }
        }
    }
}

/// A tensor as blocks of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    rows: usize,
    /// Numbers of a row.
    pub depth: usize,
    /// Rows of a block, but for the last one.
    block: usize,
}

impl Grid {
    /// The grid of a tensor whose entry fits its data.
    pub fn of(entry: &TensorEntry) -> Self {
        let elements = entry.length as usize / entry.dtype.size();
        // A tensor that is no matrix has rows of one number.
        let depth = entry.shape.get(1..).and_then(<[u64]>::last).map_or(1, |&n| n as usize).max(1);
        Self { rows: elements / depth, depth, block: (BLOCK / depth).max(1) }
    }

    /// Number of blocks.
    pub fn blocks(self) -> usize {
        self.rows.div_ceil(self.block)
    }

    /// Numbers of a block, but for the last one.
    pub fn block_len(self) -> usize {
        self.block * self.depth
    }

    /// Rows of a block.
    pub fn rows_of(self, block: usize) -> usize {
        self.block.min(self.rows - block * self.block)
    }

    /// Where the numbers of a block are among those of the tensor.
    pub fn range(self, block: usize) -> Range<usize> {
        let start = block * self.block_len();
        start..start + self.rows_of(block) * self.depth
    }
}

#[cfg(test)]
mod tests {
    use shared::{Dtype, TensorRole};

    use super::*;

    fn entry(shape: &[u64]) -> TensorEntry {
        TensorEntry {
            name: "a".into(),
            role: TensorRole::Parameter,
            dtype: Dtype::Fp32,
            shape: shape.to_vec(),
            offset: 0,
            length: 4 * shape.iter().product::<u64>(),
            blake3: String::new(),
        }
    }

    #[test]
    fn blocks_are_whole_rows_and_cover_every_number_once() {
        for (shape, blocks) in [
            (&[5][..], 1),
            (&[300_000], 3),
            (&[1000, 576], 5),
            (&[227, 576], 1),
            (&[228, 576], 2),
            (&[3, 1 << 18], 3),
            (&[7, 0], 0),
            (&[], 1),
        ] {
            let grid = Grid::of(&entry(shape));
            assert_eq!(grid.blocks(), blocks, "{shape:?}");
            let mut end = 0;
            for block in 0..grid.blocks() {
                let range = grid.range(block);
                assert_eq!((range.start, range.len() % grid.depth), (end, 0), "{shape:?}");
                end = range.end;
            }
            assert_eq!(end as u64, shape.iter().product::<u64>(), "{shape:?}");
        }
    }

    #[test]
    fn every_form_has_the_bytes_that_its_runs_say_and_comes_back() {
        let values: Vec<f32> = (0..6 * 40).map(|i| (i as f32 - 117.3) * 0.01).collect();
        // Rows of 40 are two blocks, the second of which is filled up.
        for (form, bytes) in [
            (Form::Whole, 960),
            (Form::Short, 960),
            (Form::Halves, 480),
            (Form::Bytes, 240 + 24),
            (Form::Nibbles, 12 * 16 + 24),
        ] {
            let rounded = form.round(&values, 40).unwrap();
            assert_eq!(rounded.len(), bytes, "{form:?}");
            assert_eq!(form.runs(6, 40).map(|(width, count)| width * count).sum::<usize>(), bytes, "{form:?}");
            let mut back = vec![0.0; values.len()];
            form.widen(&rounded, 40, &mut back);
            assert_eq!(form.round(&back, 40).unwrap(), rounded, "{form:?}");
            let most = if form == Form::Nibbles { 0.15 } else { 0.01 };
            assert!(values.iter().zip(&back).all(|(a, b)| (a - b).abs() < most), "{form:?}");
        }
        assert!(Form::Bytes.round(&[0.0, f32::INFINITY], 2).is_none());
    }

    #[test]
    fn what_is_not_only_a_linear_layer_stays_whole() {
        let of = |name: &str| {
            let shape =
                if name.ends_with("_proj.weight") || !name.starts_with("model.layers") { &[4, 8][..] } else { &[8] };
            Form::of(name, shape, RolloutDtype::Int8)
        };
        for name in ["model.layers.0.mlp.down_proj.weight", "model.layers.11.self_attn.q_proj.weight", "lm_head.weight"]
        {
            assert_eq!(of(name), Form::Bytes, "{name}");
            let shape = [4, 8];
            let in_four_bits = Form::of(name, &shape, RolloutDtype::Int4);
            assert_eq!(in_four_bits == Form::Bytes, name == "lm_head.weight", "{name}: {in_four_bits:?}");
        }
        for name in ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias", "model.norm.weight", "cos"] {
            assert_eq!(of(name), Form::Whole, "{name}");
        }
    }
}
