//! One linear layer in one pass: norm of the input, product with packed weights, bias, gate, residual.
//!
//! `left` prepares the input, `lanes` multiplies in vector registers, `strips` there with fp32 where registers are few,
//! `pairs` with pairs of bf16, `nibbles` with weights of four bits, `tiles` in the registers of AMX, and `finish` turns
//! sums into outputs. For the same format, all of them give the same bits.

mod finish;
mod lanes;
mod left;
mod nibbles;
mod pairs;
mod strips;
#[cfg(target_arch = "x86_64")]
mod tiles;

use self::{
    lanes::Halves,
    left::{Layout, Pack, ROWS_OF_TASK},
    nibbles::Nibbles,
    pairs::Pairs,
};
use super::{
    element::Format,
    packed::{PackedShape, Quantized},
    parallel::{Claims, Machine, Shared},
    tile::{LINE, PANEL, Prefetch},
};

pub(super) use self::left::{inverse_rms, rms_norm};

/// RMSNorm before the product.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// `[depth]`.
    pub gamma: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
}

/// The function that a gate goes through before it is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU by way of the hyperbolic tangent.
    GeluTanh,
}

/// A linear layer: `out = factor * act(norm(x) W + bias) + residual`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// Sizes.
    pub shape: PackedShape,
    /// The packed weights.
    pub panels: &'a [f32],
    /// Scales and sums of packed bytes.
    pub quantized: Option<&'a Quantized>,
    /// In the order of the packed columns, padded ([`PackedShape::pack_bias`]).
    pub bias: Option<&'a [f32]>,
    /// Applied to the input.
    pub norm: Option<Norm<'a>>,
    /// The gate's activation, where the columns are gated.
    pub activation: Activation,
    /// Factor on the outputs, before the residual is added.
    pub factor: f32,
}

/// The input of a call.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// `[tokens, depth]`.
    pub x: &'a [f32],
    /// The rows of `x` to compute, in this order; all of them if absent.
    pub rows: Option<&'a [usize]>,
    /// `[rows, outputs]`, added at the end.
    pub residual: Option<&'a [f32]>,
}

impl Linear<'_> {
    /// Computes `out`, `[rows, outputs]`. A row depends on its own input alone, bit for bit.
    pub fn run(&self, input: Input<'_>, out: &mut [f32], Machine { isa, threads, scratch }: Machine<'_>) {
        let PackedShape { depth, outputs, .. } = self.shape;
        let rows = input.rows.map_or(input.x.len() / depth, <[usize]>::len);
        assert_eq!(out.len(), rows * outputs, "the output has another size");
        assert_eq!(self.panels.len(), self.shape.words(), "the panels have another size");
        assert!(self.bias.is_none_or(|b| b.len() == self.shape.panels() * PANEL), "the bias has another size");
        let columns = self.shape.panels() * PANEL;
        assert_eq!(self.quantized.is_some(), self.shape.format == Format::Int8, "scales belong to bytes");
        assert!(self.quantized.is_none_or(|q| q.scales.len() == columns && q.sums.len() == columns), "the scales");
        assert!(self.norm.is_none_or(|n| n.gamma.len() == depth), "the norm has another size");
        assert!(input.residual.is_none_or(|r| r.len() == out.len()), "the residual has another size");
        let within = |&row: &usize| (row + 1) * depth <= input.x.len();
        assert!(input.rows.is_none_or(|r| r.iter().all(within)), "a row outside the input");
        if rows == 0 {
            return;
        }
        let layout = Layout::new(self.shape, rows, isa);
        // Not zeroed: every element is written before it is read, but for rows that fill up a block of tiles. Nobody
        // reads their results.
        let slack = ALIGNMENT / size_of::<f32>();
        if scratch.len() < layout.len() + slack {
            scratch.resize(layout.len() + slack, 0.0);
        }
        let aligned = scratch.as_ptr().align_offset(ALIGNMENT);
        let left = Shared::new(&mut scratch[aligned..aligned + layout.len()]);
        let out = Shared::new(out);
        let (to_pack, to_multiply) = (Claims::new(rows.div_ceil(ROWS_OF_TASK)), Claims::new(self.shape.panels()));
        threads.run(&|| {
            to_pack.run_all(|task| isa.run(Pack { layer: self, input: &input, task, layout, left }));
            let panels = Panels { layer: self, input: &input, claims: &to_multiply, layout, left, out };
            match self.shape.format {
                Format::Fp32 => isa.run(panels),
                #[cfg(target_arch = "x86_64")]
                format if isa.takes_tiles(format) => isa.run(tiles::OnTiles(panels)),
                Format::Int8 => isa.run_bytes(panels),
                Format::Int4 => isa.run_bytes(Nibbles(panels)),
                Format::Bf16Dot => isa.run_pairs(Pairs(panels)),
                Format::Bf16 | Format::Bf16x3 => isa.run(Halves(panels)),
            }
        });
    }
}

/// Rows of tiles begin with a cache line.
const ALIGNMENT: usize = 64;

/// Claims panels and multiplies all rows with each.
struct Panels<'a> {
    layer: &'a Linear<'a>,
    input: &'a Input<'a>,
    claims: &'a Claims,
    layout: Layout,
    left: Shared<f32>,
    out: Shared<f32>,
}

/// One panel and one tile of rows that it is multiplied with.
struct PanelTile {
    panel: usize,
    first: usize,
    height: usize,
    ahead: Prefetch,
}

/// The work of a thread: panel after panel as they are claimed, and each with all tiles.
struct PanelTiles<'a> {
    panels: &'a Panels<'a>,
    panel: Option<usize>,
    next: Option<usize>,
    tile: usize,
    /// Cache lines of the next panel to request in one round, and words of it in one tile.
    lines: usize,
    share: usize,
}

impl<'a> PanelTiles<'a> {
    /// Requests part of the next panel every `round` steps.
    fn new(panels: &'a Panels<'a>, round: usize) -> Self {
        // While a panel is multiplied, the next one is fetched in equal shares, one for each tile of rows.
        let shape = panels.layer.shape;
        let words = (round * shape.panel_len()).checked_div(shape.steps()).unwrap_or_default();
        let lines = (words / LINE).div_ceil(panels.layout.tiling.count());
        let share = shape.steps() / round * lines * LINE;
        let panel = panels.claims.claim();
        Self { panel, next: panels.claims.claim(), tile: 0, lines, share, panels }
    }
}

impl Iterator for PanelTiles<'_> {
    type Item = PanelTile;

    #[inline(always)]
    fn next(&mut self) -> Option<PanelTile> {
        if self.tile == self.panels.layout.tiling.count() {
            self.tile = 0;
            self.panel = self.next;
            self.next = self.panels.claims.claim();
        }
        let panel = self.panel?;
        let shape = self.panels.layer.shape;
        // The panel after the last is the first of the next layer, which lies behind this one.
        let coming = self.next.unwrap_or(shape.panels()) * shape.panel_len() + self.tile * self.share;
        let lines = if self.tile * self.share < shape.panel_len() { self.lines } else { 0 };
        let (first, height) = self.panels.layout.tiling.tile(self.tile);
        self.tile += 1;
        let ahead = Prefetch { from: self.panels.layer.panels.as_ptr().wrapping_add(coming), lines };
        Some(PanelTile { panel, first, height, ahead })
    }
}
