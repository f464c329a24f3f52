//! Root-mean-square normalisation (Zhang and Sennrich 2019).

use tch::Tensor;

use super::parameters::Parameters;

/// `x / sqrt(mean(x²) + ε) · weight` over the last dimension.
#[derive(Debug)]
pub(super) struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    /// The leaf `{name}.weight`.
    pub(super) fn new(parameters: &Parameters, name: &str, eps: f64) -> Self {
        Self { weight: parameters.leaf(&format!("{name}.weight")), eps }
    }

    /// `[.., width]` to `[.., width]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.rms_norm(self.weight.size(), Some(&self.weight), self.eps)
    }
}
