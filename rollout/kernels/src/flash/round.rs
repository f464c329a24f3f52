//! Rounds: heads that are computed together, and the memory of their layouts.
//!
//! A head of keys and values of a text and the query heads that share it are a *pair* of text and head. Pairs have
//! nothing to do with each other, so a round is as many of them as the memory of a round holds, and at least one.

use super::{
    super::parallel::{Claims, Shared},
    Places, Shape, Sight, Workshop,
    layout::{Head, Layout, Layouts, Line},
};
use crate::simd::{Isa, Tiles};

/// Lines of a round's layouts, unless those of a single pair are more: they stay in the processor's caches, and a long
/// text takes no more memory than one pair of it. Tests have short texts, and several rounds all the same.
const LINES: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };

/// Places of these matrices in [`Content::matrices`].
pub(super) const QUERIES: usize = 0;
pub(super) const KEYS: usize = 1;
pub(super) const VALUES: usize = 2;

/// A matrix that is laid out.
pub(super) struct Matrix {
    /// Whether it has the places and heads of queries, not those of keys.
    pub is_of_queries: bool,
    /// Its layouts.
    pub layouts: &'static [Layout],
}

/// What a round holds of its pairs.
#[derive(Clone, Copy)]
pub(super) struct Content {
    /// Queries, keys and values first.
    pub matrices: &'static [Matrix],
    /// Further lines for each query head.
    pub more: usize,
}

/// Pairs that are computed together.
#[derive(Clone, Copy)]
pub(super) struct Round {
    pub shape: Shape,
    pub sight: Sight,
    content: Content,
    memory: Shared<Line>,
    first: usize,
    pairs: usize,
}

/// One way, for the pairs of a round.
pub(super) trait Pass: Sync {
    fn round(&self) -> &Round;

    /// Writes all layouts of a head of a matrix.
    ///
    /// # Safety
    /// See [`fn@super::forward`]; each task is done once.
    unsafe fn lay_out(&self, matrix: usize, head: usize);

    /// Strips that are computed.
    fn strips(&self) -> usize;

    /// Computes a strip.
    ///
    /// # Safety
    /// See [`fn@super::forward`]; all layouts are there, tiles live on this thread, and each strip is computed once.
    unsafe fn strip(&self, strip: usize);
}

/// Computes all pairs of a call, round by round.
///
/// # Safety
/// See [`fn@super::forward`].
pub(super) unsafe fn compute<P: Pass>(
    (shape, sight): (Shape, Sight),
    content: Content,
    workshop: &mut Workshop<'_>,
    pass: impl Fn(Round) -> P,
) {
    let (all, lines) = (shape.texts * shape.kv_heads, content.lines(shape));
    let most = (LINES / lines.max(1)).clamp(1, all.max(1));
    for first in (0..all).step_by(most) {
        let pairs = most.min(all - first);
        let memory = workshop.memory.lines(pairs * lines);
        let pass = pass(Round { shape, sight, content, memory, first, pairs });
        let (to_lay_out, strips) = (Claims::new(pass.round().heads_of_matrices()), Claims::new(pass.strips()));
        workshop.threads.run(&|| {
            // SAFETY: `Shape::check` has looked for the instructions; each task is claimed once, and all layouts are
            // there before a strip reads them. For the inputs the caller vouches.
            unsafe {
                to_lay_out.run_all(|task| {
                    let (matrix, head) = pass.round().matrix_and_head(task);
                    pass.lay_out(matrix, head);
                });
                let tiles = Isa::detect().has_tiles().then(|| Tiles::new());
                strips.run_all(|strip| pass.strip(strip));
                drop(tiles);
            }
        });
    }
}

impl Matrix {
    /// Its heads in each pair, and its places.
    fn heads_and_places(&self, shape: Shape) -> [usize; 2] {
        if self.is_of_queries { [shape.group(), shape.queries] } else { [1, shape.keys] }
    }

    /// Lines of one of its layouts, of all heads of a pair.
    fn lines(&self, shape: Shape) -> usize {
        let [heads, places] = self.heads_and_places(shape);
        heads * shape.lines(places)
    }
}

impl Content {
    /// Lines of a pair.
    fn lines(self, shape: Shape) -> usize {
        let of_matrices = self.matrices.iter().map(|matrix| matrix.layouts.len() * matrix.lines(shape)).sum::<usize>();
        of_matrices + self.more * shape.group()
    }
}

impl Round {
    /// Query heads.
    pub fn query_heads(&self) -> usize {
        self.pairs * self.shape.group()
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.pairs
    }

    /// The text of a head of this round, and the head's number in it.
    pub fn text_and_head(&self, matrix: usize, head: usize) -> (usize, usize) {
        let [of_pair, _] = self.content.matrices[matrix].heads_and_places(self.shape);
        let pair = self.first + head / of_pair;
        (pair / self.shape.kv_heads, pair % self.shape.kv_heads * of_pair + head % of_pair)
    }

    /// One layout of a matrix.
    pub fn layout(&self, matrix: usize, layout: Layout) -> Layouts {
        let mut first = 0;
        for (other, found) in self.content.matrices.iter().enumerate() {
            let [_, places] = found.heads_and_places(self.shape);
            for &kind in found.layouts {
                if (other, kind) == (matrix, layout) {
                    return Layouts { memory: self.memory, first, lines: self.shape.lines(places) };
                }
                first += self.pairs * found.lines(self.shape);
            }
        }
        unreachable!("each matrix has the layouts that are asked for")
    }

    /// The further lines of a query head.
    pub fn more(&self, head: usize) -> *mut Line {
        let all = self.pairs * self.content.lines(self.shape);
        self.memory.at(all - (self.query_heads() - head) * self.content.more)
    }

    /// Writes all layouts of a head, of the numbers at these places.
    ///
    /// # Safety
    /// See [`fn@super::forward`]; each head is laid out once.
    pub unsafe fn lay_out(&self, matrix: usize, head: usize, from: &Places<u16>) {
        let (text, of_text) = self.text_and_head(matrix, head);
        let found = &self.content.matrices[matrix];
        let [_, places] = found.heads_and_places(self.shape);
        let numbers = Head { first: from.at(text, 0, of_text), step: from.steps[1], places, width: self.shape.width };
        for &layout in found.layouts {
            // SAFETY: the caller vouches for the numbers and the machine, and no two layouts overlap.
            unsafe { numbers.lay_out(layout, self.layout(matrix, layout).head(head)) };
        }
    }

    fn heads_of_matrices(&self) -> usize {
        let heads = self.content.matrices.iter().map(|matrix| matrix.heads_and_places(self.shape)[0]);
        self.pairs * heads.sum::<usize>()
    }

    fn matrix_and_head(&self, task: usize) -> (usize, usize) {
        let (mut matrix, mut head) = (0, task);
        loop {
            let heads = self.pairs * self.content.matrices[matrix].heads_and_places(self.shape)[0];
            if head < heads {
                return (matrix, head);
            }
            (matrix, head) = (matrix + 1, head - heads);
        }
    }
}
