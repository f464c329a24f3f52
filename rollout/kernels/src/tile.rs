//! The innermost loop: a few rows times two blocks of columns, with the sums in registers.

use super::simd::{LANES, Simd};

/// Words of a row of the left side that lie together, before those of the next row: the distance of two rows is one
/// that instructions hold, so that rows need no registers.
pub(super) const STRETCH: usize = 576;

/// Memory that will be needed soon: `lines` cache lines for every four steps of the loop.
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    pub from: *const f32,
    pub lines: usize,
}

/// LargeBuffer in a cache line.
pub(super) const LINE: usize = 16;
/// Steps of the loop between two rounds of prefetching.
pub(super) const UNROLL: usize = 4;

/// `sums[r][n] += a[r, k] * b[k, n]` for k in ascending order; the rows of `a` are [`STRETCH`] words apart, `b` is a panel.
///
/// # Safety
/// The instruction set of `S` must be available, and both sides valid for `R` rows and `depth` steps, at most [`STRETCH`].
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd, const R: usize>(
    depth: usize,
    a: *const f32,
    b: *const f32,
    ahead: &mut Prefetch,
    sums: &mut [[S::V; 2]; R],
) {
    let mut acc = *sums;
    let mut k = 0;
    // SAFETY: k stays below depth; the rest is passed on to the caller.
    unsafe {
        while k + UNROLL <= depth {
            for i in 0..UNROLL {
                step::<S, R>(a.add(k + i), b.add((k + i) * PANEL), &mut acc);
            }
            for _ in 0..ahead.lines {
                S::prefetch(ahead.from);
                ahead.from = ahead.from.wrapping_add(LINE);
            }
            k += UNROLL;
        }
        while k < depth {
            step::<S, R>(a.add(k), b.add(k * PANEL), &mut acc);
            k += 1;
        }
    }
    *sums = acc;
}

#[inline(always)]
unsafe fn step<S: Simd, const R: usize>(a: *const f32, b: *const f32, acc: &mut [[S::V; 2]; R]) {
    // SAFETY: passed on to the caller of `multiply`.
    unsafe {
        let columns = [S::load(b), S::load(b.add(LANES))];
        for (r, row) in acc.iter_mut().enumerate() {
            let x = S::splat(*a.add(r * STRETCH));
            for (sum, column) in row.iter_mut().zip(columns) {
                *sum = S::fma(x, column, *sum);
            }
        }
    }
}

/// Calls `$function::<$s, R>(…)` for the R that equals `$rows`, at most [`Simd::ROWS`].
macro_rules! for_rows {
    ($rows:expr, $function:ident::<$s:ident $(, $d:ident)?>($($argument:expr),* $(,)?)) => {
        match $rows {
            1 => $function::<$s $(, $d)?, 1>($($argument),*),
            2 if $s::ROWS >= 2 => $function::<$s $(, $d)?, 2>($($argument),*),
            3 if $s::ROWS >= 3 => $function::<$s $(, $d)?, 3>($($argument),*),
            4 if $s::ROWS >= 4 => $function::<$s $(, $d)?, 4>($($argument),*),
            5 if $s::ROWS >= 5 => $function::<$s $(, $d)?, 5>($($argument),*),
            6 if $s::ROWS >= 6 => $function::<$s $(, $d)?, 6>($($argument),*),
            7 if $s::ROWS >= 7 => $function::<$s $(, $d)?, 7>($($argument),*),
            8 if $s::ROWS >= 8 => $function::<$s $(, $d)?, 8>($($argument),*),
            9 if $s::ROWS >= 9 => $function::<$s $(, $d)?, 9>($($argument),*),
            10 if $s::ROWS >= 10 => $function::<$s $(, $d)?, 10>($($argument),*),
            11 if $s::ROWS >= 11 => $function::<$s $(, $d)?, 11>($($argument),*),
            12 if $s::ROWS >= 12 => $function::<$s $(, $d)?, 12>($($argument),*),
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

    /// Of tiles of whole blocks of `block` rows, at most `most` blocks each.
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
