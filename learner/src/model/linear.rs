//! A linear map in Hugging Face's layout.

use tch::Tensor;

use super::parameters::Parameters;

/// `y = x Wᵀ + b` with `W` as `[out, in]`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// The leaf `{name}.weight` and, where the architecture has one, `{name}.bias`.
    pub(super) fn new(parameters: &Parameters, name: &str) -> Self {
        Self { weight: parameters.leaf(&format!("{name}.weight")), bias: parameters.find(&format!("{name}.bias")) }
    }

    /// `[.., in]` to `[.., out]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight, self.bias.as_ref())
    }
}
