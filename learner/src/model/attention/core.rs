//! Attention over texts that share their beginnings.
//!
//! The branches of a [`Tree`] attend to its stem in one piece and each to itself. The two parts are joined by their
//! log-sum-exps, as blocks are in flash attention (Dao et al. 2022). The derivative of a part needs nothing of the
//! other part but the joined output and log-sum-exp. So a stem's keys and values are never copied, and their gradients
//! come from all branches at once.

use tch::Tensor;

use super::{
    super::kinds::wide_kind,
    part::{Mask, Partial, part, part_backward},
};
use crate::batch::Tree;

/// Window and scale of a layer's attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    /// Most keys that a query sees: its own and the keys right before it.
    pub(super) window: Option<i64>,
    /// Factor of the scores.
    pub(super) scale: f64,
}

/// Attention's output, with what its derivative needs.
#[derive(Debug)]
pub(super) struct Attended {
    /// Mixed values, `[T, heads, head_dim]`.
    pub(super) out_TND: Tensor,
    /// Logarithm of each softmax's denominator, `[T, heads]`.
    lse_TN: Tensor,
}

/// Mixes values. Queries, keys and values are `[T, heads, head_dim]` each; grouped keys and values have fewer heads.
pub(super) fn attend(qkv: [&Tensor; 3], trees: &[Tree], sight: Sight) -> Attended {
    let q_TND = qkv[0];
    let out_TND = Tensor::empty(q_TND.size(), (q_TND.kind(), q_TND.device()));
    let lse_TN = Tensor::empty(&q_TND.size()[..2], (wide_kind(q_TND.kind()), q_TND.device()));
    for tree in trees {
        let window = window_of(tree, sight);
        for piece in Piece::own(tree, window) {
            let own = part(piece.view(qkv), piece.mask, sight.scale);
            piece.queries.view(&out_TND).copy_(&own.out);
            piece.queries.view(&lse_TN).copy_(&own.lse);
        }
        for piece in Piece::of_stem(tree, window) {
            let stem = part(piece.view(qkv), piece.mask, sight.scale);
            let (mut out, mut lse) = (piece.queries.view(&out_TND), piece.queries.view(&lse_TN));
            let share = (&stem.lse - &lse).sigmoid().to_kind(out.kind()).unsqueeze(-1);
            let _ = out.lerp_tensor_(&stem.out, &share);
            lse.copy_(&lse.logaddexp(&stem.lse));
        }
    }
    Attended { out_TND, lse_TN }
}

/// Writes the gradients of queries, keys and values to `d_qkv`, given the gradient of [`attend`]'s output.
pub(super) fn attend_backward(
    qkv: [&Tensor; 3],
    attended: &Attended,
    d_out_TND: &Tensor,
    trees: &[Tree],
    sight: Sight,
    d_qkv: [&Tensor; 3],
) {
    let found = |piece: &Piece| {
        let queries = &piece.queries;
        let joined = Partial { out: queries.view(&attended.out_TND), lse: queries.view(&attended.lse_TN) };
        part_backward(&piece.view(qkv), &joined, &queries.view(d_out_TND), piece.mask, sight.scale)
    };
    let add = |piece: &Piece| {
        for (mut place, part) in piece.view(d_qkv).into_iter().zip(&found(piece)) {
            place += part;
        }
    };
    for tree in trees {
        let window = window_of(tree, sight);
        if window.is_some() {
            // Windows overlap: a key has gradients from several pieces.
            for whole in d_qkv {
                let _ = Block::whole(tree).view(whole).zero_();
            }
            Piece::own(tree, window).iter().for_each(add);
        } else {
            for piece in Piece::own(tree, window) {
                for (mut place, part) in piece.view(d_qkv).into_iter().zip(&found(&piece)) {
                    place.copy_(part);
                }
            }
        }
        Piece::of_stem(tree, window).iter().for_each(add);
    }
}

/// The window, unless every text of the tree fits into it.
fn window_of(tree: &Tree, sight: Sight) -> Option<i64> {
    let longest = tree.stem + tree.branches.iter().max().unwrap_or(&0);
    sight.window.filter(|&window| window < longest)
}

/// Queries, and the keys that they look at together.
#[derive(Debug, Clone, Copy)]
struct Piece {
    queries: Block,
    keys: Block,
    mask: Mask,
}

impl Piece {
    /// Attention of stem and branches to themselves. With a window, a piece has as many queries as the window has
    /// places, and the keys that any of them sees.
    fn own(tree: &Tree, window: Option<i64>) -> Vec<Self> {
        let mut pieces = Vec::new();
        for block in Block::own(tree) {
            match window {
                Some(window) if window < block.length => {
                    for from in (0..block.length).step_by(window as usize) {
                        let (first, end) = ((from + 1 - window).max(0), (from + window).min(block.length));
                        let mask = Mask::Window { shift: from - first, window };
                        pieces.push(Self { queries: block.rows(from, end), keys: block.rows(first, end), mask });
                    }
                }
                _ => pieces.push(Self { queries: block, keys: block, mask: Mask::Causal }),
            }
        }
        pieces
    }

    /// Attention to the stem. Without a window, all branches attend to it at once. With a window, only the beginning of
    /// each branch sees the end of the stem.
    fn of_stem(tree: &Tree, window: Option<i64>) -> Vec<Self> {
        let (stem, branches) = (Block::text(tree.start, tree.stem), tree.branches.iter().sum());
        let mut start = tree.start + tree.stem;
        let Some(window) = window else {
            let all = Self { queries: Block::text(start, branches), keys: stem, mask: Mask::None };
            return if branches > 0 { vec![all] } else { Vec::new() };
        };
        let before = tree.stem.min(window - 1);
        let mut pieces = Vec::new();
        for &length in &tree.branches {
            let seeing = length.min(window - 1);
            if seeing > 0 && before > 0 {
                let (queries, keys) =
                    (Block::text(start, length).rows(0, seeing), stem.rows(tree.stem - before, tree.stem));
                pieces.push(Self { queries, keys, mask: Mask::Window { shift: before, window } });
            }
            start += length;
        }
        pieces
    }

    /// The piece's places of queries, keys and values.
    fn view(&self, [queries, keys, values]: [&Tensor; 3]) -> [Tensor; 3] {
        [self.queries.view(queries), self.keys.view(keys), self.keys.view(values)]
    }
}

/// Texts of the same length, one behind the other, and some places of each.
#[derive(Debug, Clone, Copy)]
struct Block {
    start: i64,
    texts: i64,
    length: i64,
    first: i64,
    count: i64,
}

impl Block {
    fn text(start: i64, length: i64) -> Self {
        Self { start, texts: 1, length, first: 0, count: length }
    }

    fn whole(tree: &Tree) -> Self {
        Self::text(tree.start, tree.stem + tree.branches.iter().sum::<i64>())
    }

    /// Blocks that attend to themselves: the stem, and runs of branches of the same length.
    fn own(tree: &Tree) -> Vec<Self> {
        let mut blocks = vec![Self::text(tree.start, tree.stem)];
        let mut start = tree.start + tree.stem;
        for (i, &length) in tree.branches.iter().enumerate() {
            match blocks.last_mut() {
                Some(run) if i > 0 && run.length == length => run.texts += 1,
                _ => blocks.push(Self::text(start, length)),
            }
            start += length;
        }
        blocks
    }

    /// Some places of each text.
    fn rows(self, first: i64, end: i64) -> Self {
        Self { first, count: end - first, ..self }
    }

    /// Its part of `[T, ..]` as `[texts, places, ..]`, in place.
    fn view(&self, x: &Tensor) -> Tensor {
        let mut shape = x.size();
        shape.splice(..1, [self.texts, self.length]);
        let texts = x.narrow(0, self.start, self.texts * self.length).view(shape.as_slice());
        if self.count == self.length { texts } else { texts.narrow(1, self.first, self.count) }
    }
}
