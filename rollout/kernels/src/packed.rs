//! Weights in the layout of the product: panels of [`PANEL`] columns, each panel row by row of the depth.
//!
//! A Hugging Face weight is `[out, in]`, one output per row. In a panel 32 neighbouring outputs lie side by side for
//! each input: `panel[k][column]`. The loop of the product then reads a panel from end to end. Columns beyond the last
//! output are zero.

use std::cell::RefCell;

use super::{
    element::{
        BLOCK, BLOCK_WORDS, BYTE_MAX, Format, QUAD, TILE_STEPS, largest, nearest, small_half, to_bf16, to_bytes,
        to_nibbles,
    },
    parallel::{Claims, Shared},
    simd::{LANES, MAX_BYTE_PRODUCTS},
    thread_pool::ThreadPool,
    tile::PANEL,
};

/// Words of a block of [`Format::Int4`] in a panel: those of its columns, and a scale of two bytes for each.
pub(super) const NIBBLE_PANEL: usize = BLOCK_WORDS * PANEL + PANEL / 2;

/// How several weights become the columns of one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// One after the other.
    Joined,
    /// In turns of [`LANES`] columns: of two weights, gate and up, each panel holds the same outputs.
    Gated,
}

/// Sizes of a packed product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedShape {
    /// Inputs.
    pub depth: usize,
    /// Outputs of the layer (after the activation).
    pub outputs: usize,
    /// How the columns were made.
    pub columns: Columns,
    /// The format of the panels.
    pub format: Format,
}

/// Changes a row of a weight, given its number.
pub type Change<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

/// A weight as it is packed, `[out, depth]`.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    /// The stored numbers.
    pub values: &'a [f32],
    /// The change to each row before it is packed.
    pub change: Option<&'a Change<'a>>,
}

impl<'a> From<&'a [f32]> for WeightRows<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self { values, change: None }
    }
}

/// Scales and sums of the columns of packed bytes, in the order of the packed columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// The number that one step of a byte stands for.
    pub scales: Vec<f32>,
    /// Sum of the bytes, which takes the offset of the inputs out again.
    pub sums: Vec<i32>,
}

impl PackedShape {
    /// Outputs of one panel.
    pub(super) fn panel_outputs(&self) -> usize {
        match self.columns {
            Columns::Joined => PANEL,
            Columns::Gated => LANES,
        }
    }

    /// Number of panels.
    pub(super) fn panels(&self) -> usize {
        self.outputs.div_ceil(self.panel_outputs())
    }

    /// Words of four bytes in one panel.
    pub(super) fn panel_len(&self) -> usize {
        match self.format {
            Format::Int4 => self.depth.div_ceil(BLOCK) * NIBBLE_PANEL,
            _ => self.steps() * PANEL,
        }
    }

    /// Words of a row of the left side: a float, a pair or a quad for each step of the innermost loop.
    pub(super) fn steps(&self) -> usize {
        self.format.steps(self.depth)
    }

    /// Words of four bytes in all panels.
    #[must_use]
    pub fn words(&self) -> usize {
        self.panels() * self.panel_len()
    }

    /// Where column `lane` of a panel comes from: (output, block), with the block telling gate (0) from up (1).
    fn source(&self, panel: usize, lane: usize) -> (usize, usize) {
        match self.columns {
            Columns::Joined => (panel * PANEL + lane, 0),
            Columns::Gated => (panel * LANES + lane % LANES, lane / LANES),
        }
    }

    /// The place from which a column comes: the index of the weight, and the row in it. `outputs` has the rows of each
    /// weight. `None` beyond the last output.
    fn row(&self, outputs: impl Iterator<Item = usize>, panel: usize, lane: usize) -> Option<(usize, usize)> {
        let (mut output, block) = self.source(panel, lane);
        if output >= self.outputs {
            return None;
        }
        if self.columns == Columns::Gated {
            return Some((block, output));
        }
        for (weight, rows) in outputs.enumerate() {
            if output < rows {
                return Some((weight, output));
            }
            output -= rows;
        }
        None
    }

    /// Packs `weights`, each `[out, depth]`, into `panels` ([`PackedShape::words`] long). Returns scales and sums for
    /// bytes.
    pub fn pack(&self, weights: &[WeightRows<'_>], panels: &mut [f32], threads: &ThreadPool) -> Option<Quantized> {
        assert_eq!(panels.len(), self.words(), "the panels have another size");
        assert!(
            self.format != Format::Int8 || self.depth <= MAX_BYTE_PRODUCTS,
            "sums of {} bytes overflow",
            self.depth
        );
        let shared = Shared::new(panels);
        let columns = if self.format == Format::Int8 { self.panels() * PANEL } else { 0 };
        let mut quantized = Quantized { scales: vec![0.0; columns], sums: vec![0; columns] };
        let (scales, sums) = (Shared::new(&mut quantized.scales), Shared::new(&mut quantized.sums));
        let claims = Claims::new(self.panels());
        let changes = weights.iter().any(|weight| weight.change.is_some());
        threads.run(&|| {
            // The rows of a panel, as they are changed.
            let changed = RefCell::new(vec![0.0; if changes { PANEL * self.depth } else { 0 }]);
            claims.run_all(|panel| {
                // SAFETY: each panel is claimed once, and panels do not overlap.
                let out =
                    unsafe { std::slice::from_raw_parts_mut(shared.at(panel * self.panel_len()), self.panel_len()) };
                let outputs = || weights.iter().map(|weight| weight.values.len() / self.depth);
                let mut changed = changed.borrow_mut();
                let mut changed = changed.chunks_mut(self.depth);
                let rows: [_; PANEL] = std::array::from_fn(|lane| {
                    let (weight, row) = self.row(outputs(), panel, lane)?;
                    let WeightRows { values, change } = weights[weight];
                    let values = &values[row * self.depth..][..self.depth];
                    let Some(change) = change else { return Some(values) };
                    let place = changed.next()?;
                    place.copy_from_slice(values);
                    change(row, place);
                    Some(&*place)
                });
                if self.format == Format::Fp32 {
                    return pack_panel(&rows, out);
                }
                for (lane, row) in rows.iter().map(|row| row.unwrap_or_default()).enumerate() {
                    match self.format {
                        Format::Fp32 => unreachable!("floats are packed a whole panel at a time"),
                        Format::Bf16 | Format::Bf16Dot => {
                            round_column(row, lane, bytemuck::cast_slice_mut(out), to_bf16);
                        }
                        Format::Bf16x3 => split_column(row, lane, out),
                        Format::Int4 => nibble_column(row, lane, out),
                        Format::Int8 => {
                            let (scale, sum) = quantize_column(row, lane, bytemuck::cast_slice_mut(out));
                            // SAFETY: the columns of a panel are this task's.
                            unsafe {
                                *scales.at(panel * PANEL + lane) = scale;
                                *sums.at(panel * PANEL + lane) = sum;
                            }
                        }
                    }
                }
            });
        });
        (self.format == Format::Int8).then_some(quantized)
    }

    /// Biases in the order of the packed columns, padded with 0.
    #[must_use]
    pub fn pack_bias(&self, biases: &[&[f32]]) -> Vec<f32> {
        let lanes = (0..self.panels()).flat_map(|panel| (0..PANEL).map(move |lane| (panel, lane)));
        let row = |(panel, lane)| self.row(biases.iter().map(|bias| bias.len()), panel, lane);
        lanes.map(|column| row(column).map_or(0.0, |(weight, row)| biases[weight][row])).collect()
    }
}

/// Transposes 32 rows, a cache line of each at a time.
fn pack_panel(rows: &[Option<&[f32]>; PANEL], out: &mut [f32]) {
    for (start, block) in out.chunks_mut(LANES * PANEL).enumerate().map(|(i, block)| (i * LANES, block)) {
        let steps = block.len() / PANEL;
        for (lane, row) in rows.iter().enumerate() {
            match row {
                Some(row) => {
                    for (to, &x) in block[lane..].iter_mut().step_by(PANEL).zip(&row[start..start + steps]) {
                        *to = x;
                    }
                }
                None => block[lane..].iter_mut().step_by(PANEL).for_each(|to| *to = 0.0),
            }
        }
    }
}

/// Makes bf16 of a column.
fn round_column(row: &[f32], lane: usize, out: &mut [u16], round: fn(f32) -> u16) {
    for (step, place) in out[lane * 2..].chunks_mut(2 * PANEL).enumerate() {
        for (i, half) in place[..2].iter_mut().enumerate() {
            *half = row.get(step * 2 + i).map_or(0, |&x| round(x));
        }
    }
}

/// Makes numbers of four bits of a column, block by block, each with its scale.
fn nibble_column(row: &[f32], lane: usize, out: &mut [f32]) {
    for (block, place) in out.chunks_mut(NIBBLE_PANEL).enumerate() {
        let row = row.get(block * BLOCK..).unwrap_or_default();
        let values = std::array::from_fn(|i| row.get(i).copied().unwrap_or(0.0));
        let (scale, nibbles) = to_nibbles(&values);
        let (words, scales) = place.split_at_mut(BLOCK_WORDS * PANEL);
        let (eights, _) = nibbles.as_chunks::<{ 2 * QUAD }>();
        for (word, steps) in words[lane..].iter_mut().step_by(PANEL).zip(eights) {
            *word = bytemuck::cast::<[u8; QUAD], f32>(std::array::from_fn(|i| steps[i] | steps[QUAD + i] << 4));
        }
        bytemuck::cast_slice_mut::<f32, u16>(scales)[lane] = scale.to_bits();
    }
}

/// Makes small and large halves of a column, tile by tile.
fn split_column(row: &[f32], lane: usize, out: &mut [f32]) {
    for (tile, place) in out.chunks_mut(Format::Bf16x3.round() * PANEL).enumerate() {
        let row = row.get(tile * 2 * TILE_STEPS..).unwrap_or_default();
        let row = &row[..row.len().min(2 * TILE_STEPS)];
        let (small, large) = place.split_at_mut(TILE_STEPS * PANEL);
        round_column(row, lane, bytemuck::cast_slice_mut(small), small_half);
        round_column(row, lane, bytemuck::cast_slice_mut(large), to_bf16);
    }
}

/// Rounds a column to bytes, the largest to 127 or -127; returns its scale and the sum of the bytes.
fn quantize_column(row: &[f32], lane: usize, out: &mut [i8]) -> (f32, i32) {
    let largest = largest(row);
    let factor = to_bytes(largest);
    let mut sum = 0;
    let places = out[lane * QUAD..].chunks_mut(QUAD * PANEL);
    for (step, place) in places.enumerate() {
        for (i, byte) in place[..QUAD].iter_mut().enumerate() {
            // A NaN becomes any byte.
            *byte = row.get(step * QUAD + i).map_or(0, |x| nearest(x * factor)) as i8;
            sum += i32::from(*byte);
        }
    }
    (largest / BYTE_MAX, sum)
}
