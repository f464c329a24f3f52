//! Products of bytes with weights of four bits, which have a scale for each block of the depth.

use super::{
    super::{
        element::{BLOCK_STEPS, BLOCK_WORDS},
        packed::NIBBLE_PANEL,
        simd::{ByteTask, Dot, LANES, Simd},
        tile::{Ahead, PANEL, Prefetch, STRETCH, for_rows},
    },
    PanelTile, PanelTiles, Panels,
    finish::finish_biased,
    left::nibble_rows,
};

/// [`Panels`] of four bits.
pub(super) struct Nibbles<'a>(pub Panels<'a>);

/// Blocks do not cross the end of a stretch.
const _: () = assert!(STRETCH.is_multiple_of(BLOCK_STEPS));

impl ByteTask for Nibbles<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, D: Dot>(self) {
        for PanelTile { panel, first, height, ahead } in PanelTiles::new(&self.0, BLOCK_STEPS) {
            // SAFETY: the caller vouches for the instruction sets, `Linear::run` for the sizes, and the panel is
            // claimed once.
            unsafe { for_rows!(height, nibble_rows(S::ROWS), nibble_tile::<S, D>(&self.0, panel, first, ahead)) };
        }
    }
}

#[inline(always)]
unsafe fn nibble_tile<S: Simd, D: Dot, const R: usize>(
    job: &Panels<'_>,
    panel: usize,
    first: usize,
    mut ahead: Prefetch,
) {
    let shape = job.layer.shape;
    // SAFETY: the panel and the tile lie within their buffers; the caller vouches for the instruction sets.
    unsafe {
        let mut columns = job.layer.panels.as_ptr().add(panel * shape.panel_len());
        let mut sums = [[S::splat(0.0); 2]; R];
        for word in (0..shape.steps()).step_by(BLOCK_STEPS) {
            let rows = job.left.at(job.layout.stretch(word / STRETCH * STRETCH, first)).add(word % STRETCH);
            let rows = rows.cast::<u32>();
            let scales = columns.add(BLOCK_WORDS * PANEL).cast::<u16>();
            for half in 0..2 {
                let mut whole = [D::zero(); R];
                for (r, whole) in whole.iter_mut().enumerate() {
                    *whole = D::start((*rows.add(r * STRETCH + 2 * BLOCK_WORDS)).cast_signed());
                }
                for pair in 0..BLOCK_WORDS {
                    let (low, high) = D::nibbles(columns.add(pair * PANEL + half * LANES).cast());
                    for (r, whole) in whole.iter_mut().enumerate() {
                        let quads = rows.add(r * STRETCH + 2 * pair);
                        *whole = D::dot_nibbles(*whole, low, *quads);
                        *whole = D::dot_nibbles(*whole, high, *quads.add(1));
                    }
                }
                let scale = S::load_half_floats(scales.add(half * LANES));
                for (sums, whole) in sums.iter_mut().zip(whole) {
                    let mut lanes = [0; LANES];
                    D::store(&mut lanes, whole);
                    sums[half] = S::fma(S::load_whole(lanes.as_ptr()), scale, sums[half]);
                }
            }
            ahead.ask::<S>();
            columns = columns.add(NIBBLE_PANEL);
        }
        for (r, [low, high]) in sums.into_iter().enumerate() {
            let scale = S::splat(*job.left.at(job.layout.scale(first + r)));
            finish_biased::<S>(job, panel, first + r, S::mul(low, scale), S::mul(high, scale));
        }
    }
}
