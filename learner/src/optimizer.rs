//! AdamW (Loshchilov and Hutter 2019) on flat buffers, with gradient clipping.
//!
//! tch gives no access to the state of libtorch's own optimisers, and exact resumption needs it.

use shared::config::TrainConfig;
use tch::{Device, Kind, Tensor};

use crate::{
    error::LearnerError,
    model::{Gradients, Parameters},
};

/// Elements updated at a time on the CPU: the operands of a block stay in the cache between operations.
const CPU_BLOCK: i64 = 1 << 17;

/// Added to the norm before dividing by it, as `torch.nn.utils.clip_grad_norm_`.
const CLIP_EPSILON: f64 = 1e-6;

/// Hyper-parameters of AdamW, with PyTorch's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWOptions {
    /// β₁ and β₂.
    pub betas: (f64, f64),
    /// ε.
    pub eps: f64,
    /// Decoupled weight decay of matrices; norms and biases are never decayed.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 = no clipping.
    pub max_grad_norm: f64,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, max_grad_norm: 1.0 }
    }
}

impl AdamWOptions {
    /// The options of a configuration.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Self {
        Self {
            betas: (config.adam_beta1, config.adam_beta2),
            eps: config.adam_epsilon,
            weight_decay: config.weight_decay,
            max_grad_norm: config.max_grad_norm,
        }
    }
}

/// AdamW's state: first and second moments, laid out as the parameters, and the number of updates.
#[derive(Debug)]
pub struct AdamW {
    options: AdamWOptions,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: u64,
}

impl AdamW {
    /// A fresh state.
    #[must_use]
    pub fn new(parameters: &Parameters, options: AdamWOptions) -> Self {
        Self { options, exp_avg: parameters.zeros_like(), exp_avg_sq: parameters.zeros_like(), step: 0 }
    }

    /// Clips the gradients, whose global norm is `grad_norm`, a finite number, and updates the parameters. The gradients'
    /// content is used up. Returns whether parameters and state are finite: a rate that is far too high overflows.
    pub fn update(&mut self, parameters: &Parameters, gradients: &Gradients, grad_norm: f64, rate: f64) -> bool {
        let limit = self.options.max_grad_norm;
        let clip = if limit > 0.0 { (limit / (grad_norm + CLIP_EPSILON)).min(1.0) } else { 1.0 };
        self.step += 1;
        let length = parameters.flat().size()[0];
        let block = if parameters.flat().device() == Device::Cpu { CPU_BLOCK } else { length };
        tch::no_grad(|| {
            let mut sum = 0.0;
            for start in (0..length).step_by(block as usize) {
                let size = block.min(length - start);
                let part = |x: &Tensor| x.narrow(0, start, size);
                let decayed = (parameters.matrix_elements() - start).clamp(0, size);
                sum += self.update_block(&part(parameters.flat()), &part(gradients.flat()), clip, rate, start, decayed);
            }
            sum.is_finite()
        })
    }

    /// One block; its first `decayed` elements belong to matrices. Returns a sum over its squares, which is finite if they
    /// are; the block is in the cache still.
    fn update_block(&self, values: &Tensor, gradients: &Tensor, clip: f64, rate: f64, start: i64, decayed: i64) -> f64 {
        let AdamWOptions { betas: (beta1, beta2), eps, weight_decay, .. } = self.options;
        let (mut values, mut gradients) = (values.shallow_clone(), gradients.shallow_clone());
        let size = values.size()[0];
        let mut mean = self.exp_avg.narrow(0, start, size);
        let mut square = self.exp_avg_sq.narrow(0, start, size);
        if weight_decay != 0.0 && decayed > 0 {
            let _ = values.narrow(0, 0, decayed).g_mul_scalar_(1.0 - rate * weight_decay);
        }
        if clip != 1.0 {
            let _ = gradients.g_mul_scalar_(clip);
        }
        let _ = mean.lerp_(&gradients, 1.0 - beta1);
        let _ = gradients.g_mul_scalar_((1.0 - beta2).sqrt());
        let _ = square.g_mul_scalar_(beta2).addcmul_(&gradients, &gradients);
        let moments = square.sum(Kind::Float).double_value(&[]);
        if rate == 0.0 {
            return moments;
        }
        // value −= size · mean / (sqrt(square) / root + ε), with the negated size moved into the denominator.
        let size = rate / (1.0 - beta1.powf(self.step as f64));
        let root = (1.0 - beta2.powf(self.step as f64)).sqrt();
        let mut denominator = square.sqrt();
        let _ = denominator.g_mul_scalar_(-1.0 / (root * size)).g_add_scalar_(-eps / size);
        let _ = values.addcdiv_(&mean, &denominator);
        moments + values.dot(&values).double_value(&[])
    }

    /// The state as named tensors: `exp_avg.{parameter}`, `exp_avg_sq.{parameter}` and `step`.
    #[must_use]
    pub fn state(&self, parameters: &Parameters) -> Vec<(String, Tensor)> {
        let mut list = vec![("step".to_owned(), Tensor::from_slice(&[self.step as i64]))];
        for (name, _) in parameters.named() {
            for (moment, flat) in [("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)] {
                let slice = parameters.slice_of(flat, name).expect("the name comes from the same layout");
                list.push((format!("{moment}.{name}"), slice.to_device(Device::Cpu)));
            }
        }
        list
    }

    /// Takes over a saved state.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape, by name.
    pub fn restore(&mut self, parameters: &Parameters, saved: &[(String, Tensor)]) -> Result<(), LearnerError> {
        let find = |name: &str| {
            saved
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, tensor)| tensor)
                .ok_or_else(|| LearnerError::Config(format!("the optimiser state has no tensor {name}")))
        };
        let step = Vec::<i64>::try_from(find("step")?.to_kind(Kind::Int64).reshape([-1]))?;
        let step = step.first().and_then(|&step| u64::try_from(step).ok());
        self.step =
            step.ok_or_else(|| LearnerError::Config("the optimiser state's `step` is no number of updates".into()))?;
        for (name, shape) in parameters.named() {
            for (moment, flat) in [("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)] {
                let key = format!("{moment}.{name}");
                let values = find(&key)?;
                if values.size() != shape {
                    let (expected, found) = (shape.iter().product::<i64>() as usize, values.numel());
                    return Err(LearnerError::Shape { name: key, expected, found });
                }
                parameters.slice_of(flat, name).expect("the name comes from the same layout").copy_(values);
            }
        }
        Ok(())
    }
}
