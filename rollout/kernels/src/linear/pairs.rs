//! Products of pairs of bf16 in vector registers.

use super::{
    super::{
        simd::{LANES, PairDot, PairTask, Simd},
        tile::{Matrix, PANEL, Prefetch, STRETCH, UNROLL, blocks, for_rows, multiply_pairs},
    },
    PanelTile, PanelTiles, Panels,
    finish::finish_biased,
    left::pair_rows,
};

/// [`Panels`] of pairs, whose sums are one chain along the depth.
pub(super) struct Pairs<'a>(pub Panels<'a>);

impl PairTask for Pairs<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: PairDot>(self) {
        for PanelTile { panel, first, height, ahead } in PanelTiles::new(&self.0, UNROLL * S::BLOCKS / 2) {
            // SAFETY: the caller vouches for the instruction sets, `Linear::run` for the sizes, and the panel is
            // claimed once.
            unsafe {
                for_rows!(height, pair_rows(S::ROWS, S::BLOCKS), pair_tile::<S, D>(&self.0, panel, first, ahead));
            }
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
    // SAFETY: the caller vouches for the instruction sets, the panel and the tile.
    unsafe {
        if S::BLOCKS == 1 {
            let low = pair_sums::<S, D, R, 1>(job, panel, 0, first, &mut ahead);
            let high = pair_sums::<S, D, R, 1>(job, panel, 1, first, &mut ahead);
            for (r, ([low], [high])) in low.into_iter().zip(high).enumerate() {
                finish_biased::<S>(job, panel, first + r, D::sums::<S>(low), D::sums::<S>(high));
            }
        } else {
            let sums = pair_sums::<S, D, R, 2>(job, panel, 0, first, &mut ahead);
            for (r, [low, high]) in sums.into_iter().enumerate() {
                finish_biased::<S>(job, panel, first + r, D::sums::<S>(low), D::sums::<S>(high));
            }
        }
    }
}

/// The sums of `N` blocks of a panel, from `block` on.
#[inline(always)]
unsafe fn pair_sums<S: Simd, D: PairDot, const R: usize, const N: usize>(
    job: &Panels<'_>,
    panel: usize,
    block: usize,
    first: usize,
    ahead: &mut Prefetch,
) -> [[D::F; N]; R] {
    let shape = job.layer.shape;
    let (steps, stretch) = (shape.steps(), STRETCH / D::WORDS);
    // SAFETY: the panel and the tile lie within their buffers; the caller vouches for the instruction sets.
    unsafe {
        let columns = job.layer.panels.as_ptr().add(panel * shape.panel_len() + block * LANES);
        let mut sums = [[D::zero(); N]; R];
        for from in (0..steps).step_by(stretch) {
            let rows = job.left.at(job.layout.stretch(from * D::WORDS, first));
            let (rows, steps) = (Matrix { data: rows, stride: STRETCH }, stretch.min(steps - from));
            multiply_pairs::<S, D, R, N>(steps, rows, blocks(columns.add(from * PANEL)), PANEL, ahead, &mut sums);
        }
        sums
    }
}
