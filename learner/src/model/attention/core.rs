//! Attention over texts that share their beginnings.
//!
//! The branches of a [`Tree`] attend to its stem in one piece and each to itself. The two parts are joined by their
//! log-sum-exps, as blocks are in flash attention (Dao et al. 2022). The derivative of a part needs nothing of the other
//! part but the joined output and log-sum-exp. So a stem's keys and values are never copied, and their gradients come from
//! all branches at once.

use tch::Tensor;

use super::{
    super::kinds::wide_kind,
    part::{Mask, Part, part, part_backward},
};
use crate::batch::Tree;

/// Attention's output, with what its derivative needs.
#[derive(Debug)]
pub(super) struct Attended {
    /// Mixed values, `[T, heads, head_dim]`.
    pub(super) out_TND: Tensor,
    /// Logarithm of each softmax's denominator, `[T, heads]`.
    lse_TN: Tensor,
}

/// Queries, keys and values, each `[T, heads, head_dim]` with fewer heads of keys and values where they are grouped, to
/// mixed values.
pub(super) fn attend(qkv: [&Tensor; 3], trees: &[Tree]) -> Attended {
    let q_TND = qkv[0];
    let out_TND = Tensor::empty(q_TND.size(), (q_TND.kind(), q_TND.device()));
    let lse_TN = Tensor::empty(&q_TND.size()[..2], (wide_kind(q_TND.kind()), q_TND.device()));
    for tree in trees {
        for block in Block::own(tree) {
            let own = part(qkv.map(|x| block.view(x)), Mask::Causal);
            block.view(&out_TND).copy_(&own.out);
            block.view(&lse_TN).copy_(&own.lse);
        }
        if let Some((stem, branches)) = Block::shared(tree) {
            let stem = part([branches.view(qkv[0]), stem.view(qkv[1]), stem.view(qkv[2])], Mask::None);
            let (mut out, mut lse) = (branches.view(&out_TND), branches.view(&lse_TN));
            let share = (&stem.lse - &lse).sigmoid().to_kind(out.kind()).unsqueeze(-1);
            let _ = out.lerp_tensor_(&stem.out, &share);
            lse.copy_(&lse.logaddexp(&stem.lse));
        }
    }
    Attended { out_TND, lse_TN }
}

/// Gradients of queries, keys and values, written to `d_qkv`, given that of [`attend`]'s output.
pub(super) fn attend_backward(
    qkv: [&Tensor; 3],
    attended: &Attended,
    d_out_TND: &Tensor,
    trees: &[Tree],
    d_qkv: [&Tensor; 3],
) {
    let joined = |block: &Block| Part { out: block.view(&attended.out_TND), lse: block.view(&attended.lse_TN) };
    for tree in trees {
        for block in Block::own(tree) {
            let own = qkv.map(|x| block.view(x));
            let found = part_backward(&own, &joined(&block), &block.view(d_out_TND), Mask::Causal);
            for (whole, part) in d_qkv.into_iter().zip(&found) {
                block.view(whole).copy_(part);
            }
        }
        if let Some((stem, branches)) = Block::shared(tree) {
            let seen = [branches.view(qkv[0]), stem.view(qkv[1]), stem.view(qkv[2])];
            let found = part_backward(&seen, &joined(&branches), &branches.view(d_out_TND), Mask::None);
            let places = [branches.view(d_qkv[0]), stem.view(d_qkv[1]), stem.view(d_qkv[2])];
            for (mut place, part) in places.into_iter().zip(&found) {
                place += part;
            }
        }
    }
}

/// Texts of the same length, one behind the other.
#[derive(Debug, Clone, Copy)]
struct Block {
    start: i64,
    texts: i64,
    length: i64,
}

impl Block {
    /// What attends to itself: the stem, and the branches by runs of the same length.
    fn own(tree: &Tree) -> Vec<Self> {
        let mut blocks = vec![Self { start: tree.start, texts: 1, length: tree.stem }];
        let mut start = tree.start + tree.stem;
        for (i, &length) in tree.branches.iter().enumerate() {
            match blocks.last_mut() {
                Some(run) if i > 0 && run.length == length => run.texts += 1,
                _ => blocks.push(Self { start, texts: 1, length }),
            }
            start += length;
        }
        blocks
    }

    /// The stem, and all of its branches as one.
    fn shared(tree: &Tree) -> Option<(Self, Self)> {
        let length = tree.branches.iter().sum();
        let stem = Self { start: tree.start, texts: 1, length: tree.stem };
        (length > 0).then(|| (stem, Self { start: tree.start + tree.stem, texts: 1, length }))
    }

    /// Its part of `[T, ..]` as `[texts, length, ..]`, in place.
    fn view(&self, x: &Tensor) -> Tensor {
        let mut shape = x.size();
        shape.splice(..1, [self.texts, self.length]);
        x.narrow(0, self.start, self.texts * self.length).view(shape.as_slice())
    }
}
