//! Root-mean-square normalisation (Zhang and Sennrich 2019).

use shared::ModelConfig;
use tch::Tensor;

use super::{
    halves,
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
    /// Parts of the last dimension that have a mean each.
    groups: i64,
}

impl RmsNorm {
    /// The leaf `{name}.weight`.
    pub(super) fn new(config: &ModelConfig, weights: &Weights, name: &str) -> Self {
        let offset = f64::from(config.norm_offset());
        Self { weight: weights.leaf(&format!("{name}.weight")), offset, eps: config.rms_norm_eps, groups: 1 }
    }

    /// The leaf `{name}.weight` in a family that stores other weights less 1, and this one not.
    pub(super) fn plain(config: &ModelConfig, weights: &Weights, name: &str) -> Self {
        Self { offset: 0.0, ..Self::new(config, weights, name) }
    }

    /// As [`Self::plain`], with a mean for each of so many parts of the last dimension.
    pub(super) fn grouped(config: &ModelConfig, weights: &Weights, name: &str, groups: usize) -> Self {
        Self { groups: groups as i64, ..Self::plain(config, weights, name) }
    }

    /// Factors of the normalised values.
    fn factors(&self) -> Tensor {
        let weight = &self.weight.values;
        if self.offset == 0.0 { weight.shallow_clone() } else { wide(weight) + self.offset }
    }

    /// `[.., width]` to `[.., width]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        if self.groups == 1 && halves::take(x) {
            return halves::norm(x, &self.factors(), self.eps);
        }
        let x_wide = wide(x);
        (&x_wide * self.scale(&x_wide)).g_mul_(&self.factors()).to_kind(x.kind())
    }

    /// Adds the weight's gradient, given the input and the gradient of the output, and returns that of the input.
    ///
    /// With x̂ = x · scale and g = dy · factors: `dx = scale · (g − x̂ · mean(g · x̂))`.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor, gradients: &mut Gradients) -> Tensor {
        if self.groups == 1 && halves::take(x) && halves::take(dy) {
            let [dx, of_weight] = halves::norm_backward(x, dy, &self.factors(), self.eps);
            gradients.add_rows(&self.weight, &of_weight);
            return dx;
        }
        let (kind, x, dy, factors) = (x.kind(), wide(x), wide(dy), wide(&self.factors()));
        let (scale, width) = (self.scale(&x), factors.size()[0]);
        let unit = x * &scale;
        let products = (&unit * &dy).reshape([-1, width]);
        gradients.add_rows(&self.weight, &products);
        let mean = match self.groups {
            1 => products.mv(&factors).view_as(&scale) / -(width as f64),
            _ => self.means(&(products * &factors).view_as(&unit)).neg(),
        };
        (dy * &factors).addcmul_(&unit, &mean).g_mul_(&scale).to_kind(kind)
    }

    /// `1 / sqrt(mean(x²) + ε)`, `[.., 1]`, or `[.., width]` with groups.
    fn scale(&self, x: &Tensor) -> Tensor {
        inverse_root(&self.means(&x.square()), self.eps)
    }

    /// Means over the last dimension, `[.., 1]`; with groups, each entry's is that of its group, `[.., width]`.
    fn means(&self, x: &Tensor) -> Tensor {
        if self.groups == 1 {
            return mean(x);
        }
        let size = x.size();
        let grouped = x.reshape([-1, self.groups, size[size.len() - 1] / self.groups]);
        mean(&grouped).expand_as(&grouped).reshape(size)
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
        (&x_wide * inverse_root(&mean(&x_wide.square()), self.eps)).to_kind(x.kind())
    }

    /// The gradient of the input, given the input and the gradient of the output: `scale · (dy − x̂ · mean(dy · x̂))`.
    pub(super) fn backward(&self, x: &Tensor, dy: &Tensor) -> Tensor {
        let (kind, x, dy) = (x.kind(), wide(x), wide(dy));
        let scale = inverse_root(&mean(&x.square()), self.eps);
        let unit = x * &scale;
        let shared = mean(&(&unit * &dy));
        ((dy - unit * shared) * scale).to_kind(kind)
    }
}

/// Means over the last dimension, `[.., 1]`.
fn mean(x: &Tensor) -> Tensor {
    x.mean_dim([-1i64].as_slice(), true, None)
}

/// `1 / sqrt(x + ε)`.
fn inverse_root(x: &Tensor, eps: f64) -> Tensor {
    (x + eps).rsqrt()
}

#[cfg(test)]
mod tests {
    use shared::ModelConfig;
    use tch::{Device, Kind, Tensor};

    use super::{
        super::{parameters::Parameters, weights::Weights},
        RmsNorm,
    };

    const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 12, "intermediate_size": 12, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 8, "rms_norm_eps": 0.01}"#;

    fn assert_same(what: &str, found: &Tensor, expected: &Tensor) {
        let difference = (found - expected).abs().max().double_value(&[]);
        assert!(difference < 1e-12, "{what} differs by {difference}");
    }

    #[test]
    fn each_group_has_a_mean_of_its_own_and_gradients_follow() {
        tch::manual_seed(5);
        let config = ModelConfig::from_json(LLAMA).unwrap();
        let gamma: Vec<f32> = (0..12_u8).map(|i| 0.5 + f32::from(i) / 8.0).collect();
        let (named, place) = (vec![("norm.weight".to_owned(), vec![12])], (Kind::Double, Device::Cpu));
        let parameters = Parameters::load(named, place.0, place.1, &mut |_| Ok(gamma.clone())).unwrap();
        let weights = Weights::new(parameters);
        let weight = Tensor::from_slice(&gamma).to_kind(place.0).set_requires_grad(true);
        let (x, above) = (Tensor::randn([5, 12], place).set_requires_grad(true), Tensor::randn([5, 12], place));
        for groups in [1, 3] {
            let apart = x.view([5, groups, 12 / groups]);
            let mean = apart.square().mean_dim([-1i64].as_slice(), true, None);
            let expected = (apart / (mean + 0.01).sqrt()).view([5, 12]) * &weight;
            let gradients = Tensor::run_backward(&[(&expected * &above).sum(None)], &[&x, &weight], false, false);

            let norm = RmsNorm::grouped(&config, &weights, "norm", groups as usize);
            let (x, mut found) = (x.detach(), weights.trained().gradients());
            assert_same("the norm", &norm.forward(&x), &expected.detach());
            assert_same("the input's gradient", &norm.backward(&x, &above, &mut found), &gradients[0]);
            let of_weight = weights.trained().slice_of(found.flat(), "norm.weight").unwrap();
            assert_same("the weight's gradient", &of_weight, &gradients[1]);
        }
    }
}
