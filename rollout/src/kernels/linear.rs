//! One linear layer in one pass: norm of the input, product with packed weights, bias, gate, residual.

use super::{
    packed::{Columns, PackedShape},
    parallel::{Claims, Shared, Threads},
    simd::{self, Isa, LANES, Simd, Task},
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
    pub fn run(&self, input: Input<'_>, out: &mut [f32], isa: Isa, threads: &dyn Threads, scratch: &mut Vec<f32>) {
        let PackedShape { depth, outputs, .. } = self.shape;
        let rows = input.rows.map_or(input.x.len() / depth, <[usize]>::len);
        assert_eq!(out.len(), rows * outputs, "the output has another size");
        assert_eq!(self.panels.len(), self.shape.len(), "the panels have another size");
        assert!(self.bias.is_none_or(|b| b.len() == self.shape.panels() * PANEL), "the bias has another size");
        assert!(self.norm.is_none_or(|n| n.gamma.len() == depth), "the norm has another size");
        assert!(input.residual.is_none_or(|r| r.len() == out.len()), "the residual has another size");
        let within = |&row: &usize| (row + 1) * depth <= input.x.len();
        assert!(input.rows.is_none_or(|r| r.iter().all(within)), "a row outside the input");
        if rows == 0 {
            return;
        }
        // Left as it is: every element is written before it is read.
        if scratch.len() < rows * depth {
            scratch.resize(rows * depth, 0.0);
        }
        let tiling = Tiling::new(rows, isa.rows());
        let left = Shared::new(&mut scratch[..rows * depth]);
        let out = Shared::new(out);
        let (to_pack, to_multiply) = (Claims::new(tiling.count()), Claims::new(self.shape.panels()));
        threads.run(&|| {
            to_pack.run_all(|tile| isa.run(PackTile { layer: self, input: &input, tile, tiling, left }));
            isa.run(Panels { layer: self, input: &input, claims: &to_multiply, tiling, left, out });
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
        for r in 0..height {
            let source = self.input.rows.map_or(first + r, |rows| rows[first + r]);
            let x = &self.input.x[source * depth..(source + 1) * depth];
            let to = self.left.at(first * depth + r);
            // SAFETY: the instruction set is the caller's; the elements of a tile are written by this task alone.
            unsafe {
                match self.layer.norm {
                    None => {
                        for (k, &x) in x.iter().enumerate() {
                            *to.add(k * height) = x;
                        }
                    }
                    Some(Norm { gamma, epsilon }) => {
                        let inverse = inverse_rms::<S>(x, epsilon);
                        for (k, (&x, &gamma)) in x.iter().zip(gamma).enumerate() {
                            *to.add(k * height) = x * inverse * gamma;
                        }
                    }
                }
            }
        }
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
        simd::sum::<S>(sums)
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

impl Task for Panels<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let shape = self.layer.shape;
        let tiles = self.tiling.count();
        // While one panel is multiplied, the next one is fetched, spread evenly over the tiles of rows. The panel after
        // the last is the first of the next layer, which lies behind this one.
        let lines = (UNROLL * PANEL / LINE).div_ceil(tiles);
        let share = shape.depth / UNROLL * lines * LINE;
        let mut next = self.claims.claim();
        while let Some(panel) = next {
            next = self.claims.claim();
            let coming = next.unwrap_or(shape.panels());
            let coming = self.layer.panels.as_ptr().wrapping_add(coming * shape.panel_len());
            for tile in 0..tiles {
                let (first, height) = self.tiling.tile(tile);
                let wanted = tile * share < shape.panel_len();
                let ahead = Ahead { from: coming.wrapping_add(tile * share), lines: if wanted { lines } else { 0 } };
                // SAFETY: the instruction set is the caller's; sizes were checked by `Linear::run`; each panel is
                // claimed once, so that no two threads write the same columns.
                unsafe { for_rows!(height, tile_of_panel::<S>(&self, panel, first, ahead)) };
            }
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

        let column = panel * shape.panel_outputs();
        for (r, [low, high]) in sums.into_iter().enumerate() {
            let at = (first + r) * shape.outputs + column;
            match shape.columns {
                Columns::Gated => finish::<S>(job, at, shape.outputs - column, S::mul(silu::<S>(low), high)),
                Columns::Joined => {
                    finish::<S>(job, at, shape.outputs - column, low);
                    if shape.outputs - column > LANES {
                        finish::<S>(job, at + LANES, shape.outputs - column - LANES, high);
                    }
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
