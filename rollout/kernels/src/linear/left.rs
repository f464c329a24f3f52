//! The left side of a product: rows of the input, normed, rounded and laid out for the innermost loop.

use std::cell::RefCell;

use super::{
    super::{
        element::{
            BLOCK, BYTE_MAX, Format, NIBBLE_OFFSET, QUAD, TILE_STEPS, from_bf16, largest, nearest, small_half, to_bf16,
            to_bytes,
        },
        packed::PackedShape,
        parallel::Shared,
        simd::{Isa, LANES, Simd, Task},
        tile::{STRETCH, Tiling},
    },
    Input, Linear, Norm,
};

/// How the rows lie, in words of four bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Rows that are multiplied at once.
    pub tiling: Tiling,
    /// Words of a row.
    words: usize,
    /// Whether rows lie as tile registers take them: sixteen words of sixteen rows at a time, one block of rows after
    /// the other. Else [`STRETCH`] words of all rows, row by row, lie before the next stretch of them.
    blocks: bool,
    /// Whether a word is a pair of bf16, where the rows of [`Format::Bf16Dot`] would else be fp32.
    pairs: bool,
}

impl Layout {
    pub fn new(shape: PackedShape, rows: usize, isa: Isa) -> Self {
        let steps = shape.steps();
        if isa.takes_tiles(shape.format) {
            return Self { tiling: Tiling::in_blocks(rows, 2, TILE_STEPS), words: steps, blocks: true, pairs: false };
        }
        let (rows_of_tile, blocks) = isa.tile();
        let (most, words) = match shape.format {
            Format::Fp32 => (block_rows(rows_of_tile, blocks), steps),
            Format::Int8 => (rows_of_tile, steps),
            // Whole sums of half a panel beside the sums of all of it.
            Format::Int4 => (nibble_rows(rows_of_tile), steps),
            // Chains for first and second elements: twice the sums, and the input as fp32.
            Format::Bf16 | Format::Bf16x3 => ((rows_of_tile / 2).max(1), 2 * steps),
            Format::Bf16Dot => {
                (pair_rows(rows_of_tile, blocks), if isa.has_pair_products() { steps } else { 2 * steps })
            }
        };
        let pairs = shape.format == Format::Bf16Dot && isa.has_pair_products();
        Self { tiling: Tiling::new(rows, most), words: words.next_multiple_of(STRETCH), blocks: false, pairs }
    }

    /// Words of all rows, and one more for each as its scale.
    pub fn len(self) -> usize {
        self.scale(self.tiling.rows())
    }

    /// Where a block of rows begins.
    pub fn block(self, first: usize) -> usize {
        first * self.words
    }

    /// Where the stretch of a row begins that has `word` as its first word.
    pub fn stretch(self, word: usize, row: usize) -> usize {
        debug_assert!(word.is_multiple_of(STRETCH), "a stretch begins at word {word}");
        word * self.tiling.rows() + row * STRETCH
    }

    /// Where the scale of a row is.
    pub fn scale(self, row: usize) -> usize {
        let rows = self.tiling.rows();
        (if self.blocks { rows.next_multiple_of(TILE_STEPS) } else { rows }) * self.words + row
    }
}

/// Rows of a tile of so many blocks, where the registers hold `rows` rows of sums of two blocks.
pub(super) const fn block_rows(rows: usize, blocks: usize) -> usize {
    rows * 2 / blocks
}

/// The same for [`Format::Bf16Dot`], whose widened pairs take one register more.
pub(super) const fn pair_rows(rows: usize, blocks: usize) -> usize {
    if blocks == 1 { block_rows(rows, blocks) - 1 } else { rows }
}

/// Rows of a tile of [`Format::Int4`], where the registers hold so many rows of sums.
pub(super) const fn nibble_rows(rows: usize) -> usize {
    if rows == 1 { 1 } else { rows * 2 / 3 }
}

/// Rows that a thread lays out before it claims more: few, so that all threads get some, but claiming takes time too.
pub(super) const ROWS_OF_TASK: usize = 4;

/// Lays out some rows.
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
        let mut normed = NORMED.take();
        normed.resize(depth, 0.0);
        let first = self.task * ROWS_OF_TASK;
        for row in first..self.layout.tiling.rows().min(first + ROWS_OF_TASK) {
            let source = self.input.rows.map_or(row, |rows| rows[row]);
            let mut x = &self.input.x[source * depth..(source + 1) * depth];
            // SAFETY: the instruction set is the caller's; the words of a row are written by its task alone.
            unsafe {
                if let Some(norm) = self.layer.norm {
                    rms_norm::<S>(x, norm, &mut normed);
                    x = &normed;
                }
                if self.layout.blocks {
                    self.row_of_block(row, x);
                } else {
                    self.row_of_stretches(row, x);
                }
            }
        }
        NORMED.set(normed);
    }
}

/// Added to the bytes of the input for vector registers, where they are unsigned.
pub(super) const OFFSET: i32 = 128;

/// Scale of a row of bytes, and the factor that turns its numbers into bytes.
fn byte_scale(x: &[f32]) -> (f32, f32) {
    let largest = largest(x);
    (largest / BYTE_MAX, to_bytes(largest))
}

#[inline(always)]
fn byte(x: f32, factor: f32) -> u8 {
    (nearest(x * factor) + OFFSET) as u8
}

impl Pack<'_> {
    /// A stretch of words at a time.
    #[inline(always)]
    unsafe fn row_of_stretches(&self, row: usize, x: &[f32]) {
        let stretch = |word: usize| self.left.at(self.layout.stretch(word, row));
        let mut words = 0;
        // SAFETY: within the stretches of the row.
        unsafe {
            let mut put = |word: f32| {
                *stretch(words / STRETCH * STRETCH).add(words % STRETCH) = word;
                words += 1;
            };
            match self.layer.shape.format {
                Format::Fp32 => {
                    for (i, x) in x.chunks(STRETCH).enumerate() {
                        stretch(i * STRETCH).copy_from_nonoverlapping(x.as_ptr(), x.len());
                    }
                }
                Format::Int8 => {
                    let (scale, factor) = byte_scale(x);
                    for_chunks(x, |quad: &[f32; QUAD]| put(bytemuck::cast(quad.map(|x| byte(x, factor)))));
                    for _ in x.len().div_ceil(QUAD)..self.layer.shape.steps() {
                        put(bytemuck::cast([byte(0.0, factor); QUAD]));
                    }
                    *self.left.at(self.layout.scale(row)) = scale;
                }
                Format::Int4 => {
                    let (scale, factor) = byte_scale(x);
                    for_chunks(x, |block: &[f32; BLOCK]| {
                        let bytes = block.map(|x| nearest(x * factor) as i8);
                        bytes.as_chunks::<QUAD>().0.iter().for_each(|quad| put(bytemuck::cast(*quad)));
                        let sum: i32 = bytes.iter().map(|&byte| i32::from(byte)).sum();
                        put(bytemuck::cast(-NIBBLE_OFFSET * sum));
                    });
                    *self.left.at(self.layout.scale(row)) = scale;
                }
                Format::Bf16 => {
                    x.iter().for_each(|&x| put(from_bf16(to_bf16(x))));
                    (x.len()..2 * self.layer.shape.steps()).for_each(|_| put(0.0));
                }
                Format::Bf16Dot => {
                    let mut words = 0;
                    for_chunks(x, |chunk: &[f32; 2 * TILE_STEPS]| {
                        // Sixteen pairs make a whole part of a stretch, as pairs and as fp32.
                        let to = stretch(words / STRETCH * STRETCH).add(words % STRETCH);
                        if self.layout.pairs {
                            to.cast::<[u16; 2 * TILE_STEPS]>().write_unaligned(chunk.map(to_bf16));
                            words += TILE_STEPS;
                        } else {
                            to.cast::<[f32; 2 * TILE_STEPS]>().write_unaligned(chunk.map(|x| from_bf16(to_bf16(x))));
                            words += 2 * TILE_STEPS;
                        }
                    });
                }
                Format::Bf16x3 => for_chunks(x, |chunk: &[f32; 2 * TILE_STEPS]| {
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
        let block = self.layout.block(row / TILE_STEPS * TILE_STEPS);
        let mut to = self.left.at(block + row % TILE_STEPS * WORDS).cast::<[u32; WORDS]>();
        // SAFETY: within the block, or a row past it at the end.
        unsafe {
            let mut put = |words: [u32; WORDS]| {
                *to = words;
                to = to.wrapping_add(TILE_STEPS);
            };
            match self.layer.shape.format {
                Format::Int8 => {
                    let (scale, factor) = byte_scale(x);
                    for_chunks(x, |chunk: &[f32; QUAD * WORDS]| {
                        put(bytemuck::cast(chunk.map(|x| nearest(x * factor) as i8)));
                    });
                    *self.left.at(self.layout.scale(row)) = scale;
                }
                Format::Bf16 => for_chunks(x, |chunk: &[f32; 2 * WORDS]| put(bytemuck::cast(chunk.map(to_bf16)))),
                Format::Bf16x3 => for_chunks(x, |chunk: &[f32; 2 * WORDS]| {
                    put(bytemuck::cast(chunk.map(to_bf16)));
                    put(bytemuck::cast(chunk.map(small_half)));
                }),
                Format::Fp32 | Format::Int4 | Format::Bf16Dot => unreachable!("tiles have another order of sums"),
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
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(crate) unsafe fn rms_norm<S: Simd>(x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    // SAFETY: the caller vouches for the instruction set.
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
pub(crate) unsafe fn inverse_rms<S: Simd>(x: &[f32], epsilon: f32) -> f32 {
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
