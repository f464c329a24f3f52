//! Products in the tile registers of AMX: 32 rows at a time.

use super::{
    super::{
        element::{Format, TILE_STEPS},
        simd::{LANES, Simd, Task, TileBytes, TileDot, TileHalves, TileProduct, TileSplits, Tiles},
        tile::{Ahead, LINE, PANEL, Prefetch},
    },
    PanelTile, PanelTiles, Panels,
    finish::{finish_biased, finish_bytes},
};

/// [`Panels`] of all formats but floats, on a machine with tiles.
pub(super) struct OnTiles<'a>(pub Panels<'a>);

/// Sums of two blocks of rows.
#[repr(align(64))]
struct Sums([[u32; PANEL]; 2 * TILE_STEPS]);

impl Task for OnTiles<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let panels = &self.0;
        let mut sums = Sums([[0; PANEL]; 2 * TILE_STEPS]);
        // SAFETY: the task is run only where tiles are granted; each panel is claimed once, so that no two threads
        // write the same columns.
        unsafe {
            let _tiles = Tiles::new();
            let (shape, round) = (panels.layer.shape, panels.layer.shape.format.round());
            for PanelTile { panel, first, height, ahead } in PanelTiles::new(panels, round) {
                let count = shape.steps() / round;
                // Half of the next panel is requested during the product and half while the sums become outputs. So
                // memory, which limits products of few rows, is never idle.
                let lines = ahead.lines / 2;
                let mut coming = Prefetch {
                    from: ahead.from.wrapping_add(lines * count * LINE),
                    lines: ((ahead.lines - lines) * count).div_ceil(height),
                };
                let product = TileProduct {
                    left: panels.left.at(panels.layout.block(first)),
                    second: TILE_STEPS * shape.steps() * size_of::<f32>(),
                    right: panels.layer.panels.as_ptr().add(panel * shape.panel_len()),
                    count,
                    sums: sums.0.as_mut_ptr(),
                    ahead: ahead.from,
                    lines,
                };
                let bytes = shape.format == Format::Int8;
                match shape.format {
                    Format::Int8 => multiply::<TileBytes>(product, height),
                    Format::Bf16 => multiply::<TileHalves>(product, height),
                    Format::Bf16x3 => multiply::<TileSplits>(product, height),
                    Format::Fp32 | Format::Int4 | Format::Bf16Dot => unreachable!("tiles have another order of sums"),
                }
                for (r, sums) in sums.0.iter().take(height).enumerate() {
                    coming.ask::<S>();
                    if bytes {
                        finish_bytes::<S>(panels, panel, first + r, bytemuck::cast_ref(sums));
                    } else {
                        let sums: &[f32; PANEL] = bytemuck::cast_ref(sums);
                        let (low, high) = (S::load(sums.as_ptr()), S::load(sums[LANES..].as_ptr()));
                        finish_biased::<S>(panels, panel, first + r, low, high);
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply<D: TileDot>(product: TileProduct, height: usize) {
    // SAFETY: the caller vouches for the tiles and for the addresses of both blocks of rows.
    unsafe { if height > TILE_STEPS { D::two(product) } else { D::one(product) } }
}
