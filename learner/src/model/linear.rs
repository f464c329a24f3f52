//! A linear map in Hugging Face's layout.

use tch::Tensor;

use super::{
    coded::Matrix,
    kinds::wide,
    low_rank::LowRank,
    parameters::{Gradients, Leaf},
    weights::Weights,
};

/// `y = x Wᵀ + b` with `W` as `[out, in]`, and what an adapter adds.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Matrix,
    bias: Option<Leaf>,
    low_rank: Option<LowRank>,
}

impl Linear {
    /// The projection `{block}.{name}`.
    pub(super) fn new(weights: &Weights, block: &str, name: &str) -> Self {
        Self::stacked(weights, block, name, &[name])
    }

    /// A leaf of several projections, in order: `{block}.{name}.weight` and, where the architecture has one, `.bias`.
    pub(super) fn stacked(weights: &Weights, block: &str, name: &str, members: &[&str]) -> Self {
        Self {
            weight: weights.matrix(&format!("{block}.{name}.weight")),
            bias: weights.find(&format!("{block}.{name}.bias")),
            low_rank: weights.low_rank(block, name, members),
        }
    }

    /// `[T, in]` to `[T, out]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        self.adapted(x, x.linear(&self.weight.values(), self.bias.as_ref().map(|bias| &bias.values)))
    }

    /// As [`Self::forward`], in float32 at least, of a map without bias or adapter.
    pub(super) fn forward_wide(&self, x: &Tensor) -> Tensor {
        wide(x).linear(&wide(&self.weight.values()), None::<Tensor>)
    }

    /// [`Self::forward`] added to `onto`, `[T, out]`.
    pub(super) fn forward_onto(&self, onto: &Tensor, x: &Tensor) -> Tensor {
        let sum = onto.addmm(x, &self.weight.values().tr());
        self.adapted(
            x,
            match &self.bias {
                Some(bias) => sum + &bias.values,
                None => sum,
            },
        )
    }

    fn adapted(&self, x: &Tensor, y: Tensor) -> Tensor {
        if let Some(low_rank) = &self.low_rank {
            low_rank.add_to(&y, x);
        }
        y
    }

    /// Adds the parameters' gradients, given the input and the gradient of the output, and returns that of the input.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor, gradients: &mut Gradients) -> Tensor {
        if let Matrix::Whole(weight) = &self.weight {
            gradients.add_product(weight, dy, x);
        }
        if let Some(bias) = &self.bias {
            gradients.add_rows(bias, dy);
        }
        let mut dx = dy.mm(&self.weight.values());
        if let Some(low_rank) = &self.low_rank {
            low_rank.backward(x, dy, &mut dx, gradients);
        }
        dx
    }
}
