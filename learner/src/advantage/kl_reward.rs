//! The KL penalty that PPO takes off each token's reward, and the controller of its weight.

use shared::config::{self, KlEstimator, TrainConfig};

use crate::{kl, ragged::Ragged};

/// Largest relative error that the adaptive controller acts on in one step (Ziegler et al. 2019).
const ERROR_LIMIT: f64 = 0.2;

/// Penalties of a generation batch.
#[derive(Debug, Clone, PartialEq)]
pub struct KlPenalty {
    /// Amount subtracted from each token's reward, one row per completion.
    pub penalties: Ragged<f64>,
    /// KL estimate: mean over a completion's tokens, then over completions. NaN without any. verl
    /// `actor/reward_kl_penalty`.
    pub mean_kl: f64,
    /// Weight of the estimates. verl `actor/reward_kl_penalty_coeff`.
    pub coef: f64,
    /// Completions that were compared.
    pub completions: usize,
}

/// The weight of the penalty over the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlController {
    /// Current weight.
    pub coef: f64,
    estimator: KlEstimator,
    kind: config::KlController,
    target: f64,
    horizon: f64,
}

impl KlController {
    /// The controller of a run with `use_kl_in_reward`. Its weight begins at `beta`.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Option<Self> {
        (config.use_kl_in_reward && config.beta != 0.0).then_some(Self {
            coef: config.beta,
            estimator: config.kl_estimator_in_use(),
            kind: config.kl_controller,
            target: config.kl_target,
            horizon: config.kl_horizon,
        })
    }

    /// Penalties at the current weight. Completions without log-probs on both sides have none.
    #[must_use]
    pub fn penalise(&self, old_logprobs: &Ragged<f64>, ref_logprobs: &Ragged<f64>) -> KlPenalty {
        let of_row = |(old, reference): (&[f64], &[f64])| -> Vec<f64> {
            let tokens = old.iter().zip(reference);
            tokens.map(|(old, reference)| kl::value(self.estimator, *old, *reference)).collect()
        };
        let estimates: Ragged<f64> = old_logprobs.rows().zip(ref_logprobs.rows()).map(of_row).collect();
        let compared = estimates.rows().filter(|tokens| !tokens.is_empty());
        let means: Vec<f64> = compared.map(|tokens| tokens.iter().sum::<f64>() / tokens.len() as f64).collect();
        KlPenalty {
            penalties: estimates.map(|kl| self.coef * kl),
            mean_kl: means.iter().sum::<f64>() / means.len() as f64,
            coef: self.coef,
            completions: means.len(),
        }
    }

    /// Moves the weight after a batch of `completions` whose mean KL was `kl`; a fixed one stays. verl
    /// `AdaptiveKLController.update`.
    pub fn update(&mut self, kl: f64, completions: usize) {
        if self.kind == config::KlController::Adaptive && kl.is_finite() {
            let error = (kl / self.target - 1.0).clamp(-ERROR_LIMIT, ERROR_LIMIT);
            self.coef *= 1.0 + error * completions as f64 / self.horizon;
        }
    }
}
