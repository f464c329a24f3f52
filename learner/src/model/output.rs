//! The way of a block's result into the residual stream.

use shared::ModelConfig;
use tch::Tensor;

use super::{linear::Linear, norm::RmsNorm, parameters::Gradients, weights::Weights};

/// The last projection of attention or MLP, and the norm or the factor that some families have on its result.
#[derive(Debug)]
pub(super) struct Output {
    projection: Linear,
    norm: Option<RmsNorm>,
    factor: f64,
}

impl Output {
    /// `{block}.{name}`, and the layer's norm of that name where the family has one.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, [block, name]: [&str; 2], norm: &str) -> Self {
        let norm = config.output_norms().then(|| RmsNorm::new(config, weights, norm));
        Self { projection: Linear::new(weights, block, name), norm, factor: config.residual_multiplier }
    }

    /// The result, `[T, hidden]`, added to `onto`.
    pub(super) fn forward_onto(&self, onto: &Tensor, x: &Tensor) -> Tensor {
        match &self.norm {
            None if self.factor == 1.0 => self.projection.forward_onto(onto, x),
            None => onto + self.projection.forward(x) * self.factor,
            Some(norm) => onto + norm.forward(&self.projection.forward(x)),
        }
    }

    /// Adds the parameters' gradients, given the input and the gradient of the sum, and returns that of the input. The
    /// input of a norm is computed again, which is cheaper than keeping it.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor, gradients: &mut Gradients) -> Tensor {
        match &self.norm {
            None if self.factor == 1.0 => self.projection.backward(x, dy, gradients),
            None => self.projection.backward(x, &(dy * self.factor), gradients),
            Some(norm) => {
                let dy = norm.backward(&self.projection.forward(x), dy, gradients);
                self.projection.backward(x, &dy, gradients)
            }
        }
    }
}
