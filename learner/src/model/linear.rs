//! A linear map in Hugging Face's layout.

use tch::Tensor;

use super::parameters::{Gradients, Leaf, Parameters};

/// `y = x Wᵀ + b` with `W` as `[out, in]`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Leaf,
    bias: Option<Leaf>,
}

impl Linear {
    /// The leaf `{name}.weight` and, where the architecture has one, `{name}.bias`.
    pub(super) fn new(parameters: &Parameters, name: &str) -> Self {
        Self { weight: parameters.leaf(&format!("{name}.weight")), bias: parameters.find(&format!("{name}.bias")) }
    }

    /// `[T, in]` to `[T, out]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight.values, self.bias.as_ref().map(|bias| &bias.values))
    }

    /// [`Self::forward`] added to `onto`, `[T, out]`.
    pub(super) fn forward_onto(&self, onto: &Tensor, x: &Tensor) -> Tensor {
        let sum = onto.addmm(x, &self.weight.values.tr());
        match &self.bias {
            Some(bias) => sum + &bias.values,
            None => sum,
        }
    }

    /// Adds the parameters' gradients, given the input and the gradient of the output, and returns that of the input.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor, gradients: &mut Gradients) -> Tensor {
        let _ = gradients.leaf_mut(self.weight.index).addmm_(&dy.tr(), x);
        if let Some(bias) = &self.bias {
            *gradients.leaf_mut(bias.index) += dy.sum_dim_intlist([0i64].as_slice(), false, None);
        }
        dy.mm(&self.weight.values)
    }
}
