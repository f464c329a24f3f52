//! Weights in the layout of the product: panels of [`PANEL`] columns, each panel row by row of the depth.
//!
//! A Hugging Face weight is `[out, in]`, one output per row. In a panel 32 neighbouring outputs lie side by side for each
//! input: `panel[k][column]`. The loop of the product then reads a panel from end to end. Columns beyond the last
//! output are zero.

use super::{
    parallel::{Claims, Shared, Threads},
    simd::{LANES, MAX_BYTE_PRODUCTS, QUAD},
    tile::PANEL,
};

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
    /// What the panels hold.
    pub format: Format,
}

/// Element type of packed weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// As they are.
    #[default]
    Fp32,
    /// Signed bytes with a scale per column, in quads of four steps of the depth: `panel[k / 4][column][k % 4]`. The
    /// input is rounded to bytes row by row, so a row still depends on itself alone.
    Int8,
    /// bf16, in pairs of two steps of the depth: `panel[k / 2][column][k % 2]`. The input is rounded to bf16, sums are
    /// fp32. What is below the smallest normal number counts as 0, also among the sums of AMX.
    Bf16,
    /// Each number as the sum of two bf16, itself rounded and what that leaves: of sixteen pairs as of [`Format::Bf16`], the
    /// large halves follow the small ones. Inputs likewise. All products but those of two small halves are summed, in
    /// fp32, so a product of two numbers is off by some 2^-17 of itself.
    Bf16x3,
}

impl Format {
    /// Steps that tile registers take at once, with zeros to fill up the last of them.
    pub(super) fn round(self) -> usize {
        match self {
            Self::Bf16x3 => 2 * TILE_STEPS,
            _ => TILE_STEPS,
        }
    }

    /// Elements in a word of four bytes.
    #[must_use]
    pub fn per_word(self) -> usize {
        match self {
            Self::Fp32 | Self::Bf16x3 => 1,
            Self::Bf16 => 2,
            Self::Int8 => QUAD,
        }
    }
}

/// What belongs to the columns of packed bytes, in the order of the packed columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// What one step of a byte stands for.
    pub scales: Vec<f32>,
    /// Sum of the bytes: inputs are stored with an offset.
    pub sums: Vec<i32>,
}

/// Steps that tile registers take at once: pairs and quads are filled up with zeros to whole tiles.
pub(super) const TILE_STEPS: usize = 16;

impl PackedShape {
    /// Outputs of one panel.
    #[must_use]
    pub fn panel_outputs(&self) -> usize {
        match self.columns {
            Columns::Joined => PANEL,
            Columns::Gated => LANES,
        }
    }

    /// Number of panels.
    #[must_use]
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(self.panel_outputs())
    }

    /// Words of four bytes in one panel.
    #[must_use]
    pub fn panel_len(&self) -> usize {
        self.steps() * PANEL
    }

    /// Steps of the innermost loop: a float, a pair or a quad, for each column.
    pub(super) fn steps(&self) -> usize {
        match self.format {
            Format::Fp32 => self.depth,
            _ => self.depth.div_ceil(self.format.per_word()).next_multiple_of(self.format.round()),
        }
    }

    /// Words of four bytes in all panels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.panels() * self.panel_len()
    }

    /// Whether there is nothing to multiply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where column `lane` of a panel comes from: (output, block), with the block telling gate (0) from up (1).
    fn source(&self, panel: usize, lane: usize) -> (usize, usize) {
        match self.columns {
            Columns::Joined => (panel * PANEL + lane, 0),
            Columns::Gated => (panel * LANES + lane % LANES, lane / LANES),
        }
    }

    /// One row of `weights` (`[out, depth]` each) for a column; `None` beyond the last output.
    fn row<'a>(&self, weights: &[&'a [f32]], row_len: usize, panel: usize, lane: usize) -> Option<&'a [f32]> {
        let (mut output, block) = self.source(panel, lane);
        if output >= self.outputs {
            return None;
        }
        let weight = match self.columns {
            Columns::Gated => weights[block],
            Columns::Joined => {
                let mut rest = weights.iter();
                loop {
                    let weight = rest.next()?;
                    let rows = weight.len() / row_len;
                    if output < rows {
                        break weight;
                    }
                    output -= rows;
                }
            }
        };
        Some(&weight[output * row_len..(output + 1) * row_len])
    }

    /// Packs `weights`, each `[out, depth]`, into `panels` ([`PackedShape::len`] words); returns what belongs to them
    /// if they are bytes.
    pub fn pack(&self, weights: &[&[f32]], panels: &mut [f32], threads: &dyn Threads) -> Option<Quantized> {
        assert_eq!(panels.len(), self.len(), "the panels have another size");
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
        threads.run(&|| {
            claims.run_all(|panel| {
                // SAFETY: each panel is claimed once, and panels do not overlap.
                let out =
                    unsafe { std::slice::from_raw_parts_mut(shared.at(panel * self.panel_len()), self.panel_len()) };
                let rows: [_; PANEL] = std::array::from_fn(|lane| self.row(weights, self.depth, panel, lane));
                match self.format {
                    Format::Fp32 => pack_panel(&rows, out),
                    Format::Bf16 => {
                        for (lane, row) in rows.iter().enumerate() {
                            round_column(row.unwrap_or_default(), lane, bytemuck::cast_slice_mut(out), to_bf16);
                        }
                    }
                    Format::Bf16x3 => {
                        for (lane, row) in rows.iter().enumerate() {
                            split_column(row.unwrap_or_default(), lane, out);
                        }
                    }
                    Format::Int8 => {
                        for (lane, row) in rows.iter().enumerate() {
                            let (scale, sum) = quantize_column(*row, lane, bytemuck::cast_slice_mut(out));
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
        lanes.map(|(panel, lane)| self.row(biases, 1, panel, lane).map_or(0.0, |b| b[0])).collect()
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

/// Largest magnitude. What is not a number is the largest of all and so stays visible: it becomes the scale.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut largest = 0;
    for x in values {
        // Magnitudes are in the order of their bits.
        largest = largest.max(x.to_bits() & (u32::MAX >> 1));
    }
    f32::from_bits(largest)
}

/// The nearest whole number, ties to even, of a number below 2^22: the sum has no bits below 1.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

/// The nearest bf16, ties to even. Numbers below the smallest normal one become 0, as AMX takes them for 0.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> u16 {
    const EXPONENT: u32 = 0x7f80_0000;
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let (nan, small) = (bits & !SIGN > EXPONENT, bits & EXPONENT == 0);
    let kept = if nan { bits | 0x0040_0000 } else { rounded };
    ((if small { bits & SIGN } else { kept }) >> 16) as u16
}

const SIGN: u32 = 1 << 31;

/// What rounding to bf16 leaves, as bf16.
#[inline(always)]
pub(super) fn small_half(x: f32) -> u16 {
    to_bf16(x - from_bf16(to_bf16(x)))
}

#[inline(always)]
pub(super) fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// Makes bf16 of a column.
fn round_column(row: &[f32], lane: usize, out: &mut [u16], round: fn(f32) -> u16) {
    for (step, place) in out[lane * 2..].chunks_mut(2 * PANEL).enumerate() {
        for (i, half) in place[..2].iter_mut().enumerate() {
            *half = row.get(step * 2 + i).map_or(0, |&x| round(x));
        }
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

/// Largest byte.
pub(super) const BYTE_MAX: f32 = 127.0;

/// What numbers up to `largest` are multiplied with to become bytes: 0 where there is no such factor, for all zeros, for
/// numbers so small that it would be infinite, and where one is not a number, which shows in the scale.
#[inline(always)]
pub(super) fn to_bytes(largest: f32) -> f32 {
    let factor = BYTE_MAX / largest;
    if factor.is_finite() { factor } else { 0.0 }
}

/// Rounds a column to bytes, the largest to 127 or -127; returns its scale and the sum of the bytes.
fn quantize_column(row: Option<&[f32]>, lane: usize, out: &mut [i8]) -> (f32, i32) {
    let row = row.unwrap_or_default();
    let largest = largest(row);
    let factor = to_bytes(largest);
    let mut sum = 0;
    let places = out[lane * QUAD..].chunks_mut(QUAD * PANEL);
    for (step, place) in places.enumerate() {
        for (i, byte) in place[..QUAD].iter_mut().enumerate() {
            // What is not a number becomes any byte.
            *byte = row.get(step * QUAD + i).map_or(0, |x| nearest(x * factor)) as i8;
            sum += i32::from(*byte);
        }
    }
    (largest / BYTE_MAX, sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_bf16_is_to_nearest_and_small_numbers_are_zero() {
        for i in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(i) << 16 | low);
                let got = half::bf16::from_bits(to_bf16(x));
                if x.is_nan() {
                    assert!(got.is_nan());
                } else if x.is_subnormal() {
                    assert_eq!(got.to_bits(), half::bf16::from_f32(0.0_f32.copysign(x)).to_bits());
                } else {
                    assert_eq!(got, half::bf16::from_f32(x), "{x}");
                }
            }
        }
    }
}
