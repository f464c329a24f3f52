//! AdamW (Loshchilov and Hutter 2019) on flat buffers, with gradient clipping.
//!
//! tch gives no access to the state of libtorch's own optimisers, and exact resumption needs it.

mod saved;

use std::{ops::Range, path::Path};

use shared::config::TrainConfig;
use tch::{Device, Kind, Tensor};

use crate::{
    error::LearnerError,
    model::{Gradients, Parameters},
    ranks::{Ranks, shard},
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

/// AdamW's state: first and second moments, laid out as the parameters, and the number of updates. It may cover only a
/// part of the parameters.
#[derive(Debug)]
pub struct AdamW {
    options: AdamWOptions,
    /// Number of ranks that share the state.
    shards: usize,
    /// The elements that it moves.
    own: Range<i64>,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: u64,
}

impl AdamW {
    /// A fresh state for all of the parameters.
    #[must_use]
    pub fn new(parameters: &Parameters, options: AdamWOptions) -> Self {
        Self::of_shard(parameters, options, 0, 1)
    }

    /// A fresh state for `rank`'s part of the parameters, which `shards` ranks share.
    #[must_use]
    pub fn of_shard(parameters: &Parameters, options: AdamWOptions, rank: usize, shards: usize) -> Self {
        let flat = parameters.flat();
        let own = shard(flat.numel() as i64, rank, shards);
        let zeros = || Tensor::zeros([own.end - own.start], (flat.kind(), flat.device()));
        Self { options, shards, exp_avg: zeros(), exp_avg_sq: zeros(), step: 0, own }
    }

    /// The elements of the flat buffer that it moves.
    #[must_use]
    pub fn own(&self) -> Range<i64> {
        self.own.clone()
    }

    /// Clips the gradients, whose global norm is `grad_norm`, a finite number, and updates its part of the parameters.
    /// It overwrites that part of the gradients. Returns whether parameters and state are finite: a rate that is far
    /// too high overflows.
    pub fn update(&mut self, parameters: &Parameters, gradients: &Gradients, grad_norm: f64, rate: f64) -> bool {
        let limit = self.options.max_grad_norm;
        let clip = if limit > 0.0 { (limit / (grad_norm + CLIP_EPSILON)).min(1.0) } else { 1.0 };
        self.step += 1;
        let Range { start: first, end } = self.own;
        let block = if parameters.flat().device() == Device::Cpu { CPU_BLOCK } else { (end - first).max(1) };
        tch::no_grad(|| {
            let mut sum = 0.0;
            for start in (first..end).step_by(block as usize) {
                let size = block.min(end - start);
                let part = |x: &Tensor| x.narrow(0, start, size);
                let decayed = (parameters.matrix_elements() - start).clamp(0, size);
                let (values, gradients) = (part(parameters.flat()), part(gradients.flat()));
                sum += self.update_block(&values, &gradients, clip, rate, start - first, decayed);
            }
            sum.is_finite()
        })
    }

    /// Updates one block, whose moments begin at `start` and whose first `decayed` elements belong to matrices. Returns
    /// a sum of squares, which is finite if values and state are. It is taken here because the block is still in the
    /// cache.
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

    /// Writes the whole state to a file, as named tensors: `exp_avg.{parameter}`, `exp_avg_sq.{parameter}` and `step`.
    /// All ranks must call it; the first has the file.
    ///
    /// # Errors
    /// Any error of the file system; a rank that is gone.
    pub fn save(&self, parameters: &Parameters, ranks: &dyn Ranks, file: Option<&Path>) -> Result<(), LearnerError> {
        saved::save(self, parameters, ranks, file)
    }

    /// Takes over a saved state. All ranks must call it; the first has the file.
    ///
    /// # Errors
    /// A file that cannot be read, a tensor that is missing or has another shape, by name; a rank that is gone.
    pub fn restore(
        &mut self,
        parameters: &Parameters,
        ranks: &dyn Ranks,
        file: Option<&Path>,
    ) -> Result<(), LearnerError> {
        saved::restore(self, parameters, ranks, file)
    }
}
