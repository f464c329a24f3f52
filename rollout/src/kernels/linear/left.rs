//! The left side of a product: rows of the input, normed, rounded and laid out for the innermost loop.

use std::cell::RefCell;

use super::{
    super::{
        packed::{
            BYTE_MAX, Format, PackedShape, TILE_STEPS, from_bf16, largest, nearest, small_half, to_bf16, to_bytes,
        },
        parallel::Shared,
        simd::{Isa, LANES, QUAD, Simd, Task},
        tile::Tiling,
    },
    Input, Linear, Norm,
};

/// How the rows lie, in words of four bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Rows that are multiplied at once.
    pub tiling: Tiling,
    /// Words of a row.
    pub words: usize,
    /// Word `k` of row `r` of a tile of height `h`: at `k * h + r`. Or sixteen words of sixteen rows at a time, a block
    /// of rows after the other, as tile registers take them.
    blocks: bool,
}

impl Layout {
    pub fn new(shape: PackedShape, rows: usize, isa: Isa) -> Self {
        let steps = shape.steps();
        if shape.format != Format::Float && isa.has_tiles() {
            return Self { tiling: Tiling::in_blocks(rows, 2, TILE_STEPS), words: steps, blocks: true };
        }
        let (most, words) = match shape.format {
            Format::Float | Format::Byte => (isa.rows(), steps),
            // Chains for first and second elements: twice the sums, and the input as fp32.
            Format::Half | Format::Split => ((isa.rows() / 2).max(1), 2 * steps),
        };
        Self { tiling: Tiling::new(rows, most), words, blocks: false }
    }

    /// Words of all rows, and one more for each as its scale.
    pub fn len(self) -> usize {
        self.scale(self.tiling.rows())
    }

    /// Where a tile begins.
    pub fn tile(self, first: usize) -> usize {
        first * self.words
    }

    /// Where the scale of a row is.
    pub fn scale(self, row: usize) -> usize {
        let rows = self.tiling.rows();
        (if self.blocks { rows.next_multiple_of(TILE_STEPS) } else { rows }) * self.words + row
    }

    /// Tasks of [`Pack`]: a tile, since its rows share every cache line, or a row where they do not.
    pub fn tasks(self) -> usize {
        if self.blocks { self.tiling.rows() } else { self.tiling.count() }
    }
}

/// One of the tasks of a [`Layout`].
pub(super) struct Pack<'a> {
    pub layer: &'a Linear<'a>,
    pub input: &'a Input<'a>,
    pub task: usize,
    pub layout: Layout,
    pub left: Shared<f32>,
}

thread_local! {
    /// The row at hand, normed.
    static NORMED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Task for Pack<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let depth = self.layer.shape.depth;
        let (first, height) = if self.layout.blocks { (self.task, 1) } else { self.layout.tiling.tile(self.task) };
        let mut normed = NORMED.take();
        normed.resize(depth, 0.0);
        for r in 0..height {
            let row = first + r;
            let source = self.input.rows.map_or(row, |rows| rows[row]);
            let mut x = &self.input.x[source * depth..(source + 1) * depth];
            // SAFETY: the instruction set is the caller's; the words of a task are written by it alone.
            unsafe {
                if let Some(norm) = self.layer.norm {
                    rms_norm::<S>(x, norm, &mut normed);
                    x = &normed;
                }
                if self.layout.blocks {
                    self.row_of_block(row, x);
                } else {
                    self.row_of_tile(self.layout.tile(first) + r, height, row, x);
                }
            }
        }
        NORMED.set(normed);
    }
}

/// What bytes of the input are stored with for vector registers, where they are unsigned.
pub(super) const OFFSET: i32 = 128;

/// Scale of a row of bytes, and what its figures are multiplied with.
fn byte_scale(x: &[f32]) -> (f32, f32) {
    let largest = largest(x);
    (largest / BYTE_MAX, to_bytes(largest))
}

#[inline(always)]
fn byte(x: f32, factor: f32) -> u8 {
    (nearest(x * factor) + OFFSET) as u8
}

impl Pack<'_> {
    /// Every word of the row `height` words after the one before.
    #[inline(always)]
    unsafe fn row_of_tile(&self, start: usize, height: usize, row: usize, x: &[f32]) {
        let mut to = self.left.at(start);
        // SAFETY: within the tile, or one row past it at the end.
        unsafe {
            let mut put = |word: f32| {
                *to = word;
                to = to.wrapping_add(height);
            };
            match self.layer.shape.format {
                Format::Float => x.iter().for_each(|&x| put(x)),
                Format::Byte => {
                    let (scale, factor) = byte_scale(x);
                    let (quads, rest) = x.as_chunks::<QUAD>();
                    quads.iter().for_each(|quad| put(bytemuck::cast(quad.map(|x| byte(x, factor)))));
                    let mut last = [0.0; QUAD];
                    last[..rest.len()].copy_from_slice(rest);
                    for _ in quads.len()..self.layout.words {
                        put(bytemuck::cast(last.map(|x| byte(x, factor))));
                        last = [0.0; QUAD];
                    }
                    *self.left.at(self.layout.scale(row)) = scale;
                }
                Format::Half => {
                    x.iter().for_each(|&x| put(from_bf16(to_bf16(x))));
                    (x.len()..self.layout.words).for_each(|_| put(0.0));
                }
                Format::Split => for_chunks(x, |chunk: &[f32; 2 * TILE_STEPS]| {
                    chunk.iter().for_each(|&x| put(from_bf16(to_bf16(x))));
                    chunk.iter().for_each(|&x| put(from_bf16(small_half(x))));
                }),
            }
        }
    }

    /// Sixteen words at a time.
    #[inline(always)]
    unsafe fn row_of_block(&self, row: usize, x: &[f32]) {
        const WORDS: usize = TILE_STEPS;
        let block = self.layout.tile(row / TILE_STEPS * TILE_STEPS);
        let mut to = self.left.at(block + row % TILE_STEPS * WORDS).cast::<[u32; WORDS]>();
        // SAFETY: within the block, or a row past it at the end.
        unsafe {
            let mut put = |words: [u32; WORDS]| {
                *to = words;
                to = to.wrapping_add(TILE_STEPS);
            };
            match self.layer.shape.format {
                Format::Byte => {
                    let (scale, factor) = byte_scale(x);
                    for_chunks(x, |chunk: &[f32; QUAD * WORDS]| {
                        put(bytemuck::cast(chunk.map(|x| nearest(x * factor) as i8)));
                    });
                    *self.left.at(self.layout.scale(row)) = scale;
                }
                Format::Half => for_chunks(x, |chunk: &[f32; 2 * WORDS]| put(bytemuck::cast(chunk.map(to_bf16)))),
                Format::Split => for_chunks(x, |chunk: &[f32; 2 * WORDS]| {
                    put(bytemuck::cast(chunk.map(to_bf16)));
                    put(bytemuck::cast(chunk.map(small_half)));
                }),
                Format::Float => unreachable!("floats are not multiplied in tiles"),
            }
        }
    }
}

/// Whole chunks; the last one is filled up with zeros.
#[inline(always)]
fn for_chunks<const N: usize>(x: &[f32], mut f: impl FnMut(&[f32; N])) {
    let (chunks, rest) = x.as_chunks::<N>();
    chunks.iter().for_each(&mut f);
    if !rest.is_empty() {
        let mut last = [0.0; N];
        last[..rest.len()].copy_from_slice(rest);
        f(&last);
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
pub(in crate::kernels) unsafe fn inverse_rms<S: Simd>(x: &[f32], epsilon: f32) -> f32 {
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
