//! Prefetching of keys and values.
//!
//! A core has only a dozen or so requested cache lines on their way at the same time. The second cache level adds to
//! them when it reads ahead, within each 4 KB of addresses that are read in order. So several such stretches are
//! requested at once, a few lines of each in turn.

use super::{
    super::{
        element::KvFormat,
        pages::{PageShape, Piece},
        simd::Simd,
        tile::{Ahead, LINE},
    },
    part::HeadPages,
};

/// Stretches that are requested in turn.
const SIDES: usize = 4;

/// Lines of a stretch, at most: as far as the second cache level reads ahead.
const STRETCH: usize = 64;

/// How many lines the requests may be ahead of the reads: these lines wait in the second cache level.
const LEAD: usize = 1024;

/// Lines of lead that the products need. The lead grows while nothing is read. The next products use it up, since they
/// request fewer lines than they read: memory is then as busy at one time as at the other.
const CLOSE: usize = 256;

/// Neighbouring cache lines.
pub(super) struct Stretch {
    from: *const f32,
    lines: usize,
    /// Lines of all parts up to its end.
    end: usize,
}

/// The keys and values that a thread's jobs read, in the order of reading, and how far they have been requested.
pub(super) struct Prefetcher {
    pub stretches: Vec<Stretch>,
    /// First of the stretches that are being requested.
    next: usize,
    /// The rest of each of these stretches; an empty place repeats the first.
    sides: [*const f32; SIDES],
    count: usize,
    /// Lines of each when the prefetcher turned to them, and the lines that are left of each.
    opened: usize,
    left: usize,
    /// Lines up to the end of the first of them.
    first_end: usize,
    /// Lines of all stretches.
    all: usize,
    /// Lines that have been requested, or read without a request.
    asked: usize,
    /// Lines that have been read.
    read: usize,
    /// Lines that are not needed any more.
    passed: usize,
    /// Lines of the keys, or of the values, of a page.
    of_page: usize,
}

impl Prefetcher {
    /// A prefetcher without stretches, in the memory of those of an earlier call.
    pub fn new(mut stretches: Vec<Stretch>, shape: PageShape) -> Self {
        stretches.clear();
        Self {
            stretches,
            next: 0,
            sides: [std::ptr::null(); SIDES],
            count: 0,
            opened: 0,
            left: 0,
            first_end: 0,
            all: 0,
            asked: 0,
            read: 0,
            passed: 0,
            of_page: shape.piece_len(Piece::Keys).div_ceil(LINE),
        }
    }

    /// Adds a part behind all others: its keys, then its values. Requests their scales, which are few.
    ///
    /// # Safety
    /// The instruction set of `S` must be available.
    #[inline(always)]
    pub unsafe fn push<S: Simd>(&mut self, part: &HeadPages<'_>) {
        let pages = part.pages;
        let most = (STRETCH / self.of_page).max(1);
        for (piece, scales) in [(Piece::Keys, Piece::KeyScales), (Piece::Values, Piece::ValueScales)] {
            let mut page = 0;
            while page < pages.len() {
                let neighbours = pages[page..].windows(2).take(most - 1).take_while(|two| two[0] + 1 == two[1]);
                let count = 1 + neighbours.count();
                let lines = count * self.of_page;
                self.all += lines;
                self.stretches.push(Stretch { from: part.at(piece, page), lines, end: self.all });
                page += count;
            }
            if part.shape.format == KvFormat::Int8 {
                for page in 0..pages.len() {
                    // SAFETY: the caller vouches for the instruction set.
                    unsafe { S::prefetch(part.at(scales, page)) };
                }
            }
        }
    }

    /// Notes that the keys, or the values, of `count` pages are not needed any more.
    pub fn pass(&mut self, count: usize) {
        self.passed += count * self.of_page;
    }

    /// Notes that the keys, or the values, of `count` pages are being read; `index` pages that have not passed lie
    /// before them. Returns the lines to request meanwhile, each side in `rounds` rounds.
    #[inline(always)]
    pub fn reading(&mut self, index: usize, count: usize, rounds: usize) -> Coming {
        self.read = self.read.max(self.passed + (index + count) * self.of_page);
        let lines = count * self.of_page;
        let close = self.asked <= self.read + CLOSE;
        self.coming(if close { lines + lines / 8 } else { lines - lines / 4 }, rounds)
    }

    /// Returns at most `lines` lines to request while nothing is being read.
    #[inline(always)]
    pub fn idle(&mut self, lines: usize) -> Coming {
        self.coming(lines, 1)
    }

    #[inline(always)]
    fn coming(&mut self, most: usize, rounds: usize) -> Coming {
        if self.next == self.stretches.len() {
            return Coming { from: self.sides, lines: 0, rounds: 0, asked: 0 };
        }
        if self.left == 0 || self.first_end <= self.read {
            self.turn_to_next();
        }
        let rounds = rounds.max(1);
        let most = most.min((self.read + LEAD).saturating_sub(self.asked)) / SIDES;
        let lines = most.min(self.left).div_ceil(rounds);
        let coming = Coming { from: self.sides, lines, rounds, asked: 0 };
        let asked = (lines * rounds).min(self.left);
        for side in &mut self.sides {
            *side = side.wrapping_add(asked * LINE);
        }
        self.left -= asked;
        self.asked += asked * self.count;
        coming
    }

    /// Leaves out stretches that have been requested or read, and turns to those behind them.
    #[inline(always)]
    fn turn_to_next(&mut self) {
        for (stretch, side) in self.stretches[self.next..].iter_mut().zip(self.sides).take(self.count) {
            stretch.lines -= self.opened - self.left;
            stretch.from = side;
        }
        while let Some(stretch) = self.stretches.get(self.next)
            && (stretch.lines == 0 || stretch.end <= self.read)
        {
            self.asked += stretch.lines;
            self.next += 1;
        }
        let window = self.stretches[self.next..].iter().take(SIDES).take_while(|stretch| stretch.lines > 0);
        (self.count, self.left, self.first_end) = (0, 0, usize::MAX);
        for stretch in window {
            if self.count == 0 {
                (self.sides, self.left, self.first_end) = ([stretch.from; SIDES], stretch.lines, stretch.end);
            }
            self.sides[self.count] = stretch.from;
            self.left = self.left.min(stretch.lines);
            self.count += 1;
        }
        self.opened = self.left;
    }
}

/// Cache lines to request while something else is done: in every round some lines of each side.
#[derive(Clone, Copy)]
pub(super) struct Coming {
    from: [*const f32; SIDES],
    /// Lines of a side in a round.
    lines: usize,
    /// Rounds that are left.
    rounds: usize,
    /// Lines of a side that were requested.
    asked: usize,
}

impl Ahead for Coming {
    #[inline(always)]
    unsafe fn ask<S: Simd>(&mut self) {
        if self.rounds > 0 {
            for line in self.asked..self.asked + self.lines {
                for from in self.from {
                    // SAFETY: the caller vouches for the instruction set, and the address need not be valid.
                    unsafe { S::prefetch(from.wrapping_add(line * LINE)) };
                }
            }
            self.asked += self.lines;
            self.rounds -= 1;
        }
    }
}

impl Coming {
    /// Requests the lines of all rounds that are left.
    ///
    /// # Safety
    /// The instruction set of `S` must be available.
    #[inline(always)]
    pub unsafe fn ask_rest<S: Simd>(&mut self) {
        while self.rounds > 0 {
            // SAFETY: the caller vouches for the instruction set.
            unsafe { self.ask::<S>() };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Keys and values of `pages` pages of 16 lines, in stretches of four pages; the last one may be shorter.
    fn ahead(pages: usize) -> Prefetcher {
        let shape = PageShape { layers: 1, kv_heads: 1, head_dim: 16, pages, format: KvFormat::Fp32 };
        let mut ahead = Prefetcher::new(Vec::new(), shape);
        for first in (0..pages).step_by(4) {
            let lines = 16 * (pages - first).min(4);
            ahead.all += lines;
            let from = (ahead.stretches.len() << 20) as *const f32;
            ahead.stretches.push(Stretch { from, lines, end: ahead.all });
        }
        ahead
    }

    fn note(asked: &mut Vec<usize>, coming: Coming) {
        let sides: HashSet<_> = coming.from.iter().map(|side| side.addr()).collect();
        asked.extend(sides.iter().flat_map(|side| (0..coming.rounds * coming.lines).map(move |line| side + 64 * line)));
    }

    #[test]
    fn every_line_is_asked_for_once_and_before_it_is_read() {
        for pages in [1, 3, 4, 17, 57, 200] {
            let mut ahead = ahead(pages);
            let mut asked = Vec::new();
            // Enough that nothing is read before it was requested.
            for _ in 0..20 {
                note(&mut asked, ahead.idle(64));
            }
            assert!(ahead.asked <= LEAD + 4, "a lead of {}", ahead.asked);
            for page in 0..pages {
                let lines = (0..16).map(|line| ((page / 4) << 20) + 64 * (16 * (page % 4) + line));
                let known: HashSet<_> = asked.iter().copied().collect();
                assert!(lines.into_iter().all(|line| known.contains(&line)), "page {page} of {pages}");
                note(&mut asked, ahead.reading(page, 1, 1));
                assert!(ahead.asked <= ahead.read + LEAD + 4);
            }
            let known: HashSet<_> = asked.iter().collect();
            assert_eq!((asked.len(), known.len()), (16 * pages, 16 * pages), "lines of {pages} pages");
            assert_eq!(ahead.idle(64).lines, 0, "nothing is left");
        }
    }

    #[test]
    fn what_was_read_without_is_not_asked_for() {
        let mut ahead = ahead(40);
        ahead.idle(64);
        let mut asked = Vec::new();
        note(&mut asked, ahead.reading(20, 4, 1));
        assert!(asked.iter().all(|line| line >> 20 >= 6), "pages up to the 24th are read: {asked:?}");
        assert!(!asked.is_empty());
    }

    #[test]
    fn products_ask_for_less_while_the_lead_is_long() {
        let mut ahead = ahead(200);
        ahead.idle(64);
        let close = ahead.reading(0, 2, 1);
        for _ in 0..20 {
            ahead.idle(64);
        }
        let far = ahead.reading(2, 2, 1);
        assert!(close.lines * SIDES > 32 && far.lines * SIDES < 32, "{} and {} lines", close.lines, far.lines);
    }
}
