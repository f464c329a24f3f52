//! What an adapter adds to a projection (LoRA, Hu et al. 2021).

use std::ops::Range;

use tch::Tensor;

use super::parameters::{Gradients, Leaf};

/// `y += scaling · B (A x)`, where the projections that are stacked in `y` have factors of their own, or none.
#[derive(Debug)]
pub(super) struct LowRank {
    /// The A factors of these projections, one below the other: `[members · r, in]`.
    first: Leaf,
    /// The outputs and the B factor, `[out, r]`, of each of them.
    second: Vec<(Range<i64>, Leaf)>,
    scaling: f64,
}

impl LowRank {
    pub(super) fn new(first: Leaf, second: Vec<(Range<i64>, Leaf)>, scaling: f64) -> Self {
        Self { first, second, scaling }
    }

    /// Adds to `y`, `[T, out]`, given `x`, `[T, in]`.
    pub(super) fn add_to(&self, y: &Tensor, x: &Tensor) {
        let inner = self.inner(x);
        for (i, (outputs, b)) in self.second.iter().enumerate() {
            let _ = columns(y, outputs).addmm_(&self.member(&inner, i), &b.values.tr());
        }
    }

    /// Adds the factors' gradients, given the input and the gradient of the output, and adds that of the input to `dx`.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor, dx: &mut Tensor, gradients: &mut Gradients) {
        let inner = self.inner(x);
        let d_inner = inner.empty_like();
        for (i, (outputs, b)) in self.second.iter().enumerate() {
            let dy = columns(dy, outputs);
            gradients.add_product(b, &dy, &self.member(&inner, i));
            self.member(&d_inner, i).copy_(&dy.mm(&b.values));
        }
        let d_inner = d_inner * self.scaling;
        gradients.add_product(&self.first, &d_inner, x);
        let _ = dx.addmm_(&d_inner, &self.first.values);
    }

    /// `scaling · A x`, `[T, members · r]`.
    fn inner(&self, x: &Tensor) -> Tensor {
        x.linear(&self.first.values, None::<Tensor>).g_mul_scalar_(self.scaling)
    }

    /// The columns of one member.
    fn member(&self, inner: &Tensor, index: usize) -> Tensor {
        let rank = self.first.values.size()[0] / self.second.len() as i64;
        inner.narrow(1, index as i64 * rank, rank)
    }
}

fn columns(x: &Tensor, range: &Range<i64>) -> Tensor {
    x.narrow(1, range.start, range.end - range.start)
}
