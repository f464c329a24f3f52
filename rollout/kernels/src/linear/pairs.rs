//! Products of pairs of bf16 in vector registers.

use super::{
    super::{
        simd::{LANES, PairDot, PairTask, Simd},
        tile::{Matrix, PANEL, Prefetch, STRETCH, UNROLL, for_rows, multiply_pairs},
    },
    PanelTile, PanelTiles, Panels,
    finish::finish_biased,
};

/// [`Panels`] of pairs, whose sums are one chain along the depth.
pub(super) struct Pairs<'a>(pub Panels<'a>);

impl PairTask for Pairs<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: PairDot>(self) {
        for PanelTile { panel, first, height, ahead } in PanelTiles::new(&self.0, UNROLL) {
            // SAFETY: the caller vouches for the instruction sets, `Linear::run` for the sizes, and the panel is
            // claimed once.
            unsafe { for_rows!(height, S::ROWS, pair_tile::<S, D>(&self.0, panel, first, ahead)) };
        }
    }
}

#[inline(always)]
unsafe fn pair_tile<S: Simd, D: PairDot, const R: usize>(
    job: &Panels<'_>,
    panel: usize,
    first: usize,
    mut ahead: Prefetch,
) {
    let shape = job.layer.shape;
    let (steps, stretch) = (shape.steps(), STRETCH / D::WORDS);
    // SAFETY: the panel and the tile lie within their buffers; the caller vouches for the instruction sets.
    unsafe {
        let columns = job.layer.panels.as_ptr().add(panel * shape.panel_len());
        let mut sums = [[D::zero(); 2]; R];
        for from in (0..steps).step_by(stretch) {
            let rows = job.left.at(job.layout.stretch(from * D::WORDS, first));
            let (rows, columns) = (Matrix { data: rows, stride: STRETCH }, columns.add(from * PANEL));
            let blocks = [columns, columns.add(LANES)];
            multiply_pairs::<S, D, R, 2>(stretch.min(steps - from), rows, blocks, PANEL, &mut ahead, &mut sums);
        }
        for (r, [low, high]) in sums.into_iter().enumerate() {
            finish_biased::<S>(job, panel, first + r, D::sums::<S>(low), D::sums::<S>(high));
        }
    }
}
