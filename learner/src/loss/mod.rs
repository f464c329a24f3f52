//! The objective: from log-probs to per-token losses and their gradient.
//!
//! [`policy`] holds the policy terms, [`reduction`] what a token weighs; [`Objective`] puts them together. Everything is
//! float64 on `[N]` tensors: next to a forward pass that costs nothing.

pub mod policy;
pub mod reduction;

use std::ops::Range;

use shared::config::TrainConfig;
use tch::{Device, Kind, Tensor};

use crate::{error::LearnerError, kl};

/// Parameters of the GRPO objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// Clip range below. TRL `epsilon`.
    pub epsilon_low: f64,
    /// Clip range above. TRL `epsilon_high`.
    pub epsilon_high: f64,
    /// Weight of the KL term; 0 = none. TRL `beta`.
    pub beta: f64,
    /// Multiply the KL estimate by the importance ratio, which makes it unbiased off policy (DeepSeek-V3.2 eq. 6). TRL
    /// `use_bias_correction_kl`.
    pub bias_corrected_kl: bool,
}

impl Objective {
    /// The objective that a configuration asks for.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Self {
        Self {
            epsilon_low: config.epsilon,
            epsilon_high: config.epsilon_high.unwrap_or(config.epsilon),
            // In the reward or in the loss, never in both.
            beta: if config.use_kl_in_reward { 0.0 } else { config.beta },
            bias_corrected_kl: config.use_bias_correction_kl,
        }
    }

    /// Whether a completion with this advantage can contribute to the gradient at all.
    #[must_use]
    pub fn trains(&self, advantage: f64) -> bool {
        advantage != 0.0 || self.beta != 0.0
    }

    /// Losses of a run of tokens, before weighting. `logprobs_N` is the variable that is differentiated.
    ///
    /// # Panics
    /// When `beta` is not 0 and there are no reference log-probs.
    #[must_use]
    pub fn per_token(&self, logprobs_N: &Tensor, tokens: &Tokens) -> TokenLoss {
        let ratio_N = policy::ratio(logprobs_N, tokens.old_logprobs_N.as_ref());
        let mut loss_N = policy::clipped(&ratio_N, &tokens.advantages_N, self.epsilon_low, self.epsilon_high);
        if let Some(importance_N) = &tokens.importance_N {
            loss_N *= importance_N;
        }
        let kl_N = (self.beta != 0.0).then(|| {
            let reference_N = tokens.ref_logprobs_N.as_ref().expect("a KL term has reference log-probs");
            let kl_N = kl::k3(logprobs_N, reference_N);
            if self.bias_corrected_kl { kl_N * &ratio_N } else { kl_N }
        });
        if let Some(kl_N) = &kl_N {
            loss_N += kl_N * self.beta;
        }
        TokenLoss { loss_N, ratio_N, kl_N }
    }

    /// Weighted loss of a run of tokens and its derivative with respect to their log-probs.
    ///
    /// # Errors
    /// When libtorch refuses an operation.
    pub fn differentiate(&self, logprobs_N: &Tensor, tokens: &Tokens) -> Result<LossGradient, LearnerError> {
        tch::with_grad(|| {
            let variable_N = logprobs_N.detach().to_kind(Kind::Double).set_requires_grad(true);
            let TokenLoss { loss_N, kl_N, .. } = self.per_token(&variable_N, tokens);
            let loss = (loss_N * &tokens.weights_N).sum(None::<Kind>);
            let value = f64::try_from(&loss.detach())?;
            let slope_N = Tensor::f_run_backward(&[loss], &[&variable_N], false, false)?.remove(0);
            Ok(LossGradient { value, slope_N, kl_N: kl_N.map(|kl| kl.detach()) })
        })
    }
}

/// Weighted loss of a run of tokens.
#[derive(Debug)]
pub struct LossGradient {
    /// Sum over tokens of weight × loss.
    pub value: f64,
    /// Derivative with respect to each log-prob, `[N]`.
    pub slope_N: Tensor,
    /// KL estimate of each token, where there is a KL term, `[N]`.
    pub kl_N: Option<Tensor>,
}

/// Losses of a run of tokens, before weighting.
#[derive(Debug)]
pub struct TokenLoss {
    /// Policy term, times importance weight, plus KL term, `[N]`.
    pub loss_N: Tensor,
    /// Importance ratio to the old policy, `[N]`.
    pub ratio_N: Tensor,
    /// KL estimate (bias-corrected if asked for), `[N]`.
    pub kl_N: Option<Tensor>,
}

/// What the objective needs to know about a run of tokens; all `[N]` float64.
#[derive(Debug)]
pub struct Tokens {
    /// Log-probs under the policy that the step began with; absent = the current policy is that one.
    pub old_logprobs_N: Option<Tensor>,
    /// Log-probs under the reference policy.
    pub ref_logprobs_N: Option<Tensor>,
    /// Advantages.
    pub advantages_N: Tensor,
    /// Correction for the mismatch between sampler and learner; multiplies the policy term.
    pub importance_N: Option<Tensor>,
    /// Weights of the reduction.
    pub weights_N: Tensor,
}

impl Tokens {
    /// The run with the given numbers.
    #[must_use]
    pub fn slice(&self, run: Range<i64>) -> Self {
        let part = |x: &Tensor| x.narrow(0, run.start, run.end - run.start);
        Self {
            old_logprobs_N: self.old_logprobs_N.as_ref().map(part),
            ref_logprobs_N: self.ref_logprobs_N.as_ref().map(part),
            advantages_N: part(&self.advantages_N),
            importance_N: self.importance_N.as_ref().map(part),
            weights_N: part(&self.weights_N),
        }
    }

    /// Moves everything to a device.
    #[must_use]
    pub fn to_device(&self, device: Device) -> Self {
        Self {
            old_logprobs_N: self.old_logprobs_N.as_ref().map(|x| x.to_device(device)),
            ref_logprobs_N: self.ref_logprobs_N.as_ref().map(|x| x.to_device(device)),
            advantages_N: self.advantages_N.to_device(device),
            importance_N: self.importance_N.as_ref().map(|x| x.to_device(device)),
            weights_N: self.weights_N.to_device(device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reading the old log-probs off the first pass, instead of computing them, must not change a bit.
    #[test]
    fn on_policy_without_old_logprobs_is_the_same_as_with_them() {
        let objective = Objective { epsilon_low: 0.2, epsilon_high: 0.28, beta: 0.1, bias_corrected_kl: true };
        let logprobs_N = Tensor::from_slice(&[-0.3, -2.0, -7.5, -0.01]);
        let tokens = |old_logprobs_N| Tokens {
            old_logprobs_N,
            ref_logprobs_N: Some(Tensor::from_slice(&[-0.5, -1.0, -7.0, -0.02])),
            advantages_N: Tensor::from_slice(&[1.0, -1.0, 0.5, 0.0]),
            importance_N: None,
            weights_N: Tensor::from_slice(&[0.25, 0.25, 0.5, 0.5]),
        };
        let run = |old| {
            let found = objective.differentiate(&logprobs_N, &tokens(old)).unwrap();
            (found.value, Vec::<f64>::try_from(found.slope_N).unwrap())
        };
        assert_eq!(run(None), run(Some(logprobs_N.copy())));
    }

    /// Only the side on which the advantage pushes is clipped, and clip-higher moves that bound alone.
    #[test]
    fn clipping_is_one_sided() {
        let clipped = |ratio: f64, advantage: f64, high: f64| {
            let loss = policy::clipped(&Tensor::from_slice(&[ratio]), &Tensor::from_slice(&[advantage]), 0.2, high);
            loss.double_value(&[0])
        };
        assert_eq!(clipped(1.25, 1.0, 0.2), -1.2);
        assert_eq!(clipped(1.25, 1.0, 0.28), -1.25);
        assert_eq!(clipped(1.25, -1.0, 0.2), 1.25);
        assert_eq!(clipped(0.5, -1.0, 0.2), 0.8);
        assert_eq!(clipped(0.5, 1.0, 0.2), -0.5);
    }
}
