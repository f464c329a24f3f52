//! One linear layer in one pass: norm of the input, product with packed weights, bias, gate, residual.

use std::cell::RefCell;

use super::{
    packed::{BYTE_MAX, Columns, Format, PackedShape, Quantized, largest, nearest},
    parallel::{Claims, Machine, Shared},
    simd::{self, ByteTask, Dot, LANES, QUAD, Simd, Task},
    tile::{Ahead, LINE, Left, PANEL, Right, Tiling, UNROLL, for_rows, multiply},
};

/// RMSNorm before the product.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// `[depth]`.
    pub gamma: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
}

/// A linear layer: `out = act(norm(x) W + bias) + residual`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// Sizes.
    pub shape: PackedShape,
    /// The packed weights.
    pub panels: &'a [f32],
    /// What belongs to packed bytes.
    pub quantized: Option<&'a Quantized>,
    /// In the order of the packed columns, padded ([`PackedShape::pack_bias`]).
    pub bias: Option<&'a [f32]>,
    /// Applied to the input.
    pub norm: Option<Norm<'a>>,
}

/// What a call reads.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// `[tokens, depth]`.
    pub x: &'a [f32],
    /// The rows of `x` that are wanted, in this order; all of them if absent.
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
        assert_eq!(self.panels.len(), self.shape.len(), "the panels have another size");
        assert!(self.bias.is_none_or(|b| b.len() == self.shape.panels() * PANEL), "the bias has another size");
        let columns = self.shape.panels() * PANEL;
        assert_eq!(self.quantized.is_some(), self.shape.format == Format::Byte, "scales belong to bytes");
        assert!(self.quantized.is_none_or(|q| q.scales.len() == columns && q.sums.len() == columns), "the scales");
        assert!(self.norm.is_none_or(|n| n.gamma.len() == depth), "the norm has another size");
        assert!(input.residual.is_none_or(|r| r.len() == out.len()), "the residual has another size");
        let within = |&row: &usize| (row + 1) * depth <= input.x.len();
        assert!(input.rows.is_none_or(|r| r.iter().all(within)), "a row outside the input");
        if rows == 0 {
            return;
        }
        // Left as it is: every element is written before it is read. Of bytes, one word holds a quad, and one more
        // word for each row its scale.
        let steps = self.shape.steps();
        if scratch.len() < rows * (steps + 1) {
            scratch.resize(rows * (steps + 1), 0.0);
        }
        let tiling = Tiling::new(rows, isa.rows());
        let left = Shared::new(&mut scratch[..rows * (steps + 1)]);
        let out = Shared::new(out);
        let (to_pack, to_multiply) = (Claims::new(tiling.count()), Claims::new(self.shape.panels()));
        threads.run(&|| {
            to_pack.run_all(|tile| isa.run(PackTile { layer: self, input: &input, tile, tiling, left }));
            let panels = Panels { layer: self, input: &input, claims: &to_multiply, tiling, left, out };
            match self.shape.format {
                Format::Float => isa.run(panels),
                Format::Byte => isa.run_bytes(panels),
            }
        });
    }
}

/// Puts the rows of a tile, normed, side by side: element `k` of row `r` of a tile of height `h` is at `k * h + r`.
/// One thread does a whole tile, since its rows share every cache line.
struct PackTile<'a> {
    layer: &'a Linear<'a>,
    input: &'a Input<'a>,
    tile: usize,
    tiling: Tiling,
    left: Shared<f32>,
}

impl Task for PackTile<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let depth = self.layer.shape.depth;
        let (first, height) = self.tiling.tile(self.tile);
        let mut normed = NORMED.take();
        normed.resize(depth, 0.0);
        for r in 0..height {
            let source = self.input.rows.map_or(first + r, |rows| rows[first + r]);
            let mut x = &self.input.x[source * depth..(source + 1) * depth];
            // SAFETY: the instruction set is the caller's; the words of a tile are written by this task alone.
            unsafe {
                if let Some(norm) = self.layer.norm {
                    rms_norm::<S>(x, norm, &mut normed);
                    x = &normed;
                }
                match self.layer.shape.format {
                    Format::Float => self.floats(first, height, r, x),
                    Format::Byte => self.bytes(first, height, r, x),
                }
            }
        }
        NORMED.set(normed);
    }
}

thread_local! {
    /// The row at hand, normed.
    static NORMED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// What bytes of the input are stored with: they are unsigned.
const OFFSET: i32 = 128;

impl PackTile<'_> {
    #[inline(always)]
    unsafe fn floats(&self, first: usize, height: usize, r: usize, x: &[f32]) {
        let mut to = self.left.at(first * x.len() + r);
        for &x in x {
            // SAFETY: within the tile, or one row past it at the end.
            unsafe {
                *to = x;
                to = to.wrapping_add(height);
            }
        }
    }

    /// Rounds a row to bytes, the largest to 127 or -127.
    #[inline(always)]
    unsafe fn bytes(&self, first: usize, height: usize, r: usize, x: &[f32]) {
        let steps = self.layer.shape.steps();
        let largest = largest(x);
        let inverse = if largest > 0.0 { BYTE_MAX / largest } else { 0.0 };
        let mut to = self.left.at(first * steps + r).cast::<[u8; QUAD]>();
        let (quads, rest) = x.as_chunks::<QUAD>();
        // SAFETY: within the tile, or one row past it at the end; the scales follow the tiles, one for each row.
        unsafe {
            for quad in quads {
                let mut bytes = [OFFSET as u8; QUAD];
                for i in 0..QUAD {
                    bytes[i] = (nearest(quad[i] * inverse) + OFFSET) as u8;
                }
                *to = bytes;
                to = to.wrapping_add(height);
            }
            if !rest.is_empty() {
                let mut bytes = [OFFSET as u8; QUAD];
                for (byte, x) in bytes.iter_mut().zip(rest) {
                    *byte = (nearest(x * inverse) + OFFSET) as u8;
                }
                *to = bytes;
            }
            *self.left.at(self.tiling.rows() * steps + first + r) = largest / BYTE_MAX;
        }
    }
}

/// `x / rms(x) * gamma`.
#[inline(always)]
unsafe fn rms_norm<S: Simd>(x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    // SAFETY: passed on to the caller.
    let inverse = unsafe { inverse_rms::<S>(x, norm.epsilon) };
    for ((out, x), gamma) in out.iter_mut().zip(x).zip(norm.gamma) {
        *out = x * inverse * gamma;
    }
}

/// `1 / sqrt(mean(x²) + epsilon)`.
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(super) unsafe fn inverse_rms<S: Simd>(x: &[f32], epsilon: f32) -> f32 {
    let (blocks, rest) = x.as_chunks::<LANES>();
    // SAFETY: a chunk is a block; the instruction set is the caller's.
    let mut squares = unsafe {
        let mut sums = S::splat(0.0);
        for block in blocks {
            let v = S::load(block.as_ptr());
            sums = S::fma(v, v, sums);
        }
        S::sum(sums)
    };
    for &x in rest {
        squares += x * x;
    }
    1.0 / (squares / x.len() as f32 + epsilon).sqrt()
}

/// Claims panels and multiplies all rows with each.
struct Panels<'a> {
    layer: &'a Linear<'a>,
    input: &'a Input<'a>,
    claims: &'a Claims,
    tiling: Tiling,
    left: Shared<f32>,
    out: Shared<f32>,
}

/// One panel times one tile of rows.
struct Job {
    panel: usize,
    first: usize,
    height: usize,
    ahead: Ahead,
}

/// The jobs of a thread: panel after panel as they are claimed, and of each all tiles.
struct Jobs<'a> {
    panels: &'a Panels<'a>,
    panel: Option<usize>,
    next: Option<usize>,
    tile: usize,
    /// Cache lines of the next panel to ask for in four steps, and words of it in one tile.
    lines: usize,
    share: usize,
}

impl<'a> Jobs<'a> {
    fn new(panels: &'a Panels<'a>) -> Self {
        // While one panel is multiplied, the next one is fetched, spread evenly over the tiles of rows.
        let lines = (UNROLL * PANEL / LINE).div_ceil(panels.tiling.count());
        let share = panels.layer.shape.steps() / UNROLL * lines * LINE;
        let panel = panels.claims.claim();
        Self { panel, next: panels.claims.claim(), tile: 0, lines, share, panels }
    }
}

impl Iterator for Jobs<'_> {
    type Item = Job;

    #[inline(always)]
    fn next(&mut self) -> Option<Job> {
        if self.tile == self.panels.tiling.count() {
            self.tile = 0;
            self.panel = self.next;
            self.next = self.panels.claims.claim();
        }
        let panel = self.panel?;
        let shape = self.panels.layer.shape;
        // The panel after the last is the first of the next layer, which lies behind this one.
        let coming = self.next.unwrap_or(shape.panels()) * shape.panel_len() + self.tile * self.share;
        let lines = if self.tile * self.share < shape.panel_len() { self.lines } else { 0 };
        let (first, height) = self.panels.tiling.tile(self.tile);
        self.tile += 1;
        let ahead = Ahead { from: self.panels.layer.panels.as_ptr().wrapping_add(coming), lines };
        Some(Job { panel, first, height, ahead })
    }
}

impl Task for Panels<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for Job { panel, first, height, ahead } in Jobs::new(&self) {
            // SAFETY: the instruction set is the caller's; sizes were checked by `Linear::run`; each panel is claimed
            // once, so that no two threads write the same columns.
            unsafe { for_rows!(height, tile_of_panel::<S>(&self, panel, first, ahead)) };
        }
    }
}

impl ByteTask for Panels<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: Dot>(self) {
        for Job { panel, first, height, ahead } in Jobs::new(&self) {
            // SAFETY: as above.
            unsafe { for_rows!(height, byte_tile::<S, D>(&self, panel, first, ahead)) };
        }
    }
}

#[inline(always)]
unsafe fn tile_of_panel<S: Simd, const R: usize>(job: &Panels<'_>, panel: usize, first: usize, ahead: Ahead) {
    let shape = job.layer.shape;
    // SAFETY: the panel and the tile lie within their buffers; the rest is passed on to the caller.
    unsafe {
        let columns = job.layer.panels.as_ptr().add(panel * shape.panel_len());
        let start = match job.layer.bias {
            None => [S::splat(0.0); 2],
            Some(bias) => {
                let bias = bias.as_ptr().add(panel * PANEL);
                [S::load(bias), S::load(bias.add(LANES))]
            }
        };
        let mut sums = [start; R];
        let a = Left { data: job.left.at(first * shape.depth), row_step: 1, step: R };
        let b = Right { blocks: [columns, columns.add(LANES)], step: PANEL };
        multiply::<S, R, 2>(shape.depth, a, b, ahead, &mut sums);

        for (r, [low, high]) in sums.into_iter().enumerate() {
            finish_row::<S>(job, panel, first + r, low, high);
        }
    }
}

#[inline(always)]
unsafe fn byte_tile<S: Simd, D: Dot, const R: usize>(job: &Panels<'_>, panel: usize, first: usize, mut ahead: Ahead) {
    let shape = job.layer.shape;
    let steps = shape.steps();
    let quantized = job.layer.quantized.expect("scales belong to bytes");
    let scales = &quantized.scales[panel * PANEL..][..PANEL];
    let column_sums = &quantized.sums[panel * PANEL..][..PANEL];
    let bias = job.layer.bias.map_or(&[0.0; PANEL][..], |bias| &bias[panel * PANEL..][..PANEL]);
    // SAFETY: the panel and the tile lie within their buffers; the rest is passed on to the caller.
    unsafe {
        let columns = job.layer.panels.as_ptr().add(panel * shape.panel_len()).cast::<i8>();
        let rows = job.left.at(first * steps).cast::<u32>();
        let mut sums = [[D::zero(); 2]; R];
        for step in 0..steps {
            let quad = columns.add(step * PANEL * QUAD);
            for (r, [low, high]) in sums.iter_mut().enumerate() {
                let x = *rows.add(step * R + r);
                *low = D::dot(*low, x, quad);
                *high = D::dot(*high, x, quad.add(LANES * QUAD));
            }
            if step % UNROLL == 0 {
                for _ in 0..ahead.lines {
                    S::prefetch(ahead.from);
                    ahead.from = ahead.from.wrapping_add(LINE);
                }
            }
        }
        for (r, [low, high]) in sums.into_iter().enumerate() {
            let scale = *job.left.at(job.tiling.rows() * steps + first + r);
            let (mut whole, mut lanes) = ([[0; LANES]; 2], [0.0; PANEL]);
            D::store(&mut whole[0], low);
            D::store(&mut whole[1], high);
            let whole: &[i32; PANEL] = bytemuck::cast_ref(&whole);
            for i in 0..PANEL {
                lanes[i] = (whole[i] - OFFSET * column_sums[i]) as f32 * (scale * scales[i]) + bias[i];
            }
            finish_row::<S>(job, panel, first + r, S::load(lanes.as_ptr()), S::load(lanes[LANES..].as_ptr()));
        }
    }
}

/// Activation, residual and store of one row of a panel.
#[inline(always)]
unsafe fn finish_row<S: Simd>(job: &Panels<'_>, panel: usize, row: usize, low: S::V, high: S::V) {
    let shape = job.layer.shape;
    let column = panel * shape.panel_outputs();
    let (at, valid) = (row * shape.outputs + column, shape.outputs - column);
    // SAFETY: passed on to the caller.
    unsafe {
        match shape.columns {
            Columns::Gated => finish::<S>(job, at, valid, S::mul(silu::<S>(low), high)),
            Columns::Joined => {
                finish::<S>(job, at, valid, low);
                if valid > LANES {
                    finish::<S>(job, at + LANES, valid - LANES, high);
                }
            }
        }
    }
}

/// `x / (1 + e^-x)`.
#[inline(always)]
unsafe fn silu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: passed on to the caller.
    unsafe {
        let e = simd::exp::<S>(S::mul(x, S::splat(-1.0)));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

/// Adds the residual and writes up to a block of outputs.
#[inline(always)]
unsafe fn finish<S: Simd>(job: &Panels<'_>, at: usize, valid: usize, mut v: S::V) {
    let residual = job.input.residual.map(<[f32]>::as_ptr);
    // SAFETY: `valid` outputs from `at` on are within the row; whole blocks are touched only if they are valid.
    unsafe {
        if valid >= LANES {
            if let Some(residual) = residual {
                v = S::add(v, S::load(residual.add(at)));
            }
            S::store(job.out.at(at), v);
            return;
        }
        let mut lanes = [0.0; LANES];
        S::store(lanes.as_mut_ptr(), v);
        for (i, &x) in lanes.iter().enumerate().take(valid) {
            *job.out.at(at + i) = x + residual.map_or(0.0, |r| *r.add(at + i));
        }
    }
}
