//! Products of fp32 where the registers hold the sums of one block of columns at a time (AVX2).
//!
//! A strip is some steps of the depth of a block of columns. It is multiplied with all tiles of rows before the next
//! one is begun, so all tiles but the first read it from the first cache level. Between two strips, sums wait in
//! memory. They are whole fp32 numbers there as in the registers, so their bits are those of one pass.

use super::{
    super::{
        simd::{LANES, Simd},
        tile::{LINE, Matrix, PANEL, Prefetch, STRETCH, UNROLL, for_rows, multiply},
    },
    Panels,
    finish::finish_row,
    left::block_rows,
};

/// Steps of a strip, which takes 12 KiB: a first cache level of 32 KiB has room for rows and sums beside it.
const STRIP: usize = STRETCH / 3;

/// Rows whose sums wait at the same time.
const ROWS: usize = 120;

/// A strip, and where the tile's first row and the block's sums are.
#[derive(Clone, Copy)]
struct Strip {
    steps: usize,
    rows: Matrix,
    columns: *const f32,
    /// The block's first column within the panel.
    block: usize,
}

/// Claims panels and multiplies all rows with each, strip by strip.
///
/// # Safety
/// The instruction set of `S` must be available, and the sizes of the job be checked.
#[inline(always)]
pub(super) unsafe fn run_strips<S: Simd>(job: &Panels<'_>) {
    let (shape, tiling) = (job.layer.shape, job.layout.tiling);
    let mut sums = [[0.0; PANEL]; ROWS];
    let together = ROWS / tiling.tile(0).1;
    // The next panel is fetched meanwhile, in equal shares.
    let rounds = tiling.count() * (PANEL / LANES) * shape.depth.div_ceil(UNROLL);
    let lines = (shape.panel_len() / LINE).div_ceil(rounds);
    let mut next = job.claims.claim();
    while let Some(panel) = next {
        next = job.claims.claim();
        // The panel after the last is the first of the next layer, which lies behind this one.
        let coming = job.layer.panels.as_ptr().wrapping_add(next.unwrap_or(shape.panels()) * shape.panel_len());
        let mut ahead = Prefetch { from: coming, lines };
        let columns = job.layer.panels.as_ptr().wrapping_add(panel * shape.panel_len());
        for tiles in (0..tiling.count()).step_by(together) {
            let tiles = tiles..tiling.count().min(tiles + together);
            let begin = tiling.tile(tiles.start).0;
            let (last, height) = tiling.tile(tiles.end - 1);
            let sums = &mut sums[..last + height - begin];
            sums.fill(first_sums(job, panel));
            for from in (0..shape.depth).step_by(STRIP) {
                for block in (0..PANEL).step_by(LANES) {
                    for tile in tiles.clone() {
                        if ahead.from >= coming.wrapping_add(shape.panel_len()) {
                            ahead.lines = 0;
                        }
                        let (first, height) = tiling.tile(tile);
                        let sums = &mut sums[first - begin..];
                        // SAFETY: the caller vouches for the instruction set and the sizes; whole strips make a
                        // stretch.
                        unsafe {
                            let rows = job.left.at(job.layout.stretch(from / STRETCH * STRETCH, first));
                            let strip = Strip {
                                steps: STRIP.min(shape.depth - from),
                                rows: Matrix { data: rows.add(from % STRETCH), stride: STRETCH },
                                columns: columns.add(from * PANEL + block),
                                block,
                            };
                            for_rows!(height, block_rows(S::ROWS, 1), add::<S>(strip, sums, &mut ahead));
                        }
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                // SAFETY: the panel is claimed once, so no two threads write the same columns; for the rest the caller
                // vouches.
                unsafe {
                    let (low, high) = (S::load(sums.as_ptr()), S::load(sums[LANES..].as_ptr()));
                    finish_row::<S>(job, panel, begin + row, low, high);
                }
            }
        }
    }
}

/// The sums of a panel's columns before the first step: the bias.
fn first_sums(job: &Panels<'_>, panel: usize) -> [f32; PANEL] {
    let of_panel = |bias: &[f32]| std::array::from_fn(|column| bias[panel * PANEL + column]);
    job.layer.bias.map_or([0.0; PANEL], of_panel)
}

/// Adds the products of a strip to the sums of a tile of `R` rows.
#[inline(always)]
unsafe fn add<S: Simd, const R: usize>(strip: Strip, kept: &mut [[f32; PANEL]], ahead: &mut Prefetch) {
    let kept = &mut kept[..R];
    // SAFETY: the caller vouches for the instruction set, the strip and the tile; a block of sums is within its row.
    unsafe {
        let mut sums = [[S::splat(0.0)]; R];
        for ([sum], kept) in sums.iter_mut().zip(&*kept) {
            *sum = S::load(kept[strip.block..].as_ptr());
        }
        multiply::<S, R, 1>(strip.steps, strip.rows, [strip.columns], PANEL, ahead, &mut sums);
        for ([sum], kept) in sums.into_iter().zip(kept) {
            S::store(kept[strip.block..].as_mut_ptr(), sum);
        }
    }
}
