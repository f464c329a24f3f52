//! Products in vector registers.

use super::{
    super::{
        element::{Format, QUAD, TILE_STEPS},
        simd::{ByteTask, Dot, LANES, Simd, Task},
        tile::{Ahead, Matrix, PANEL, Prefetch, STRETCH, UNROLL, blocks, for_rows, multiply},
    },
    PanelTile, PanelTiles, Panels,
    finish::{finish_biased, finish_bytes, finish_row},
    left::OFFSET,
    strips::run_strips,
};

impl Task for Panels<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if S::BLOCKS == 1 {
            // SAFETY: the caller vouches for the instruction set, and `Linear::run` has checked the sizes.
            return unsafe { run_strips::<S>(&self) };
        }
        for PanelTile { panel, first, height, ahead } in PanelTiles::new(&self, UNROLL) {
            // SAFETY: as above. Each panel is claimed once, so no two threads write the same columns.
            unsafe { for_rows!(height, S::ROWS, float_tile::<S>(&self, panel, first, ahead)) };
        }
    }
}

impl ByteTask for Panels<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: Dot>(self) {
        for PanelTile { panel, first, height, ahead } in PanelTiles::new(&self, UNROLL) {
            // SAFETY: the caller vouches for the instruction set, `Linear::run` for the sizes, and the panel is claimed
            // once.
            unsafe { for_rows!(height, S::ROWS, byte_tile::<S, D>(&self, panel, first, ahead)) };
        }
    }
}

/// [`Panels`] of bf16, alone or as halves.
pub(super) struct Halves<'a>(pub Panels<'a>);

impl Task for Halves<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for PanelTile { panel, first, height, ahead } in PanelTiles::new(&self.0, UNROLL) {
            // SAFETY: the caller vouches for the instruction set, `Linear::run` for the sizes, and the panel is claimed
            // once.
            unsafe { for_rows!(height, S::ROWS, half_tile::<S>(&self.0, panel, first, ahead)) };
        }
    }
}

#[inline(always)]
unsafe fn float_tile<S: Simd, const R: usize>(job: &Panels<'_>, panel: usize, first: usize, mut ahead: Prefetch) {
    let shape = job.layer.shape;
    // SAFETY: the panel and the tile lie within their buffers; the caller vouches for the instruction set.
    unsafe {
        let columns = job.layer.panels.as_ptr().add(panel * shape.panel_len());
        let mut start = [S::splat(0.0); 2];
        if let Some(bias) = job.layer.bias {
            let bias = &bias[panel * PANEL..][..PANEL];
            start = [S::load(bias.as_ptr()), S::load(bias[LANES..].as_ptr())];
        }
        let mut sums = [start; R];
        for from in (0..shape.depth).step_by(STRETCH) {
            let rows = job.left.at(job.layout.stretch(from, first));
            let depth = STRETCH.min(shape.depth - from);
            let rows = Matrix { data: rows, stride: STRETCH };
            multiply::<S, R, 2>(depth, rows, blocks(columns.add(from * PANEL)), PANEL, &mut ahead, &mut sums);
        }
        for (r, [low, high]) in sums.into_iter().enumerate() {
            finish_row::<S>(job, panel, first + r, low, high);
        }
    }
}

#[inline(always)]
unsafe fn byte_tile<S: Simd, D: Dot, const R: usize>(
    job: &Panels<'_>,
    panel: usize,
    first: usize,
    mut ahead: Prefetch,
) {
    let shape = job.layer.shape;
    let column_sums = &job.layer.quantized.expect("sums belong to bytes").sums[panel * PANEL..][..PANEL];
    // SAFETY: the panel and the tile lie within their buffers; the caller vouches for the instruction set.
    unsafe {
        let columns = job.layer.panels.as_ptr().add(panel * shape.panel_len()).cast::<i8>();
        let mut sums = [[D::zero(); 2]; R];
        for stretch in (0..shape.steps()).step_by(STRETCH) {
            let rows = job.left.at(job.layout.stretch(stretch, first)).cast::<u32>();
            for step in 0..STRETCH.min(shape.steps() - stretch) {
                let quad = columns.add((stretch + step) * PANEL * QUAD);
                for (r, [low, high]) in sums.iter_mut().enumerate() {
                    let x = *rows.add(r * STRETCH + step);
                    *low = D::dot(*low, x, quad);
                    *high = D::dot(*high, x, quad.add(LANES * QUAD));
                }
                if step % UNROLL == 0 {
                    ahead.ask::<S>();
                }
            }
        }
        for (r, [low, high]) in sums.into_iter().enumerate() {
            let mut whole = [[0; LANES]; 2];
            D::store(&mut whole[0], low);
            D::store(&mut whole[1], high);
            let whole: &mut [i32; PANEL] = bytemuck::cast_mut(&mut whole);
            for (sum, column) in whole.iter_mut().zip(column_sums) {
                *sum -= OFFSET * column;
            }
            finish_bytes::<S>(job, panel, first + r, whole);
        }
    }
}

#[inline(always)]
unsafe fn half_tile<S: Simd, const R: usize>(job: &Panels<'_>, panel: usize, first: usize, mut ahead: Prefetch) {
    let shape = job.layer.shape;
    let round = shape.format.round();
    // Pairs of tiles of a round, one on the left and one on the right, that are multiplied.
    let products: &[(usize, usize)] =
        if shape.format == Format::Bf16x3 { &[(0, 0), (0, 1), (1, 1)] } else { &[(0, 0)] };
    // SAFETY: the panel and the tile lie within their buffers; the caller vouches for the instruction set.
    unsafe {
        let mut columns = job.layer.panels.as_ptr().add(panel * shape.panel_len());
        let mut sums = [[S::splat(0.0); 2]; R];
        for step in (0..shape.steps()).step_by(round) {
            // Whole rounds make a stretch.
            let word = 2 * step;
            let rows = job.left.at(job.layout.stretch(word / STRETCH * STRETCH, first)).add(word % STRETCH);
            for &(left, right) in products {
                let (rows, columns) = (rows.add(left * 2 * TILE_STEPS), columns.add(right * TILE_STEPS * PANEL));
                pairs::<S, R>(rows, columns, &mut sums);
            }
            for _ in 0..round / UNROLL {
                ahead.ask::<S>();
            }
            columns = columns.add(round * PANEL);
        }
        for (r, [low, high]) in sums.into_iter().enumerate() {
            finish_biased::<S>(job, panel, first + r, low, high);
        }
    }
}

/// A product of tiles. Its sums have the order of AMX: a chain over the first elements of all pairs, and one over the
/// second ones.
#[inline(always)]
unsafe fn pairs<S: Simd, const R: usize>(rows: *const f32, columns: *const f32, sums: &mut [[S::V; 2]; R]) {
    // SAFETY: the caller vouches for a tile on either side.
    unsafe {
        let mut chains = [[[S::splat(0.0); 2]; 2]; R];
        for step in 0..TILE_STEPS {
            let pairs = columns.add(step * PANEL);
            let (low, low_second) = S::load_pairs(pairs);
            let (high, high_second) = S::load_pairs(pairs.add(LANES));
            for (r, [firsts, seconds]) in chains.iter_mut().enumerate() {
                let x = S::splat(*rows.add(r * STRETCH + 2 * step));
                firsts[0] = S::fma(x, low, firsts[0]);
                firsts[1] = S::fma(x, high, firsts[1]);
                let x = S::splat(*rows.add(r * STRETCH + 2 * step + 1));
                seconds[0] = S::fma(x, low_second, seconds[0]);
                seconds[1] = S::fma(x, high_second, seconds[1]);
            }
        }
        for (sums, [firsts, seconds]) in sums.iter_mut().zip(chains) {
            for n in 0..2 {
                sums[n] = S::add(sums[n], S::add(firsts[n], seconds[n]));
            }
        }
    }
}
