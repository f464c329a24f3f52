//! Asking for pages before they are read.

use super::super::{simd::Simd, tile::LINE};

/// Pages that may be asked for before the one at hand: they wait in the second cache level.
const MOST: usize = 16;

/// The pages of a thread's tasks in the order in which they are read, and how far they have been asked for.
#[derive(Default)]
pub(super) struct Ahead {
    pages: Vec<*const f32>,
    page_lines: usize,
    /// First page that has not been asked for.
    next: usize,
    /// Pages that were read.
    read: usize,
    /// The rest of the page before `next`.
    from: *const f32,
    left: usize,
}

impl Ahead {
    /// Forgets the last call; pages have `page_len` words in this one.
    pub fn clear(&mut self, page_len: usize) {
        let pages = std::mem::take(&mut self.pages);
        *self = Self { pages, page_lines: page_len.div_ceil(LINE), ..Self::default() };
        self.pages.clear();
    }

    /// Adds a page behind all others.
    pub fn push(&mut self, page: *const f32) {
        self.pages.push(page);
    }

    /// The next `count` pages are being read.
    pub fn reading(&mut self, count: usize) {
        self.read += count;
        if self.next < self.read {
            (self.next, self.left) = (self.read, 0);
        }
    }

    /// Asks for up to `lines` cache lines.
    #[inline(always)]
    pub unsafe fn fetch<S: Simd>(&mut self, lines: usize) {
        if self.left == 0 {
            if self.next >= self.pages.len().min(self.read + MOST) {
                return;
            }
            (self.from, self.left) = (self.pages[self.next], self.page_lines);
            self.next += 1;
        }
        let lines = lines.min(self.left);
        for line in 0..lines {
            // SAFETY: passed on to the caller.
            unsafe { S::prefetch(self.from.wrapping_add(line * LINE)) };
        }
        self.from = self.from.wrapping_add(lines * LINE);
        self.left -= lines;
    }
}
