//! The innermost loop of products: a few rows times a few blocks of columns, with the sums in registers.

use super::simd::{LANES, PairDot, Simd};

/// Words of a row of the left side that lie together, before those of the next row. The distance of two rows is so
/// short that it fits into an instruction, and rows need no registers for their addresses.
pub(super) const STRETCH: usize = 576;

/// Words of a cache line.
pub(super) const LINE: usize = 16;
/// Steps of the loop between two rounds of prefetching.
pub(super) const UNROLL: usize = 4;

/// Memory that will be needed soon.
pub(super) trait Ahead {
    /// Asks for the cache lines of a round.
    ///
    /// # Safety
    /// The instruction set of `S` must be available.
    unsafe fn ask<S: Simd>(&mut self);
}

/// Memory that lies together: `lines` cache lines in every round.
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    pub from: *const f32,
    pub lines: usize,
}

impl Ahead for Prefetch {
    #[inline(always)]
    unsafe fn ask<S: Simd>(&mut self) {
        for _ in 0..self.lines {
            // SAFETY: the caller vouches for the instruction set, and the address need not be valid.
            unsafe { S::prefetch(self.from) };
            self.from = self.from.wrapping_add(LINE);
        }
    }
}

/// A matrix of floats, row by row.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub data: *mut f32,
    pub stride: usize,
}

impl Matrix {
    pub fn row(self, row: usize) -> Self {
        Self { data: self.data.wrapping_add(row * self.stride), ..self }
    }
}

/// Where blocks of columns begin that lie side by side.
#[inline(always)]
pub(super) fn blocks<const N: usize>(first: *const f32) -> [*const f32; N] {
    let mut blocks = [first; N];
    for (n, block) in blocks.iter_mut().enumerate() {
        *block = block.wrapping_add(n * LANES);
    }
    blocks
}

/// `sums[r][n] += Σ a[r, k] * b[k, n]` for k in ascending order; block `n` of row `k` is at `b[n] + k * step`.
///
/// # Safety
/// The instruction set of `S` must be available, and both sides valid for `R` rows, `N` blocks and `depth` steps.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd, const R: usize, const N: usize>(
    depth: usize,
    a: Matrix,
    b: [*const f32; N],
    step: usize,
    ahead: &mut impl Ahead,
    sums: &mut [[S::V; N]; R],
) {
    let mut acc = *sums;
    let mut k = 0;
    // SAFETY: k stays below depth, for which the caller vouches that both sides are valid.
    unsafe {
        while k + UNROLL <= depth {
            for i in 0..UNROLL {
                step_of::<S, R, N>(k + i, a, b, step, &mut acc);
            }
            ahead.ask::<S>();
            k += UNROLL;
        }
        while k < depth {
            step_of::<S, R, N>(k, a, b, step, &mut acc);
            k += 1;
        }
    }
    *sums = acc;
}

#[inline(always)]
unsafe fn step_of<S: Simd, const R: usize, const N: usize>(
    k: usize,
    a: Matrix,
    b: [*const f32; N],
    step: usize,
    acc: &mut [[S::V; N]; R],
) {
    // SAFETY: whoever has called `multiply` vouches for the row and the blocks.
    unsafe {
        // Loops instead of closures, which would not be compiled for the instruction set.
        let mut columns = [S::splat(0.0); N];
        for (column, block) in columns.iter_mut().zip(b) {
            *column = S::load(block.add(k * step));
        }
        for (r, row) in acc.iter_mut().enumerate() {
            let x = S::splat(*a.data.add(r * a.stride + k));
            for (sum, column) in row.iter_mut().zip(columns) {
                *sum = S::fma(x, column, *sum);
            }
        }
    }
}

/// `sums[r][n] += Σ a[r, k] * b[k, n]` over pairs of bf16: row `r` of `a` has [`PairDot::WORDS`] words for each of
/// `steps` pairs, and sixteen pairs of block `n` of step `k` are at `b[n] + k * step`.
///
/// # Safety
/// The instruction sets of `S` and `D` must be available, and both sides valid for `R` rows, `N` blocks and `steps`
/// steps.
#[inline(always)]
pub(super) unsafe fn multiply_pairs<S: Simd, D: PairDot, const R: usize, const N: usize>(
    steps: usize,
    a: Matrix,
    b: [*const f32; N],
    step: usize,
    ahead: &mut impl Ahead,
    sums: &mut [[D::F; N]; R],
) {
    let mut acc = *sums;
    let mut k = 0;
    // SAFETY: k stays below `steps`, for which the caller vouches that both sides are valid.
    unsafe {
        while k + UNROLL <= steps {
            for i in 0..UNROLL {
                step_of_pairs::<D, R, N>(k + i, a, b, step, &mut acc);
            }
            ahead.ask::<S>();
            k += UNROLL;
        }
        while k < steps {
            step_of_pairs::<D, R, N>(k, a, b, step, &mut acc);
            k += 1;
        }
    }
    *sums = acc;
}

#[inline(always)]
unsafe fn step_of_pairs<D: PairDot, const R: usize, const N: usize>(
    k: usize,
    a: Matrix,
    b: [*const f32; N],
    step: usize,
    acc: &mut [[D::F; N]; R],
) {
    // SAFETY: whoever has called `multiply_pairs` vouches for the row and the blocks.
    unsafe {
        // Loops instead of closures, as in `step_of`.
        let mut columns = [D::columns(b[0].add(k * step)); N];
        for (column, block) in columns.iter_mut().zip(b).skip(1) {
            *column = D::columns(block.add(k * step));
        }
        for (r, row) in acc.iter_mut().enumerate() {
            let x = D::row(a.data.add(r * a.stride + k * D::WORDS));
            for (sum, column) in row.iter_mut().zip(columns) {
                *sum = D::dot(*sum, x, column);
            }
        }
    }
}

/// Calls `$function::<$s, R>(…)` for the R that equals `$rows`, at most `$most`.
macro_rules! for_rows {
    ($rows:expr, $most:expr, $function:ident::<$s:ident $(, $d:ident)?>($($argument:expr),* $(,)?)) => {
        match $rows {
            1 => $function::<$s $(, $d)?, 1>($($argument),*),
            2 if const { $most >= 2 } => $function::<$s $(, $d)?, 2>($($argument),*),
            3 if const { $most >= 3 } => $function::<$s $(, $d)?, 3>($($argument),*),
            4 if const { $most >= 4 } => $function::<$s $(, $d)?, 4>($($argument),*),
            5 if const { $most >= 5 } => $function::<$s $(, $d)?, 5>($($argument),*),
            6 if const { $most >= 6 } => $function::<$s $(, $d)?, 6>($($argument),*),
            7 if const { $most >= 7 } => $function::<$s $(, $d)?, 7>($($argument),*),
            8 if const { $most >= 8 } => $function::<$s $(, $d)?, 8>($($argument),*),
            9 if const { $most >= 9 } => $function::<$s $(, $d)?, 9>($($argument),*),
            10 if const { $most >= 10 } => $function::<$s $(, $d)?, 10>($($argument),*),
            11 if const { $most >= 11 } => $function::<$s $(, $d)?, 11>($($argument),*),
            12 if const { $most >= 12 } => $function::<$s $(, $d)?, 12>($($argument),*),
            rows => unreachable!("a tile of {rows} rows"),
        }
    };
}
pub(super) use for_rows;

/// How `rows` rows are cut into tiles of at most `most`: as few as possible, of nearly the same height.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiling {
    count: usize,
    height: usize,
    taller: usize,
    /// Heights are in blocks of so many rows; the last one may be cut short.
    block: usize,
    rows: usize,
}

impl Tiling {
    pub fn new(rows: usize, most: usize) -> Self {
        Self::in_blocks(rows, most, 1)
    }

    /// Tiles of whole blocks of `block` rows, at most `most` blocks each.
    pub fn in_blocks(rows: usize, most: usize, block: usize) -> Self {
        let blocks = rows.div_ceil(block);
        let count = blocks.div_ceil(most);
        let (height, taller) = (blocks.checked_div(count).unwrap_or(0), blocks.checked_rem(count).unwrap_or(0));
        Self { count, height, taller, block, rows }
    }

    pub fn count(self) -> usize {
        self.count
    }

    pub fn rows(self) -> usize {
        self.rows
    }

    /// First row and number of rows of a tile.
    pub fn tile(self, index: usize) -> (usize, usize) {
        let first = self.block * (index * self.height + index.min(self.taller));
        let height = self.block * (self.height + usize::from(index < self.taller));
        (first, height.min(self.rows - first))
    }
}

/// Columns of a panel: two blocks.
pub const PANEL: usize = 2 * LANES;
