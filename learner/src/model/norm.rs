//! Root-mean-square normalisation (Zhang and Sennrich 2019).

use shared::ModelConfig;
use tch::Tensor;

use super::{
    kinds::wide,
    parameters::{Gradients, Leaf},
    weights::Weights,
};

/// `x / sqrt(mean(x²) + ε) · (weight + offset)` over the last dimension, in float32 at least.
#[derive(Debug)]
pub(super) struct RmsNorm {
    weight: Leaf,
    /// 1 in the families that store their weights less 1.
    offset: f64,
    eps: f64,
}

impl RmsNorm {
    /// The leaf `{name}.weight`.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, name: &str) -> Self {
        let offset = f64::from(config.norm_offset());
        Self { weight: weights.leaf(&format!("{name}.weight")), offset, eps: config.rms_norm_eps }
    }

    /// The leaf `{name}.weight` in a family that stores other weights less 1, and this one not.
    pub(super) fn plain(config: &ModelConfig, weights: &Weights, name: &str) -> Self {
        Self { offset: 0.0, ..Self::new(config, weights, name) }
    }

    /// Factors of the normalised values.
    fn factors(&self) -> Tensor {
        let weight = &self.weight.values;
        if self.offset == 0.0 { weight.shallow_clone() } else { wide(weight) + self.offset }
    }

    /// `[.., width]` to `[.., width]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let x_wide = wide(x);
        (&x_wide * inverse_rms(&x_wide, self.eps)).g_mul_(&self.factors()).to_kind(x.kind())
    }

    /// Adds the weight's gradient, given the input and the gradient of the output, and returns that of the input.
    ///
    /// With x̂ = x · scale and g = dy · factors: `dx = scale · (g − x̂ · mean(g · x̂))`.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor, gradients: &mut Gradients) -> Tensor {
        let (kind, x, dy, factors) = (x.kind(), wide(x), wide(dy), wide(&self.factors()));
        let (scale, width) = (inverse_rms(&x, self.eps), factors.size()[0]);
        let unit = x * &scale;
        let products = (&unit * &dy).reshape([-1, width]);
        gradients.add_rows(&self.weight, &products);
        let mean = products.mv(&factors).view_as(&scale) / -(width as f64);
        (dy * &factors).addcmul_(&unit, &mean).g_mul_(&scale).to_kind(kind)
    }
}

/// A norm as [`RmsNorm`] without a weight: `x / sqrt(mean(x²) + ε)`.
#[derive(Debug)]
pub(super) struct UnitNorm {
    eps: f64,
}

impl UnitNorm {
    pub(super) fn new(config: &ModelConfig) -> Self {
        Self { eps: config.rms_norm_eps }
    }

    /// `[.., width]` to `[.., width]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let x_wide = wide(x);
        (&x_wide * inverse_rms(&x_wide, self.eps)).to_kind(x.kind())
    }

    /// The gradient of the input, given the input and the gradient of the output: `scale · (dy − x̂ · mean(dy · x̂))`.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor) -> Tensor {
        let (kind, x, dy) = (x.kind(), wide(x), wide(dy));
        let scale = inverse_rms(&x, self.eps);
        let unit = x * &scale;
        let mean = (&unit * &dy).mean_dim([-1i64].as_slice(), true, None);
        ((dy - unit * mean) * scale).to_kind(kind)
    }
}

/// `1 / sqrt(mean(x²) + ε)`, `[.., 1]`.
fn inverse_rms(x: &Tensor, eps: f64) -> Tensor {
    (x.square().mean_dim([-1i64].as_slice(), true, None) + eps).rsqrt()
}
