//! Root-mean-square normalisation (Zhang and Sennrich 2019).

use tch::Tensor;

use super::parameters::{Gradients, Leaf, Parameters};

/// `x / sqrt(mean(x²) + ε) · weight` over the last dimension.
#[derive(Debug)]
pub(super) struct RmsNorm {
    weight: Leaf,
    eps: f64,
}

impl RmsNorm {
    /// The leaf `{name}.weight`.
    pub(super) fn new(parameters: &Parameters, name: &str, eps: f64) -> Self {
        Self { weight: parameters.leaf(&format!("{name}.weight")), eps }
    }

    /// `[.., width]` to `[.., width]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        (x * self.scale(x)).g_mul_(&self.weight.values)
    }

    /// Adds the weight's gradient, given the input and the gradient of the output, and returns that of the input.
    ///
    /// With x̂ = x · scale and g = dy · weight: `dx = scale · (g − x̂ · mean(g · x̂))`.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor, gradients: &mut Gradients) -> Tensor {
        let (scale, width) = (self.scale(x), self.weight.values.size()[0]);
        let unit = x * &scale;
        let products = (&unit * dy).reshape([-1, width]);
        *gradients.leaf_mut(self.weight.index) += products.sum_dim_intlist([0i64].as_slice(), false, None);
        let mean = products.mv(&self.weight.values).view_as(&scale) / -(width as f64);
        (dy * &self.weight.values).addcmul_(&unit, &mean).g_mul_(&scale)
    }

    /// `1 / sqrt(mean(x²) + ε)`, `[.., 1]`.
    fn scale(&self, x: &Tensor) -> Tensor {
        (x.square().mean_dim([-1i64].as_slice(), true, None) + self.eps).rsqrt()
    }
}
