//! Trees of texts for tests of rules.

use tch::Tensor;

use crate::batch::Tree;

/// Trees of the given stems and branches, one behind the other, with the number of their tokens.
pub(super) fn trees(of: &[(i64, &[i64])]) -> (Vec<Tree>, i64) {
    let mut start = 0;
    let tree = |&(stem, branches): &(i64, &[i64])| {
        let tree = Tree { start, stem, branches: branches.to_vec() };
        start += stem + branches.iter().sum::<i64>();
        tree
    };
    let trees = of.iter().map(tree).collect();
    (trees, start)
}

/// The outputs of all texts, each given by `steps` as those of some rows behind a state, with the state at their end.
pub(super) fn plain(
    trees: &[Tree],
    zero: &Tensor,
    steps: impl Fn(std::ops::Range<i64>, Tensor) -> (Vec<Tensor>, Tensor),
) -> Tensor {
    let mut out = Vec::new();
    for tree in trees {
        let mut start = tree.start + tree.stem;
        let (own, end) = steps(tree.start..start, zero.shallow_clone());
        out.extend(own);
        for length in &tree.branches {
            out.extend(steps(start..start + length, end.shallow_clone()).0);
            start += length;
        }
    }
    Tensor::stack(&out, 0)
}

/// The largest number, whatever its sign.
pub(super) fn largest(x: &Tensor) -> f64 {
    x.abs().max().double_value(&[])
}
