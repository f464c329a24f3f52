//! Asking for keys and values before they are read.

use super::{
    super::{
        element::KvFormat,
        pages::{PageShape, Piece},
        simd::Simd,
        tile::LINE,
    },
    product::Part,
};

/// Keys, or values, of a page.
#[derive(Clone, Copy)]
struct Half {
    from: *const f32,
    /// The scales of bytes lie elsewhere.
    scales: Option<*const f32>,
}

/// Halves that may be asked for before the one at hand: they wait in the second cache level.
const LEAD: usize = 8;

/// Halves that are read at once, at most.
const AT_ONCE: usize = 4;

/// The halves of pages that a thread's jobs read, in the order in which they do, and how far they have been asked for.
#[derive(Default)]
pub(super) struct Ahead {
    halves: Vec<Half>,
    /// Cache lines of a half.
    lines: usize,
    /// First half that has not been asked for.
    next: usize,
    /// Halves that are not needed any more.
    passed: usize,
}

impl Ahead {
    /// Forgets the last call.
    pub fn clear(&mut self, shape: PageShape) {
        let halves = std::mem::take(&mut self.halves);
        *self = Self { halves, lines: shape.piece_len(Piece::Keys).div_ceil(LINE), ..Self::default() };
        self.halves.clear();
    }

    /// Adds a part behind all others: its keys, then its values.
    pub fn push(&mut self, part: &Part<'_>) {
        for (piece, scales) in [(Piece::Keys, Piece::KeyScales), (Piece::Values, Piece::ValueScales)] {
            let (pieces, scales) = (part.pieces(piece), part.pieces(scales));
            let bytes = part.call.shape.format == KvFormat::Byte;
            self.halves.extend(
                (0..part.pages.len())
                    .map(|index| Half { from: pieces.at(index), scales: bytes.then(|| scales.at(index)) }),
            );
        }
    }

    /// The next `count` halves are not needed any more.
    pub fn pass(&mut self, count: usize) {
        self.passed += count;
    }

    /// `count` halves from the `index`th on that has not passed are being read. What is to be asked for meanwhile: as many,
    /// and one more until there is enough of a lead. Asking faster than memory answers keeps what lies in the caches
    /// waiting too.
    ///
    /// # Safety
    /// The instruction set of `S` must be available.
    #[inline(always)]
    pub unsafe fn reading<S: Simd>(&mut self, index: usize, count: usize) -> Coming {
        let read = self.passed + index + count;
        self.next = self.next.max(read);
        let end = self.halves.len().min(read + LEAD).min(self.next + count + 1);
        let mut coming = Coming { lines: self.lines, ..Coming::NOTHING };
        while self.next < end {
            let half = self.halves[self.next];
            coming.from[coming.count] = half.from;
            coming.count += 1;
            self.next += 1;
            if let Some(scales) = half.scales {
                // SAFETY: passed on to the caller.
                unsafe { S::prefetch(scales) };
            }
        }
        coming
    }
}

/// Halves that are asked for while others are read.
pub(super) struct Coming {
    from: [*const f32; AT_ONCE + 1],
    count: usize,
    lines: usize,
}

impl Coming {
    /// None.
    pub const NOTHING: Self = Self { from: [std::ptr::null(); AT_ONCE + 1], count: 0, lines: 0 };

    /// Lines of each half to be asked for in every one of `rounds` rounds; what is left is for [`Coming::fetch_rest`].
    pub fn lines_a_round(&self, rounds: usize) -> usize {
        self.lines.checked_div(rounds).unwrap_or(0)
    }

    /// Asks for some lines of each half.
    ///
    /// # Safety
    /// The instruction set of `S` must be available.
    #[inline(always)]
    pub unsafe fn fetch<S: Simd>(&self, first: usize, lines: usize) {
        for from in &self.from[..self.count] {
            for line in first..first + lines {
                // SAFETY: passed on to the caller.
                unsafe { S::prefetch(from.wrapping_add(line * LINE)) };
            }
        }
    }

    /// Asks for the lines from `first` on.
    ///
    /// # Safety
    /// The instruction set of `S` must be available.
    #[inline(always)]
    pub unsafe fn fetch_rest<S: Simd>(&self, first: usize) {
        // SAFETY: passed on to the caller.
        unsafe { self.fetch::<S>(first, self.lines.saturating_sub(first)) };
    }
}
